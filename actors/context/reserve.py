"""Limits of a window beside those of its strategies: what is sent with the turns, what a provider refused."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from math import inf

_limits: ContextVar[tuple[int, float]] = ContextVar("callboard_window_limits", default=(0, inf))


@contextmanager
def reserving(tokens: int, *, at_most: float = inf) -> Iterator[None]:
    """Let budgets be smaller inside the block.

    Args:
        tokens: Left free: for instructions, tool schemas and the answer.
        at_most: Maximum size of the turns, whatever a budget allows.
    """
    token = _limits.set((tokens, at_most))
    try:
        yield
    finally:
        _limits.reset(token)


def limited(budget: int) -> int:
    """Return how many tokens the turns may have where a strategy would allow so many, 1 at least."""
    reserved, at_most = _limits.get()
    return max(int(min(budget - reserved, at_most)), 1)
