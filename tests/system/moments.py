"""The two moments at which a host is killed at a write: just before it, and just after it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from tests.harness.slow import IS_SLOW

if TYPE_CHECKING:
    from collections.abc import Sequence

MOMENTS: Final = ("before", "after")


def with_moments(points: Sequence[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    """Return each point with a moment, in turn; with `CALLBOARD_TEST_SLOW=1` each with both.

    The servers' state just after a write is their state just before the next one: half of the
    moments cover nearly all states.
    """
    if IS_SLOW:
        return [(*point, moment) for point in points for moment in MOMENTS]
    return [(*point, MOMENTS[n % 2]) for n, point in enumerate(points)]
