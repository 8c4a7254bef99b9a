"""A limit on the branches that continue before the event loop gets its turn."""

from __future__ import annotations

import asyncio
from typing import Final

MOVES: Final = 100
"""Number of branches that continue between two passes of the event loop."""


class Pace:
    """The order in which branches continue. After every `MOVES` of them the other tasks of the loop run."""

    def __init__(self) -> None:
        self._left = MOVES
        self._held: list[tuple[asyncio.Future[None], BaseException | None]] = []

    def let(self, future: asyncio.Future[None], exc: BaseException | None = None) -> None:
        """Resume the branch that awaits `future`, with an error if one is given."""
        if self.may_go():
            _settle(future, exc)
        else:
            self._held.append((future, exc))

    def hold(self) -> asyncio.Future[None]:
        """Return what to await where one may not go on at once."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._held.append((future, None))
        return future

    def may_go(self) -> bool:
        """Return True if a branch may continue at once, and count it."""
        if not self._left:
            return False
        self._left -= 1
        if not self._left:
            asyncio.get_running_loop().call_soon(self._begin_again)
        return True

    def _begin_again(self) -> None:
        self._left = MOVES
        held, self._held = self._held[:MOVES], self._held[MOVES:]
        for future, exc in held:
            self.let(future, exc)


def _settle(future: asyncio.Future[None], exc: BaseException | None) -> None:
    if future.done():
        return
    if exc is None:
        future.set_result(None)
    else:
        future.set_exception(exc)
