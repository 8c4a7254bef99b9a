"""Random cases in numbers, for those who play many at a time."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import seed as hypothesis_seed

if TYPE_CHECKING:
    from hypothesis.strategies import SearchStrategy

T = TypeVar("T")


def drawn_cases(strategy: SearchStrategy[T], count: int, seed: int) -> list[T]:
    """Return so many random cases; the same for the same seed."""
    cases: list[T] = []

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
        cases.append(case)

    draw()
    return cases
