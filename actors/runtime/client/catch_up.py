"""The order of an answer's pieces from other processes, for a reader who joins in the middle of it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final, Self

from actors.kernel.runtime.hints import Delta

HOLD_S: Final = 1.0
"""Seconds that pieces after a gap wait for the whole answer, which an old host, or a dead one, never sends."""


class CatchUp:
    """Shows each piece once, in order: pieces after a gap are shown when the text before them has come.

    Args:
        show: Called with the next piece.
    """

    def __init__(self, show: Callable[[Delta], None]) -> None:
        self._show = show
        self._next: dict[str, tuple[int, int]] = {}
        """Attempt and number of the next piece, by the position of the model call."""
        self._held: list[Delta] = []
        self._timer: asyncio.TimerHandle | None = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        self._stop()

    def take(self, delta: Delta | None) -> None:
        """Show a piece, hold it, or drop what was shown; None: the whole answers are there."""
        if delta is None:
            self._release()
        elif delta.kind == "custom.delta":
            self._show(delta)
        else:
            place, wanted = (delta.attempt, delta.n), self._wanted(delta)
            if delta.n == 0 and not delta.is_whole:
                self._held = [one for one in self._held if one.position != delta.position]
                self._pass(delta)
            elif place == wanted or (delta.is_whole and place > wanted):
                self._pass(delta)
            elif place > wanted:
                self._hold(delta)

    def _wanted(self, delta: Delta) -> tuple[int, int]:
        return self._next.get(delta.position, (0, 0))

    def _pass(self, delta: Delta) -> None:
        self._next[delta.position] = (delta.attempt, delta.n + 1)
        self._show(delta)

    def _hold(self, delta: Delta) -> None:
        self._held.append(delta)
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(HOLD_S, self._release)

    def _release(self) -> None:
        self._stop()
        held, self._held = self._held, []
        for delta in held:
            if (delta.attempt, delta.n) >= self._wanted(delta):
                self._pass(delta)

    def _stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
