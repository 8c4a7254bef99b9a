"""Grouping: calls that arrive while a round trip is under way share the next one. No timer."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from itertools import islice
from typing import Final, Generic, TypeVar

from actors.errors import PersistenceError
from persistence._postgres.connection.link import Row
from persistence.errors import RefusedError

A = TypeVar("A")
R = TypeVar("R")
MOST_CALLS: Final = 10_000
"""Number of callers that share a group of questions."""


class Batched(Generic[A, R]):
    """A caller's part of a group: its arguments, and the future that gets the answer."""

    args: A
    future: asyncio.Future[R]

    __slots__ = ("args", "future")

    def __init__(self, args: A, future: asyncio.Future[R]) -> None:
        self.args, self.future = args, future

    def answer(self, result: R) -> None:
        """Hand the result to the caller, if it still waits."""
        if not self.future.done():
            self.future.set_result(result)

    def fail(self, exc: BaseException) -> None:
        """Let the caller's `await` raise `exc`, if it still waits."""
        if not self.future.done():
            self.future.set_exception(exc)


class Batcher(Generic[A, R]):
    """Gathers calls and hands them, as groups in order of arrival, to one `flush` at a time.

    A caller that is cancelled does not take its call back: the outcome is then unknown to it.

    Args:
        flush: Answers the calls of a group.
        limit: Maximum number of calls of a group.
        choose: Splits the calls into the next group, of at least one, and the rest; None to take all.
    """

    def __init__(
        self,
        flush: Callable[[list[Batched[A, R]]], Awaitable[None]],
        *,
        limit: int = 250,
        choose: Callable[[list[Batched[A, R]]], tuple[list[Batched[A, R]], list[Batched[A, R]]]]
        | None = None,
    ) -> None:
        self._flush, self._limit, self._choose = flush, limit, choose
        self._waiting_calls: list[Batched[A, R]] = []
        self._group: list[Batched[A, R]] = []
        self._deferred_calls: list[Batched[A, R]] = []
        self._wake = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        self._is_closing = False

    def call(self, args: A) -> asyncio.Future[R]:
        """Return the future of this call's answer.

        Raises:
            PersistenceError: The store is closed.
        """
        if self._is_closing:
            raise PersistenceError("the store is closed")
        future: asyncio.Future[R] = self._loop.create_future()
        if not self._waiting_calls:
            self._wake.set()
        self._waiting_calls.append(Batched(args, future))
        return future

    async def run(self) -> None:
        """Flush groups until `close`, then the calls that still wait. Run it as a task.

        If the task is cancelled, every call without an answer fails.
        """
        try:
            while True:
                while self._waiting_calls:
                    self._take_group()
                    await self._flush_one(self._group)
                    self._group = []
                if self._is_closing:
                    return
                self._wake.clear()
                await self._wake.wait()
        finally:
            self._is_closing = True
            for call in self.under_way:
                call.fail(PersistenceError("the store was closed; the outcome is unknown"))

    def _take_group(self) -> None:
        if len(self._waiting_calls) <= self._limit:
            self._group, self._waiting_calls = self._waiting_calls, []
        else:
            self._group = self._waiting_calls[: self._limit]
            del self._waiting_calls[: self._limit]
        if self._choose is not None:
            self._group, later_calls = self._choose(self._group)
            self._waiting_calls[:0] = later_calls

    @property
    def under_way(self) -> list[Batched[A, R]]:
        """The calls that were not flushed to the end: the present group, waiting calls, and calls to repeat."""
        return self._group + self._waiting_calls + self._deferred_calls

    async def _flush_one(self, group: list[Batched[A, R]]) -> None:
        """Have every call of the group answered; one that is refused does not fail the others."""
        try:
            await self._flush(group)
        except Exception as exc:  # noqa: BLE001 - every caller gets it
            if isinstance(exc, RefusedError) and len(group) > 1:
                # The server refuses the statement as a whole: tried alone, only the call that is wrong fails.
                for call in group:
                    if not call.future.done():
                        await self._flush_one([call])
            for call in group:
                call.fail(exc)

    def put_back(self, calls: list[Batched[A, R]], pause_s: float) -> None:
        """Let calls of the group under way be flushed again after a pause; others go on meanwhile."""
        if not self._deferred_calls:
            self._loop.call_later(pause_s, self.flush_again)
        self._deferred_calls += calls

    @property
    def is_putting_off(self) -> bool:
        """True if calls wait to be flushed again."""
        return bool(self._deferred_calls)

    def flush_again(self) -> None:
        """Flush what was put back now, before all that waits."""
        # In front: a later call of the same run would be refused without the earlier one.
        self._waiting_calls[:0], self._deferred_calls = self._deferred_calls, []
        self._wake.set()

    def close(self) -> None:
        """Take no more calls; `run` returns after the last of them."""
        self._is_closing = True
        self._wake.set()


def lookups(
    fetch: Callable[[list[A]], Awaitable[Sequence[Row]]],
    read: Callable[[A, list[Row]], R],
    *,
    by: str | None = None,
    limit: int = 250,
) -> Batcher[A, R]:
    """Return a batcher of questions about rows: who asks the same at the same time asks once.

    Each caller has an answer of its own. One that is cancelled ends no statement, so its connection stays.

    Args:
        fetch: Returns the rows of different questions.
        read: Function that makes a question's answer from its rows.
        by: The column that holds the question; None if `i` holds its position among them, from 1 on.
        limit: Maximum number of different questions of a group.
    """

    async def flush(calls: list[Batched[A, R]]) -> None:
        # Each question once, in order: `i` of a row is its position here.
        questions = list(dict.fromkeys(call.args for call in calls))
        rows_by_question: dict[A, list[Row]] = {question: [] for question in questions}
        for row in await fetch(questions):
            rows_by_question[questions[row["i"] - 1] if by is None else row[by]].append(row)
        for call in calls:
            try:
                answer = read(call.args, rows_by_question[call.args])
            except Exception as exc:  # noqa: BLE001 - a row that cannot be read fails its callers alone
                call.fail(exc)
            else:
                call.answer(answer)

    def choose(calls: list[Batched[A, R]]) -> tuple[list[Batched[A, R]], list[Batched[A, R]]]:
        questions = set(islice(dict.fromkeys(call.args for call in calls), limit))
        current_calls = [call for call in calls if call.args in questions]
        return current_calls, [call for call in calls if call.args not in questions]

    return Batcher(flush, limit=MOST_CALLS, choose=choose)
