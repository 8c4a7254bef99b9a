"""What is in flight: messages between actors over NATS JetStream."""

__all__: list[str] = []
