"""Timers of waiting runs that are due soon: a heap in memory. The rows are authoritative."""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Callable
from datetime import datetime
from typing import Final

from actors.kernel.basics import Clock
from actors.kernel.runtime.ids import AgentId

HORIZON_S: Final = 10.0
"""Timers due later are left to the next scan of the store."""

LEAD_S: Final = 0.05
"""Seconds before its time at which an evicted run is loaded: then only one commit is left to do."""

MAX_ARM_S: Final = 5.0
"""The longest time that the loop's timer is set for. Then the clock is read again, as it may have stepped."""


class Alarm:
    """Calls once when an instant of a clock has come; never early. Armed as soon as it is made.

    Args:
        clock: Decides. However far it steps, that is noticed within `MAX_ARM_S`.
        at: The instant.
        ring: What is called, on the running event loop.
    """

    __slots__ = ("_at", "_clock", "_handle", "_ring")

    def __init__(self, clock: Clock, at: datetime, ring: Callable[[], object]) -> None:
        self._clock, self._at, self._ring = clock, at, ring
        self._handle = self._arm()

    def _arm(self) -> asyncio.TimerHandle:
        left_s = (self._at - self._clock.now()).total_seconds()
        return asyncio.get_running_loop().call_later(
            min(max(left_s, 0.0), MAX_ARM_S), self._fire_due
        )

    def _fire_due(self) -> None:
        if self._clock.now() < self._at:
            self._handle = self._arm()
        else:
            self._handle.cancel()  # it keeps what it called, which is this: a cycle
            self._ring()

    def cancel(self) -> None:
        """Stop the timer: nothing is called any more."""
        self._handle.cancel()


class Timers:
    """Calls back when an agent's waiting run is due; never early. Late entries are harmless."""

    def __init__(self, clock: Clock, fire: Callable[[AgentId], None]) -> None:
        self._clock = clock
        self._fire = fire
        self._heap: list[tuple[datetime, AgentId]] = []
        self._known: set[tuple[datetime, AgentId]] = set()
        self._alarm: Alarm | None = None

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
        if self._alarm is not None:
            self._alarm.cancel()
            self._alarm = None
        if self._heap:
            self._alarm = Alarm(self._clock, self._heap[0][0], self._ring)

    def _ring(self) -> None:
        self._alarm = None
        now = self._clock.now()
        while self._heap and self._heap[0][0] <= now:
            item = heapq.heappop(self._heap)
            self._known.discard(item)
            self._fire(item[1])
        self._arm()

    def close(self) -> None:
        """Drop all timers."""
        self._heap.clear()
        self._known.clear()
        if self._alarm is not None:
            self._alarm.cancel()
            self._alarm = None
