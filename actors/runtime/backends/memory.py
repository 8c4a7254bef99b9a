"""MemoryStore: the whole runtime state in one process.

Each call does its work without an await in the middle, so it is atomic on the event loop. Owners,
epochs and conflicts are real: several owners may share one store through `sibling()`, and the stale
one is refused. Nothing survives the process.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from itertools import islice
from typing import TYPE_CHECKING, Final, Literal

from actors.errors import (
    ConcurrentAppendError,
    IllegalTransitionError,
    LeaseLostError,
    RegistrationError,
    RunConflictError,
)
from actors.kernel.runtime.commit import (
    PERSONAL,
    Answer,
    Arrived,
    BufferedSignal,
    CancelReport,
    DeadLetter,
    HostReport,
    LoadedRun,
    OpenWait,
    RunRow,
    SignalOutcome,
    Timer,
    WaitCycle,
)
from actors.kernel.runtime.decisions import RESERVED
from actors.kernel.runtime.fold import fold
from actors.kernel.runtime.ids import AgentId, RunId, ShardId, derive_id
from actors.kernel.runtime.scheduler import RunStatus, ShardLease
from actors.kernel.runtime.store import ANY_RUN, Nudge, Submitted
from actors.runtime.backends._commit import fenced, refusal, write_turn
from actors.runtime.backends._cycles import young_cycles
from actors.runtime.backends._decisions import decide
from actors.runtime.backends._follows import MemoryFollows
from actors.runtime.backends._fork import fork_run
from actors.runtime.backends._insight import MemoryInsight
from actors.runtime.backends._limits import LimitRows, MemoryLimits
from actors.runtime.backends._records import RunRecord, SignalRow, pack, unpack
from actors.runtime.backends._rows import (
    MEMORY_SHARD,
    MemoryRows,
    agent_of_message,
    both_ways,
    check_entries,
    sender_of_message,
)
from actors.runtime.backends._schedules import InMemorySchedules, ScheduleRows
from actors.runtime.backends._sweep import sweep_runs
from actors.runtime.backends._talk import keep_answer, open_waits
from actors.runtime.backends._tree import ask_to_stop, children_of, redrive_dead
from actors.runtime.backends._unnoticed import unnoticed

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Sequence

    from actors.kernel.agent.message import Message, MessageKey
    from actors.kernel.clock import Clock
    from actors.kernel.json import JsonValue
    from actors.kernel.runtime.blocking import Blocking
    from actors.kernel.runtime.commit import Commit, CommitOutcome, NewRun, WaitKind
    from actors.kernel.runtime.ids import HostIncarnation
    from actors.kernel.runtime.inbox import Inbox
    from actors.kernel.runtime.log_entry import NewEntry, RunLogEntry
    from actors.kernel.runtime.scheduler import Lease
    from actors.kernel.runtime.store import OnConflict, RunFilter, Serves
    from actors.runtime.backends._records import InboxRow

_NEVER: Final = datetime.max.replace(tzinfo=UTC)


class MemoryStore:
    """A `RunStore` that forgets everything with its process.

    Args:
        clock: Stamps entries and decides when timers are due and leases expire.
        lease_s: Seconds a host may be silent before others take its shard; None: for ever.
    """

    def __init__(self, *, clock: Clock, lease_s: float | None = None) -> None:
        self._clock = clock
        self._lease_s = lease_s
        self._rows = MemoryRows(clock)
        self._schedules = ScheduleRows()
        self._limits = LimitRows(clock, lease_s)
        self.on_fired: Callable[[Sequence[Arrived]], Awaitable[None]] | None = None
        """Told of messages that schedules have sent, before `fire` returns."""

    def sibling(self) -> MemoryStore:
        """Return a second store on the same rows, as another process would have it.

        Its changes nudge this one's hook and the other way round.
        """
        other = MemoryStore(clock=self._clock, lease_s=self._lease_s)
        other._rows, other._schedules = self._rows, self._schedules
        other._limits = self._limits
        return other

    # --- writing by the owner -----------------------------------------------------------------

    async def append(self, lease: Lease, entries: Sequence[NewEntry], *, expected_seq: int) -> int:
        """See `RunStore.append`."""
        check_entries(entries)
        if not fenced(self._rows, lease):
            raise LeaseLostError(lease.shard, lease.owner, lease.epoch)
        record = self._rows.record(lease.run_id)
        if record.status.is_terminal:
            raise IllegalTransitionError(lease.run_id, record.status, RunStatus.RUNNING)
        if record.last_seq != expected_seq:
            raise ConcurrentAppendError(lease.run_id, expected_seq, record.last_seq)
        record.status, record.attempt = RunStatus.RUNNING, lease.attempt
        record.wake = record.wake_at = record.parked = None
        self._rows.add_entries(record, entries)
        return record.last_seq

    async def commit(self, commit: Commit) -> CommitOutcome:
        """See `RunStore.commit`."""
        return write_turn(self._rows, commit)

    def is_done(self, key: MessageKey) -> bool:
        """Return whether nobody will be given the message with this key any more."""
        row = self._rows.inbox.get(key)
        return row is not None and row.state == "done"

    def refusal(self, commit: Commit) -> CommitOutcome | None:
        """Return what `commit` would answer now if it would refuse, else None."""
        return refusal(self._rows, commit)

    # --- writing by anybody -------------------------------------------------------------------

    async def submit(
        self, new_run: NewRun, message: Message, *, on_conflict: OnConflict = "queue"
    ) -> Submitted:
        """See `RunStore.submit`.

        ``join`` returns the agent's open run: the message goes to it if it has not started, else it
        waits as mail (for `ctx.receive`, or the agent's next run).
        """
        rows, agent, sender = self._rows, new_run.agent_id, sender_of_message(message)
        known = self._known_submit(new_run, message, sender)
        if known is not None:
            return known
        busy = rows.holder(agent)
        if busy is not None and on_conflict == "reject":
            raise RunConflictError(str(agent), busy.cause.run_id)
        if busy is not None and on_conflict == "interrupt":
            self._flag(busy, f"interrupted by message {message.id}")
        row = rows.put_mail(message, sender, agent)
        assert row is not None, "looked for above, without an await in between"
        if busy is not None and on_conflict == "join":
            record = busy
        else:
            record = rows.create_run(new_run, arrival=row.arrival)
        if not record.log:
            rows.bind(row, record)
        row.submitted_run = record.cause.run_id
        rows.nudge(self, Nudge("run", agent, record.cause.run_id))
        return Submitted(record.cause.run_id, row.arrived())

    async def deliver(self, messages: Sequence[Message]) -> list[Arrived]:
        """See `RunStore.deliver`."""
        targets = [
            (message, sender_of_message(message), agent_of_message(message)) for message in messages
        ]
        return self._arrive([self._rows.put_mail(*target) for target in targets])

    async def signal(
        self, run_id: RunId, name: str, payload: JsonValue, *, message_id: str, sender: str
    ) -> SignalOutcome:
        """See `RunStore.signal`."""
        rows, record = self._rows, self._rows.record(run_id)
        agent = record.cause.agent_id
        about: int | None = None
        if name.startswith(RESERVED):
            decided = decide(record, name, pack(payload), message_id)
            if isinstance(decided, SignalOutcome):
                return decided
            about = decided
        elif record.status.is_terminal or (run_id, sender, message_id) in rows.signal_ids:
            return SignalOutcome(accepted=False, agent_id=agent)
        rows.signal_ids.add((run_id, sender, message_id))
        record.signals.append(SignalRow(name, next(rows.signal_numbers), pack(payload), about))
        rows.nudge(self, Nudge("signal", agent, run_id))
        return SignalOutcome(accepted=True, agent_id=agent)

    async def request_cancel(self, run_id: RunId, *, reason: str) -> CancelReport:
        """See `RunStore.request_cancel`."""
        return CancelReport(tuple(self._flag(self._rows.record(run_id), reason)))

    async def answer(self, answer: Answer) -> SignalOutcome:
        """See `RunStore.answer`."""
        record = self._rows.record(answer.run_id)
        agent = record.cause.agent_id
        waits = answer.key in {row.wait.key for row in record.waits}
        if answer.status in PERSONAL and not waits:
            return SignalOutcome(accepted=False, agent_id=agent)
        if keep_answer(self._rows, answer) is None:
            return SignalOutcome(accepted=False, agent_id=agent)
        self._rows.nudge(self, Nudge("signal", agent, answer.run_id))
        return SignalOutcome(accepted=True, agent_id=agent)

    # --- ownership ----------------------------------------------------------------------------

    def shard_of(self, agent_id: AgentId) -> ShardId:
        """See `RunStore.shard_of`. There is only one."""
        return MEMORY_SHARD

    async def declare(self, serves: Serves, *, partitions: int = 16) -> None:
        """See `RunStore.declare`."""
        wanted: dict[str, Literal["type", "agent"]] = dict.fromkeys(serves.types, "type")
        for agent in serves.agents:
            if wanted.setdefault(agent.type, "agent") != "agent":
                raise RegistrationError(both_ways(agent.type))
        for type_, mode in wanted.items():
            if self._rows.types.get(type_, mode) != mode:
                raise RegistrationError(both_ways(type_))
        self._rows.types.update(wanted)

    async def claim_shards(
        self, *, owner: HostIncarnation, serves: Serves, limit: int
    ) -> list[ShardLease]:
        """See `RunStore.claim_shards`. All agents are one shard: who serves anything can own it."""
        shard = self._rows.shard
        self._rows.serves[owner] = serves
        alive = shard.owner is not None and (
            shard.expires_at is None or shard.expires_at > self._clock.now()
        )
        if alive or limit < 1 or not (serves.types or serves.agents):
            return []
        shard.owner, shard.epoch, shard.expires_at = owner, shard.epoch + 1, self._expiry()
        return [ShardLease(MEMORY_SHARD, owner, shard.epoch, shard.expires_at or _NEVER)]

    async def release_shards(self, leases: Sequence[ShardLease]) -> None:
        """See `RunStore.release_shards`."""
        shard = self._rows.shard
        for lease in leases:
            if (lease.shard, lease.owner, lease.epoch) == (MEMORY_SHARD, shard.owner, shard.epoch):
                shard.owner = shard.expires_at = None
                self._rows.nudge(self, Nudge("shards"))

    async def heartbeat(self, owner: HostIncarnation, known: Sequence[ShardLease]) -> HostReport:
        """See `RunStore.heartbeat`."""
        shard = self._rows.shard
        mine = shard.owner == owner
        if mine:
            shard.expires_at = self._expiry()
        held = {lease.shard for lease in known if mine and lease.epoch == shard.epoch}
        return HostReport(
            unknown=(MEMORY_SHARD,) if mine and not held else (),
            lost=tuple(lease for lease in known if lease.shard not in held),
            now=self._clock.now(),
        )

    def set_nudge_hook(self, hook: Callable[[Nudge], None] | None) -> None:
        """See `RunStore.set_nudge_hook`. Other processes are the siblings of this store."""
        if hook is None:
            self._rows.hooks.pop(self, None)
        else:
            self._rows.hooks[self] = hook

    # --- reading for the owner, in pages ------------------------------------------------------

    async def open_runs(
        self, shards: Sequence[ShardId], *, after: RunId | None = None, limit: int = 1000
    ) -> list[RunRow]:
        """See `RunStore.open_runs`."""
        if MEMORY_SHARD not in shards:
            return []
        runs = sorted(self._rows.open_runs(), key=lambda run: run.cause.run_id)
        wanted = (run for run in runs if after is None or run.cause.run_id > after)
        return [run.row() for run in islice(wanted, limit)]

    async def blockings(self, shards: Sequence[ShardId]) -> list[Blocking]:
        """See `RunStore.blockings`. There is no other host to give anything up for."""
        del shards
        return []

    async def pending_mail(
        self,
        *,
        shards: Sequence[ShardId] = (),
        agent: AgentId | None = None,
        after: int = -1,
        limit: int = 1000,
    ) -> list[Arrived]:
        """See `RunStore.pending_mail`."""
        pending = self._rows.pending
        found: list[InboxRow] = []
        if agent is not None:
            found = list(pending.get(agent, {}).values())
        elif MEMORY_SHARD in shards:
            waiting = (row for rows in pending.values() for row in rows.values())
            found = [row for row in waiting if not row.is_lazy]
            found.sort(key=lambda row: row.arrival)
        return [row.arrived() for row in islice((r for r in found if r.arrival > after), limit)]

    async def load(self, run_ids: Sequence[RunId]) -> list[LoadedRun]:
        """See `RunStore.load`."""
        records = [self._rows.runs[run_id] for run_id in run_ids if run_id in self._rows.runs]
        return [record.loaded() for record in records]

    async def signals(self, run_id: RunId) -> list[BufferedSignal]:
        """See `RunStore.signals`."""
        record = self._rows.runs.get(run_id)
        rows = record.signals if record else []
        return [BufferedSignal(row.name, row.n, unpack(row.payload), row.about) for row in rows]

    async def answers(self, run_id: RunId) -> list[Answer]:
        """See `RunStore.answers`."""
        record = self._rows.runs.get(run_id)
        rows = record.answers if record else {}
        return [row.answer(run_id, key) for key, row in rows.items() if not row.is_taken]

    async def wait_cycles(
        self, shards: Sequence[ShardId], *, younger_than_s: float
    ) -> list[WaitCycle]:
        """See `RunStore.wait_cycles`."""
        if MEMORY_SHARD not in shards:
            return []
        return young_cycles(self._rows, younger_than_s=younger_than_s)

    async def unnoticed(self, shards: Sequence[ShardId], *, younger_than_s: float) -> list[Nudge]:
        """See `RunStore.unnoticed`."""
        if MEMORY_SHARD not in shards:
            return []
        return unnoticed(self._rows, younger_than_s=younger_than_s)

    async def state(self, agent_id: AgentId) -> dict[str, JsonValue]:
        """See `RunStore.state`."""
        return {key: unpack(text) for key, text in self._rows.states.get(agent_id, {}).items()}

    async def due(
        self, shards: Sequence[ShardId], *, within_s: float, limit: int = 10_000
    ) -> list[Timer]:
        """See `RunStore.due`."""
        if MEMORY_SHARD not in shards:
            return []
        until = self._clock.now() + timedelta(seconds=within_s)
        timers = [timer for run in self._rows.open_runs() if (timer := run.timer())]
        timers = [timer for timer in timers if timer.at <= until]
        timers.sort(key=lambda timer: (timer.at, timer.run_id))
        return timers[:limit]

    # --- reading for everybody ----------------------------------------------------------------

    async def entries(self, run_id: RunId, *, from_seq: int = 0) -> AsyncIterator[RunLogEntry]:
        """See `RunStore.entries`."""
        record = self._rows.runs.get(run_id)
        for line in record.log[from_seq:] if record else ():
            yield line.entry(run_id)

    async def tail(self, run_id: RunId, *, from_seq: int = 0) -> AsyncIterator[RunLogEntry]:
        """See `RunStore.tail`. May start before the run exists."""
        news = self._rows.listen(run_id)
        try:
            while True:
                news.clear()
                record = self._rows.runs.get(run_id)
                for line in record.log[from_seq:] if record else ():
                    yield line.entry(run_id)
                    from_seq = line.seq + 1
                if record and record.swept:
                    return
                if record and record.has_ended and from_seq > record.last_seq:
                    return
                await news.wait()
        finally:
            self._rows.unlisten(run_id, news)

    async def run(self, run_id: RunId) -> RunRow | None:
        """See `RunStore.run`."""
        record = self._rows.runs.get(run_id)
        return record.row() if record else None

    async def find_run_for_agent(self, agent_id: AgentId) -> RunRow | None:
        """See `RunStore.find_run_for_agent`."""
        record = self._rows.holder(agent_id)
        return record.row() if record else None

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
        wanted = (
            run
            for run in self._rows.newest(among)
            if (not status or run.status in status)
            and (agent is None or run.cause.agent_id == agent)
            and (parked is None or (run.parked is not None) == parked)
        )
        return [run.row() for run in islice(wanted, limit)]

    async def children(self, run_id: RunId) -> list[RunRow]:
        """See `RunStore.children`."""
        return [child.row() for child in children_of(self._rows, run_id)]

    async def run_of_message(
        self, agent_id: AgentId, sender: str, message_id: str
    ) -> RunRow | None:
        """See `RunStore.run_of_message`."""
        mail = self._rows.known(agent_id, sender, message_id)
        run_id = mail.run_id if mail is not None else None
        record = self._rows.runs[run_id] if run_id is not None else self._rows.started(agent_id)
        return record.row() if record is not None else None

    async def waits(
        self, *, kind: WaitKind | None = None, run_id: RunId | None = None, limit: int = 100
    ) -> list[OpenWait]:
        """See `RunStore.waits`."""
        return open_waits(self._rows, kind=kind, run_id=run_id, limit=limit)

    async def pending_count(self, agent_id: AgentId) -> int:
        """See `RunStore.pending_count`."""
        runs = self._rows.open_by_agent.get(agent_id, {}).values()
        return len(self._rows.pending.get(agent_id, ())) + sum(len(run.bound) for run in runs)

    async def refold(self, run_id: RunId) -> RunRow:
        """See `RunStore.refold`."""
        record = self._rows.record(run_id)
        return fold(record.base(), [line.entry(run_id) for line in record.log])

    # --- dead letters -------------------------------------------------------------------------

    async def dead_letters(
        self, *, agent: AgentId | None = None, ids: Sequence[int] = (), limit: int = 100
    ) -> list[DeadLetter]:
        """See `RunStore.dead_letters`."""
        wanted = (
            replace(letter, message=row.message())
            for letter, row in reversed(self._rows.dead.values())
            if agent in (None, letter.agent_id) and (not ids or letter.id in ids)
        )
        return list(islice(wanted, limit))

    async def discard(self, ids: Sequence[int]) -> int:
        """See `RunStore.discard`."""
        return sum(self._rows.dead.pop(number, None) is not None for number in ids)

    async def redrive(self, ids: Sequence[int]) -> list[Arrived]:
        """See `RunStore.redrive`."""
        arrived = []
        for number in ids:
            letter, row = self._rows.dead.pop(number, (None, None))
            if letter is None or row is None:
                continue
            if letter.run_id is not None:
                self._rows.given_back[letter.run_id].append(letter)
            message = replace(row.message(), id=derive_id("redrive", letter.message.id, number))
            arrived.append(self._rows.put_mail(message, row.key.sender, letter.agent_id))
        return self._arrive(arrived)

    async def redrive_run(self, run_id: RunId) -> Submitted:
        """See `RunStore.redrive_run`."""
        submitted = redrive_dead(self._rows, run_id)
        agent = self._rows.record(run_id).cause.agent_id
        self._rows.nudge(self, Nudge("run", agent, submitted.run_id))
        return submitted

    async def fork(self, run_id: RunId, *, at_seq: int, copy: int = 0) -> Submitted:
        """See `RunStore.fork`."""
        submitted = fork_run(self._rows, run_id, at_seq=at_seq, copy=copy)
        agent = self._rows.record(submitted.run_id).cause.agent_id
        self._rows.nudge(self, Nudge("run", agent, submitted.run_id))
        return submitted

    # --- followers ----------------------------------------------------------------------------

    @property
    def follows(self) -> MemoryFollows:
        """See `RunStore.follows`."""
        return MemoryFollows(self._rows, self)

    @property
    def posts(self) -> MemoryFollows:
        """See `RunStore.posts`."""
        return MemoryFollows(self._rows, self)

    def posts_into(self, inbox: Inbox | None) -> MemoryFollows:
        """Return `posts`, with followers' messages delivered to this inbox, too."""
        return MemoryFollows(self._rows, self, inbox)

    # --- limits -------------------------------------------------------------------------------

    @property
    def limits(self) -> MemoryLimits:
        """See `RunStore.limits`."""
        return MemoryLimits(self._limits, lambda nudge: self._rows.nudge(self, nudge))

    # --- for operators ------------------------------------------------------------------------

    @property
    def insight(self) -> MemoryInsight:
        """See `RunStore.insight`."""
        return MemoryInsight(self._rows, lease_s=self._lease_s)

    # --- schedules ----------------------------------------------------------------------------

    @property
    def schedules(self) -> InMemorySchedules:
        """See `RunStore.schedules`."""
        return InMemorySchedules(
            self._clock, self._rows, self._schedules, source=self, on_fired=self.on_fired
        )

    async def sweep(self, *, older_than_s: float, limit: int = 200) -> int:
        """See `RunStore.sweep`."""
        return sweep_runs(self._rows, older_than_s=older_than_s, limit=limit)

    # --- inside -------------------------------------------------------------------------------

    def _known_submit(self, new_run: NewRun, message: Message, sender: str) -> Submitted | None:
        row = self._rows.known(new_run.agent_id, sender, message.id)
        if row is not None:
            return Submitted(row.submitted_run or row.run_id or new_run.run_id, None)
        return Submitted(new_run.run_id, None) if new_run.run_id in self._rows.runs else None

    def _arrive(self, found: Sequence[InboxRow | None]) -> list[Arrived]:
        arrived = [row.arrived() for row in found if row is not None]
        for agent in dict.fromkeys(item.agent_id for item in arrived):
            self._rows.nudge(self, Nudge("mail", agent))
        return arrived

    def _flag(self, record: RunRecord, reason: str) -> list[tuple[RunId, AgentId]]:
        flagged = []
        for run in ask_to_stop(self._rows, record, reason):
            flagged.append((run.cause.run_id, run.cause.agent_id))
            self._rows.nudge(self, Nudge("cancel", run.cause.agent_id, run.cause.run_id))
        return flagged

    def _expiry(self) -> datetime | None:
        if self._lease_s is None:
            return None
        return self._clock.now() + timedelta(seconds=self._lease_s)
