"""Waiting in a host's memory: timers that are due soon, sleeping and idle runs. The rows are authoritative.

`Timers` is a heap of what is due soon. `Sleepers` has the agents whose runs sleep: 12 bytes for each.
`IdleRuns` counts the runs that wait in memory; they use no slot, and ready runs execute beside them.
`has_time_limit` finds time limits of asyncio around code that waits: they end with the task.
"""

from __future__ import annotations

import asyncio
import gc
import heapq
from array import array
from bisect import bisect_left
from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack, ExitStack
from datetime import datetime
from math import inf
from types import AsyncGeneratorType, CoroutineType, GeneratorType, MethodType
from typing import Any, Final

from actors._kernel.basics import Clock
from actors._kernel.runtime.ids import AgentId
from actors._kernel.runtime.waits import WakeSet

HORIZON_S: Final = 10.0
"""Timers due later are left to the next scan of the store."""

LEAD_S: Final = 0.05
"""Seconds before its time at which an evicted run is loaded: then only one commit is left to do."""

MAX_ARM_S: Final = 5.0
"""The longest time that the loop's timer is set for. Then the clock is read again, as it may have stepped."""


class Alarm:
    """Calls once when an instant of a clock has come; never early. Armed as soon as it is made.

    Args:
        clock: The clock that decides. However far it steps, that is noticed within `MAX_ARM_S`.
        at: The instant.
        ring: Function that is called on the running event loop.
    """

    __slots__ = ("_at", "_clock", "_handle", "_ring")

    def __init__(self, clock: Clock, at: datetime, ring: Callable[[], object]) -> None:
        self._clock, self._at, self._ring = clock, at, ring
        self._handle = self._arm()

    def _arm(self) -> asyncio.TimerHandle:
        remaining_s = (self._at - self._clock.now()).total_seconds()
        return asyncio.get_running_loop().call_later(
            min(max(remaining_s, 0.0), MAX_ARM_S), self._fire_due
        )

    def _fire_due(self) -> None:
        # The loop's timer counts another clock, and was set for `MAX_ARM_S` at most.
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
        self._pending: set[tuple[datetime, AgentId]] = set()
        self._alarm: Alarm | None = None

    def add(self, at: datetime, agent_id: AgentId) -> None:
        """Remember a timer, unless it is beyond the horizon or known."""
        item = (at, agent_id)
        if item in self._pending or (at - self._clock.now()).total_seconds() > HORIZON_S:
            return
        self._pending.add(item)
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
            self._pending.discard(item)
            self._fire(item[1])
        self._arm()

    def close(self) -> None:
        """Drop all timers."""
        self._heap.clear()
        self._pending.clear()
        if self._alarm is not None:
            self._alarm.cancel()
            self._alarm = None


class Sleepers:
    """A set of agents, each with the priority of its run.

    An agent is known by the 64-bit hash of its text, in sorted arrays. Two agents with one hash count as
    one: when one of them wakes, the other would be taken for free. Among a million agents of one shard the
    chance of such a pair is less than 1 in 30 million. Nobody can choose such names, since Python's hash has
    a random key in each process (unless `PYTHONHASHSEED` is set).
    """

    __slots__ = ("_hashes", "_priorities")

    def __init__(self) -> None:
        self._hashes, self._priorities = array("q"), array("i")

    def __len__(self) -> int:
        return len(self._hashes)

    def add(self, agent: str, priority: int) -> None:
        """Put in an agent; if it is there, its priority changes."""
        key = hash(agent)
        index = bisect_left(self._hashes, key)
        if self._is_at(index, key):
            self._priorities[index] = priority
        else:
            self._hashes.insert(index, key)
            self._priorities.insert(index, priority)

    def update(self, agents: Mapping[str, int]) -> None:
        """Put in many agents at once."""
        priorities = dict(zip(self._hashes, self._priorities, strict=True))
        priorities.update((hash(agent), priority) for agent, priority in agents.items())
        self._hashes = array("q", sorted(priorities))
        self._priorities = array("i", map(priorities.__getitem__, self._hashes))

    def pop(self, agent: str) -> int | None:
        """Take out an agent and return its priority; None if it is not there."""
        key = hash(agent)
        index = bisect_left(self._hashes, key)
        if not self._is_at(index, key):
            return None
        self._hashes.pop(index)
        return self._priorities.pop(index)

    def _is_at(self, index: int, key: int) -> bool:
        return index < len(self._hashes) and self._hashes[index] == key


