"""Durable storage: runs, logs and inboxes in a database."""

__all__: list[str] = []
