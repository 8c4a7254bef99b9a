"""The shard of a store in memory: its owner, the owner's work, and what arrives beside commits."""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from itertools import islice
from typing import Final, Literal
from weakref import ref

from typing_extensions import override

from actors._inmemory.runs.records import RunRecord, SignalRow, decide, pack, unpack
from actors._inmemory.runs.rows import MEMORY_SHARD, MemoryRole, MemoryRows, both_ways
from actors._inmemory.runs.tree import ask_to_stop, keep_answer, young_cycles
from actors._inmemory.sessions import check_expected
from actors._kernel.agent.agent import ASKED_TO_STOP
from actors._kernel.agent.message import Message
from actors._kernel.json import JsonValue
from actors._kernel.runtime.hints import Nudge
from actors._kernel.runtime.ids import AgentId, HostIncarnation, RunId, ShardId
from actors._kernel.runtime.rows import (
    RESERVED,
    Arrived,
    CancelReport,
    HostReport,
    NewRun,
    RunRow,
    SignalOutcome,
    Timer,
)
from actors._kernel.runtime.scheduler import RunStatus, ShardLease
from actors._kernel.runtime.waits import EVENT, PERSONAL, Answer, WaitCycle, event_of
from actors._kernel.stores.runs import (
    MOST_ANSWERED,
    ArrivalStore,
    Blocking,
    OnConflict,
    Submitted,
    ends_of,
    sender_of_message,
)
from actors._kernel.stores.shards import BacklogStore, Serves, ShardStore
from actors.errors import RegistrationError, RunConflictError

_NEVER: Final = datetime.max.replace(tzinfo=UTC)


class MemoryShards(MemoryRole, ShardStore):
    """The single shard of all agents: a host that serves any of them can own it."""

    def __init__(self, rows: MemoryRows, source: object, lease_s: float | None) -> None:
        super().__init__(rows, source)
        self._lease_s = lease_s

    @override
    async def declare(self, serves: Serves, *, partitions: int = 16) -> None:
        modes: dict[str, Literal["type", "agent"]] = dict.fromkeys(serves.types, "type")
        for agent in serves.agents:
            if modes.setdefault(agent.type, "agent") != "agent":
                raise RegistrationError(both_ways(agent.type))
        for type_, mode in modes.items():
            if self._rows.types.get(type_, mode) != mode:
                raise RegistrationError(both_ways(type_))
        self._rows.types.update(modes)

    @override
    def shard_of(self, agent_id: AgentId) -> ShardId:
        """Return the only shard."""
        return MEMORY_SHARD

    @override
    async def claim(
        self, *, owner: HostIncarnation, serves: Serves, limit: int
    ) -> list[ShardLease]:
        shard = self._rows.shard
        self._rows.serves[owner] = serves
        is_alive = shard.owner is not None and (
            shard.expires_at is None or shard.expires_at > self._rows.clock.now()
        )
        if is_alive or limit < 1 or not (serves.types or serves.agents):
            return []
        if shard.owner not in (None, owner):
            # The owner before is dead: what arrived before this number may have been executing.
            shard.broken_at = next(self._rows.arrivals)
        shard.owner, shard.epoch, shard.expires_at = owner, shard.epoch + 1, self._expiry()
        # A weak reference: rows that held a store would keep a closed one alive.
        shard.claimed_by = ref(self._source)
        until = shard.expires_at or _NEVER
        return [ShardLease(MEMORY_SHARD, owner, shard.epoch, until, shard.broken_at)]

    @override
    async def release(self, leases: Sequence[ShardLease]) -> None:
        """If not called at the store by which the owner claimed them, the owner counts as dead."""
        shard = self._rows.shard
        for lease in leases:
            if (lease.shard, lease.owner, lease.epoch) == (MEMORY_SHARD, shard.owner, shard.epoch):
                is_own = shard.claimed_by == ref(self._source)
                shard.broken_at = None if is_own else next(self._rows.arrivals)
                shard.owner = shard.expires_at = None
                self._notify(Nudge("shards"))

    @override
    async def heartbeat(self, owner: HostIncarnation, known: Sequence[ShardLease]) -> HostReport:
        shard = self._rows.shard
        is_owner = shard.owner == owner
        if is_owner:
            shard.expires_at = self._expiry()
        held_shards = {lease.shard for lease in known if is_owner and lease.epoch == shard.epoch}
        return HostReport(
            unknown=(MEMORY_SHARD,) if is_owner and not held_shards else (),
            lost=tuple(lease for lease in known if lease.shard not in held_shards),
            now=self._rows.clock.now(),
        )

    def _expiry(self) -> datetime | None:
        if self._lease_s is None:
            return None
        return self._rows.clock.now() + timedelta(seconds=self._lease_s)


