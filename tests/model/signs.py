"""What ends the model's reading of a case early."""

from __future__ import annotations

from typing import Any


class TieError(Exception):
    """The case decides nothing: two of its events happen at the same time."""


class ContinueSignal(BaseException):
    """`continue_as_new` was called."""

    def __init__(self, boot: Any) -> None:
        super().__init__()
        self.boot = boot
