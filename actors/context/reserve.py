"""Tokens of a model's window that no turn may have: they belong to what is sent beside the turns."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

_reserved: ContextVar[int] = ContextVar("callboard_reserved_tokens", default=0)


@contextmanager
def reserving(tokens: int) -> Iterator[None]:
    """Let budgets be so much smaller inside the block: for instructions, tool schemas and the answer."""
    token = _reserved.set(tokens)
    try:
        yield
    finally:
        _reserved.reset(token)


def reserved_tokens() -> int:
    """Return how many tokens budgets have to leave free now."""
    return _reserved.get()
