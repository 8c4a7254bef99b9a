"""RunStore on PostgreSQL: one committer, one connection for arrivals, a few for reads."""

from __future__ import annotations

import asyncio
import logging
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Final

from actors.errors import (
    ConcurrentAppendError,
    IllegalTransitionError,
    LeaseLostError,
    PersistenceError,
    UnknownRunError,
)
from actors.kernel.runtime.commit import (
    CancelReport,
    Committed,
    Conflict,
    LeaseLost,
    Missing,
)
from actors.kernel.runtime.fold import fold
from actors.kernel.runtime.ids import AgentId, RunId
from actors.kernel.runtime.store import ANY_RUN, Nudge
from persistence.background import background
from persistence.postgres.answers import Answers
from persistence.postgres.arrivals import Arrivals
from persistence.postgres.clock import Reading
from persistence.postgres.committer import Committer
from persistence.postgres.follows import Follows
from persistence.postgres.fork import fork
from persistence.postgres.insight import Insight
from persistence.postgres.letters import discard, redrive
from persistence.postgres.limits import PostgresLimits
from persistence.postgres.link import Links, Outage
from persistence.postgres.listener import Listener
from persistence.postgres.mail import Mail
from persistence.postgres.ownership import Ownership
from persistence.postgres.reads import Reads
from persistence.postgres.schedules import Schedules
from persistence.postgres.sweep import sweep
from persistence.postgres.turn import Ended, Unknown

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Sequence
    from datetime import datetime
    from typing import LiteralString

    from actors.kernel.agent.message import Message
    from actors.kernel.json import JsonValue
    from actors.kernel.runtime.blocking import Blocking
    from actors.kernel.runtime.commit import (
        Answer,
        Arrived,
        BufferedSignal,
        Commit,
        CommitOutcome,
        DeadLetter,
        HostReport,
        LoadedRun,
        NewRun,
        OpenWait,
        RunRow,
        SignalOutcome,
        Timer,
        WaitCycle,
        WaitKind,
    )
    from actors.kernel.runtime.ids import HostIncarnation, ShardId
    from actors.kernel.runtime.log_entry import NewEntry, RunLogEntry
    from actors.kernel.runtime.scheduler import Lease, RunStatus, ShardLease
    from actors.kernel.runtime.store import OnConflict, RunFilter, Serves, Submitted
    from actors.kernel.runtime.transport import (
        Cursor,
        IngestOutcome,
        MailBatch,
        OutboxRow,
        StreamRecord,
        StreamState,
    )
    from persistence.postgres.clock import PostgresClock
    from persistence.postgres.settings import StoreSettings

_log = logging.getLogger(__name__)

TIME_EVERY_S: Final = 10.0
"""How old the database's time may get where nobody sends heartbeats."""

SQL_REQUEST_CANCEL: Final[LiteralString] = "select run_id, agent from request_cancel($1,$2,$3)"


