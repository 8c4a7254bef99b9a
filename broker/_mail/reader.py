"""The reader of a shard: its durable consumer, the pull requests, and the messages, without gaps.

Why not nats-py's `fetch`: it stalls on orphaned requests, drops silently and costs three times as
much. Here messages are put into the reader's buffer while the bytes are read, and more is asked for
only when the caller comes for the next batch: one that takes none gets two requests into memory, not more.

One with a backlog reads ahead of what is written, so that a tenant's message behind thousands of
another tenant's is in the next batch (`Backlog`). A request asks for more bytes then than a batch has;
else large messages would be read no faster than they are written. Those that do not fit into memory are
passed by, and read again when they are next. All readers together read ahead as far as
`READ_AHEAD_BYTES` of memory, one as far as `AHEAD_BYTES` of the stream. Of many readers with a backlog
only some have requests under way at once.

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
from collections.abc import AsyncGenerator, Callable
from typing import Any, Final

from actors._kernel.runtime.ids import derive_id
from actors._kernel.runtime.scheduler import ShardLease
from actors._kernel.stores.transport import Cursor, MailBatch, Received
from actors.errors import BrokerError
from broker._mail.backlog import Backlog, BodyBudget, Delivered, Reached, parse_pending
from broker._mail.pulls import Pulls
from broker._nats.requests import instant_of
from broker._nats_client import JetStreamOffError
from broker._wire.codec import Decoder, Wire
from broker._wire.headers import parse_headers

_log = logging.getLogger("callboard.mail")

MAX_BATCH: Final = 256
BATCH_BYTES: Final = 512 * 1024
"""Bytes after which a batch takes no further message. Decoding a batch blocks the event loop."""
MAX_BUFFERED: Final = 32_768
"""Maximum number of a shard's messages that are buffered or requested."""
MAX_ASK: Final = 4096
"""Number of messages in a request of a reader with a backlog; other requests have `MAX_BATCH`."""
ASK_AGAIN_AT: Final = 128
"""Number of outstanding messages at which the next request is sent: at most two requests overlap."""
ASK_BYTES: Final = 1_536 * 1024
"""Maximum bytes of one request. It exceeds the largest message, which otherwise could not be delivered."""
ASK_AHEAD: Final = 8
"""Multiple of `ASK_BYTES` that readers with a permit share; each reader requests `ASK_BYTES` at least."""
AHEAD_BYTES: Final = 256 * 1024 * 1024
"""Bytes of undelivered messages, in memory or only in the stream, above which a reader requests no more."""
KEEP_BYTES: Final = 1024 * 1024
"""Bytes in the buffer above which a reader that may not read ahead requests no more."""
EXPIRES_S: Final = 10
HEARTBEAT_S: Final = 5
SILENT_S: Final = 12.0
"""Seconds without a message or heartbeat after which the consumer of a request counts as lost."""
PROVE_EVERY_S: Final = 5.0
CREATE_TRIES: Final = 3
"""Number of consumers that are created, one after the other, when there is no answer."""
MAX_PAUSE_S: Final = 1.0
"""Longest pause before another consumer is created, if the earlier ones were lost without a delivery."""
ACK_WAIT_S: Final = 300
"""Seconds before a redelivery, more than the write of buffered messages takes. Lost messages show by number."""
MAX_ACK_PENDING: Final = 40_000
INACTIVE_S: Final = 60
"""Seconds without pulls after which the server deletes a consumer that its dead owner left."""
_NS: Final = 1_000_000_000
_PENDING: Final = "Nats-Pending-Messages"
_NO_NAME: Final = re.compile(r"[^A-Za-z0-9]")


def consumer_name(lease: ShardLease, serial: int) -> str:
    """Return a name that no other owner, epoch or attempt gives its consumer of this shard."""
    owner = _NO_NAME.sub("", lease.owner)[:8]
    return f"s{derive_id('shard', lease.shard)[:16]}-{lease.epoch}-{owner}-{serial}"


