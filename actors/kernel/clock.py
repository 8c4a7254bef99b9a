"""Time and chance as things that are handed in, so that tests and replay control them."""

from __future__ import annotations

from datetime import datetime
from typing import Protocol


class Clock(Protocol):
    """The runtime's source of time."""

    def now(self) -> datetime:
        """Return the current instant, aware and in UTC: the store's, where hosts share one.

        May step, ahead and back, when the clock that it shows does.
        """

    def monotonic(self) -> float:
        """Return seconds since an arbitrary start; never goes back."""


class Entropy(Protocol):
    """The runtime's source of randomness. A recorded value is drawn once, then replayed."""

    def random(self) -> float:
        """Return a float in [0, 1)."""

    def token(self) -> str:
        """Return 32 random hexadecimal digits."""
