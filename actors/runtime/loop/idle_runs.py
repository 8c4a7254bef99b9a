"""Runs that wait in a host's memory. They use no slot: ready runs execute beside them."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import Final

from actors.kernel.runtime.waits import WakeSet

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
        self.count = 0
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
