"""Reading the store again when somebody said that there may be something new."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable


class Lookout:
    """Knows whether what was read is current. Of many branches one reads, the others wait for it.

    Args:
        is_current: Whether nothing has to be read before the first `poke`.
    """

    def __init__(self, *, is_current: bool) -> None:
        self._is_current = is_current
        self._looking = asyncio.Lock()

    def poke(self) -> None:
        """There may be something new."""
        self._is_current = False

    async def refresh(self, read: Callable[[], Awaitable[None]]) -> None:
        """Return when all is read that was there at the last `poke`."""
        async with self._looking:
            while not self._is_current:
                self._is_current = True
                try:
                    await read()
                except BaseException:
                    self._is_current = False  # its branch was closed: the next one reads
                    raise
