"""Counts of values by size: what a process keeps of a quantity it measures often."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from typing import Final

SECONDS: Final = (
    0.001,
    0.0025,
    0.005,
    0.01,
    0.025,
    0.05,
    0.1,
    0.25,
    0.5,
    1.0,
    2.5,
    5.0,
    10.0,
    60.0,
)
"""Buckets for times to wait."""

SIZES: Final = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)
"""Buckets for how many were done together."""


class Histogram:
    """A histogram with fixed buckets; grows from the start of the process and is never reset.

    Attributes:
        bounds: Upper ends of the buckets, inclusive, rising; one more bucket holds what is above.
        counts: Number of values in each bucket, the last one included: not cumulative.
        total: Sum of all values.
    """

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds: tuple[float, ...] = tuple(bounds)
        self.counts: list[int] = [0] * (len(self.bounds) + 1)
        self.total: float = 0.0

    def observe(self, value: float) -> None:
        """Count one value."""
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value

    @property
    def count(self) -> int:
        """The number of observed values."""
        return sum(self.counts)
