"""The session events of a run and of the runs below it, as they come."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from typing import Any, Final

from actors.errors import ActorsError
from actors.sessions.events import SessionEvent
from actors.sessions.feed import Ahead

MAX_FOLLOWED: Final = 32
"""Number of runs below that are read at once. Of others only starts and ends are sent."""
_log = logging.getLogger("callboard.web")


class EventSources:
    """The events of a run, and of those below it while they go on.

    The end of a run below comes behind all of its own events.

    Args:
        root: Events of the run, up to its last one.
        follow: Returns the events of a run below it.
    """

    def __init__(
        self,
        root: AsyncGenerator[SessionEvent, None],
        follow: Callable[[str], AsyncIterator[SessionEvent]],
    ) -> None:
        self._follow = follow
        self._sources: dict[str, Ahead[SessionEvent]] = {"": Ahead(root)}
        self._held: dict[str, SessionEvent] = {}
        """Ends of runs below that are still read, by the source that sent them."""

    @property
    def followed(self) -> list[str]:
        """Ids of runs below that are read just now."""
        return [key for key in self._sources if key]

    async def next(self, timeout_s: float | None) -> SessionEvent | None:
        """Return the next event; None: there was none for so long.

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
                self._sources[said["child"]] = Ahead(self._follow(said["child"]))
            elif event.type == "child_finished" and said["child"] in self._sources:
                self._held[ready] = event
                continue
            return event

    async def _ready(self, timeout_s: float | None) -> str | None:
        """Return a source that has an event, or has ended; those below first."""
        free = [key for key in reversed(self._sources) if key not in self._held]
        tasks = {key: self._sources[key].next() for key in free}
        if not any(task.done() for task in tasks.values()):
            await asyncio.wait(
                tasks.values(), timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED
            )
        return next((key for key in free if tasks[key].done()), None)

    async def _take(self, key: str) -> SessionEvent | None:
        """Return the event of a source; at its end the one that was held for it, or None."""
        try:
            return await self._sources[key].take()
        except StopAsyncIteration:
            if not key:
                raise
        except ActorsError as exc:
            if not key:
                raise
            _log.info("a run below cannot be read", extra={"run": key, "error": str(exc)})
        await self._sources.pop(key).aclose()
        for source, event in self._held.items():
            said: Any = event.payload
            if said["child"] == key:
                del self._held[source]
                return event
        return None

    async def aclose(self) -> None:
        """Stop reading."""
        for source in self._sources.values():
            await source.aclose()
