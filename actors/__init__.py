"""Durable actors for AI agents: what an author writes and tests with."""

__all__: list[str] = []
