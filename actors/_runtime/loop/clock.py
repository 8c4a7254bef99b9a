"""The machine's clock and randomness: the only reader of either."""

from __future__ import annotations

import random
import time
import uuid
from datetime import UTC, datetime


class SystemClock:
    """See `Clock`."""

    def now(self) -> datetime:
        """See `Clock.now`."""
        return datetime.now(UTC)

    def monotonic(self) -> float:
        """See `Clock.monotonic`."""
        return time.monotonic()


class SystemEntropy:
    """See `Entropy`."""

    def random(self) -> float:
        """See `Entropy.random`."""
        return random.random()

    def token(self) -> str:
        """See `Entropy.token`."""
        return uuid.uuid4().hex
