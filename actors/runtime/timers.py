"""Timers of waiting runs that are due soon: a heap in memory over rows that are the truth."""

from __future__ import annotations

import asyncio
import heapq
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable
    from datetime import datetime

    from actors.kernel.clock import Clock
    from actors.kernel.runtime.ids import AgentId

HORIZON_S: Final = 10.0
"""Timers due later are left to the next scan of the store."""

LEAD_S: Final = 0.05
"""How long before its time a run that left memory is loaded: what is left to do then is one commit."""


class Timers:
    """Calls back when an agent's waiting run is due; never early. Late entries are harmless."""

    def __init__(self, clock: Clock, fire: Callable[[AgentId], None]) -> None:
        self._clock = clock
        self._fire = fire
        self._heap: list[tuple[datetime, AgentId]] = []
        self._known: set[tuple[datetime, AgentId]] = set()
        self._handle: asyncio.TimerHandle | None = None

    def add(self, at: datetime, agent_id: AgentId) -> None:
        """Remember a timer, unless it is beyond the horizon or known."""
        item = (at, agent_id)
        if item in self._known or (at - self._clock.now()).total_seconds() > HORIZON_S:
            return
        self._known.add(item)
        heapq.heappush(self._heap, item)
        if self._heap[0] is item:
            self._arm()

    def _arm(self) -> None:
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None
        if self._heap:
            delay = (self._heap[0][0] - self._clock.now()).total_seconds()
            loop = asyncio.get_running_loop()
            self._handle = loop.call_later(max(delay, 0.0), self._ring)

    def _ring(self) -> None:
        self._handle = None
        now = self._clock.now()
        while self._heap and self._heap[0][0] <= now:
            item = heapq.heappop(self._heap)
            self._known.discard(item)
            self._fire(item[1])
        self._arm()

    def close(self) -> None:
        """Forget everything."""
        self._heap.clear()
        self._known.clear()
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None