class MemoryBacklog(MemoryRole, BacklogStore):
    """The work that waits in the single shard."""

    @override
    async def open_runs(
        self,
        shards: Sequence[ShardId],
        *,
        after: RunId | None = None,
        limit: int = 1000,
        asleep: bool = True,
    ) -> list[RunRow]:
        if MEMORY_SHARD not in shards:
            return []
        runs = sorted(self._rows.open_runs(), key=lambda run: run.cause.run_id)
        later_runs = (run for run in runs if after is None or run.cause.run_id > after)
        awake_runs = (run for run in later_runs if asleep or not run.is_asleep)
        return [run.row() for run in islice(awake_runs, limit)]

    @override
    async def sleepers(self, shards: Sequence[ShardId]) -> dict[ShardId, dict[str, int]]:
        if MEMORY_SHARD not in shards:
            return {}
        runs = (run for run in self._rows.open_runs() if run.is_suspended)
        return {MEMORY_SHARD: {str(run.cause.agent_id): run.cause.priority for run in runs}}

    @override
    async def blockings(self, shards: Sequence[ShardId]) -> list[Blocking]:
        """Return nothing: no other host gives shards up."""
        del shards
        return []

    @override
    async def pending_mail(
        self, *, agent: AgentId, after: int = -1, limit: int = 1000
    ) -> list[Arrived]:
        rows = self._rows.pending.get(agent, {}).values()
        return [row.arrived() for row in islice((r for r in rows if r.arrival > after), limit)]

    @override
    async def who_has_mail(
        self, shards: Sequence[ShardId], *, after: int = -1, limit: int = 1000
    ) -> list[tuple[AgentId, int]]:
        if MEMORY_SHARD not in shards:
            return []
        inbox_rows = [
            row
            for rows_by_arrival in self._rows.pending.values()
            for row in rows_by_arrival.values()
        ]
        agents_with_arrivals = [
            (r.key.agent, r.arrival) for r in inbox_rows if not r.is_lazy and r.arrival > after
        ]
        return sorted(agents_with_arrivals, key=lambda pair: pair[1])[:limit]

    @override
    async def due(
        self, shards: Sequence[ShardId], *, within_s: float, limit: int = 10_000
    ) -> list[Timer]:
        if MEMORY_SHARD not in shards:
            return []
        until = self._rows.clock.now() + timedelta(seconds=within_s)
        return self._rows.timers(until)[:limit]

    @override
    async def wait_cycles(
        self, shards: Sequence[ShardId], *, younger_than_s: float
    ) -> list[WaitCycle]:
        if MEMORY_SHARD not in shards:
            return []
        return young_cycles(self._rows, younger_than_s=younger_than_s)

    @override
    async def unnoticed(self, shards: Sequence[ShardId], *, younger_than_s: float) -> list[Nudge]:
        if MEMORY_SHARD not in shards:
            return []
        since = self._rows.clock.now() - timedelta(seconds=younger_than_s)
        hints = (_hint_of(run, since) for run in self._rows.open_runs())
        return [nudge for nudge in hints if nudge is not None]


def _hint_of(run: RunRecord, since: datetime) -> Nudge | None:
    cause = run.cause
    if run.cancel_requested is not None:
        return Nudge("cancel", cause.agent_id, cause.run_id)
    if run.status is RunStatus.PENDING and cause.parent is not None and not run.log:
        return Nudge("run", cause.agent_id, cause.run_id) if run.created_at > since else None
    keys = run.wake.runs if run.wake is not None and run.parked is None else ()
    if any(key in run.answers and not run.answers[key].is_taken for key in keys):
        return Nudge("signal", cause.agent_id, cause.run_id)
    return None


