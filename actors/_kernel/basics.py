"""Time and chance, which are handed in so that tests and replay control them.

Here are the clock, the source of randomness, pauses between attempts at something that fails, and the lengths
of time and the numbers that every clock, timer and database can keep.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from math import inf, isnan
from typing import Final, Protocol, TypeGuard

from actors.errors import MAX_WAIT_S, ContractError

MAX_INT: Final = 2**31 - 1
"""The greatest number that a column of the database can hold; the least one is its opposite."""


class Backoff:
    """Each pause is twice the one before, up to a longest; a success begins anew."""

    __slots__ = ("_first_s", "_longest_s", "pause_s")

    def __init__(self, first_s: float = 0.05, longest_s: float = 1.0) -> None:
        self._first_s, self._longest_s = first_s, longest_s
        self.pause_s = first_s
        """Seconds that `next_s` returns next."""

    def next_s(self) -> float:
        """Return how many seconds to wait now; the next pause is longer."""
        pause_s, self.pause_s = self.pause_s, min(2 * self.pause_s, self._longest_s)
        return pause_s

    def reset(self) -> None:
        """Begin again with the first pause, as an attempt succeeded."""
        self.pause_s = self._first_s


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


__all__ = ["MAX_WAIT_S", "bounded_s", "check_expiry_s", "check_s", "instant_of", "is_length"]

_DAY: Final = timedelta(days=1)
_FIRST: Final = datetime.min.replace(tzinfo=UTC) + _DAY
_LAST: Final = datetime.max.replace(tzinfo=UTC) - _DAY


def bounded_s(value: float) -> float:
    """Return a length of time within what can be waited for: from 0 to ten years."""
    return value if 0 <= value <= MAX_WAIT_S else 0.0 if value < 0 else MAX_WAIT_S


def instant_of(at: datetime) -> datetime:
    """Return an aware instant in UTC, a day from the ends of the calendar: those mean infinity to others."""
    try:
        return min(max(at.astimezone(UTC), _FIRST), _LAST)
    except OverflowError:  # beyond the calendar in UTC, as the end of year 9999 in the west is
        return _FIRST if at.year == 1 else _LAST


def is_length(value: object) -> TypeGuard[float]:
    """Return True if this is a number of seconds up to ten years, in either direction."""
    return isinstance(value, int | float) and -MAX_WAIT_S <= value <= MAX_WAIT_S


def check_s(what: str, value: float) -> float:
    """Return a length of time as a float of 0 to ten years; below 0 there is no wait.

    Raises:
        ContractError: It is longer, or no number.
    """
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError):
        number = inf
    if isnan(number) or number > MAX_WAIT_S:
        raw_value: object = value
        description = number if isinstance(raw_value, int | float) else repr(raw_value)[:40]
        msg = (
            f"{what} is {description}: give a number of seconds, up to {MAX_WAIT_S:.0f} (ten years)"
        )
        raise ContractError(msg)
    return max(0.0, number)


def check_expiry_s(expires_s: float) -> None:
    """Check that a URL may be valid for so many seconds.

    Raises:
        ContractError: It is no length of time above 0, of ten years at most.
    """
    if check_s("expires_s of a URL", expires_s) == 0:
        raise ContractError(f"a URL cannot be valid for {expires_s} s: give seconds above 0")


def check_number(what: str, value: object, *, low: int = -MAX_INT, high: int = MAX_INT) -> None:
    """Check that this is a whole number from `low` to `high`, by default one that fits into a column.

    Raises:
        ContractError: It is not.
    """
    if not isinstance(value, int) or not low <= value <= high:
        is_short = isinstance(value, int) and -(2**63) <= value < 2**63
        kind = f"a {type(value).__name__}" if not isinstance(value, float) else f"{value:.3g}"
        description = str(value) if is_short else kind
        raise ContractError(f"{what} is no whole number from {low} to {high}: {description}")