IDLE_PER_SLOT: Final = 2
"""Number of runs that may wait in memory for each slot."""
MAX_IDLE_FOR_SIGNALS: Final = 64
"""Number of runs that may wait in memory for signals and times alone: people and calendars take long."""

SLEEPER_LIMIT_S: Final = 0.1
"""Seconds that a run with a long sleep stays in memory: there it sees a cancellation at once."""
FEW: Final = 16
"""If a run has no more waits than this, their ends are computed whenever the run becomes idle."""


def idle_limit_s(wake: WakeSet, now: datetime, limit_s: float) -> float:
    """Return how many seconds a run may wait in memory for this: a moment, if it sleeps beyond the limit."""
    if wake.at is None or wake.signals or (wake.at - now).total_seconds() <= limit_s:
        return limit_s
    return min(limit_s, SLEEPER_LIMIT_S)


class IdleRuns:
    """The count of a host's runs that wait in memory.

    Args:
        limit: Maximum number of runs that may wait in memory. A run above it is evicted at once.

    Attributes:
        count: Number of runs that wait in memory now.
        on_idle: Called when another run begins to wait in memory, which frees its slot.
    """

    def __init__(self, limit: int = 0) -> None:
        self._limit = limit
        self.count: int = 0
        self.on_idle: Callable[[], None] = lambda: None

    def enter(self, *, awaits_others: bool = True) -> bool:
        """Note that a run waits; return True if it may stay in memory.

        With `awaits_others` an answer or a message may end the wait, which most often comes soon.
        """
        self.count += 1
        self.on_idle()
        limit = self._limit if awaits_others else min(self._limit, MAX_IDLE_FOR_SIGNALS)
        return self.count <= limit

    def leave(self) -> None:
        """Note that a run continues or is evicted. It needs no slot for that."""
        self.count -= 1


_GENERATORS: Final = (GeneratorType, AsyncGeneratorType)


def has_time_limit(task: asyncio.Task[Any]) -> bool:
    """Return True if the code of a task waits within `asyncio.timeout`, or a limit that is made of it.

    Python keeps no list of them. Each is on the stack of a frame, as the end of the block that the frame is in.
    """
    code = task.get_coro()
    return isinstance(code, CoroutineType) and _is_limited(code)


def _is_limited(code: object) -> bool:
    """Return True if one of the frames from here to the innermost has a block with a time limit."""
    awaitable: object = code
    while awaitable is not None:
        if any(map(_limits, gc.get_referents(awaitable))):
            return True
        awaitable = getattr(awaitable, "cr_await", None) or getattr(awaitable, "gi_yieldfrom", None)
    return False


def _limits(item: object) -> bool:
    manager = item.__self__ if type(item) is MethodType else item
    kind = type(manager)
    if isinstance(manager, asyncio.Timeout):
        # A variable may still refer to one that is over, which only its text tells apart.
        return manager.when() is not None and "[active]" in repr(manager)
    if kind is ExitStack or kind is AsyncExitStack:
        return any(_limits(end) for _, end in getattr(manager, "_exit_callbacks", ()))
    if kind.__module__ == "contextlib":  # a block that a generator makes
        inner = getattr(manager, "gen", None)
        return isinstance(inner, _GENERATORS) and _is_limited(inner)
    is_scope = kind.__name__ == "CancelScope" and kind.__module__.startswith("anyio")
    return is_scope and getattr(manager, "deadline", inf) < inf