class PostgresStore:
    """See `RunStore` and `MailStore`. Made by `open_postgres_store`; calls wait while the server is away."""

    def __init__(self, settings: StoreSettings, clock: PostgresClock) -> None:
        self.settings = settings
        self.clock = clock
        """The database's time, for all that is compared with rows."""
        self._outage = outage = Outage(settings)
        self._links = Links(settings, outage, settings.readers)
        self._reads = Reads(settings, outage, self._links, clock)
        self._arrivals = Arrivals(settings, outage)
        self._answers = Answers(settings, outage)
        self._ownership = Ownership(settings, self._links, clock)
        self._mail = Mail(settings, outage, self._links, on_foreign=self._arrivals.nudge)
        self._schedules = Schedules(settings, self._links)
        self._limits = PostgresLimits(self._links)
        self._insight = Insight(settings, self._links)
        self._follows = Follows(settings, outage, self._links)
        self._listener = Listener(settings, outage)
        self.committer = Committer(
            settings,
            outage,
            on_commit=self._reads.grew,
            on_foreign=self._arrivals.nudge,
        )
        outage.on_new_life = self._on_new_life
        self.group_size = self.committer.group_size
        """How many turns were committed together."""
        self._batchers = (
            *self._reads.batchers,
            *self._arrivals.batchers,
            *self._mail.batchers,
            *self._follows.batchers,
        )

    @property
    def trouble(self) -> str | None:
        """Why the server takes nothing although it answers, such as a full disk; None: it does."""
        return self._outage.trouble

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Work while the block lasts; queued writes are finished at its end, within 10 seconds."""
        try:
            async with background(
                [self._listener.run],
                [self.committer.run, *(batcher.run for batcher in self._batchers)],
                stop=self._stop,
            ):
                yield
        finally:
            await self._follows.close()
            await self._mail.close()
            await self._arrivals.close()
            await self._answers.close()
            await self._reads.close()
            await self._links.close()

    def _on_new_life(self) -> None:
        """Have what this host remembers of rows read again: first, so that it begins nothing by it."""
        _log.warning(
            "PostgreSQL was started anew, or another server took its place: all rows are read again",
            extra={"owner": self.settings.owner},
        )
        self._listener.tell(Nudge("life"))
        self.committer.refuse_beginnings()

    def _stop(self) -> None:
        self.committer.close()
        for batcher in self._batchers:
            batcher.close()

    async def keep_time(self) -> None:
        """Ask for the database's time now and then, until cancelled; for who sends no heartbeats."""
        while True:
            await asyncio.sleep(TIME_EVERY_S)
            asked = self.clock.monotonic()
            try:
                now = await self._schedules.now()
            except PersistenceError as exc:
                _log.debug("the database's time is asked for again", exc_info=exc)
            else:
                self.clock.hear(Reading(now, asked, self.clock.monotonic()))

    # --- writing by the owner ---------------------------------------------------------------------

    async def append(self, lease: Lease, entries: Sequence[NewEntry], *, expected_seq: int) -> int:
        """See `RunStore.append`."""
        result = await self.committer.append(lease, entries, expected_seq)
        if type(result) is Committed:
            return result.last_seq
        match result:
            case LeaseLost():
                raise LeaseLostError(lease.shard, lease.owner, lease.epoch)
            case Conflict(actual):
                raise ConcurrentAppendError(lease.run_id, expected_seq, actual)
            case Ended(status=status):
                raise IllegalTransitionError(lease.run_id, status, "RUNNING")
            case _:
                raise UnknownRunError(lease.run_id)

    async def commit(self, commit: Commit) -> CommitOutcome:
        """See `RunStore.commit`."""
        result = await self.committer.commit(commit)
        if isinstance(result, Ended):
            return Missing((f"run {commit.lease.run_id} has ended {result.status}",))
        if isinstance(result, Unknown):
            return Missing((f"run {commit.lease.run_id}",))
        return result

    # --- writing by anybody -----------------------------------------------------------------------

    async def submit(
        self, new_run: NewRun, message: Message, *, on_conflict: OnConflict = "queue"
    ) -> Submitted:
        """See `RunStore.submit`."""
        return await self._arrivals.submit(new_run, message, on_conflict)

    async def deliver(self, messages: Sequence[Message]) -> list[Arrived]:
        """See `RunStore.deliver`."""
        return await self._arrivals.deliver(messages)

    async def signal(
        self, run_id: RunId, name: str, payload: JsonValue, *, message_id: str, sender: str
    ) -> SignalOutcome:
        """See `RunStore.signal`."""
        return await self._arrivals.signal(
            run_id, name, payload, message_id=message_id, sender=sender
        )

    async def request_cancel(self, run_id: RunId, *, reason: str) -> CancelReport:
        """See `RunStore.request_cancel`."""
        rows = await self._links.fetch(
            "cancelling", SQL_REQUEST_CANCEL, self.settings.owner, run_id, reason
        )
        if not rows and await self.run(run_id) is None:
            raise UnknownRunError(run_id)
        return CancelReport(
            tuple((RunId(row["run_id"]), AgentId.parse(row["agent"])) for row in rows)
        )

    async def answer(self, answer: Answer) -> SignalOutcome:
        """See `RunStore.answer`."""
        return await self._answers.answer(answer)

    # --- ownership --------------------------------------------------------------------------------

    async def declare(self, serves: Serves, *, partitions: int = 16) -> None:
        """See `RunStore.declare`."""
        await self._ownership.declare(serves, partitions)

    def shard_of(self, agent_id: AgentId) -> ShardId:
        """See `RunStore.shard_of`."""
        return self._ownership.shard_of(agent_id)

    async def claim_shards(
        self, *, owner: HostIncarnation, serves: Serves, limit: int
    ) -> list[ShardLease]:
        """See `RunStore.claim_shards`."""
        return await self._ownership.claim(owner, serves, limit)

    async def release_shards(self, leases: Sequence[ShardLease]) -> None:
        """See `RunStore.release_shards`."""
        await self._ownership.release(leases)

    async def heartbeat(self, owner: HostIncarnation, known: Sequence[ShardLease]) -> HostReport:
        """See `RunStore.heartbeat`."""
        return await self._ownership.heartbeat(owner, known)

    def heard(self, owner: HostIncarnation, report: HostReport) -> None:
        """Note what a `Heartbeat` said, before the runtime acts on it."""
        self._ownership.heard(owner, report)

    def set_nudge_hook(self, hook: Callable[[Nudge], None] | None) -> None:
        """See `RunStore.set_nudge_hook`."""
        self._listener.hook = hook

    async def listening(self) -> None:
        """Return once hints of other processes are heard."""
        await self._listener.listening.wait()

    # --- reading for the owner --------------------------------------------------------------------

    async def open_runs(
        self, shards: Sequence[ShardId], *, after: RunId | None = None, limit: int = 1000
    ) -> list[RunRow]:
        """See `RunStore.open_runs`."""
        return await self._reads.open_runs(shards, after, limit)

    async def blockings(self, shards: Sequence[ShardId]) -> list[Blocking]:
        """See `RunStore.blockings`."""
        return await self._ownership.blockings(shards)

    async def pending_mail(
        self,
        *,
        shards: Sequence[ShardId] = (),
        agent: AgentId | None = None,
        after: int = -1,
        limit: int = 1000,
    ) -> list[Arrived]:
        """See `RunStore.pending_mail`."""
        return await self._reads.pending_mail(shards, agent, after, limit)

    async def load(self, run_ids: Sequence[RunId]) -> list[LoadedRun]:
        """See `RunStore.load`."""
        return await self._reads.load(run_ids)

    async def signals(self, run_id: RunId) -> list[BufferedSignal]:
        """See `RunStore.signals`."""
        return await self._reads.signals(run_id)

    async def answers(self, run_id: RunId) -> list[Answer]:
        """See `RunStore.answers`."""
        return await self._reads.answers(run_id)

    async def wait_cycles(
        self, shards: Sequence[ShardId], *, younger_than_s: float
    ) -> list[WaitCycle]:
        """See `RunStore.wait_cycles`."""
        return await self._answers.wait_cycles(shards, younger_than_s)

    async def unnoticed(self, shards: Sequence[ShardId], *, younger_than_s: float) -> list[Nudge]:
        """See `RunStore.unnoticed`."""
        return await self._answers.unnoticed(shards, younger_than_s)

    async def state(self, agent_id: AgentId) -> dict[str, JsonValue]:
        """See `RunStore.state`."""
        return await self._reads.state(agent_id)

    async def due(
        self, shards: Sequence[ShardId], *, within_s: float, limit: int = 10_000
    ) -> list[Timer]:
        """See `RunStore.due`."""
        return await self._reads.due(shards, within_s, limit)

    # --- reading for everybody --------------------------------------------------------------------

    def entries(self, run_id: RunId, *, from_seq: int = 0) -> AsyncIterator[RunLogEntry]:
        """See `RunStore.entries`."""
        return self._reads.entries(run_id, from_seq)

    def tail(self, run_id: RunId, *, from_seq: int = 0) -> AsyncIterator[RunLogEntry]:
        """See `RunStore.tail`."""
        return self._reads.tail(run_id, from_seq)

    async def run(self, run_id: RunId) -> RunRow | None:
        """See `RunStore.run`."""
        return await self._reads.run(run_id)

    async def find_run_for_agent(self, agent_id: AgentId) -> RunRow | None:
        """See `RunStore.find_run_for_agent`."""
        return await self._reads.find_run_for_agent(agent_id)

    async def list_runs(
        self,
        *,
        status: Sequence[RunStatus] = (),
        agent: AgentId | None = None,
        parked: bool | None = None,
        among: RunFilter = ANY_RUN,
        limit: int = 100,
    ) -> list[RunRow]:
        """See `RunStore.list_runs`."""
        return await self._reads.list_runs(status, agent, parked=parked, among=among, limit=limit)

    async def children(self, run_id: RunId) -> list[RunRow]:
        """See `RunStore.children`."""
        return await self._answers.children(run_id)

    async def run_of_message(
        self, agent_id: AgentId, sender: str, message_id: str
    ) -> RunRow | None:
        """See `RunStore.run_of_message`."""
        return await self._answers.run_of_message(agent_id, sender, message_id)

    async def waits(
        self, *, kind: WaitKind | None = None, run_id: RunId | None = None, limit: int = 100
    ) -> list[OpenWait]:
        """See `RunStore.waits`."""
        return await self._answers.waits(kind, run_id, limit)

    async def pending_count(self, agent_id: AgentId) -> int:
        """See `RunStore.pending_count`."""
        return await self._reads.pending_count(agent_id)

    async def refold(self, run_id: RunId) -> RunRow:
        """See `RunStore.refold`."""
        row = await self.run(run_id)
        if row is None:
            raise UnknownRunError(run_id)
        return fold(row, [entry async for entry in self.entries(run_id)])

    # --- dead letters -----------------------------------------------------------------------------

    async def dead_letters(
        self, *, agent: AgentId | None = None, ids: Sequence[int] = (), limit: int = 100
    ) -> list[DeadLetter]:
        """See `RunStore.dead_letters`."""
        return await self._reads.dead_letters(agent, ids, limit)

    async def discard(self, ids: Sequence[int]) -> int:
        """See `RunStore.discard`."""
        return await discard(self._links, ids)

    async def redrive(self, ids: Sequence[int]) -> list[Arrived]:
        """See `RunStore.redrive`."""
        return await redrive(self.settings, self._links, ids)

    async def redrive_run(self, run_id: RunId) -> Submitted:
        """See `RunStore.redrive_run`."""
        return await self._answers.redrive_run(run_id)

    async def fork(self, run_id: RunId, *, at_seq: int, copy: int = 0) -> Submitted:
        """See `RunStore.fork`."""
        source = await self.run(run_id)
        if source is None:
            raise UnknownRunError(run_id)
        return await fork(self.settings, self._links, source, at_seq=at_seq, copy=copy)

    async def sweep(self, *, older_than_s: float, limit: int = 200) -> int:
        """See `RunStore.sweep`."""
        return await sweep(self._links, older_than_s=older_than_s, limit=limit)

    # --- limits -------------------------------------------------------------------------------------

    @property
    def limits(self) -> PostgresLimits:
        """See `RunStore.limits`."""
        return self._limits

    # --- for operators ------------------------------------------------------------------------------

    @property
    def insight(self) -> Insight:
        """See `RunStore.insight`."""
        return self._insight

    # --- followers --------------------------------------------------------------------------------

    @property
    def follows(self) -> Follows:
        """See `RunStore.follows`."""
        return self._follows

    @property
    def posts(self) -> Follows:
        """See `RunStore.posts`."""
        return self._follows

    # --- schedules ----------------------------------------------------------------------------------

    @property
    def schedules(self) -> Schedules:
        """See `RunStore.schedules`."""
        return self._schedules

    # --- mail by a broker ---------------------------------------------------------------------------

    async def deployment(self) -> str:
        """See `MailStore.deployment`."""
        return await self._mail.deployment()

    async def stream(self, state: StreamState) -> StreamRecord:
        """See `MailStore.stream`."""
        return await self._mail.stream(state)

    async def next_stream_epoch(self, known: StreamRecord, created: datetime) -> StreamRecord:
        """See `MailStore.next_stream_epoch`."""
        return await self._mail.next_stream_epoch(known, created)

    async def cursors(self, leases: Sequence[ShardLease], stream: StreamRecord) -> list[Cursor]:
        """See `MailStore.cursors`."""
        return await self._mail.cursors(leases, stream)

    async def ingest(self, batch: MailBatch) -> IngestOutcome:
        """See `MailStore.ingest`."""
        return await self._mail.ingest(batch)

    async def outbox(
        self, leases: Sequence[ShardLease], *, after: int = -1, limit: int = 1000
    ) -> list[OutboxRow]:
        """See `MailStore.outbox`."""
        return await self._mail.outbox(leases, after, limit)

    async def forget_sent(self, rows: Sequence[OutboxRow]) -> None:
        """See `MailStore.forget_sent`."""
        await self._mail.forget_sent(rows)

    async def bury(self, row: OutboxRow, problem: str) -> None:
        """See `MailStore.bury`."""
        await self._mail.bury(row, problem)

    def set_outbox_hook(self, hook: Callable[[Sequence[OutboxRow]], None] | None) -> None:
        """See `MailStore.set_outbox_hook`."""
        self.committer.on_posted = hook

    async def account_for(self, agents: Sequence[AgentId]) -> int:
        """See `MailStore.account_for`."""
        return await self._mail.account_for(agents)

    async def allow_purge(self, stream: StreamRecord, below: int) -> None:
        """See `MailStore.allow_purge`."""
        await self._mail.allow_purge(stream, below)

    async def low_water(self, stream: StreamRecord) -> int:
        """See `MailStore.low_water`."""
        return await self._mail.low_water(stream)
