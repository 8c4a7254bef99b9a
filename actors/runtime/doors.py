"""Doors: ways by which programs that are no hosts come to a runtime."""

from __future__ import annotations

from typing import Protocol


class Door(Protocol):
    """Serves requests over a line of its own while the runtime runs. See `Runtime.attach`."""

    async def run(self) -> None:
        """Serve until cancelled; whatever happens to the line, it is opened again."""
        ...

    async def leave(self) -> None:
        """Take nothing new from now on, so that other hosts get it; go on with what is held."""
        ...

    async def shut(self) -> None:
        """Tell whoever still waits to ask another host, and close the line; within seconds."""
        ...
