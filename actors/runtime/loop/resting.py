"""Runs that wait in a host's memory. They use no slot: ready runs execute beside them."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import Final

from actors.kernel.runtime.wakeup import WakeSet

ROOM_PER_PLACE: Final = 2
"""Runs that may wait in memory, for each run that may execute."""
ROOM_FOR_SIGNALS: Final = 64
"""How many may while they wait for signals and times alone: people and calendars take long."""

SLEEPER_STAYS_S: Final = 0.1
"""A run that sleeps for long stays so long: what cancels it from outside is seen in memory alone."""
FEW: Final = 16
"""Of no more waits it is looked at, whenever a run comes to rest, when they end."""


def stays_s(wake: WakeSet, now: datetime, limit_s: float) -> float:
    """Return how many seconds a run may wait in memory for this: a moment, if it sleeps beyond the limit."""
    if wake.at is None or wake.signals or (wake.at - now).total_seconds() <= limit_s:
        return limit_s
    return min(limit_s, SLEEPER_STAYS_S)


class RestingRuns:
    """The count of a host's runs that wait in memory.

    Args:
        room: How many may. One that comes to rest above that leaves memory at once.

    Attributes:
        count: How many do now.
        on_rest: Called when one more does: its place is free.
    """

    def __init__(self, room: int = 0) -> None:
        self._room = room
        self.count = 0
        self.on_rest: Callable[[], None] = lambda: None

    def enter(self, *, awaits_others: bool = True) -> bool:
        """A run comes to rest; return whether it may stay in memory.

        With `awaits_others` an answer or a message may end the wait, which most often comes soon.
        """
        self.count += 1
        self.on_rest()
        room = self._room if awaits_others else min(self._room, ROOM_FOR_SIGNALS)
        return self.count <= room

    def leave(self) -> None:
        """Note that a run continues or leaves memory. It needs no slot for that."""
        self.count -= 1
