"""The control signal of `ctx.continue_as_new`."""

from __future__ import annotations

from actors.kernel.json import JsonValue


class ContinueAsNew(BaseException):
    """The run starts again from the top with `input`. Let it pass."""

    def __init__(self, input: JsonValue) -> None:  # noqa: A002
        super().__init__(input)
        self.input = input
