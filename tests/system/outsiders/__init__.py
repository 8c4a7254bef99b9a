"""Services that are no hosts: over NATS alone, honest, hostile and lost."""
