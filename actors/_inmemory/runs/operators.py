"""Operators' changes of rows in memory, and the deletion of old rows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from functools import partial
from itertools import islice
from typing import Final, TypeAlias

from typing_extensions import override

from actors._inmemory.runs.records import RunRecord
from actors._inmemory.runs.rows import MemoryRole, MemoryRows
from actors._inmemory.runs.schedules import ScheduleRows
from actors._inmemory.runs.tree import ask_to_stop, make_root_run, redrive_dead
from actors._kernel.agent.agent import HistoryRetention
from actors._kernel.memory_rules import memory_scopes
from actors._kernel.runtime.hints import Nudge
from actors._kernel.runtime.ids import AgentId, RunId, derive_id, run_id_of_fork
from actors._kernel.runtime.rows import Arrived, ForkPoint, RunRow
from actors._kernel.runtime.sources import fold
from actors._kernel.stores.administration import (
    ERASE_BATCH,
    Erasable,
    EraseCount,
    EraseRequest,
    EraseScope,
    ErasureStore,
)
from actors._kernel.stores.forgotten import Forgotten
from actors._kernel.stores.runs import (
    ARTIFACT_GRACE_S,
    AUDIT_KEPT_S,
    USAGE_KEPT_S,
    OperatorStore,
    RetentionStore,
    Submitted,
    agent_scope,
)
from actors.errors import ContractError, UnknownRunError

FORGOTTEN: Final = "its agent is forgotten"
LEAST_S: Final = 8 * 86_400.0
"""A tombstone and a dead letter stay at least so long."""

_Removal: TypeAlias = tuple[str, Callable[[], object]]
"""The kind of a row, and a call that removes it."""
_OF_AGENTS: Final = (EraseScope.TENANT, EraseScope.AGENT)
_AGAIN: Final = "+"


class MemoryOperators(MemoryRole, OperatorStore):
    """Does what operators want."""

    @override
    async def fork(self, run_id: RunId, *, at_seq: int, copy: int = 0) -> Submitted:
        submission = _fork(self._rows, run_id, at_seq=at_seq, copy=copy)
        agent = self._rows.record(submission.run_id).cause.agent_id
        self._notify(Nudge("run", agent, submission.run_id))
        return submission

    @override
    async def redrive(self, ids: Sequence[int]) -> list[Arrived]:
        rows = []
        for number in ids:
            letter, row = self._rows.dead.pop(number, (None, None))
            if letter is None or row is None:
                continue
            if letter.run_id is not None:
                self._rows.given_back[letter.run_id].append(letter)
            # An id of its own: under the old one the message would be dropped as a repetition.
            message = replace(row.message(), id=derive_id("redrive", letter.message.id, number))
            rows.append(self._rows.put_mail(message, row.key.sender, letter.agent_id))
        return self._arrive(rows)

    @override
    async def redrive_run(self, run_id: RunId) -> Submitted:
        submission = redrive_dead(self._rows, run_id)
        agent = self._rows.record(run_id).cause.agent_id
        self._notify(Nudge("run", agent, submission.run_id))
        return submission

    @override
    async def discard(self, ids: Sequence[int]) -> int:
        return sum(self._rows.dead.pop(number, None) is not None for number in ids)

    @override
    async def refold(self, run_id: RunId) -> RunRow:
        record = self._rows.record(run_id)
        return fold(record.base(), [line.entry(run_id) for line in record.log])


class MemoryRetention(MemoryRole, RetentionStore):
    """Takes away what is old."""

    @override
    async def sweep(self, *, older_than_s: float | None, limit: int = 200) -> int:
        rows = self._rows
        before = (
            None if older_than_s is None else rows.clock.now() - timedelta(seconds=older_than_s)
        )
        old_runs = (run for run in rows.runs.values() if _may_go(run, before))
        return self._sweep(list(islice(old_runs, limit)))

    @override
    async def sweep_these(self, run_ids: Sequence[RunId]) -> int:
        runs = [self._rows.runs[run_id] for run_id in {*run_ids} if run_id in self._rows.runs]
        return self._sweep([run for run in runs if run.status.is_terminal and not run.swept])

    def _sweep(self, runs: Sequence[RunRecord]) -> int:
        rows = self._rows
        for run in runs:
            run.sweep()
        for root_id in {run.cause.root or run.cause.run_id for run in runs} & rows.accounts.keys():
            # The account counts for the whole tree: open runs of it may still spawn.
            if not any(run.cause.root == root_id for run in rows.open_runs()):
                del rows.accounts[root_id]
        return len(runs)

    @override
    async def forget_old(self, *, older_than_s: float | None, limit: int = 2000) -> int:
        """Ids of messages stay for as long as the process."""
        rows = self._rows
        artifacts = await rows.artifacts.collect(grace_s=ARTIFACT_GRACE_S, limit=limit)
        if older_than_s is None:
            return artifacts
        before = rows.clock.now() - timedelta(seconds=max(older_than_s, LEAST_S))
        old_runs = (run for run in rows.runs.values() if run.swept and run.updated_at < before)
        runs = list(islice(old_runs, limit))
        for run in runs:
            rows.drop_run(run)
        letters = []
        for number, (letter, _) in islice(rows.dead.items(), limit):
            record = None if letter.run_id is None else rows.runs.get(letter.run_id)
            can_be_redriven = record is not None and not record.swept
            if letter.at is not None and letter.at < before and not can_be_redriven:
                letters.append(number)
        for number in letters:
            del rows.dead[number]
        first = (rows.clock.now() - timedelta(seconds=max(older_than_s, USAGE_KEPT_S))).date()
        totals = [key for key, total in rows.usage.items() if total.day and total.day < first]
        for key in totals[:limit]:
            del rows.usage[key]
        audit_before = rows.clock.now() - timedelta(seconds=max(older_than_s, AUDIT_KEPT_S))
        audit_count = rows.audit.forget(audit_before, limit=limit)
        return artifacts + len(runs) + len(letters) + len(totals[:limit]) + audit_count

    @override
    async def forget_agent(
        self, agent_id: AgentId, *, cancel: bool = False, limit: int = 200
    ) -> Forgotten:
        rows = self._rows
        holder = rows.holder(agent_id)
        if holder is not None and not cancel:
            return Forgotten(open_run=holder.cause.run_id, more=True)
        waiting_keys = [row.key for _, row in islice(rows.waiting_mail(agent_id), limit)]
        for key in waiting_keys:
            rows.withdraw(key)
        if holder is not None:
            open_runs = [run for run in rows.open_runs() if run.cause.agent_id == agent_id]
            for stopped_run in [
                run for open_run in open_runs for run in ask_to_stop(rows, open_run, FORGOTTEN)
            ]:
                cause = stopped_run.cause
                self._notify(Nudge("cancel", cause.agent_id, cause.run_id))
            # The rows stay until the runs have ended, which write until then. The caller calls again.
            return Forgotten(open_run=holder.cause.run_id, messages=len(waiting_keys), more=True)
        topics = list(rows.follows.by_follower.get(agent_id, ()))
        for topic in topics:
            rows.follows.unfollow(agent_id, topic)
        letters = [n for n, (letter, _) in rows.dead.items() if letter.agent_id == agent_id][:limit]
        for number in letters:
            del rows.dead[number]
        runs = list(islice((r for r in rows.runs.values() if r.cause.agent_id == agent_id), limit))
        for run in runs:
            rows.drop_run(run)
        rows.transcripts.forget_agent(agent_id)
        rows.sessions.forget(agent_id)
        rows.artifacts.forget(agent_id.tenant, agent_scope(agent_id))
        return Forgotten(
            state=len(rows.states.pop(agent_id, {})),
            follows=len(topics),
            messages=len(waiting_keys),
            letters=len(letters),
            runs=len(runs),
            more=max(len(waiting_keys), len(letters), len(runs)) == limit,
        )


class MemoryErasure(ErasureStore):
    """The parts of an erase in memory. Each batch is done without an await in the middle.

    Args:
        rows: Runs, messages, conversations and artifacts.
        schedules: Those of the same store.
    """

    def __init__(self, rows: MemoryRows, schedules: ScheduleRows) -> None:
        self._rows, self._schedules = rows, schedules
        self.parts: Sequence[Erasable] = (
            _MemoryPart("tokens", self._tokens),
            _MemoryPart("mail", self._mail),
            _MemoryPart("conversations", self._conversations),
            _MemoryPart("runs", self._runs),
            _MemoryPart("sessions", self._sessions),
            _MemoryPart("agents", self._agents),
            _MemoryPart("flows", self._flows),
            _MemoryPart("snapshots", self._snapshots),
            _MemoryPart("artifacts", self._artifacts),
            _MemoryPart("audit", self._audit),
            _MemoryPart("memories", self._memories),
        )

    @override
    async def open_runs(self, what: EraseRequest, *, limit: int) -> list[tuple[RunId, AgentId]]:
        runs = sorted(
            (run.cause.run_id, run.cause.agent_id)
            for run in self._rows.open_runs()
            if what.covers(run.cause.agent_id)
        )
        return runs[:limit]

    def _mail(self, what: EraseRequest) -> Iterator[_Removal]:
        """Yield schedules, posts on their way and dead letters."""
        if what.scope not in _OF_AGENTS:
            return
        schedules, dead, follows = self._schedules.by_name, self._rows.dead, self._rows.follows
        for key, schedule in schedules.items():
            if what.covers(schedule.agent_id):
                yield "schedules", partial(schedules.pop, key, None)
        for number, (letter, _) in dead.items():
            if what.covers(letter.agent_id):
                yield "letters", partial(dead.pop, number, None)
        if what.scope is EraseScope.TENANT:
            for seq, work in follows.work.items():
                if work.topic.tenant == what.tenant:
                    yield "posts", partial(follows.work.pop, seq, None)

    def _conversations(self, what: EraseRequest) -> Iterator[_Removal]:
        """Yield turns, the oldest first; of a named session the ended runs that wrote them before."""
        transcripts = self._rows.transcripts
        for (agent, session), transcript in transcripts.transcripts.items():
            if not what.covers(agent) or what.session not in (None, session):
                continue
            turns = [(row.id, row.run_id) for row in transcript.rows]
            if what.session is not None:
                runs = (self._rows.runs.get(RunId(run_id)) for _, run_id in turns)
                yield from self._removals_of(run for run in runs if run and run.status.is_terminal)
            for turn_id, run_id in turns:
                run = self._rows.runs.get(RunId(run_id))
                if what.session is None or run is None or run.status.is_terminal:
                    yield "turns", partial(self._delete_turn, agent, session, turn_id)

    def _delete_turn(self, agent: AgentId, session: str, turn_id: str) -> None:
        """Remove a turn; a session without turns goes with its last one."""
        transcripts = self._rows.transcripts.transcripts
        transcripts[agent, session].remove_turn(turn_id)
        if not transcripts[agent, session].rows:
            del transcripts[agent, session]

    def _runs(self, what: EraseRequest) -> Iterator[_Removal]:
        if what.scope in _OF_AGENTS:
            yield from self._removals_of(
                run
                for run in self._rows.runs.values()
                if what.covers(run.cause.agent_id) and run.status.is_terminal
            )

    def _removals_of(self, runs: Iterable[RunRecord]) -> Iterator[_Removal]:
        for run_id in dict.fromkeys(run.cause.run_id for run in runs):
            letters = [n for n, (letter, _) in self._rows.dead.items() if letter.run_id == run_id]
            for number in letters:
                yield "letters", partial(self._rows.dead.pop, number, None)
            yield "runs", partial(self._rows.drop_run, self._rows.runs[run_id])

    def _sessions(self, what: EraseRequest) -> Iterator[_Removal]:
        if what.scope in _OF_AGENTS:
            whole = what.scope is EraseScope.TENANT
            yield from self._rows.sessions.removals(what.covers, whole=whole)

    def _agents(self, what: EraseRequest) -> Iterator[_Removal]:
        """Yield waiting messages, follows and state."""
        if what.scope not in _OF_AGENTS:
            return
        rows = self._rows
        for row in (
            r for rows_by_arrival in rows.pending.values() for r in rows_by_arrival.values()
        ):
            if what.covers(row.key.agent):
                yield "messages", partial(rows.withdraw, row.key)
        for follower, topics in rows.follows.by_follower.items():
            if what.covers(follower):
                for topic in topics:
                    yield "follows", partial(rows.follows.unfollow, follower, topic)
        for agent, state in rows.states.items():
            if what.covers(agent):
                for key in state:
                    yield "state", partial(state.pop, key, None)

    def _flows(self, what: EraseRequest) -> Iterator[_Removal]:
        if what.scope is EraseScope.TENANT:
            for remove in self._rows.flow_bundles.removals(what.tenant):
                yield "bundles", remove

    def _snapshots(self, what: EraseRequest) -> Iterator[_Removal]:
        if what.scope in _OF_AGENTS:
            for remove in self._rows.run_snapshots.removals(what.covers):
                yield "snapshots", remove

    def _artifacts(self, what: EraseRequest) -> Iterator[_Removal]:
        if what.scope in _OF_AGENTS:
            scope = None if what.agent is None else agent_scope(what.agent)
            for remove in self._rows.artifacts.removals(what.tenant, scope):
                yield "artifacts", remove

    def _tokens(self, what: EraseRequest) -> Iterator[_Removal]:
        if what.scope is EraseScope.TENANT:
            for remove in self._rows.tokens.removals(what.tenant):
                yield "tokens", remove

    def _audit(self, what: EraseRequest) -> Iterator[_Removal]:
        for remove in self._rows.audit.removals(what):
            yield "audit", remove

    def _memories(self, what: EraseRequest) -> Iterator[_Removal]:
        if what.scope is not EraseScope.SESSION:
            for remove in self._rows.memories.removals(what.tenant, memory_scopes(what)):
                yield "versions", remove


@dataclass(slots=True)
class _MemoryPart(Erasable):
    """Rows of one kind of store.

    Attributes:
        erased_as: See `Erasable`.
        find: Yields the rows that an erase removes, each with a call that removes it.
    """

    erased_as: str
    find: Callable[[EraseRequest], Iterator[_Removal]]

    @override
    async def erase(
        self, what: EraseRequest, *, cursor: str | None = None, limit: int = ERASE_BATCH
    ) -> EraseCount:
        del cursor
        # Read before the first removal: the iterators go through dicts that removals change.
        batch = list(islice(self.find(what), limit))
        for _, remove in batch:
            remove()
        counts = Counter(kind for kind, _ in batch)
        return EraseCount(counts, _AGAIN if len(batch) == limit else None)

    @override
    async def count(self, what: EraseRequest) -> Mapping[str, int]:
        return Counter(kind for kind, _ in self.find(what))


def _fork(rows: MemoryRows, run_id: RunId, *, at_seq: int, copy: int) -> Submitted:
    source = rows.record(run_id)
    new_id = run_id_of_fork(run_id, at_seq, copy)
    if new_id in rows.runs:
        return Submitted(new_id, None)
    if source.swept:
        raise UnknownRunError(run_id)
    if not 0 <= at_seq <= source.last_seq:
        msg = f"run {run_id} has entries 0 to {source.last_seq}, none with seq {at_seq}"
        raise ContractError(msg)
    rows.create_run(make_root_run(rows, source.cause, new_id, ForkPoint(run_id, at_seq)))
    return Submitted(new_id, None)


def _may_go(run: RunRecord, before: datetime | None) -> bool:
    if run.swept or not run.status.is_terminal:
        return False
    supervision = run.cause.supervision
    is_traceless = supervision is not None and supervision.retention is HistoryRetention.NONE
    return is_traceless or (before is not None and run.updated_at < before)
