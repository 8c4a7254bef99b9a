"""Readers that wait for several sources at once: by a task for each, or by the rows that commits hand over."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable
from typing import Final, Generic, TypeVar

from actors.kernel.stores.runs import Handed
from actors.runtime.loop.tasks import start_task

T = TypeVar("T")

MOST_AHEAD: Final = 64
"""Number of values that `Ahead` reads before they are taken."""


class Pulled(Generic[T]):
    """Rows that commits hand over, which a reader takes without a task.

    If rows may be missing, the reader has to read the store from then on.

    Args:
        handed: The rows.
        news: Is set when there are more rows.
        read: Function that begins to read the store from `handed.begin` on. It is called once.
        quiet_s: Seconds without a row after which the reader reads the store, too. None: the store looks for
            rows of other processes.
    """

    def __init__(
        self,
        handed: Handed[T],
        news: asyncio.Event,
        read: Callable[[], object],
        *,
        quiet_s: float | None = None,
    ) -> None:
        handed.on_news = news.set
        self._handed, self._quiet_s = handed, quiet_s
        self._read: Callable[[], object] = read
        self._came_any = self._is_over = False
        self._timer: asyncio.TimerHandle | None = None
        self._wait()

    def take(self) -> list[T]:
        """Return the next rows, perhaps none."""
        if self._is_over:
            return []
        rows = self._handed.take()
        if rows:
            self._came_any = True
        elif self._handed.has_to_read:
            read = self._read
            self.close()
            read()
        return rows

    def close(self) -> None:
        """Take no more rows."""
        self._is_over, self._read = True, _no_more  # `read` may be of an object that has this one
        if self._timer is not None:
            self._timer.cancel()

    def _wait(self) -> None:
        if self._quiet_s is not None:
            self._timer = asyncio.get_running_loop().call_later(self._quiet_s, self._expire)

    def _expire(self) -> None:
        if self._came_any:
            self._came_any = False
            self._wait()
        else:
            self._handed.hand(())


class Ahead(Generic[T]):
    """An iterator whose values are read ahead by a task, up to `MOST_AHEAD` of them.

    Args:
        values: The iterator. Reading begins with the first call of a method.
        news: Is set when there is another value, and at the end. Iterators that are read together share it.
        handed: The values of a store that commits hand over. `values` reads those that they do not.
    """

    def __init__(
        self,
        values: AsyncIterator[T],
        news: asyncio.Event | None = None,
        handed: Handed[T] | None = None,
    ) -> None:
        self._values = values
        self.news = news or asyncio.Event()
        self._pulled = None if handed is None else Pulled(handed, self.news, self._begin)
        self._read: deque[T] = deque()
        self._has_slot = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._is_over = False
        self._error: Exception | None = None

    async def _read_all(self) -> None:
        try:
            async for value in self._values:
                self._read.append(value)
                self.news.set()
                if len(self._read) >= MOST_AHEAD:
                    self._has_slot.clear()
                    await self._has_slot.wait()
        except Exception as exc:  # noqa: BLE001 - raised to the reader, which is another task
            self._error = exc
        self._is_over = True
        self.news.set()

    def has_next(self) -> bool:
        """Return True if `take` need not wait: the next value, or the end, is known."""
        if self._pulled is not None:
            self._read += self._pulled.take()
        elif self._task is None:
            self._begin()
        return bool(self._read) or self._is_over

    def _begin(self) -> None:
        self._task = start_task(self._read_all(), name="read ahead", done=_ignore)

    async def until_next(self) -> None:
        """Wait until `take` need not wait."""
        while not self.has_next():
            self.news.clear()
            await self.news.wait()

    async def take(self) -> T:
        """Return the next value.

        Raises:
            StopAsyncIteration: There is none.
        """
        await self.until_next()
        if not self._read:
            raise self._error or StopAsyncIteration
        self._has_slot.set()
        return self._read.popleft()

    def known(self) -> T | None:
        """Return the next value if it is there already, and leave it there."""
        return self._read[0] if self.has_next() and self._read else None

    async def aclose(self) -> None:
        """End the iterator."""
        if self._pulled is not None:
            self._pulled.close()
        self._is_over = True
        task, self._task = self._task, None  # its error has a frame that has this
        if task is not None:
            task.cancel()
            await asyncio.wait({task})
        close = getattr(self._values, "aclose", None)
        if close is not None:
            await close()


def _no_more() -> None:
    """Read nothing: the reader is closed."""


def _ignore(task: asyncio.Task[None]) -> None:
    """Do nothing: the reader has the error."""
