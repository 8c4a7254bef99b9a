"""Reading a shard: its durable consumer, what was asked of it, and what came, without gaps.

Why not nats-py's `fetch`: it stalls on orphaned requests, drops silently and costs three times as
much. Here messages are put into the reader's buffer while the bytes are read, and more is asked for
only when the caller comes for the next batch: one that takes none gets `MAX_BUFFERED` messages and
about 4 MiB into memory, not more. Of many readers with a backlog only some ask at once, in turns.

A consumer is used only as long as what it delivers is the next one, delivered for the first time.
Whatever else happens (a drop, a redelivery, a deletion, silence), another one is made behind the
last message that came in order. Its name differs, so what the old one still has on its way counts
for nobody. Nothing is ever NAKed.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections import deque
from typing import TYPE_CHECKING, Any, Final

from actors.kernel.runtime.ids import derive_id
from actors.kernel.runtime.transport import Cursor, MailBatch
from broker.api import instant_of
from broker.codec import Wire
from broker.headers import parse_headers
from broker.pulls import parse_pending

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable

    from actors.errors import BrokerError
    from actors.kernel.runtime.scheduler import ShardLease
    from broker.codec import Decoder
    from broker.pulls import Delivered, Pulls

_log = logging.getLogger(__name__)

MAX_BATCH: Final = 256
MAX_BUFFERED: Final = 512
"""Messages of a shard that are in the buffer or on their way to it."""
ASK_AGAIN_AT: Final = 128
"""Messages on their way at which more is asked for: no more than two requests overlap."""
ASK_BYTES: Final = 1_536 * 1024
"""Limit of one request; more than the largest message, which could not be delivered otherwise."""
KEEP_BYTES: Final = 1024 * 1024
"""Nothing is asked for while more than this is buffered: 1 + 2 x 1.5 MiB is the bound."""
EXPIRES_S: Final = 10
HEARTBEAT_S: Final = 5
SILENT_S: Final = 12.0
"""A request of which nothing was heard for this long has no consumer behind it."""
PROVE_EVERY_S: Final = 5.0
MAX_PAUSE_S: Final = 1.0
"""Before another consumer, when those before it were lost without having delivered anything."""
ACK_WAIT_S: Final = 60
MAX_ACK_PENDING: Final = 5000
INACTIVE_S: Final = 60
"""A consumer that nobody pulls from disappears: its owner is dead, or did not get to delete it."""
_NS: Final = 1_000_000_000
_PENDING: Final = "Nats-Pending-Messages"
_NO_NAME: Final = re.compile(r"[^A-Za-z0-9]")


def consumer_name(lease: ShardLease, serial: int) -> str:
    """Return a name that no other owner, epoch or attempt gives its consumer of this shard."""
    owner = _NO_NAME.sub("", lease.owner)[:8]
    return f"s{derive_id('shard', lease.shard)[:16]}-{lease.epoch}-{owner}-{serial}"


class ShardReader:
    """Reads the mail of one shard from `cursor` on.

    Args:
        pulls: The connection's consumers.
        lease: The right under which is read; goes into every batch.
        cursor: What needs no reading any more.
        filter_subject: The shard's.
        decoder: Makes messages of bytes.
        serial: Gives a number that no other consumer of this process has.
    """

    def __init__(
        self,
        pulls: Pulls,
        lease: ShardLease,
        cursor: Cursor,
        *,
        filter_subject: str,
        decoder: Decoder,
        serial: Callable[[], int],
    ) -> None:
        self._pulls = pulls
        self._lease = lease
        self._upto = cursor
        """Up to here everything was handed out, in order."""
        self._filter = filter_subject
        self._decoder = decoder
        self._serial = serial
        self._consumer = ""
        self._last = 0
        """The consumer's number of the last message that came in order."""
        self._buffer: deque[Delivered] = deque()
        self._buffered_bytes = 0
        self._outstanding = 0
        """How many messages were asked for and have not come."""
        self._backlog = 0
        """How many messages wait in the stream, as far as is known."""
        self._has_turn = False
        self._is_next_oversize = False
        self._broken = ""
        """Why the consumer is of no use any more."""
        self._denied: BrokerError | None = None
        self._unacked: deque[tuple[int, bytes]] = deque()
        """Of each batch that was handed out: its last sequence and where to acknowledge it."""
        self._ack = b""
        self._wake = asyncio.Event()
        self._now = asyncio.get_running_loop().time
        self._heard_at = self._prove_at = self._now()
        self._fruitless = 0

    # --- called while bytes are read: quick, and never raising ----------------------------------

    def delivered(self, count: int, number: int, message: Delivered) -> None:
        """Take a message: the `number`-th of its consumer, delivered the `count`-th time."""
        if self._broken:
            return
        if count != 1 or number != self._last + 1:
            self._break(f"delivery {count} of number {number} came after number {self._last}")
            return
        self._last = number
        self._outstanding -= 1
        self._buffer.append(message)
        self._buffered_bytes += len(message.data) + len(message.headers)
        self._heard_at = self._now()
        self._wake.set()

    def status(self, code: int, words: str, headers: dict[str, str], batch: int) -> None:
        """Take what the server says about a pull request for `batch` messages."""
        self._heard_at = self._now()
        if code == 100:  # noqa: PLR2004 - an idle heartbeat
            last = int(headers.get("Nats-Last-Consumer", self._last))
            if last > self._last:
                self._break(f"number {last} was delivered, number {self._last} came last")
        elif code in {404, 408} or _PENDING in headers:
            left = int(headers.get(_PENDING, batch))
            self._is_next_oversize = left == batch and "MaxBytes" in words
            if code in {404, 408}:
                self._backlog = 0
            self._outstanding -= left
            self._wake.set()
        else:
            self._break(f"{code} {words}")

    def acked(self, upto: int) -> None:
        """Acknowledge, with the next step, what was handed out up to this sequence."""
        while self._unacked and self._unacked[0][0] <= upto:
            self._ack = self._unacked.popleft()[1]
            self._wake.set()

    def denied(self, error: BrokerError) -> None:
        """End by this error: the server forbids to pull."""
        self._denied = error
        self._wake.set()

    def wake(self) -> None:
        """Look again: the connection is lost."""
        self._wake.set()

    def _break(self, why: str) -> None:
        self._broken = self._broken or why
        self._wake.set()

    # --- the caller's loop ----------------------------------------------------------------------

    async def batches(self) -> AsyncGenerator[MailBatch, None]:
        """See `MailConnection.read`."""
        try:
            await self._create()
            while True:
                self._pulls.check()
                await self._acknowledge()
                if self._buffer:
                    taken = self._take()
                    await self._ask()
                    yield self._batch(taken)
                elif self._broken:
                    await self._recreate()
                else:
                    await self._ask(is_my_turn=await self._turn())
                    await self._wait()
                    behind = self._upto.sequence
                    if self._now() >= self._prove_at and await self._prove_idle():
                        yield MailBatch(self._lease, self._upto, (), behind)
        finally:
            self._end_turn()
            await self._pulls.drop_consumer(self._consumer)

    async def _acknowledge(self) -> None:
        if self._ack:
            reply, self._ack = self._ack, b""
            await self._pulls.acknowledge(reply)

    def _take(self) -> list[Delivered]:
        size = min(len(self._buffer), MAX_BATCH)
        taken = [self._buffer.popleft() for _ in range(size)]
        self._buffered_bytes -= sum(len(m.data) + len(m.headers) for m in taken)
        return taken

    def _batch(self, taken: list[Delivered]) -> MailBatch:
        received = tuple(
            self._decoder.decode(
                Wire(
                    subject=m.subject.decode(errors="replace"),
                    headers=parse_headers(m.headers) if m.headers else {},
                    data=m.data,
                    sequence=m.sequence,
                    stored_at=instant_of(m.stored_ns),
                )
            )
            for m in taken
        )
        behind, last = self._upto.sequence, taken[-1]
        self._unacked.append((last.sequence, last.reply))
        self._advance(last.sequence, last.stored_ns)
        self._backlog = parse_pending(last.reply)
        return MailBatch(self._lease, self._upto, received, behind)

    def _advance(self, sequence: int, stored_ns: int) -> None:
        self._upto = Cursor(self._upto.stream_epoch, sequence, instant_of(stored_ns))
        self._prove_at = self._now() + PROVE_EVERY_S

    async def _turn(self) -> bool:
        """Return whether to ask now. With a backlog, wait for a turn; the one before ends first."""
        if not (self._backlog and self._outstanding):
            self._end_turn()
        if self._backlog and not self._outstanding:
            await self._pulls.turns.acquire()
            self._has_turn = True
        return not self._backlog or not self._outstanding

    def _end_turn(self) -> None:
        if self._has_turn:
            self._has_turn = False
            self._pulls.turns.release()

    async def _ask(self, *, is_my_turn: bool = False) -> None:
        is_crowded = not self._has_turn or self._pulls.turns.locked()
        if self._backlog and is_crowded and not is_my_turn:
            return
        room = MAX_BUFFERED - len(self._buffer) - self._outstanding
        is_enough = self._outstanding > ASK_AGAIN_AT or self._buffered_bytes > KEEP_BYTES
        if is_enough or room <= 0 or self._broken:
            return
        batch = 1 if self._is_next_oversize else min(room, MAX_BATCH)
        limit = b"" if self._is_next_oversize else b',"max_bytes":%d' % ASK_BYTES
        self._outstanding += batch
        self._heard_at = self._now()
        await self._pulls.ask(
            self._consumer,
            batch,
            b'{"batch":%d,"expires":%d,"idle_heartbeat":%d%b}'
            % (batch, EXPIRES_S * _NS, HEARTBEAT_S * _NS, limit),
        )

    async def _wait(self) -> None:
        try:
            async with asyncio.timeout_at(min(self._prove_at, self._heard_at + SILENT_S)):
                await self._wake.wait()
        except TimeoutError:
            if self._now() >= self._heard_at + SILENT_S:
                self._break(f"silent for {SILENT_S:g} s")
        self._wake.clear()
        if self._denied is not None:
            raise self._denied

    async def _prove_idle(self) -> bool:
        """Move on to what was read of other shards, if there is nothing for this one before it.

        What a pull request's end (408) tells is not enough: a server that was stopped for the whole
        life of a request ends it before its consumer looked into the store. So the store is asked:
        is anything for this shard behind what was handed out? The newest message was read before
        that question, so whatever has a smaller sequence was stored before it: a stream stores in
        the order of its sequences, and one server (R1), or the stream's leader, answers from that
        store. What it does not find there up to the newest will never be there. If a message comes
        in the meantime, that one is handed out first.
        """
        self._prove_at = self._now() + PROVE_EVERY_S
        sequence, stored_ns = self._pulls.newest
        if sequence <= self._upto.sequence or self._buffer or self._broken:
            return False
        last = self._last
        first = await self._pulls.first_stored(self._filter, self._upto.sequence + 1)
        if (first is not None and first <= sequence) or self._last != last or self._broken:
            return False
        self._advance(sequence, stored_ns)
        return True

    # --- its consumers --------------------------------------------------------------------------

    async def _create(self) -> None:
        self._consumer = consumer_name(self._lease, self._serial())
        self._last = self._outstanding = 0
        self._broken = ""
        self._is_next_oversize = False
        self._backlog = await self._pulls.create_consumer(self._consumer, self, self._config())
        self._prove_at = self._now() + PROVE_EVERY_S

    def _config(self) -> dict[str, Any]:
        return {
            "durable_name": self._consumer,
            "filter_subject": self._filter,
            "deliver_policy": "by_start_sequence",
            "opt_start_seq": self._upto.sequence + 1,
            "ack_policy": "all",
            "ack_wait": ACK_WAIT_S * _NS,
            "max_ack_pending": MAX_ACK_PENDING,
            "max_deliver": -1,
            "mem_storage": True,
            "num_replicas": 1,
            "inactive_threshold": INACTIVE_S * _NS,
        }

    async def _recreate(self) -> None:
        self._end_turn()
        facts = {"shard": self._lease.shard, "consumer": self._consumer, "why": self._broken}
        _log.warning("a shard's consumer is made anew", extra=facts)
        await self._pulls.drop_consumer(self._consumer)
        # Acks of the old one would be taken for nothing.
        self._unacked.clear()
        self._ack = b""
        self._fruitless = 0 if self._last else self._fruitless + 1
        if self._fruitless > 1:
            await asyncio.sleep(min(0.05 * 2**self._fruitless, MAX_PAUSE_S))
        await self._pulls.check_stream()
        await self._create()
