"""Durable storage: runs, logs and inboxes in a database."""

from actors._exports import understand_moved_paths

understand_moved_paths()

__all__: list[str] = []
