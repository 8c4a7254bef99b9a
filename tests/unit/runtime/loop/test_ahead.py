"""Rows that commits hand over to a reader, which reads the store for those that they do not."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from actors._kernel.stores.runs import Handed
from actors._runtime.loop.tasks import Ahead, Pulled

if TYPE_CHECKING:
    from collections.abc import AsyncIterator


class Numbers:
    """A store of the numbers up to a last one, and a reader that has them handed over."""

    def __init__(self, last: int) -> None:
        self.last = last
        self.read_from: list[int] = []
        self.handed = Handed[int](lambda number: number, 1, 4)
        self.handed.has_to_read = False
        self.ahead = Ahead(self._rest(), handed=self.handed)

    async def _rest(self) -> AsyncIterator[int]:
        self.read_from.append(self.handed.begin)
        for number in range(self.handed.begin, self.last + 1):
            yield number

    async def take(self, count: int) -> list[int]:
        """Return the next numbers."""
        return [await self.ahead.take() for _ in range(count)]


async def test_rows_are_taken_in_order_and_once_and_the_store_is_not_read() -> None:
    """Rows that were handed over twice count once."""
    numbers = Numbers(last=4)
    numbers.handed.hand([1, 2])
    numbers.handed.hand([2, 3])

    assert await numbers.take(3) == [1, 2, 3]
    assert not numbers.ahead.has_next()
    numbers.handed.hand([4])
    assert await numbers.take(1) == [4]
    assert numbers.read_from == []
    await numbers.ahead.aclose()


async def test_after_a_gap_the_rest_is_read() -> None:
    """So it is after a commit that hands nothing over. The reader is not handed anything from then on."""
    numbers = Numbers(last=6)
    numbers.handed.hand([1])
    numbers.handed.hand([3, 4])

    assert await numbers.take(4) == [1, 2, 3, 4]
    numbers.handed.hand([5])
    assert await numbers.take(2) == [5, 6]
    assert numbers.read_from == [2]
    await numbers.ahead.aclose()


async def test_a_slow_reader_reads_the_store() -> None:
    """It is handed no more than its most."""
    numbers = Numbers(last=9)
    for number in range(1, 10):
        numbers.handed.hand([number])

    assert await numbers.take(9) == [*range(1, 10)]
    await numbers.ahead.aclose()


async def test_if_nothing_comes_the_store_is_read() -> None:
    """Another process may have written the rows."""
    read = asyncio.Event()
    numbers = Numbers(last=3)
    news = asyncio.Event()
    pulled = Pulled(numbers.handed, news, read.set, quiet_s=0.001)
    numbers.handed.hand([1])
    assert pulled.take() == [1]

    async with asyncio.timeout(30):
        news.clear()
        await news.wait()

    assert pulled.take() == []
    assert (read.is_set(), numbers.handed.begin) == (True, 2)
    pulled.close()
    await numbers.ahead.aclose()
