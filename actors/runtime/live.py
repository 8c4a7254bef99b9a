"""Live events of runs executing here: pieces of a model's answer. Never stored."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from actors.kernel.agent.llm import Completion, ReasoningDelta
from actors.kernel.runtime.log_entry import EntryKind, RunLogEntry
from actors.runtime.tasks import TaskScope

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from actors.kernel.agent.llm import StreamEvent
    from actors.kernel.clock import Clock
    from actors.kernel.runtime.ids import RunId

MAX_BUFFERED: Final = 10_000
"""Events a slow reader may be behind; older ones are dropped, the run is never slowed."""


class LiveEvents:
    """Who listens to which run, in this process."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._readers: dict[RunId, set[asyncio.Queue[RunLogEntry | None]]] = {}

    def publish(self, run_id: RunId, event: StreamEvent) -> None:
        """Hand an event to everybody who listens; returns at once."""
        readers = self._readers.get(run_id)
        if not readers or isinstance(event, Completion):
            return
        is_reasoning = isinstance(event, ReasoningDelta)
        kind = EntryKind.REASONING_DELTA if is_reasoning else EntryKind.TEXT_DELTA
        entry = RunLogEntry(run_id, -1, kind, "", {"text": event.text}, self._clock.now())
        for queue in readers:
            if queue.full():
                queue.get_nowait()
            queue.put_nowait(entry)

    async def merge(
        self, run_id: RunId, log: AsyncIterator[RunLogEntry]
    ) -> AsyncIterator[RunLogEntry]:
        """Yield the log's entries and, between them as they come, live ones; these have seq -1."""
        queue: asyncio.Queue[RunLogEntry | None] = asyncio.Queue(MAX_BUFFERED)

        async def follow() -> None:
            try:
                async for entry in log:
                    await queue.put(entry)
            finally:
                queue.put_nowait(None)

        readers = self._readers.setdefault(run_id, set())
        readers.add(queue)
        try:
            async with TaskScope() as scope:
                scope.start(follow(), name=f"tail {run_id}")
                while (item := await queue.get()) is not None:
                    yield item
        finally:
            readers.discard(queue)
            if not readers:
                self._readers.pop(run_id, None)
