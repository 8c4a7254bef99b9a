"""How long things took, for people."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from actors.runtime.clock import SystemClock

if TYPE_CHECKING:
    from datetime import datetime

_STEPS: Final = ((86_400, "d", 3600, "h"), (3600, "h", 60, "min"), (60, "min", 1, "s"))


def between(begin: datetime | None, end: datetime | None) -> float:
    """Return the seconds from `begin` to `end`, or to now; never below 0."""
    if begin is None:
        return 0.0
    return round(max(0.0, ((end or SystemClock().now()) - begin).total_seconds()), 3)


def seconds_text(seconds: float) -> str:
    """Return a length of time as ``12 ms``, ``3.4 s``, ``5 min 10 s``, ``2 h 5 min`` or ``3 d 4 h``."""
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 60:  # noqa: PLR2004 - a minute
        return f"{seconds:.1f} s"
    whole = int(seconds)
    size, unit, lower, lower_unit = next(step for step in _STEPS if whole >= step[0])
    rest = whole % size // lower
    return f"{whole // size} {unit}" + (f" {rest} {lower_unit}" if rest else "")
