"""The in-memory parts, and the views that give every store the sources' Protocols."""

__all__: list[str] = []
