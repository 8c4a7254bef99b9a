"""The journal and the histories of `persistence.redis`."""
