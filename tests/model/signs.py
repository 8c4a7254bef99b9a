"""Exceptions that end the model's reading of a case early."""

from __future__ import annotations

from typing import Any, Final

TIE_S: Final = 20e-6
"""Two events closer than this have no defined order: the case is not a fair one."""


class TieError(Exception):
    """The case decides nothing: two of its events happen at the same time."""


class ContinueSignal(BaseException):
    """`continue_as_new` was called."""

    def __init__(self, boot: Any) -> None:
        super().__init__()
        self.boot = boot


class RefusedSignal(BaseException):
    """The tree's budget has no slot for the spawns of these positions; `limit` has the reason."""

    def __init__(self, positions: list[str], limit: str) -> None:
        super().__init__()
        self.positions, self.limit = positions, limit