class ShardReader:
    """Reads the messages of one shard from `cursor` on.

    Args:
        pulls: The connection's consumers.
        lease: The lease of the shard, which goes into every batch.
        cursor: The position up to which all messages are rows.
        filter_subject: The subject of the shard.
        tenant_of: Function that returns the tenant of a message by the subject that it is stored under.
        decoder: The decoder of messages.
        serial: Function that returns a number that no other consumer of this process has.
    """

    def __init__(
        self,
        pulls: Pulls,
        lease: ShardLease,
        cursor: Cursor,
        *,
        filter_subject: str,
        tenant_of: Callable[[bytes], bytes],
        decoder: Decoder,
        serial: Callable[[], int],
    ) -> None:
        self._pulls = pulls
        self._lease = lease
        self._upto = cursor
        """The sequence up to which all messages were handed out, in order."""
        self._filter = filter_subject
        self._decoder = decoder
        self._serial = serial
        self._consumer = ""
        self._last = 0
        """The consumer's number of the last message that came in order."""
        self._buffer = Backlog(tenant_of)
        self._newest_reply = b""
        """The reply subject of the last message. It also holds the number of messages left."""
        self._outstanding = 0
        """The number of requested messages that have not come."""
        self._backlog = 0
        """The number of messages that wait in the stream, as far as is known."""
        self._has_permit = False
        self._is_next_oversize = False
        self._broken_reason = ""
        """The reason why the consumer is of no use any more."""
        self._is_unchecked = False
        self._denied_error: BrokerError | None = None
        self._unacked_batches: deque[tuple[int, bytes]] = deque()
        """Last sequence and reply subject of each batch that was handed out."""
        self._ack = b""
        self._wake = asyncio.Event()
        self._now = asyncio.get_running_loop().time
        self._active_at = self._prove_at = self._now()
        self._budget = BodyBudget(self._now)
        self._fruitless_count = 0

    def delivered(self, count: int, number: int, message: Delivered) -> None:
        """Take a message: the `number`-th of its consumer, delivered the `count`-th time."""
        # After a fault nothing is in order: a later message would be handed out before the lost one.
        if self._broken_reason:
            return
        # A message was dropped on the way, or delivered again: the order of the stream is lost here.
        if count != 1 or number != self._last + 1:
            self._break(f"delivery {count} of number {number} came after number {self._last}")
            return
        self._last = number
        self._outstanding -= 1
        self._newest_reply = message.reply
        self._pulls.buffered_bytes += self._buffer.add(message)
        self._active_at = self._now()
        self._wake.set()

    def status(self, code: int, text: str, headers: dict[str, str], batch: int) -> None:
        """Take what the server says about a pull request for `batch` messages."""
        self._active_at = self._now()
        if code == 100:  # noqa: PLR2004 - an idle heartbeat
            last = int(headers.get("Nats-Last-Consumer", self._last))
            # Messages were sent and did not come: the server would send them again only after `ACK_WAIT_S`.
            if last > self._last:
                self._break(f"number {last} was delivered, number {self._last} came last")
        elif code in {404, 408} or _PENDING in headers:
            remaining = int(headers.get(_PENDING, batch))
            self._is_next_oversize = remaining == batch and "MaxBytes" in text
            if code in {404, 408}:
                self._backlog = 0
            self._outstanding -= remaining
            self._wake.set()
        else:
            self._break(f"{code} {text}")

    def acked(self, upto: int) -> None:
        """Acknowledge, with the next step, the messages that were delivered up to this sequence."""
        while self._unacked_batches and self._unacked_batches[0][0] <= upto:
            self._ack = self._unacked_batches.popleft()[1]
            self._wake.set()

    def denied(self, error: BrokerError) -> None:
        """Let the next step raise this error: the server denies pull requests."""
        self._denied_error = error
        self._wake.set()

    def wake(self) -> None:
        """Let the next step begin now: the connection was lost."""
        self._wake.set()

    def check_consumer(self) -> None:
        """Check in the next step that the consumer exists: the server that held it may be lost."""
        self._is_unchecked = True
        self._wake.set()

    def _break(self, why: str) -> None:
        self._broken_reason = self._broken_reason or why
        self._wake.set()

    async def batches(self) -> AsyncGenerator[MailBatch, None]:
        """Yield the messages of the shard after the cursor and then new ones, contiguous, until closed."""
        try:
            await self._create()
            while True:
                self._pulls.check()
                if self._ack:
                    reply, self._ack = self._ack, b""
                    await self._pulls.acknowledge(reply)
                if self._buffer:
                    size = self._buffer.size
                    messages, position = self._buffer.take(MAX_BATCH, BATCH_BYTES)
                    self._pulls.buffered_bytes -= size - self._buffer.size
                    if not self._outstanding and self._pulls.has_capacity:
                        self._release()
                    await self._ask()
                    yield self._batch([await self._pulls.whole(m) for m in messages], position)
                # Only with an empty buffer: what came in order before the fault is handed out first.
                elif self._broken_reason:
                    await self._recreate()
                else:
                    if self._is_unchecked:
                        # One message that is there now: a consumer that is lost gets 503, and not silence.
                        self._is_unchecked = False
                        self._outstanding += 1
                        await self._pulls.ask(self._consumer, 1, b'{"batch":1,"no_wait":true}')
                    await self._ask(is_permitted=await self._may_ask())
                    await self._wait()
                    behind = self._upto.sequence
                    if self._now() >= self._prove_at and await self._prove_idle():
                        yield MailBatch(self._lease, self._upto, (), behind)
        finally:
            self._release()
            self._pulls.buffered_bytes -= self._buffer.size
            await self._pulls.drop_consumer(self._consumer)

    def _batch(self, messages: list[Delivered], position: Reached) -> MailBatch:
        received = tuple(self._decode(m) for m in messages)
        behind = self._upto.sequence
        self._unacked_batches.append((position.sequence, position.reply))
        self._advance(position.sequence, position.stored_ns)
        self._backlog = parse_pending(self._newest_reply)
        return MailBatch(self._lease, self._upto, received, behind)

    def _decode(self, message: Delivered) -> Received:
        wire = Wire(
            subject=message.subject.decode(errors="replace"),
            headers=parse_headers(message.headers) if message.headers else {},
            data=message.data,
            sequence=message.sequence,
            stored_at=instant_of(message.stored_ns),
        )
        return self._budget.spare(self._decoder.decode(wire))

    def _advance(self, sequence: int, stored_ns: int) -> None:
        self._upto = Cursor(self._upto.stream_epoch, sequence, instant_of(stored_ns))
        self._prove_at = self._now() + PROVE_EVERY_S

    async def _may_ask(self) -> bool:
        """Return whether to ask now. With a backlog, wait for a permit; the one before is released first."""
        if not (self._backlog and self._outstanding):
            self._release()
        if self._backlog and not self._outstanding:
            await self._acquire()
        return not self._backlog or not self._outstanding

    async def _may_continue(self) -> bool:
        """Return True if more of a backlog may be requested beside the buffered messages."""
        permits = self._pulls.permits
        if permits.locked() or not self._pulls.has_capacity:
            return False
        if not self._has_permit:
            await self._acquire()
        return True

    async def _acquire(self) -> None:
        await self._pulls.permits.acquire()
        self._has_permit = True
        self._pulls.asking += 1

    def _release(self) -> None:
        if self._has_permit:
            self._has_permit = False
            self._pulls.asking -= 1
            self._pulls.permits.release()

    async def _ask(self, *, is_permitted: bool = False) -> None:
        if self._backlog and not is_permitted and not await self._may_continue():
            return
        reads_ahead = self._backlog > 0 and self._pulls.has_capacity
        free_count = MAX_BUFFERED - len(self._buffer) - self._outstanding
        is_full = self._buffer.size > KEEP_BYTES and not reads_ahead
        is_full = is_full or self._buffer.length > AHEAD_BYTES
        if self._outstanding > ASK_AGAIN_AT or is_full or free_count <= 0 or self._broken_reason:
            return
        batch = (
            1 if self._is_next_oversize else min(free_count, MAX_ASK if reads_ahead else MAX_BATCH)
        )
        times = max(1, ASK_AHEAD // max(1, self._pulls.asking)) if reads_ahead else 1
        limit = b"" if self._is_next_oversize else b',"max_bytes":%d' % (times * ASK_BYTES)
        self._outstanding += batch
        self._active_at = self._now()
        await self._pulls.ask(
            self._consumer,
            batch,
            b'{"batch":%d,"expires":%d,"idle_heartbeat":%d%b}'
            % (batch, EXPIRES_S * _NS, HEARTBEAT_S * _NS, limit),
        )

    async def _wait(self) -> None:
        try:
            async with asyncio.timeout_at(min(self._prove_at, self._active_at + SILENT_S)):
                await self._wake.wait()
        except TimeoutError:
            if self._now() >= self._active_at + SILENT_S:
                self._break(f"silent for {SILENT_S:g} s")
        self._wake.clear()
        if self._denied_error is not None:
            raise self._denied_error

    async def _prove_idle(self) -> bool:
        """Advance the cursor to the newest message of the stream, if none before it is for this shard.

        The end of a pull request (408) is not enough: a server that was stopped for the whole
        time of a request ends it before its consumer looked into the store. So this asks the store
        for the first message of this shard after the last delivered one. The newest sequence was read before
        that request. A stream stores messages in the order of their sequences, and one server (R1), or
        the stream's leader, answers from that store. So if it finds no message up to the newest
        sequence, there will never be one. If a message arrives in the meantime, it is delivered first.
        """
        self._prove_at = self._now() + PROVE_EVERY_S
        sequence, stored_ns = self._pulls.newest
        if sequence <= self._upto.sequence or self._buffer or self._broken_reason:
            return False
        last = self._last
        first = await self._pulls.first_stored(self._filter, self._upto.sequence + 1)
        # A message that came while the store was asked makes its answer out of date.
        if (first is not None and first <= sequence) or self._last != last or self._broken_reason:
            return False
        self._advance(sequence, stored_ns)
        return True

    async def _create(self) -> None:
        for tries_left in reversed(range(CREATE_TRIES)):
            self._consumer = consumer_name(self._lease, self._serial())
            self._last = self._outstanding = 0
            self._broken_reason = ""
            self._is_next_oversize = self._is_unchecked = False
            try:
                self._backlog = await self._pulls.create_consumer(
                    self._consumer, self, self._config()
                )
                break
            # A cluster may have given the consumer to a server that is lost; another name may go to another
            # server.
            except JetStreamOffError:
                if not tries_left:
                    raise
                await self._pulls.drop_consumer(self._consumer)
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
            # In memory: the cursor is in the rows, and a consumer that is lost with its server is made anew
            # behind it.
            "mem_storage": True,
            "num_replicas": 1,
            "inactive_threshold": INACTIVE_S * _NS,
        }

    async def _recreate(self) -> None:
        self._release()
        facts = {"shard": self._lease.shard, "consumer": self._consumer, "why": self._broken_reason}
        _log.warning("a shard's consumer is made anew", extra=facts)
        await self._pulls.drop_consumer(self._consumer)
        # Acks of the old one would be taken for nothing.
        self._unacked_batches.clear()
        self._ack = b""
        self._fruitless_count = 0 if self._last else self._fruitless_count + 1
        # Consumers that are lost before they deliver must not be made anew at full speed.
        if self._fruitless_count > 1:
            await asyncio.sleep(min(0.05 * 2**self._fruitless_count, MAX_PAUSE_S))
        # The stream may have been made anew: its sequences would be taken for those of the old one.
        await self._pulls.check_stream()
        await self._create()
