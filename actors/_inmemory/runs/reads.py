"""Reads of rows in memory: runs, state, lists, and views for operators."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from datetime import timedelta
from itertools import islice

from typing_extensions import override

from actors._inmemory.runs.records import InboxRow, RunRecord, part_of_state, unpack
from actors._inmemory.runs.rows import MemoryRole, MemoryRows
from actors._inmemory.runs.tree import account_of, children_of, open_waits
from actors._kernel.json import JsonValue
from actors._kernel.runtime.ids import AgentId, HostIncarnation, RunId, ShardId
from actors._kernel.runtime.log_entry import RunLogEntry
from actors._kernel.runtime.rows import Arrived, BufferedSignal, DeadLetter, LoadedRun, RunRow
from actors._kernel.runtime.scheduler import RunStatus
from actors._kernel.runtime.waits import Answer, OpenWait
from actors._kernel.stores.insight import (
    OVERDUE_S,
    AgentRow,
    HostRow,
    InsightStore,
    KnownTotals,
    Totals,
    reason_of,
)
from actors._kernel.stores.runs import (
    ANY_APPROVAL,
    ANY_RUN,
    ApprovalFilter,
    ListStore,
    ReadStore,
    RunFilter,
    StatePart,
    TaskRun,
)


class MemoryReads(MemoryRole, ReadStore):
    """Reads by id; every value is fresh."""

    @override
    async def load(self, run_ids: Sequence[RunId]) -> list[LoadedRun]:
        records = [self._rows.runs[run_id] for run_id in run_ids if run_id in self._rows.runs]
        return [record.to_loaded_run() for record in records]

    @override
    async def run(self, run_id: RunId) -> RunRow | None:
        record = self._rows.runs.get(run_id)
        return record.row() if record else None

    @override
    async def started_by(self, run_id: RunId) -> str | None:
        record = self._rows.runs.get(run_id)
        return None if record is None else self._rows.started_by(record)

    @override
    async def signals(self, run_id: RunId) -> list[BufferedSignal]:
        record = self._rows.runs.get(run_id)
        rows = record.signals if record else []
        return [BufferedSignal(row.name, row.n, unpack(row.payload), row.about) for row in rows]

    @override
    async def answers(self, run_id: RunId) -> list[Answer]:
        record = self._rows.runs.get(run_id)
        rows = record.answers if record else {}
        return [row.answer(run_id, key) for key, row in rows.items() if not row.is_taken]

    @override
    async def state(self, agent_id: AgentId) -> dict[str, JsonValue]:
        return {key: unpack(text) for key, text in self._rows.states.get(agent_id, {}).items()}

    @override
    async def state_at(self, agent_id: AgentId, key: str) -> StatePart:
        return part_of_state(self._rows.states.get(agent_id, {}), key)

    @override
    async def tokens_left(self, run_id: RunId) -> int | None:
        record = self._rows.runs.get(run_id)
        return None if record is None else account_of(self._rows, record).tokens_left()

    @override
    async def entries(self, run_id: RunId, *, from_seq: int = 0) -> AsyncIterator[RunLogEntry]:
        record = self._rows.runs.get(run_id)
        for line in record.log[from_seq:] if record else ():
            yield line.entry(run_id)

    @override
    async def tail(self, run_id: RunId, *, from_seq: int = 0) -> AsyncIterator[RunLogEntry]:
        """May start before the run exists."""
        news = self._rows.listen(run_id)
        try:
            while True:
                # Cleared before the read: an entry that is appended during a `yield` sets it again.
                news.clear()
                record = self._rows.runs.get(run_id)
                for line in record.log[from_seq:] if record else ():
                    yield line.entry(run_id)
                    from_seq = line.seq + 1
                # No entry comes to a swept or dropped log: its readers would wait for ever.
                if record.swept if record else run_id in self._rows.dropped:
                    return
                if record and record.has_ended and from_seq > record.last_seq:
                    return
                await news.wait()
        finally:
            self._rows.unlisten(run_id, news)


class MemoryLists(MemoryRole, ListStore):
    """Looks through the rows."""

    @override
    async def runs(
        self,
        *,
        status: Sequence[RunStatus] = (),
        agent: AgentId | None = None,
        parked: bool | None = None,
        among: RunFilter = ANY_RUN,
        limit: int = 100,
    ) -> list[RunRow]:
        records = (
            run
            for run in self._rows.newest(among)
            if (not status or run.status in status)
            and (agent is None or run.cause.agent_id == agent)
            and (parked is None or (run.parked is not None) == parked)
        )
        return [run.row() for run in islice(records, limit)]

    @override
    async def children(self, run_id: RunId) -> list[RunRow]:
        return [child.row() for child in children_of(self._rows, run_id)]

    @override
    async def tasks(
        self, agent_id: AgentId, *, status: Sequence[RunStatus], every: bool = False
    ) -> list[TaskRun]:
        task_runs: list[TaskRun] = []
        parents = [run for run in self._rows.runs.values() if run.cause.agent_id == agent_id]
        while parents:
            children = [
                child for run in parents for child in children_of(self._rows, run.cause.run_id)
            ]
            ended_runs = [run for run in children if run.status in status and (run.log or every)]
            tasks = [_task_run(run) for run in ended_runs]
            task_runs += [task_run for task_run in tasks if task_run.task or every]
            parents = children
        return sorted(task_runs, key=lambda task: task.run_id)

    @override
    async def find_run_for_agent(self, agent_id: AgentId) -> RunRow | None:
        record = self._rows.holder(agent_id)
        return record.row() if record else None

    @override
    async def run_of_message(
        self, agent_id: AgentId, sender: str, message_id: str
    ) -> RunRow | None:
        mail = self._rows.message_row(agent_id, sender, message_id)
        run_id = mail.run_id if mail is not None else None
        record = self._rows.runs[run_id] if run_id is not None else self._rows.started(agent_id)
        return record.row() if record is not None else None

    @override
    async def waits(self, run_id: RunId, *, limit: int = 100) -> list[OpenWait]:
        return open_waits(self._rows, run_id=run_id)[:limit]

    @override
    async def approvals(
        self, among: ApprovalFilter = ANY_APPROVAL, *, limit: int = 100
    ) -> list[OpenWait]:
        waits = (
            open_wait
            for open_wait in open_waits(self._rows, run_id=among.run_id)
            if open_wait.wait.kind == "approval"
            and (among.after is None or open_wait.place > among.after)
            and open_wait.wait.key.startswith(among.key or "")
            and among.tenant in (None, open_wait.agent_id.tenant)
            and (among.owner is None or self._is_of(open_wait, among.owner))
        )
        return list(islice(waits, limit))

    def _is_of(self, open_wait: OpenWait, owner: str) -> bool:
        """Return True if a run, or the one that it is below, is of a session of this owner."""
        root = self._rows.runs.get(self._rows.runs[open_wait.run_id].cause.root or open_wait.run_id)
        session = root and self._rows.sessions.records.get(root.cause.agent_id)
        return bool(
            session and session.created_at and not session.is_deleting and session.owner == owner
        )

    @override
    async def pending_count(self, agent_id: AgentId) -> int:
        runs = self._rows.open_by_agent.get(agent_id, {}).values()
        return len(self._rows.pending.get(agent_id, ())) + sum(len(run.bound) for run in runs)

    @override
    async def dead_letters(
        self, *, agent: AgentId | None = None, ids: Sequence[int] = (), limit: int = 100
    ) -> list[DeadLetter]:
        letters = (
            replace(letter, message=row.message())
            for letter, row in reversed(self._rows.dead.values())
            if agent in (None, letter.agent_id) and (not ids or letter.id in ids)
        )
        return list(islice(letters, limit))


def _task_run(run: RunRecord) -> TaskRun:
    supervision = run.cause.supervision
    return TaskRun(
        run.cause.run_id,
        run.cause.agent_id,
        (supervision.task if supervision is not None else None) or "",
        run.status,
        run.updated_at,
        len(run.log),
        sum(len(line.payload) for line in run.log),
    )


class MemoryInsight(InsightStore):
    """Views for operators. A single host owns everything, so the list of hosts has one at most."""

    def __init__(self, rows: MemoryRows, *, lease_s: float | None) -> None:
        self._rows = rows
        self._lease_s = lease_s

    @override
    async def agents(
        self,
        *,
        type_: str | None = None,
        tenant: str | None = None,
        waiting_s: float | None = None,
        after: AgentId | None = None,
        limit: int = 100,
    ) -> list[AgentRow]:
        candidates = set(self._rows.open_by_agent) | {
            agent for agent in self._rows.pending if self._mail(agent)
        }
        agents = sorted(
            (
                agent
                for agent in candidates
                if type_ in (None, agent.type)
                and tenant in (None, agent.tenant)
                and (after is None or _sort_key(agent) > _sort_key(after))
            ),
            key=_sort_key,
        )
        rows = []
        for agent in agents:
            row = self._agent(agent)
            if waiting_s is not None and (
                row.oldest_at is None
                or self._rows.clock.now() - row.oldest_at < timedelta(seconds=waiting_s)
            ):
                continue
            rows.append(row)
            if len(rows) == limit:
                break
        return rows

    @override
    async def inbox(self, agent_id: AgentId, *, limit: int = 100) -> list[Arrived]:
        rows = list(self._rows.pending.get(agent_id, {}).values())
        for run in self._rows.open_by_agent.get(agent_id, {}).values():
            rows += run.bound
        rows.sort(key=lambda row: row.arrival)
        return [row.arrived() for row in rows[:limit]]

    @override
    async def hosts(self) -> list[HostRow]:
        shard, owner = self._rows.shard, self._owner()
        if owner is None:
            return []
        remaining_s = math.inf
        if shard.expires_at is not None:
            remaining_s = (shard.expires_at - self._rows.clock.now()).total_seconds()
        seen_s = 0.0 if self._lease_s is None else max(0.0, self._lease_s - remaining_s)
        serves = self._rows.serves.get(owner)
        names: tuple[str, ...] = ()
        if serves is not None:
            names = (*sorted(serves.types), *sorted(str(agent) for agent in serves.agents))
        return [HostRow(owner=owner, seen_s=seen_s, expires_s=remaining_s, shards=1, serves=names)]

    @override
    async def shards_of(self, owner: HostIncarnation) -> Sequence[ShardId]:
        return [self._rows.home] if owner == self._owner() else []

    @override
    async def totals(self) -> Totals:
        runs = list(self._rows.open_runs())
        mail = [row for agent in self._rows.pending for row in self._mail(agent)]
        now = self._rows.clock.now()
        overdue_before = now - timedelta(seconds=OVERDUE_S)
        oldest = min((row.received_at for row in mail), default=now)
        agents = {run.cause.agent_id for run in runs} | {row.key.agent for row in mail}
        approvals = [
            open_wait for open_wait in open_waits(self._rows) if open_wait.wait.kind == "approval"
        ]
        owner = self._owner()
        unserved_types = {agent.type for agent in agents if not self._is_served(agent)}
        declared_types = {type_ for serves in self._rows.serves.values() for type_ in serves.types}
        return Totals(
            runs=Counter(run.status for run in runs),
            parked=Counter(run.parked for run in runs if run.parked is not None),
            pending=Counter(row.key.agent.type for row in mail),
            oldest_pending_s=max(0.0, (now - oldest).total_seconds()),
            dead_letters=len(self._rows.dead),
            timers_overdue=sum(
                timer is not None and timer.at < overdue_before
                for timer in (run.timer() for run in runs)
            ),
            shards=1,
            unowned=int(owner is None),
            hosts=int(owner is not None),
            unserved=(
                *sorted(unserved_types & declared_types),
                *sorted(unserved_types - declared_types),
            ),
            approvals=len(approvals),
        )

    @override
    async def known_totals(self, *, every_s: float) -> KnownTotals:
        """Count now: counting rows in memory is cheap, so no totals are stored."""
        del every_s
        return KnownTotals(await self.totals(), 0.0)

    @override
    async def count_totals(self) -> None:
        pass

    def _mail(self, agent: AgentId) -> list[InboxRow]:
        return [row for row in self._rows.pending.get(agent, {}).values() if not row.is_lazy]

    def _agent(self, agent: AgentId) -> AgentRow:
        mail = self._mail(agent)
        runs = list(self._rows.open_by_agent.get(agent, {}).values())
        holder = self._rows.started(agent)
        return AgentRow(
            agent_id=agent,
            pending=len(mail),
            oldest_at=min((row.received_at for row in mail), default=None),
            queued=len([run for run in runs if run is not holder]),
            run_id=holder.cause.run_id if holder is not None else None,
            status=holder.status if holder is not None else None,
            parked=holder.parked if holder is not None else None,
            wake_at=holder.wake_at if holder is not None else None,
            owner=self._owner(),
            reason=reason_of(
                holder.status if holder is not None else None,
                parked=holder is not None and holder.parked is not None,
                served=self._is_served(agent),
                owned=self._owner() is not None,
            ),
        )

    def _owner(self) -> HostIncarnation | None:
        shard = self._rows.shard
        is_dead = shard.expires_at is not None and shard.expires_at <= self._rows.clock.now()
        return None if is_dead else shard.owner

    def _is_served(self, agent: AgentId) -> bool:
        owner = self._owner()
        serves = self._rows.serves.get(owner) if owner is not None else None
        return serves is not None and (agent.type in serves.types or agent in serves.agents)


def _sort_key(agent: AgentId) -> tuple[str, str, str]:
    return agent.tenant, agent.type, agent.key
