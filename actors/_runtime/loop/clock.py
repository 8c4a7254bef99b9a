"""The machine's clock and randomness: the only reader of either."""

from __future__ import annotations

import random
import time
import uuid
from datetime import UTC, datetime


class SystemClock:
    """The `Clock` of the machine."""

    def now(self) -> datetime:
        """Return the machine's time, aware UTC. It may step."""
        return datetime.now(UTC)

    def monotonic(self) -> float:
        """Return seconds since some instant; never less than before."""
        return time.monotonic()


class SystemEntropy:
    """The `Entropy` of the machine."""

    def random(self) -> float:
        """Return a random number in [0, 1)."""
        return random.random()

    def token(self) -> str:
        """Return 32 random hexadecimal digits."""
        return uuid.uuid4().hex