class MemoryArrivals(MemoryRole, ArrivalStore):
    """Writes what arrives, and nudges the siblings."""

    @override
    async def submit(
        self,
        new_run: NewRun,
        message: Message,
        *,
        on_conflict: OnConflict = "queue",
        is_apart: bool = False,
    ) -> Submitted:
        """``join`` gives the message to a run that has not started.

        Else it waits as a message, for `ctx.receive` or the agent's next run.
        """
        rows, agent, sender = self._rows, new_run.agent_id, sender_of_message(message)
        # Before the look-up of the message: a repetition is refused, too, if the session is not as expected.
        if new_run.session is not None:
            check_expected(agent, rows.sessions.records.get(agent), new_run.session.expected)
        existing = rows.message_row(agent, sender, message.id)
        if existing is not None:
            run_id = existing.submitted_run or existing.run_id or new_run.run_id
            return Submitted(run_id, None)
        if new_run.run_id in rows.runs:
            return Submitted(new_run.run_id, None)
        if new_run.session is not None:
            rows.sessions.check_open(agent)
        holder = rows.holder(agent)
        is_foreign = holder is not None and is_apart and rows.started_by(holder) != sender
        refuses = on_conflict == "reject" or (on_conflict != "queue" and is_foreign)
        if holder is not None and refuses:
            raise RunConflictError(str(agent), holder.cause.run_id)
        if holder is not None and on_conflict == "interrupt":
            self._flag(holder, f"interrupted by message {message.id}")
        row = rows.put_mail(message, sender, agent)
        assert row is not None, "looked for above, without an await in between"
        if holder is not None and on_conflict == "join":
            record = holder
        else:
            record = rows.create_run(new_run, arrival=row.arrival)
            if new_run.session is not None:
                rows.sessions.write_queued(agent, new_run.run_id, new_run.session)
        if not record.log:
            rows.bind(row, record)
        row.submitted_run = record.cause.run_id
        waits = row.state == "pending"
        self._notify(Nudge("mail", agent) if waits else Nudge("run", agent, record.cause.run_id))
        return Submitted(record.cause.run_id, row.arrived())

    @override
    async def deliver(self, messages: Sequence[Message]) -> list[Arrived]:
        arguments_of_each = [(message, *ends_of(message)) for message in messages]
        return self._arrive([self._rows.put_mail(*arguments) for arguments in arguments_of_each])

    @override
    async def signal(
        self, run_id: RunId, name: str, payload: JsonValue, *, message_id: str, sender: str
    ) -> SignalOutcome:
        rows, record = self._rows, self._rows.record(run_id)
        agent = record.cause.agent_id
        about: int | None = None
        if name.startswith(RESERVED):
            decision = decide(record, name, pack(payload), message_id)
            if isinstance(decision, SignalOutcome):
                return decision
            about = decision
        elif record.status.is_terminal or (run_id, sender, message_id) in rows.signal_ids:
            return SignalOutcome(accepted=False, agent_id=agent)
        rows.signal_ids.add((run_id, sender, message_id))
        record.signals.append(SignalRow(name, next(rows.signal_numbers), pack(payload), about))
        self._notify(Nudge("signal", agent, run_id))
        return SignalOutcome(accepted=True, agent_id=agent)

    @override
    async def request_cancel(self, run_id: RunId, *, reason: str) -> CancelReport:
        return CancelReport(tuple(self._flag(self._rows.record(run_id), reason)))

    @override
    async def answer(self, answer: Answer) -> SignalOutcome:
        record = self._rows.record(answer.run_id)
        agent = record.cause.agent_id
        waits = answer.key in {row.wait.key for row in record.waits}
        if answer.status in PERSONAL and not waits:
            return SignalOutcome(accepted=False, agent_id=agent)
        if keep_answer(self._rows, answer) is None:
            return SignalOutcome(accepted=False, agent_id=agent)
        self._notify(Nudge("signal", agent, answer.run_id))
        return SignalOutcome(accepted=True, agent_id=agent)

    @override
    async def emit(
        self, event: str, payload: JsonValue, *, after: str = "", limit: int = MOST_ANSWERED
    ) -> list[tuple[RunId, AgentId]]:
        rows, answered_runs = self._rows, dict[RunId, AgentId]()
        waits = [
            (run_id, row.wait.key)
            for run_id, record in rows.runs.items()
            if run_id > after
            for row in record.waits
            if row.wait.kind == EVENT and row.wait.key not in record.answers
            if event_of(unpack(row.request)) == event
        ]
        # A page has all waits of its runs: the next page begins after the last run, and would miss the others.
        first_ids = set(heapq.nsmallest(limit, {run_id for run_id, _ in waits}))
        for run_id, key in sorted(wait for wait in waits if wait[0] in first_ids):
            if (record := keep_answer(rows, Answer(run_id, key, "resumed", payload))) is not None:
                answered_runs[run_id] = record.cause.agent_id
        for run_id, agent in answered_runs.items():
            self._notify(Nudge("signal", agent, run_id))
        return [*answered_runs.items()]

    def _flag(self, record: RunRecord, reason: str) -> list[tuple[RunId, AgentId]]:
        rows, flagged_runs = self._rows, []
        already_flagged = {
            run.cause.run_id for run in rows.subtree(record) if run.cancel_requested is not None
        }
        for run in ask_to_stop(rows, record, reason):
            run_id, agent = run.cause.run_id, run.cause.agent_id
            flagged_runs.append((run_id, agent))
            # Readers of a session see it once: a run that was asked to stop before gets no second fact.
            if run_id not in already_flagged:
                rows.sessions.write_change(agent, run_id, ASKED_TO_STOP, is_success=True)
            self._notify(Nudge("cancel", agent, run_id))
        return flagged_runs
