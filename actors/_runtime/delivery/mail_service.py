"""The mail service: one broker connection after the other, guarded, then used in both directions.

A message enters at `Inbound.read`, which takes batches from the broker. `MailStore.ingest` commits them, on
Postgres in `persistence/_postgres/mail/mail.py`; then they are durable, offered to the worker, and only then
acknowledged. No message waits here for an agent's code.

Messages of agents leave by the `OutboxRelay`: to the broker, or by the `Bypass`, which goes by the database,
while the broker cannot be used. The sender's host hands over what its agents have in the outbox: it knows
first that nothing can be published. The loss of a connection, or of the whole broker, loses no message of an
agent: every connection begins with the guard, the cursors and the outbox of the store.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from functools import partial
from typing import Final

from actors._kernel.basics import Backoff
from actors._kernel.runtime.commit import LeaseLost
from actors._kernel.runtime.hints import Nudge
from actors._kernel.runtime.ids import ShardId, is_of_topics
from actors._kernel.runtime.scheduler import ShardLease
from actors._kernel.stores.transport import (
    Cursor,
    Ingested,
    IngestOutcome,
    MailBatch,
    MailConnection,
    MailStore,
    OutboxRow,
    OutboxStore,
    StaleStream,
    StreamRecord,
    Transport,
    Undecodable,
)
from actors._runtime.delivery.outbox_relay import AGAIN_S as RELAY_AGAIN_S
from actors._runtime.delivery.outbox_relay import OutboxRelay
from actors._runtime.delivery.stream_guard import StreamRolledBackError, guard_stream
from actors._runtime.loop.notifications import Notifications
from actors._runtime.loop.tasks import TaskScope, happens
from actors._runtime.worker.held_shards import HeldShards
from actors._runtime.worker.worker import Worker
from actors.errors import ActorsError, BrokerError, ContractError, PersistenceError

_log = logging.getLogger("callboard.delivery")

UPKEEP_S: Final = 5.0
"""Seconds between polls of the outbox, and between purges of messages that every shard has read."""
GUARD_S: Final = 30.0
PURGE_AT_LEAST: Final = 256
LONGEST_PAUSE_S: Final = 1.0
INGEST_AGAIN_S: Final = 0.5
"""Seconds before a batch that the store could not write is written again."""


@dataclass(frozen=True, slots=True)
class Broker:
    """The parts that a runtime needs to send and receive messages by a broker."""

    transport: Transport
    mail: MailStore
    outbox: OutboxStore


class MailService:
    """Keeps one host's shards reading and its outbox moving, for ever.

    Args:
        broker: The transport, and the rows of messages.
        worker: The worker, which knows the shards of this host and gets new messages.
        notifications: Hints of other hosts go there; others say what there is to read and to send.
    """

    def __init__(self, broker: Broker, worker: Worker, notifications: Notifications) -> None:
        self._transport, self._mail, self._outbox = broker.transport, broker.mail, broker.outbox
        self._worker, self._publish = worker, notifications.publish
        self._connection_over, self._changed = asyncio.Event(), asyncio.Event()
        self._posted = asyncio.Event()
        self._writes = TaskScope()
        self._inbound = Inbound(
            broker.mail,
            worker,
            tasks=self._writes,
            on_broken=self._give_up_connection,
            on_posted=lambda shard: self._publish(Nudge("fanout", shard=shard)),
        )
        self._suspected = asyncio.Event()
        self._relay = OutboxRelay(
            broker.outbox, may_act=worker.env.may_act, on_suspect=self._suspected.set
        )
        self._bypass = Bypass(self._relay, broker.outbox, worker.held)
        self._is_unsent = False
        """True if the connection in use was notified of no row of the outbox."""
        self._outage = _Outage()
        self._problem = ""
        """Reason to give the connection up, if a reader knows one."""
        self.connected = asyncio.Event()
        """Set while a guarded connection is in use."""
        self._refusal_error: ContractError | None = None
        self._tried = asyncio.Event()
        notifications.subscribe(self._follow, "fanout", "held", "incarnation")

    async def ready(self) -> None:
        """Return when messages move for the first time.

        Raises:
            ContractError: The broker cannot be used as it is configured; waiting does not help.
        """
        await self._tried.wait()
        if self._refusal_error is not None:
            raise self._refusal_error

    @property
    def trouble(self) -> ActorsError | None:
        """The reason why messages are not moved or not sent, or None if no reason is known."""
        return self._outage.trouble or self._relay.trouble

    def _follow(self, nudge: Nudge) -> None:
        if nudge.kind == "fanout":
            self._posted.set()  # observers at the broker are to see it soon
        elif nudge.kind == "held":
            self._changed.set()  # read what is ours, and only that
            self._bypass.refresh()
        else:  # the store may be behind: guard the stream, read from its cursors, send its outbox
            self._connection_over.set()
            self._bypass.refresh()

    async def run(self) -> None:
        """Be connected, again after every loss; to be run as a task until it is cancelled."""
        self._outbox.set_hook(self._relay.add)
        try:
            async with TaskScope() as tasks:
                tasks.keep(self._bypass.run, name="messages past the broker")
                await self._connect_for_ever()
        except ContractError as exc:
            _log.error("the broker cannot be used", extra={"problem": str(exc)})
            self._refusal_error = exc
            self._tried.set()
        finally:
            self._outbox.set_hook(None)
            await self._writes.close()

    async def _connect_for_ever(self) -> None:
        loop, backoff = asyncio.get_running_loop(), Backoff(longest_s=LONGEST_PAUSE_S)
        while True:
            began_at = loop.time()
            try:
                deployment = await self._mail.deployment()
                self._connection_over.clear()
                self._problem = ""
                async with self._transport.connect(
                    deployment=deployment, on_nudge=self._publish, on_suspect=self._suspected.set
                ) as connection:
                    stream = await guard_stream(connection, self._mail)
                    self._outage.ends()
                    await self._use(connection, stream)
                self._outage.begins(self._problem or "the connection was given up")
            except (BrokerError, PersistenceError) as exc:
                # Each try would find the same: one line as an error, and not a warning at every try.
                if isinstance(exc, StreamRolledBackError) and exc.problem:
                    self._outage.is_refused(exc)  # until an operator makes the stream anew
                self._outage.begins(str(exc), exc)
            except ContractError as exc:
                # A mistake of the configuration at the start ends the host; later the same error may pass, so
                # it is tried again.
                if not self._tried.is_set():
                    raise
                self._outage.is_refused(exc)  # until an operator corrects the streams
            except Exception:  # noqa: BLE001 - a host that gets no messages any more would be a silent loss
                _log.exception("the broker's connection broke off")
                self._outage.begins("see the error before")
            self._bypass.begin()
            await asyncio.sleep(backoff.next_s())
            # A connection that is lost as soon as it is made must not be made again at full speed.
            if loop.time() - began_at > LONGEST_PAUSE_S:
                backoff.reset()

    def _give_up_connection(self, problem: str) -> None:
        """Give the connection up: it is of no use any more, or does not do what is asked of it."""
        self._problem = self._problem or problem
        self._connection_over.set()

    async def _use(self, connection: MailConnection, stream: StreamRecord) -> None:
        """Read and send until the connection is lost or the stream is another one."""
        readers = ShardReaders(self._inbound, self._mail, connection, stream)
        try:
            async with TaskScope() as tasks:
                self._relay.open(connection, tasks)
                self._bypass.end()
                # A doubt about the previous connection is no doubt about this one.
                self._suspected.clear()
                tasks.keep(partial(self._prove, connection, tasks), name="leaders of the broker")
                tasks.start(self._watch(connection), name="broker connection")
                tasks.keep(partial(self._follow_for_ever, readers), name="shards to read")
                tasks.keep(partial(self._keep_up, connection, stream), name="upkeep of MAIL")
                tasks.keep(self._show_posts, name="posts for observers")
                self._changed.set()
                self.connected.set()
                self._tried.set()
                await self._connection_over.wait()
        finally:
            self.connected.clear()
            self._relay.close(connection)
            await readers.close()

    async def _prove(self, connection: MailConnection, tasks: TaskScope) -> None:
        """Whenever the broker is in doubt, let messages go round it until all leaders answer."""
        while True:
            await self._suspected.wait()
            # Before the proof: a doubt that arises during it makes another one necessary.
            self._suspected.clear()
            self._bypass.begin()
            await _until_led(connection)
            # Rows went by the database meanwhile: the relay returns to the broker, and reads what is still in
            # the outbox.
            if self._bypass.is_open:
                self._relay.open(connection, tasks)
                self._is_unsent = True
                self._changed.set()
            self._bypass.end()
            await asyncio.sleep(LONGEST_PAUSE_S)

    async def _watch(self, connection: MailConnection) -> None:
        try:
            await connection.lost()
        finally:
            self._connection_over.set()

    async def _follow_for_ever(self, readers: ShardReaders) -> None:
        """Have a reader for each shard of ours that is loaded, and for no other."""
        while True:
            await self._changed.wait()
            # Before the read: a change during it must be seen in the next turn.
            self._changed.clear()
            try:
                new_leases = await readers.follow(self._worker.held.loaded)
                await self._relay.load(self._worker.held.loaded if self._is_unsent else new_leases)
                self._is_unsent = False
            # Else the shards would be read only after the next change.
            except BaseException as exc:
                self._changed.set()
                if not isinstance(exc, PersistenceError):
                    raise
                _log.warning("shards are read later", extra={"problem": str(exc)})
                await asyncio.sleep(LONGEST_PAUSE_S)

    async def _show_posts(self) -> None:
        """Publish posts to the broker for observers. Followers get their posts without the broker."""
        while True:
            await happens(self._posted, within_s=UPKEEP_S)
            self._posted.clear()
            topics = [lease for lease in self._worker.held.loaded if is_of_topics(lease.shard)]
            try:
                await self._relay.load(topics)
            except ActorsError as exc:
                _log.warning(
                    "posts could not be published to observers and are retried",
                    extra={"problem": str(exc)},
                )

    async def _keep_up(self, connection: MailConnection, stream: StreamRecord) -> None:
        """Check the outbox and the stream at intervals, and purge messages that every shard has read."""
        loop, purged_upto = asyncio.get_running_loop(), 0
        guard_at = loop.time()
        while True:
            await asyncio.sleep(UPKEEP_S)
            is_due = loop.time() >= guard_at
            is_read = self._inbound.take_news() or is_due
            try:
                if is_read or self._relay.is_waiting:  # what was read may have left dead letters
                    await self._relay.reload(self._worker.held.loaded)
                low_water = await self._mail.low_water(stream) if is_read else 0
                may_purge = low_water - purged_upto >= PURGE_AT_LEAST
                if not may_purge and not is_due:
                    continue
                if (await guard_stream(connection, self._mail)).epoch != stream.epoch:
                    self._connection_over.set()
                    return
                guard_at = loop.time() + GUARD_S
                # Messages that no shard accounts for would go unread: it gets its shard first.
                is_accounted_for = not await self._mail.account_for(await connection.waiting())
                if may_purge and is_accounted_for:
                    # A type may have been declared meanwhile, whose shards have read nothing yet, so the
                    # lowest cursor is asked again; what arrived in between is above the first answer.
                    low_water = min(low_water, await self._mail.low_water(stream))
                    await self._mail.allow_purge(stream, low_water)
                    await connection.purge(low_water)
                    purged_upto = low_water
            except StreamRolledBackError:
                self._connection_over.set()
                return
            except ActorsError as exc:
                _log.warning(
                    "upkeep of the stream MAIL is tried again", extra={"problem": str(exc)}
                )


async def _until_led(connection: MailConnection) -> None:
    """Return when the stream MAIL and the cluster answer. If the connection is lost, never return."""
    while True:
        try:
            await connection.stream_state(read_only=True)
        except ActorsError as exc:
            _log.debug("the broker does not answer yet", extra={"problem": str(exc)})
            await asyncio.sleep(RELAY_AGAIN_S)
        else:
            return


class Inbound:
    """Reads shards from a connection into rows.

    Args:
        rows: The store that commits batches.
        worker: The worker that gets new messages.
        tasks: The scope in which batches are written. A batch is always finished, also if its connection is
            lost: its messages must be offered before any later message of the shard.
        on_broken: Called with the reason when reading cannot continue over this connection, or when the
            stream was made again.
        on_posted: Called with each shard of this host that has followers of a received post.
    """

    def __init__(
        self,
        rows: MailStore,
        worker: Worker,
        *,
        tasks: TaskScope,
        on_broken: Callable[[str], None],
        on_posted: Callable[[ShardId], None] = lambda _: None,
    ) -> None:
        self._rows, self._worker, self._intake = rows, worker, worker.intake
        self._tasks, self._on_broken, self._on_posted = tasks, on_broken, on_posted
        self._writing: dict[ShardId, asyncio.Event] = {}
        """Events by shard: set when the batch that is being written is done."""
        self._has_news = False

    def take_news(self) -> bool:
        """Return True if a cursor moved since the last call."""
        news, self._has_news = self._has_news, False
        return news

    async def read(self, connection: MailConnection, lease: ShardLease, cursor: Cursor) -> None:
        """Read the messages of one shard until the shard or the connection is lost."""
        try:
            # Its messages are older: offered after those of this connection they would be overtaken in the
            # mailbox.
            while (previous_write := self._writing.get(lease.shard)) is not None:
                await previous_write.wait()  # for the batch of the previous connection
            async with aclosing(connection.read(lease, cursor)) as batches:
                async for batch in batches:
                    # The write is a task of its own: a lost connection cancels this reader, and must not cancel
                    # the write.
                    write_future = asyncio.get_running_loop().create_future()
                    self._writing[lease.shard] = asyncio.Event()
                    self._intake.held_back[lease.shard] = []
                    self._tasks.start(self._write(batch, write_future), name="ingest")
                    if not await write_future:
                        return
                    connection.ack(batch)  # `Pulls.acknowledge` sends it, with the next pull
        except BrokerError as exc:
            _log.debug("reading stops", extra={"shard": lease.shard, "problem": str(exc)})
            self._on_broken(str(exc))
        except Exception:  # noqa: BLE001 - an unread mailbox would be a silent loss
            _log.exception("reading broke off", extra={"shard": lease.shard})
            self._on_broken("reading broke off: see the error before")

    async def _write(self, batch: MailBatch, write_future: asyncio.Future[bool]) -> None:
        """Write the rows of a batch and offer them. `write_future` becomes True if reading can continue."""
        shard, is_written = batch.lease.shard, False
        try:
            match await self._until_written(batch):
                case Ingested(arrived, signalled, posted_shards):
                    is_written = self._has_news = True
                    counters = self._worker.env.counters
                    counters.received += len(arrived)
                    if undecodable_count := sum(
                        isinstance(m.content, Undecodable) for m in batch.received
                    ):
                        counters.undecodable += undecodable_count
                    for item in arrived:
                        self._intake.offer(item)
                    for run_id, agent_id in signalled:
                        self._intake.signalled(run_id, agent_id)
                    for follower_shard in posted_shards:
                        self._on_posted(follower_shard)
                case LeaseLost():
                    self._worker.adoption.lose(shard, epoch=batch.lease.epoch)
                case StaleStream():
                    self._on_broken("the stream MAIL has a new epoch")
        # Else no host would read this shard until the next connection.
        except Exception:
            self._on_broken("messages could not be written")
            raise
        finally:
            # Also after a failure: what commits of this host wrote meanwhile is durable, and would not be
            # offered again.
            for item in self._intake.held_back.pop(shard):
                self._intake.offer(item)
            self._writing.pop(shard).set()
            if not write_future.done():
                write_future.set_result(is_written)

    async def _until_written(self, batch: MailBatch) -> IngestOutcome:
        while True:
            try:
                return await self._rows.ingest(batch)
            except PersistenceError as exc:
                _log.warning(
                    "messages could not be written and are retried",
                    extra={"shard": batch.lease.shard, "problem": str(exc)},
                )
                await asyncio.sleep(INGEST_AGAIN_S)


class ShardReaders:
    """The reading tasks of one connection: one for each shard."""

    def __init__(
        self, ingest: Inbound, mail: MailStore, connection: MailConnection, stream: StreamRecord
    ) -> None:
        self._inbound, self._mail = ingest, mail
        self._connection, self._stream = connection, stream
        self._open: dict[tuple[ShardId, int], TaskScope] = {}

    async def follow(self, leases: Sequence[ShardLease]) -> list[ShardLease]:
        """Read these shards and no others; return those that are new here."""
        leases_by_key = {(lease.shard, lease.epoch): lease for lease in leases}
        # First: one shard has one reader, also after it was lost and claimed again under another epoch.
        for key_to_close in self._open.keys() - leases_by_key.keys():
            await self._open.pop(key_to_close).close()
        new_leases = [lease for key, lease in leases_by_key.items() if key not in self._open]
        cursors = await self._mail.cursors(new_leases, self._stream) if new_leases else []
        for lease, cursor in zip(new_leases, cursors, strict=True):
            scope = self._open[lease.shard, lease.epoch] = TaskScope()
            reading = self._inbound.read(self._connection, lease, cursor)
            scope.start(reading, name=f"messages of {lease.shard}")
        return new_leases

    async def close(self) -> None:
        """End all reading."""
        # All are cancelled before the first is awaited, so that they end at the same time.
        for scope in self._open.values():
            scope.cancel()
        for scope in self._open.values():
            await scope.close()


class _Outage:
    """The log lines of an outage: one when the broker is lost, and one when it is back.

    Attributes:
        trouble: The error of the last try to connect, while there is no connection.
    """

    def __init__(self) -> None:
        self.trouble: ActorsError | None = None
        self._since: float | None = None
        self._refusal = ""

    def begins(self, problem: str, trouble: ActorsError | None = None) -> None:
        """Note that there is no connection."""
        self.trouble = trouble or self.trouble
        # One line for an outage, not one for each of its retries.
        if self._since is None:
            self._since = asyncio.get_running_loop().time()
            _log.warning("no broker: messages wait for it", extra={"problem": problem})

    def is_refused(self, refusal: ActorsError) -> None:
        """Note that the broker is there, and cannot be used as it is."""
        if (problem := str(refusal)) != self._refusal:
            self._refusal = problem
            _log.error("the broker cannot be used; messages wait", extra={"problem": problem})
        self.begins(problem, refusal)

    def ends(self) -> None:
        """Note that there is a connection again."""
        self._refusal, self.trouble = "", None
        if self._since is not None:
            away_s = asyncio.get_running_loop().time() - self._since
            self._since = None
            _log.warning("the broker is back", extra={"away_s": round(away_s, 3)})


AFTER_S: Final = 1.0
"""Seconds that the broker may be unusable before messages go through the database."""
POLL_S: Final = 5.0
"""Seconds between polls of the outbox meanwhile, for rows that no commit of this host announced."""
POLL_AGAIN_S: Final = 1.0


@dataclass(slots=True)
class Suspicion:
    """The suspicion that the broker has failed, and the instant of its first failure. Pure.

    Attributes:
        since: The instant of the first failure, or None while the broker works.
    """

    since: float | None = None

    def begin(self, now: float) -> None:
        """Suspect the broker: it did not do what was asked of it, or is not there."""
        if self.since is None:
            self.since = now

    def end(self) -> None:
        """Trust the broker again: it did all that messages need."""
        self.since = None

    def left_s(self, now: float) -> float | None:
        """Return the seconds until the bypass opens, 0 if they are over, or None if the broker works."""
        return None if self.since is None else max(0.0, self.since + AFTER_S - now)


class Bypass:
    """Hands over what the broker cannot take, while that lasts. The relay goes by it as by a connection.

    Args:
        relay: The relay, which sends by the route that it was opened with last.
        outbox: The outbox rows that are handed over.
        held_shards: The shards of this host.

    Attributes:
        is_open: True while messages go this way.
    """

    def __init__(self, relay: OutboxRelay, outbox: OutboxStore, held_shards: HeldShards) -> None:
        self._relay, self._outbox, self._held = relay, outbox, held_shards
        self._suspicion, self._news = Suspicion(), asyncio.Event()
        self._now = asyncio.get_running_loop().time
        self.is_open = False

    def begin(self) -> None:
        """Suspect the broker: messages go past it soon."""
        self._suspicion.begin(self._now())
        self._news.set()

    def end(self) -> None:
        """Trust the broker again: the relay was opened with a connection to it."""
        self._suspicion.end()
        self._news.set()

    def refresh(self) -> None:
        """Refresh, because other shards are ours or the database may have lost its last commits."""
        self._news.set()

    async def run(self) -> None:
        """Be open while the broker is of no use; to be run as a task until it is cancelled."""
        while True:
            # Before the suspicion is read: a change after this line ends the wait below.
            self._news.clear()
            wait_s = self._suspicion.left_s(self._now())
            if wait_s is None:
                await self._news.wait()
            elif wait_s > 0:
                await happens(self._news, within_s=wait_s)
            else:
                await self._go()

    async def _go(self) -> None:
        _log.warning("messages between agents go through the database until the broker is usable")
        try:
            async with TaskScope() as tasks:
                self._relay.open(self, tasks, mail_only=True)
                self.is_open = True
                while self._suspicion.since is not None:
                    await self._poll()
        finally:
            self.is_open = False
            self._relay.close(self)

    async def _poll(self) -> None:
        # Before the read: what is announced during it is read in the next turn.
        self._news.clear()
        try:
            await self._relay.reload(self._held.loaded)
        except PersistenceError as exc:
            _log.warning("the outbox could not be read and is retried", extra={"problem": str(exc)})
            await asyncio.sleep(POLL_AGAIN_S)
        else:
            await happens(self._news, within_s=POLL_S)

    async def send(self, row: OutboxRow) -> int:
        """Hand a row over; as `MailConnection.send`, but nothing is stored under a sequence."""
        try:
            if await self._outbox.hand_over(row):
                return 0
        except PersistenceError as exc:
            raise BrokerError(str(exc)) from exc
        msg = "something older of its sender is on its way"
        raise BrokerError(msg)
