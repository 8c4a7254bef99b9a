"""The relay: publishes what commits left in the outbox, in order of each (sender, target).

A row leaves the outbox when its receiver's ingest deletes it, so nothing here has to be remembered
through a crash. Order does not hang on the relay either: the receiver's ingest refuses a message
whose predecessor is still in the outbox. The relay only makes that rare.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from typing import TYPE_CHECKING, Final, NamedTuple

from actors.errors import ActorsError, BrokerError, ContractError
from actors.kernel.faults import armed
from actors.kernel.runtime.ids import AgentId

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from actors.kernel.runtime.scheduler import ShardLease
    from actors.kernel.runtime.transport import MailConnection, MailStore, OutboxRow
    from actors.runtime.tasks import TaskScope

_log = logging.getLogger(__name__)

PAGE: Final = 1000
AGAIN_S: Final = 0.25
"""Pause before a row is published again that the broker did not accept."""
WARN_AFTER: Final = 10
"""Repeats of one row after which somebody is told, once."""


class _Pair(NamedTuple):
    sender: str
    target: object
    is_dead: bool


class Relay:
    """Publishes outbox rows over one connection after the other.

    Args:
        rows: Where the outbox is.
        may_act: False near the end of a lease that was not renewed: nothing is published then.
    """

    def __init__(self, rows: MailStore, *, may_act: Callable[[], bool]) -> None:
        self._rows = rows
        self._may_act = may_act
        self._connection: MailConnection | None = None
        self._tasks: TaskScope | None = None
        self._queues: dict[_Pair, deque[OutboxRow]] = {}
        """What goes out next; a pair that is in here has a task that sends its rows."""
        self._sent: dict[int, int] = {}
        """n of rows that the broker has: the stream sequence there."""
        self._repeats: dict[int, int] = {}
        """n of rows that were published again, and how often."""
        self._forget: list[OutboxRow] = []
        self._loading = 0
        self._held: list[OutboxRow] = []
        self._fault = armed("publish")

    def open(self, connection: MailConnection, tasks: TaskScope) -> None:
        """Publish over this connection; nothing counts as sent on it yet, so `load` everything."""
        self._connection, self._tasks = connection, tasks
        self._queues, self._sent, self._forget, self._held = {}, {}, [], []

    def close(self) -> None:
        """The connection is lost: what comes now is read from the outbox later."""
        self._connection = self._tasks = None

    @property
    def is_waiting(self) -> bool:
        """Whether something was published that no receiver is known to have."""
        return bool(self._queues or self._sent)

    # --- what goes out --------------------------------------------------------------------------

    def add(self, rows: Sequence[OutboxRow]) -> None:
        """Publish rows that a commit of this host has just written."""
        if self._connection is None:
            return
        if self._loading:  # older rows of the same pairs may still be on their way from the store
            self._held += rows
        else:
            self._enqueue(rows)

    async def load(self, leases: Sequence[ShardLease]) -> set[int]:
        """Publish what agents of these shards sent and nobody has yet; return the `n` of it all.

        What the broker accepted on this connection goes out again only if its receiver has read
        past it: then the broker lost it, or its predecessor was missing.
        """
        busy, found, after = set(self._queues), set[int](), -1
        self._loading += 1
        try:
            while leases:
                page = await self._rows.outbox(leases, after=after, limit=PAGE)
                self._enqueue(row for row in page if self._is_wanted(row, busy))
                found.update(row.n for row in page)
                if len(page) < PAGE:
                    break
                after = page[-1].n
        finally:
            self._loading -= 1
            if not self._loading:
                held, self._held = self._held, []
                self._enqueue(held)
        return found

    async def look_again(self, leases: Sequence[ShardLease]) -> None:
        """Load once more, and forget what has left the outbox."""
        before = {*self._sent, *self._repeats}
        for n in before - await self.load(leases):
            self._sent.pop(n, None)
            self._repeats.pop(n, None)

    def _is_wanted(self, row: OutboxRow, busy: set[_Pair]) -> bool:
        sequence = self._sent.get(row.n)
        if sequence is None:
            return True
        return row.target_read >= sequence and _pair(row) not in busy

    def _enqueue(self, rows: Iterable[OutboxRow]) -> None:
        for row in rows:
            pair = _pair(row)
            queue = self._queues.get(pair)
            if queue is not None:
                if not queue or row.n > queue[-1].n:
                    queue.append(row)
            elif self._tasks is not None:
                self._queues[pair] = deque((row,))
                self._tasks.start(self._send_all(pair), name="relay")

    # --- one pair -------------------------------------------------------------------------------

    async def _send_all(self, pair: _Pair) -> None:
        connection = self._connection
        try:
            await self._send_queue(pair, connection)
        finally:  # else what comes for the pair would wait for a task that is no more
            if connection is self._connection:
                del self._queues[pair]

    async def _send_queue(self, pair: _Pair, connection: MailConnection | None) -> None:
        queue = self._queues[pair]
        while queue and connection is self._connection and connection is not None:
            row = queue[0]
            if not self._may_act():
                await asyncio.sleep(AGAIN_S)
                continue
            try:
                if self._fault is not None:
                    self._fault.before()
                self._sent[row.n] = await connection.send(row)
                if self._fault is not None:
                    self._fault.after()
            except BrokerError as exc:
                await asyncio.sleep(AGAIN_S)
                if connection is self._connection:
                    self._repeat(row, str(exc))
                continue
            except ContractError as exc:
                if not await self._give_up(row, str(exc)):
                    await asyncio.sleep(AGAIN_S)
                    continue
            self._repeats.pop(row.n, None)
            queue.popleft()
            if _is_for_onlookers(row):
                await self._forget_one(row)

    def _repeat(self, row: OutboxRow, problem: str) -> None:
        """Count that a row goes out again over the same connection; of one that often does, tell."""
        count = self._repeats[row.n] = self._repeats.get(row.n, 0) + 1
        if count == WARN_AFTER:
            _log.warning(
                "a message is published again and again; what its sender sent after it waits",
                extra=_facts(row, problem),
            )

    async def _give_up(self, row: OutboxRow, problem: str) -> bool:
        """Take a row out of its pair that the broker will never take; False when that has to wait.

        Of a dead letter and a post only those who look on at the broker miss something.
        """
        if not _is_for_onlookers(row):
            try:
                await self._rows.bury(row, problem)
            except ActorsError as exc:
                _log.warning(
                    "a message that cannot be published stays for now",
                    exc_info=exc,
                    extra=_facts(row, problem),
                )
                return False
        _log.warning("a message was given up: it cannot be published", extra=_facts(row, problem))
        return True

    async def _forget_one(self, row: OutboxRow) -> None:
        """Nobody in here receives it: its row goes now. Those who come meanwhile go together."""
        self._forget.append(row)
        if len(self._forget) > 1:
            return
        while self._forget:
            batch = list(self._forget)
            try:
                await self._rows.forget_sent(batch)
            except ActorsError as exc:  # they go out once more with the next look
                _log.warning("outbox rows stay for now", exc_info=exc)
                for sent in batch:
                    self._sent.pop(sent.n, None)
            del self._forget[: len(batch)]


def _is_for_onlookers(row: OutboxRow) -> bool:
    """Whether nobody in here receives it: a dead letter, or a post."""
    return row.dead_letter is not None or not isinstance(row.message.target, AgentId)


def _facts(row: OutboxRow, problem: str) -> dict[str, object]:
    message = row.message
    return {
        "sender": message.sender, "target": str(message.target), "message_id": message.id,
        "row": row.n, "problem": problem,
    }  # fmt: skip


def _pair(row: OutboxRow) -> _Pair:
    return _Pair(row.message.sender or "", row.message.target, row.dead_letter is not None)
