"""The database's clock as this process knows it: its last answer, and monotonic time since."""

from __future__ import annotations

import time
from datetime import datetime, timedelta
from typing import Final, LiteralString, NamedTuple

from persistence.postgres.connection.link import Link

SQL_READ_CLOCK: Final[LiteralString] = "select present() as now"

DRIFT_S: Final = 0.001
"""Seconds by which two good clocks differ after one heartbeat interval, at most."""

SLEWED_S: Final = 1.0
"""Seconds by which this clock may be ahead and then runs at half speed. More: the other one jumped."""


class Reading(NamedTuple):
    """A reading of the database's clock, and the times of `time.monotonic` before and after it."""

    now: datetime
    asked: float
    answered: float


async def read_clock(link: Link) -> Reading:
    """Ask the database what time it is."""
    asked = time.monotonic()
    [row] = await link.fetch("reading the clock", SQL_READ_CLOCK)
    return Reading(row["now"], asked, time.monotonic())


class PostgresClock:
    """See `Clock`. The machine's wall clock has no part in it.

    It shows a lower bound of the database's time: an instant that has passed here has passed there. An
    instant that a statement reported as passed has passed here, too. A new reading changes the clock only if
    it contradicts the time shown. The clock jumps back only by `SLEWED_S` or more. Any thread may use it.

    Args:
        first: The database was asked once already.
    """

    def __init__(self, first: Reading) -> None:
        self._shown = _Shown(first.now, first.answered)

    def now(self) -> datetime:
        """See `Clock.now`. The time jumps if the database's clock jumps, or if another server replaces it."""
        return self._shown.at(time.monotonic())

    def monotonic(self) -> float:
        """See `Clock.monotonic`."""
        return time.monotonic()

    def observe(self, reading: Reading) -> None:
        """Adjust to a reading of the database's clock. A slow answer gives a lower bound, too."""
        self._shown = self._shown.agreeing(reading)


class _Shown(NamedTuple):
    """`base` at the monotonic time `since`, and so much more, which it loses while time goes on."""

    base: datetime
    since: float
    ahead_s: float = 0.0

    def at(self, when: float) -> datetime:
        passed_s = when - self.since
        lost_s = min(max(passed_s / 2, 0.0), self.ahead_s)
        return self.base + timedelta(seconds=passed_s + self.ahead_s - lost_s)

    def agreeing(self, reading: Reading) -> _Shown:
        """Return what is shown from now on.

        When the answer came the database's clock showed `reading.now` at least, and at most the
        round trip more.
        """
        over_s = (self.at(reading.answered) - reading.now).total_seconds()
        if 0 <= over_s <= reading.answered - reading.asked + DRIFT_S:
            return self
        return _Shown(reading.now, reading.answered, over_s if 0 < over_s < SLEWED_S else 0.0)
