"""A clock that tests move."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta


class ManualClock:
    """See `Clock`. Stands still until `advance`."""

    def __init__(self) -> None:
        self._start = datetime(2030, 1, 1, tzinfo=UTC)
        self._passed_s = 0.0

    def now(self) -> datetime:
        """See `Clock.now`."""
        return self._start + timedelta(seconds=self._passed_s)

    def monotonic(self) -> float:
        """See `Clock.monotonic`."""
        return self._passed_s

    def advance(self, seconds: float) -> None:
        """Let so many seconds pass."""
        self._passed_s += seconds
