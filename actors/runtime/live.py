"""Live events of runs executing here: pieces of a model's answer. Never stored."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from actors.kernel.agent.llm import StreamEvent
    from actors.kernel.runtime.ids import RunId

MAX_BUFFERED: Final = 10_000
"""Events a slow reader may be behind; older ones are dropped, the run is never slowed."""


class LiveEvents:
    """Who listens to which run."""

    def __init__(self) -> None:
        self._readers: dict[RunId, set[asyncio.Queue[StreamEvent]]] = {}

    def publish(self, run_id: RunId, event: StreamEvent) -> None:
        """Hand an event to everybody who listens; returns at once."""
        for queue in self._readers.get(run_id, ()):
            if queue.full():
                queue.get_nowait()
            queue.put_nowait(event)

    async def listen(self, run_id: RunId) -> AsyncIterator[StreamEvent]:
        """Yield events from now on, until the reader stops."""
        queue: asyncio.Queue[StreamEvent] = asyncio.Queue(MAX_BUFFERED)
        readers = self._readers.setdefault(run_id, set())
        readers.add(queue)
        try:
            while True:
                yield await queue.get()
        finally:
            readers.discard(queue)
            if not readers:
                self._readers.pop(run_id, None)
