"""The relay: publishes the outbox rows of commits, in order for each (sender, target).

The receiver's ingest deletes a row from the outbox, so the relay has no state that must survive a
crash. Order does not depend on the relay either: the receiver's ingest refuses a message whose
predecessor is still in the outbox. The relay only makes that rare.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Final, NamedTuple, Protocol

from actors._kernel.faults import armed
from actors._kernel.json import Unreadable
from actors._kernel.runtime.ids import AgentId
from actors._kernel.runtime.scheduler import ShardLease
from actors._kernel.stores.transport import OutboxRow, OutboxStore
from actors._runtime.loop.tasks import TaskScope
from actors.errors import ActorsError, BrokerError, ContractError, NotSerializableError

_log = logging.getLogger("callboard.delivery")

PAGE: Final = 1000
AGAIN_S: Final = 0.25
"""Seconds before a row that the broker did not accept is published again."""
FORGET_AT: Final = 100
"""Number of published dead letters and posts of a pair that one statement deletes while more are queued."""
TROUBLE_AFTER: Final = 3
"""Number of repeats of one row after which `OutboxRelay.trouble` has the reason."""
WARN_AFTER: Final = 10
"""Number of repeats of one row after which a warning is logged, once."""
SLOW_S: Final = 1.0
"""A broker that has not answered within this time is in doubt."""


class Route(Protocol):
    """The destination of outbox rows: a connection to the broker, or the way round it."""

    async def send(self, row: OutboxRow) -> int:
        """Publish a row, and return the sequence under which it is stored."""


class _Pair(NamedTuple):
    sender: str
    target: object
    is_dead: bool


class OutboxRelay:
    """Publishes outbox rows over one route after the other.

    Args:
        outbox: The rows to publish.
        may_act: Function that returns False near the end of a lease that was not renewed: nothing is published.
        on_suspect: Called when the broker does not take a row, or not soon.
    """

    def __init__(
        self,
        outbox: OutboxStore,
        *,
        may_act: Callable[[], bool],
        on_suspect: Callable[[], None] = lambda: None,
    ) -> None:
        self._outbox = outbox
        self._may_act, self._on_suspect = may_act, on_suspect
        self._route: Route | None = None
        self._agents_only = False
        self._tasks: TaskScope | None = None
        self._queues: dict[_Pair, deque[OutboxRow]] = {}
        """Rows to publish next. Each pair in here has a task that sends its rows."""
        self._sent_sequences: dict[int, int] = {}
        """Stream sequences of the rows that the broker has stored, by the rows' `n`."""
        self._repeats: dict[int, tuple[int, BrokerError]] = {}
        """Number of repeats and last error of each row that was published again, by the row's `n`."""
        self._published_rows: list[OutboxRow] = []
        """Rows that were published and are deleted from the outbox soon."""
        self._is_forgetting = self._is_due = False
        self._loading = 0
        self._held_rows: list[OutboxRow] = []
        self._fault = armed("publish")

    def open(self, route: Route, tasks: TaskScope, *, mail_only: bool = False) -> None:
        """Publish over this route; nothing counts as sent on it yet, so `load` everything.

        With `mail_only`, rows that only observers at the broker read stay in the outbox.
        """
        self._route, self._tasks, self._agents_only = route, tasks, mail_only
        self._queues, self._sent_sequences, self._published_rows, self._held_rows = {}, {}, [], []
        self._is_forgetting = self._is_due = False

    def close(self, route: Route | None = None) -> None:
        """Stop publishing over a lost route. Later rows stay in the outbox until another one is open."""
        # The old route's end may come after the new one was opened, and must not close that.
        if route is None or route is self._route:
            self._route = self._tasks = None
            self._queues = {}

    @property
    def is_waiting(self) -> bool:
        """True if a row is queued, or was published and its receiver has not confirmed it yet."""
        return bool(self._queues or self._sent_sequences)

    @property
    def trouble(self) -> BrokerError | None:
        """The reason why a row is published again and again, or None if there is no such row."""
        errors = (error for count, error in self._repeats.values() if count >= TROUBLE_AFTER)
        return next(errors, None) if self._route is not None else None

    def add(self, rows: Sequence[OutboxRow]) -> None:
        """Publish rows that a commit of this host has just written."""
        if self._route is None:
            return
        if self._loading:  # older rows of the same pairs may still be on their way from the store
            self._held_rows += rows
        else:
            self._enqueue(rows)

    async def load(self, leases: Sequence[ShardLease]) -> set[int]:
        """Publish the outbox rows of these shards; return the number `n` of each row that was found.

        A row that the broker accepted on this route is published again only if its receiver
        has read past it: then the broker lost it, or its predecessor was missing.
        """
        # Taken before the pages: a row of such a pair may wait in its queue, and would be published twice.
        busy_pairs, row_numbers, after = set(self._queues), set[int](), -1
        self._loading += 1
        try:
            while leases:
                page = await self._outbox.page(leases, after=after, limit=PAGE)
                self._enqueue(row for row in page if self._is_wanted(row, busy_pairs))
                row_numbers.update(row.n for row in page)
                if len(page) < PAGE:
                    break
                after = page[-1].n
        finally:
            self._loading -= 1
            if not self._loading:
                # Behind all pages: these rows are newer than what was read.
                held_rows, self._held_rows = self._held_rows, []
                self._enqueue(held_rows)
        return row_numbers

    async def reload(self, leases: Sequence[ShardLease]) -> None:
        """Load again, and drop the state of rows that have left the outbox."""
        known_numbers = {*self._sent_sequences, *self._repeats}
        for n in known_numbers - await self.load(leases):
            self._sent_sequences.pop(n, None)
            self._repeats.pop(n, None)

    def _is_wanted(self, row: OutboxRow, busy: set[_Pair]) -> bool:
        sequence = self._sent_sequences.get(row.n)
        if sequence is None:
            return True
        return row.target_read >= sequence and _pair(row) not in busy

    def _enqueue(self, rows: Iterable[OutboxRow]) -> None:
        for row in rows:
            if self._agents_only and _is_for_onlookers(row):
                continue
            pair = _pair(row)
            queue = self._queues.get(pair)
            if queue is not None:
                # `load` finds rows again that are queued already.
                if not queue or row.n > queue[-1].n:
                    queue.append(row)
            elif self._tasks is not None:
                self._queues[pair] = deque((row,))
                self._tasks.start(self._send_all(pair), name="relay")

    async def _send_all(self, pair: _Pair) -> None:
        queue = self._queues[pair]
        try:
            await self._send_queue(pair, queue)
        finally:  # else later rows of the pair would wait for a task that has ended
            if self._queues.get(pair) is queue:
                del self._queues[pair]

    async def _send_queue(self, pair: _Pair, queue: deque[OutboxRow]) -> None:
        """Send the rows of the queue until it is empty, the relay is closed, or another queue replaces it."""
        while queue and self._queues.get(pair) is queue and self._route is not None:
            row = queue[0]
            # Another host may own the shard soon, and publish the row itself.
            if not self._may_act():
                await asyncio.sleep(AGAIN_S)
                continue
            try:
                with self._fault:
                    sequence = await self._send_row(self._route, row)
                    # Over a route that was opened meanwhile nothing counts as sent yet.
                    if self._queues.get(pair) is queue:
                        self._sent_sequences[row.n] = sequence
            # The row stays at the head of its queue: the next one of the same sender would overtake it.
            except BrokerError as exc:
                self._on_suspect()
                await asyncio.sleep(AGAIN_S)
                if self._queues.get(pair) is queue:
                    self._repeat(row, exc)
                continue
            except ContractError as exc:
                if not await self._give_up(row, str(exc)):
                    await asyncio.sleep(AGAIN_S)
                    continue
            self._repeats.pop(row.n, None)
            queue.popleft()
            if _is_for_onlookers(row):  # no agent receives it
                self._published_rows.append(row)
                if not queue or len(self._published_rows) >= FORGET_AT:
                    self._is_due = True
                    if not self._is_forgetting and self._tasks is not None:
                        # What others have published until it begins goes from the outbox with it.
                        self._is_forgetting = True
                        self._tasks.start(self._forget_all(), name="forget what was published")

    async def _send_row(self, route: Route, row: OutboxRow) -> int:
        if isinstance(payload := row.message.payload, Unreadable):
            raise NotSerializableError(f"message {row.message.id}", "row", payload)
        # A publish may wait long for a server that is frozen; messages go round the broker before it fails.
        slow_timer = asyncio.get_running_loop().call_later(SLOW_S, self._on_suspect)
        try:
            return await route.send(row)
        finally:
            slow_timer.cancel()

    def _repeat(self, row: OutboxRow, error: BrokerError) -> None:
        """Count that a row goes out again over the same route; report one that often does."""
        count = 1 + (self._repeats[row.n][0] if row.n in self._repeats else 0)
        self._repeats[row.n] = (count, error)
        if count == WARN_AFTER:
            _log.warning(
                "a message is published again and again; what its sender sent after it waits",
                extra=_facts(row, str(error)),
            )

    async def _give_up(self, row: OutboxRow, problem: str) -> bool:
        """Give a row up that the broker will never take; return False if that has to wait.

        Of a dead letter and a post only observers at the broker miss something.
        """
        if not _is_for_onlookers(row):
            try:
                await self._outbox.bury(row, problem)
            except ActorsError as exc:
                _log.warning(
                    "a message that cannot be published stays for now",
                    extra={**_facts(row, problem), "store": str(exc)},
                )
                return False
        _log.warning("a message was given up: it cannot be published", extra=_facts(row, problem))
        return True

    async def _forget_all(self) -> None:
        while self._is_due:
            self._is_due = False
            batch = list(self._published_rows)
            try:
                await self._outbox.forget(batch)
            except ActorsError as exc:  # the next `reload` publishes them once more
                _log.warning("outbox rows stay for now", extra={"problem": str(exc)})
                for row in batch:
                    self._sent_sequences.pop(row.n, None)
            # Rows were added while the statement executed: they stay for the next one.
            del self._published_rows[: len(batch)]
        self._is_forgetting = False


def _is_for_onlookers(row: OutboxRow) -> bool:
    """Return True if no agent receives the row: it is a dead letter, or a post."""
    return row.dead_letter is not None or not isinstance(row.message.target, AgentId)


def _facts(row: OutboxRow, problem: str) -> dict[str, object]:
    message = row.message
    return {
        "sender": message.sender,
        "target": str(message.target),
        "message_id": message.id,
        "row": row.n,
        "problem": problem,
    }


def _pair(row: OutboxRow) -> _Pair:
    return _Pair(row.message.sender or "", row.message.target, row.dead_letter is not None)
