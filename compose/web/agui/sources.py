"""The merged session events of a run and its descendants, as they arrive."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from typing import Any, Final

from actors.errors import ActorsError
from actors.runtime.loop.tasks import Ahead
from actors.sessions.events import SessionEvent

MAX_FOLLOWED: Final = 32
"""Maximum number of descendants that are read at once. For further ones only start and end are sent."""
_log = logging.getLogger("callboard.web")


class EventSources:
    """Session events of a run, and of its descendants while they are open.

    The end of a descendant is returned after all of its own events.

    Args:
        root: Events of the run, up to its last one.
        follow: Returns the events of a descendant.
    """

    def __init__(
        self,
        root: AsyncGenerator[SessionEvent, None],
        follow: Callable[[str], AsyncIterator[SessionEvent]],
    ) -> None:
        self._follow = follow
        self._news = asyncio.Event()
        self._sources: dict[str, Ahead[SessionEvent]] = {"": Ahead(root, self._news)}
        self._held: dict[str, SessionEvent] = {}
        """End events of descendants that are still read, by the source that sent them."""

    @property
    def followed(self) -> list[str]:
        """Ids of the descendants that are being read."""
        return [key for key in self._sources if key]

    async def next(self, timeout_s: float | None) -> SessionEvent | None:
        """Return the next event; None if there was none for `timeout_s` seconds.

        Raises:
            StopAsyncIteration: The run has ended.
        """
        while True:
            ready = await self._ready(timeout_s)
            if ready is None:
                return None
            event = await self._take(ready)
            if event is None:
                continue
            said: Any = event.payload
            if event.type == "child_started" and len(self._sources) <= MAX_FOLLOWED:
                child = self._follow(said["child"])
                self._sources[said["child"]] = Ahead(child, self._news)
            elif event.type == "child_finished" and said["child"] in self._sources:
                self._held[ready] = event
                continue
            return event

    async def _ready(self, timeout_s: float | None) -> str | None:
        """Return a source that has an event or has ended, descendants first; None at the timeout."""
        free = [key for key in reversed(self._sources) if key not in self._held]
        try:
            async with asyncio.timeout(timeout_s):
                while True:
                    ready = [key for key in free if self._sources[key].has_next()]
                    if ready:
                        return ready[0]
                    self._news.clear()
                    await self._news.wait()
        except TimeoutError:
            return None

    async def _take(self, key: str) -> SessionEvent | None:
        """Return the event of a source. At the source's end return the end event held for it, or None."""
        try:
            return await self._sources[key].take()
        except StopAsyncIteration:
            if not key:
                raise
        except ActorsError as exc:
            if not key:
                raise
            _log.info("a descendant run cannot be read", extra={"run": key, "error": str(exc)})
        await self._sources.pop(key).aclose()
        for source, event in self._held.items():
            said: Any = event.payload
            if said["child"] == key:
                del self._held[source]
                return event
        return None

    async def aclose(self) -> None:
        """Stop all reads."""
        for source in self._sources.values():
            await source.aclose()
