"""Large numbers of random cases."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, TypeVar

from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import seed as hypothesis_seed

if TYPE_CHECKING:
    from collections.abc import Callable

    from hypothesis.strategies import SearchStrategy

T = TypeVar("T")


class _FoundError(BaseException):
    """Ends the drawing; any other exception would be a failure to draw again."""


def drawn_cases(strategy: SearchStrategy[T], count: int, seed: int) -> list[T]:
    """Return this many random cases; the same for the same seed."""
    cases: list[T] = []
    _draw(strategy, count, seed, cases.append)
    return cases


def first_drawn(
    strategy: SearchStrategy[T], count: int, seed: int, matches: Callable[[T], bool]
) -> T | None:
    """Return the first matching one of `drawn_cases`, and draw none after it."""
    matching_cases: list[T] = []

    def look(case: T) -> None:
        if matches(case):
            matching_cases.append(case)
            raise _FoundError

    with suppress(_FoundError):
        _draw(strategy, count, seed, look)
    return matching_cases[0] if matching_cases else None


def _draw(strategy: SearchStrategy[T], count: int, seed: int, take: Callable[[T], None]) -> None:

    @hypothesis_seed(seed)
    @settings(
        max_examples=count,
        deadline=None,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(strategy)
    def draw(case: T) -> None:
        take(case)

    draw()
