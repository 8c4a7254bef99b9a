"""The mail service: one broker connection after the other, guarded, then used in both directions.

A message enters at `Ingest.read`, becomes durable in `MailStore.ingest`, and is offered to the
worker. What agents send leaves by the `Relay`. Losing a connection, or the whole broker, costs
nothing but time: every connection begins with the guard, the cursors and the outbox of the store.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final

from actors.errors import ActorsError, BrokerError, ContractError, PersistenceError
from actors.kernel.runtime.shards import is_of_topics
from actors.kernel.runtime.store import Nudge
from actors.runtime.ingest import Ingest
from actors.runtime.relay import Relay
from actors.runtime.tasks import TaskScope

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from actors.kernel.runtime.commit import Arrived
    from actors.kernel.runtime.ids import ShardId
    from actors.kernel.runtime.scheduler import ShardLease
    from actors.kernel.runtime.store import RunStore
    from actors.kernel.runtime.transport import (
        MailConnection,
        MailStore,
        StreamRecord,
        StreamState,
        Transport,
    )
    from actors.runtime.worker import Worker

_log = logging.getLogger(__name__)

UPKEEP_S: Final = 5.0
"""How often the outbox is looked at again, and mail that everybody has is purged."""
GUARD_S: Final = 30.0
PURGE_AT_LEAST: Final = 256
FIRST_PAUSE_S: Final = 0.05
LONGEST_PAUSE_S: Final = 1.0


@dataclass(frozen=True, slots=True)
class Broker:
    """What a runtime needs to get and send mail by a broker."""

    transport: Transport
    rows: MailStore


class MailService:
    """Keeps one host's shards reading and its outbox moving, for ever.

    Args:
        broker: The transport, and the rows of mail.
        store: Knows which shard an agent is in.
        worker: Says which shards are ours, and gets what is new.
        may_act: False near the end of a lease that was not renewed.
        on_nudge: Follows hints of other hosts.
    """

    def __init__(
        self,
        broker: Broker,
        store: RunStore,
        worker: Worker,
        *,
        may_act: Callable[[], bool],
        on_nudge: Callable[[Nudge], None],
    ) -> None:
        self._transport, self._rows = broker.transport, broker.rows
        self._worker, self._on_nudge = worker, on_nudge
        self._over, self._changed = asyncio.Event(), asyncio.Event()
        self._posted = asyncio.Event()
        self._writes = TaskScope()
        self._ingest = Ingest(
            store, broker.rows, worker, tasks=self._writes, on_broken=self._broken,
            on_posted=lambda shard: on_nudge(Nudge("fanout", shard=shard)),
        )  # fmt: skip
        self._relay = Relay(broker.rows, may_act=may_act)
        self._outage = _Outage()
        self._problem = ""
        """Why the connection is given up, if a reader knows."""
        self.connected = asyncio.Event()
        """Set while a guarded connection is in use."""
        self._refused: ContractError | None = None
        self._tried = asyncio.Event()

    async def ready(self) -> None:
        """Return when mail moves for the first time.

        Raises:
            ContractError: The broker cannot be used as it is configured; waiting does not help.
        """
        await self._tried.wait()
        if self._refused is not None:
            raise self._refused

    # --- what the runtime tells -----------------------------------------------------------------

    def routed(self, arrived: Sequence[Arrived]) -> None:
        """A turn of this host wrote these inbox rows."""
        self._ingest.routed(arrived)

    def look_for_posts(self) -> None:
        """Something was published: observers at the broker are to see it soon."""
        self._posted.set()

    def follow_shards(self) -> None:
        """Shards were taken or given up: read what is ours, and only that."""
        self._changed.set()

    def begin_anew(self) -> None:
        """The store may be behind: guard the stream again, read from its cursors, send its outbox."""
        self._over.set()

    # --- life -----------------------------------------------------------------------------------

    async def run(self) -> None:
        """Be connected, again after every loss; to be run as a task until it is cancelled."""
        self._rows.set_outbox_hook(self._relay.add)
        try:
            await self._connect_for_ever()
        except ContractError as exc:
            _log.error("the broker cannot be used", extra={"problem": str(exc)})
            self._refused = exc
            self._tried.set()
        finally:
            self._rows.set_outbox_hook(None)
            await self._writes.close()

    async def _connect_for_ever(self) -> None:
        loop, pause_s = asyncio.get_running_loop(), FIRST_PAUSE_S
        while True:
            begun = loop.time()
            try:
                deployment = await self._rows.deployment()
                self._over.clear()
                self._problem = ""
                async with self._transport.connect(
                    deployment=deployment, on_nudge=self._on_nudge
                ) as connection:
                    stream = await self._guard(connection)
                    self._outage.ends()
                    await self._use(connection, stream)
                self._outage.begins(self._problem or "the connection was given up")
            except (BrokerError, PersistenceError) as exc:
                self._outage.begins(str(exc))
            except ContractError as exc:
                if not self._tried.is_set():
                    raise
                self._outage.is_refused(str(exc))  # until somebody sets the streams right
            except Exception:  # noqa: BLE001 - a host that gets no mail any more would be a silent loss
                _log.exception("the broker's connection broke off")
                self._outage.begins("see the error before")
            await asyncio.sleep(pause_s)
            is_steady = loop.time() - begun > LONGEST_PAUSE_S
            pause_s = FIRST_PAUSE_S if is_steady else min(pause_s * 2, LONGEST_PAUSE_S)

    def _broken(self, problem: str) -> None:
        """The connection is of no use any more, or does not do what is asked of it."""
        self._problem = self._problem or problem
        self._over.set()

    async def _use(self, connection: MailConnection, stream: StreamRecord) -> None:
        """Read and send until the connection is lost or the stream is another one."""
        readers = Readers(self._ingest, self._rows, connection, stream)
        try:
            async with TaskScope() as tasks:
                self._relay.open(connection, tasks)
                tasks.start(self._watch(connection), name="broker connection")
                tasks.keep(partial(self._follow_for_ever, readers), name="shards to read")
                tasks.keep(partial(self._keep_up, connection, stream), name="mail upkeep")
                tasks.keep(self._show_posts, name="posts for observers")
                self._changed.set()
                self.connected.set()
                self._tried.set()
                await self._over.wait()
        finally:
            self.connected.clear()
            self._relay.close()
            await readers.close()

    async def _watch(self, connection: MailConnection) -> None:
        try:
            await connection.lost()
        finally:
            self._over.set()

    async def _follow_for_ever(self, readers: Readers) -> None:
        """Have a reader for each shard of ours that is loaded, and for no other."""
        while True:
            await self._changed.wait()
            self._changed.clear()
            try:
                await self._relay.load(await readers.follow(self._worker.loaded_shards))
            except BaseException as exc:
                self._changed.set()
                if not isinstance(exc, PersistenceError):
                    raise
                _log.warning("shards are read later", exc_info=exc)
                await asyncio.sleep(LONGEST_PAUSE_S)

    # --- upkeep ---------------------------------------------------------------------------------

    async def _show_posts(self) -> None:
        """Send posts to the broker, for those who look on; followers do not need it."""
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(UPKEEP_S):
                    await self._posted.wait()
            self._posted.clear()
            topics = [lease for lease in self._worker.loaded_shards if is_of_topics(lease.shard)]
            try:
                await self._relay.load(topics)
            except ActorsError as exc:
                _log.warning("posts are shown later", exc_info=exc)

    async def _keep_up(self, connection: MailConnection, stream: StreamRecord) -> None:
        """Look at the outbox and the stream again and again, and purge what nobody needs."""
        loop, purged = asyncio.get_running_loop(), 0
        guard_at = loop.time()
        while True:
            await asyncio.sleep(UPKEEP_S)
            is_due = loop.time() >= guard_at
            is_read = self._ingest.take_news() or is_due
            try:
                if is_read or self._relay.is_waiting:  # what was read may have left dead letters
                    await self._relay.look_again(self._worker.loaded_shards)
                low = await self._rows.low_water(stream) if is_read else 0
                may_purge = low - purged >= PURGE_AT_LEAST
                if not may_purge and not is_due:
                    continue
                if (await self._guard(connection)).epoch != stream.epoch:
                    self._over.set()
                    return
                guard_at = loop.time() + GUARD_S
                # Mail that no shard accounts for would go unread: it gets its shard first.
                is_accounted_for = not await self._rows.account_for(await connection.waiting())
                if may_purge and is_accounted_for:
                    purged = await self._purge(connection, stream, low)
            except ActorsError as exc:
                _log.warning("mail upkeep is tried again", exc_info=exc)

    async def _purge(self, connection: MailConnection, stream: StreamRecord, low: int) -> int:
        """Remove mail that everybody has read; return what was known to be read before.

        A type may have been declared meanwhile, whose shards have read nothing yet, so the lowest
        cursor is asked again; what arrived in between is above the first answer.
        """
        low = min(low, await self._rows.low_water(stream))
        await self._rows.allow_purge(stream, low)
        await connection.purge(low)
        return low

    async def _guard(self, connection: MailConnection) -> StreamRecord:
        """Return the stream's record; another life of it begins if it is not the one that was read.

        A broker may lose what it acknowledged last, or all of it, and number what comes then from
        there on. One that was rolled back is made anew: it would not get again what it had got from
        outsiders and lost. So is one of which more was purged than the store has allowed: the store
        is behind, and does not have what went.

        Raises:
            BrokerError: The stream cannot be read on, and is deleted now: connect again.
        """
        state = await connection.stream_state()
        known = await self._rows.stream(state)
        while known.created == state.created:
            if await _fits(connection, state, known):
                return known
            known, before = await self._rows.stream(state), known
            if known == before:  # else another host read on, and purged meanwhile
                break
        highest = known.highest
        is_whole = known.created != state.created and state.first_sequence <= 1
        if not is_whole and await self._forget(connection, state, known):
            msg = "the mail stream was rolled back, or the store was, and it is made anew"
            raise BrokerError(msg)
        _log.error(
            "the mail stream is not the one that was read: all it holds is read again, and what was "
            "sent and not received is sent again. Nothing of that is lost; what outsiders published "
            "and no host had read is only as safe as the broker's disk",
            extra={
                "stream": state.name,
                "stream_created": str(state.created),
                "was_created": str(known.created),
                "read_up_to": highest.sequence if highest else 0,
                "purged_up_to": known.purged,
                "begins_at": state.first_sequence,
                "ends_at": state.last_sequence,
            },
        )
        return await self._rows.next_stream_epoch(known, state.created)

    async def _forget(
        self, connection: MailConnection, state: StreamState, known: StreamRecord
    ) -> bool:
        """Delete a stream that was rolled back, or whose store was; False when we may not."""
        try:
            await connection.forget_stream(state)
        except BrokerError as exc:
            _log.error(
                "the mail stream was rolled back and cannot be deleted: delete it by hand, or what "
                "outsiders published and no host had read may be missing",
                extra={"problem": str(exc)},
            )
            return False
        _log.warning(
            "the mail stream is made anew: it, or the database, was rolled back",
            extra={
                "stream": state.name, "purged_up_to": known.purged,
                "begins_at": state.first_sequence,
            },
        )  # fmt: skip
        return True


async def _fits(connection: MailConnection, state: StreamState, known: StreamRecord) -> bool:
    """Whether the stream has all that the store has not read, and what it read last."""
    if state.first_sequence > known.purged:
        return False
    highest = known.highest
    if highest is None or highest.at is None:
        return True
    return await connection.stored_at(highest.sequence) == highest.at


class Readers:
    """One reading task for each shard, over one connection."""

    def __init__(
        self, ingest: Ingest, rows: MailStore, connection: MailConnection, stream: StreamRecord
    ) -> None:
        self._ingest, self._rows = ingest, rows
        self._connection, self._stream = connection, stream
        self._open: dict[tuple[ShardId, int], TaskScope] = {}

    async def follow(self, leases: Sequence[ShardLease]) -> list[ShardLease]:
        """Read these shards and no others; return those that are new here."""
        keys = {(lease.shard, lease.epoch): lease for lease in leases}
        for gone in self._open.keys() - keys.keys():
            await self._open.pop(gone).close()
        new = [lease for key, lease in keys.items() if key not in self._open]
        cursors = await self._rows.cursors(new, self._stream) if new else []
        for lease, cursor in zip(new, cursors, strict=True):
            scope = self._open[lease.shard, lease.epoch] = TaskScope()
            reading = self._ingest.read(self._connection, lease, cursor)
            scope.start(reading, name=f"mail of {lease.shard}")
        return new

    async def close(self) -> None:
        """End all reading."""
        for scope in self._open.values():
            scope.cancel()
        for scope in self._open.values():
            await scope.close()


class _Outage:
    """One log line when the broker goes, and one when it is back."""

    def __init__(self) -> None:
        self._since: float | None = None
        self._refusal = ""

    def begins(self, problem: str) -> None:
        """Note that there is no connection."""
        if self._since is None:
            self._since = asyncio.get_running_loop().time()
            _log.warning("no broker: mail waits for it", extra={"problem": problem})

    def is_refused(self, problem: str) -> None:
        """Note that the broker is there, and cannot be used as it is."""
        if problem != self._refusal:
            self._refusal = problem
            _log.error("the broker cannot be used; mail waits", extra={"problem": problem})
        self.begins(problem)

    def ends(self) -> None:
        """Note that there is one."""
        self._refusal = ""
        if self._since is not None:
            away_s = asyncio.get_running_loop().time() - self._since
            self._since = None
            _log.warning("the broker is back", extra={"away_s": round(away_s, 3)})
