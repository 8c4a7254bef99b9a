"""Operators' changes of rows in memory, and the deletion of old rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from itertools import islice
from typing import Final

from typing_extensions import override

from actors.errors import ContractError, UnknownRunError
from actors.kernel.agent.supervision import HistoryRetention
from actors.kernel.runtime.fold import fold
from actors.kernel.runtime.hints import Nudge
from actors.kernel.runtime.ids import AgentId, RunId, derive_id, run_id_of_fork
from actors.kernel.runtime.rows import Arrived, ForkPoint, RunRow
from actors.kernel.store.arrivals import Submitted
from actors.kernel.store.forgotten import Forgotten
from actors.kernel.store.operators import (
    ARTIFACT_GRACE_S,
    OperatorStore,
    RetentionStore,
    agent_scope,
)
from actors.runtime.memory.records import RunRecord
from actors.runtime.memory.rows import MemoryRole, MemoryRows
from actors.runtime.memory.tree import ask_to_stop, begun_anew, redrive_dead

FORGOTTEN: Final = "its agent is forgotten"
LEAST_S: Final = 8 * 86_400.0
"""So long a tombstone and a dead letter stay at least."""


class MemoryOperators(MemoryRole, OperatorStore):
    """Does what operators want."""

    @override
    async def fork(self, run_id: RunId, *, at_seq: int, copy: int = 0) -> Submitted:
        submitted = _fork(self._rows, run_id, at_seq=at_seq, copy=copy)
        agent = self._rows.record(submitted.run_id).cause.agent_id
        self._notify(Nudge("run", agent, submitted.run_id))
        return submitted

    @override
    async def redrive(self, ids: Sequence[int]) -> list[Arrived]:
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

    @override
    async def redrive_run(self, run_id: RunId) -> Submitted:
        submitted = redrive_dead(self._rows, run_id)
        agent = self._rows.record(run_id).cause.agent_id
        self._notify(Nudge("run", agent, submitted.run_id))
        return submitted

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
        old = (run for run in rows.runs.values() if _may_go(run, before))
        swept = list(islice(old, limit))
        for run in swept:
            run.sweep()
        for root in {run.cause.root or run.cause.run_id for run in swept} & rows.accounts.keys():
            if not any(run.cause.root == root for run in rows.open_runs()):
                del rows.accounts[root]
        return len(swept)

    @override
    async def forget_old(self, *, older_than_s: float | None, limit: int = 2000) -> int:
        """Ids of messages stay for as long as the process."""
        rows = self._rows
        artifacts = await rows.artifacts.collect(grace_s=ARTIFACT_GRACE_S, limit=limit)
        if older_than_s is None:
            return artifacts
        before = rows.clock.now() - timedelta(seconds=max(older_than_s, LEAST_S))
        old = (run for run in rows.runs.values() if run.swept and run.updated_at < before)
        runs = list(islice(old, limit))
        for run in runs:
            rows.drop_run(run)
        letters = [
            number
            for number, (letter, _) in islice(rows.dead.items(), limit)
            if letter.at is not None and letter.at < before and _is_over(rows, letter.run_id)
        ]
        for number in letters:
            del rows.dead[number]
        return artifacts + len(runs) + len(letters)

    @override
    async def forget_agent(
        self, agent_id: AgentId, *, cancel: bool = False, limit: int = 200
    ) -> Forgotten:
        rows = self._rows
        holder = rows.holder(agent_id)
        if holder is not None and not cancel:
            return Forgotten(open_run=holder.cause.run_id, more=True)
        waiting = [row.key for _, row in islice(rows.waiting_mail(agent_id), limit)]
        for key in waiting:
            rows.withdraw(key)
        if holder is not None:
            open_runs = [run for run in rows.open_runs() if run.cause.agent_id == agent_id]
            for stopped in [run for one in open_runs for run in ask_to_stop(rows, one, FORGOTTEN)]:
                cause = stopped.cause
                self._notify(Nudge("cancel", cause.agent_id, cause.run_id))
            return Forgotten(open_run=holder.cause.run_id, messages=len(waiting), more=True)
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
        rows.artifacts.forget(agent_id.tenant, agent_scope(agent_id))
        return Forgotten(
            state=len(rows.states.pop(agent_id, {})),
            follows=len(topics),
            messages=len(waiting),
            letters=len(letters),
            runs=len(runs),
            more=max(len(waiting), len(letters), len(runs)) == limit,
        )


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
    rows.create_run(begun_anew(rows, source.cause, new_id, ForkPoint(run_id, at_seq)))
    return Submitted(new_id, None)


def _may_go(run: RunRecord, before: datetime | None) -> bool:
    if run.swept or not run.status.is_terminal:
        return False
    terms = run.cause.supervision
    is_traceless = terms is not None and terms.retention is HistoryRetention.NONE
    return is_traceless or (before is not None and run.updated_at < before)


def _is_over(rows: MemoryRows, run_id: RunId | None) -> bool:
    """Return True if nobody can redrive this run any more."""
    run = None if run_id is None else rows.runs.get(run_id)
    return run is None or run.swept
