"""Limits of a window in addition to those of its strategies: reserved tokens, and a provider's maximum."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from math import inf

_limits: ContextVar[tuple[int, float]] = ContextVar("callboard_window_limits", default=(0, inf))


@contextmanager
def reserving(tokens: int, *, at_most: float = inf) -> Iterator[None]:
    """Reduce token budgets inside the block.

    Args:
        tokens: Number of tokens that are reserved for instructions, tool schemas and the answer.
        at_most: Maximum size of the turns in tokens, even if a budget is larger.
    """
    token = _limits.set((tokens, at_most))
    try:
        yield
    finally:
        _limits.reset(token)


def limited(budget: int) -> int:
    """Return the tokens that turns may have under a budget, after the reserve and the maximum: at least 1."""
    reserved, at_most = _limits.get()
    return max(int(min(budget - reserved, at_most)), 1)
