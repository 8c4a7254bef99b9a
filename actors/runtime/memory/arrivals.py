"""Writes to agents and runs in memory that are not part of a commit."""

from __future__ import annotations

import heapq
from collections.abc import Sequence

from typing_extensions import override

from actors.errors import RunConflictError
from actors.kernel.agent.agent import ASKED_TO_STOP
from actors.kernel.agent.message import Message
from actors.kernel.json import JsonValue
from actors.kernel.runtime.hints import Nudge
from actors.kernel.runtime.ids import AgentId, RunId
from actors.kernel.runtime.rows import RESERVED, Arrived, CancelReport, NewRun, SignalOutcome
from actors.kernel.runtime.waits import EVENT, PERSONAL, Answer, event_of
from actors.kernel.stores.runs import (
    MOST_ANSWERED,
    ArrivalStore,
    OnConflict,
    Submitted,
    ends_of,
    sender_of_message,
)
from actors.runtime.memory.records import RunRecord, SignalRow, decide, pack, unpack
from actors.runtime.memory.rows import MemoryRole
from actors.runtime.memory.talk import keep_answer
from actors.runtime.memory.tree import ask_to_stop
from actors.storage.sessions import check_expected


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
        if new_run.session is not None:
            check_expected(agent, rows.sessions.records.get(agent), new_run.session.expected)
        known = self._known_submit(new_run, message, sender)
        if known is not None:
            return known
        if new_run.session is not None:
            rows.sessions.check_open(agent)
        busy = rows.holder(agent)
        is_foreign = busy is not None and is_apart and rows.started_by(busy) != sender
        refuses = on_conflict == "reject" or (on_conflict != "queue" and is_foreign)
        if busy is not None and refuses:
            raise RunConflictError(str(agent), busy.cause.run_id)
        if busy is not None and on_conflict == "interrupt":
            self._flag(busy, f"interrupted by message {message.id}")
        row = rows.put_mail(message, sender, agent)
        assert row is not None, "looked for above, without an await in between"
        if busy is not None and on_conflict == "join":
            record = busy
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
        mail = [(message, *ends_of(message)) for message in messages]
        return self._arrive([self._rows.put_mail(*one) for one in mail])

    @override
    async def signal(
        self, run_id: RunId, name: str, payload: JsonValue, *, message_id: str, sender: str
    ) -> SignalOutcome:
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
        rows, found = self._rows, dict[RunId, AgentId]()
        waiting = [
            (run_id, row.wait.key)
            for run_id, record in rows.runs.items()
            if run_id > after
            for row in record.waits
            if row.wait.kind == EVENT and row.wait.key not in record.answers
            if event_of(unpack(row.request)) == event
        ]
        first = set(heapq.nsmallest(limit, {run_id for run_id, _ in waiting}))
        for run_id, key in sorted(one for one in waiting if one[0] in first):
            if (record := keep_answer(rows, Answer(run_id, key, "resumed", payload))) is not None:
                found[run_id] = record.cause.agent_id
        for run_id, agent in found.items():
            self._notify(Nudge("signal", agent, run_id))
        return [*found.items()]

    def _known_submit(self, new_run: NewRun, message: Message, sender: str) -> Submitted | None:
        row = self._rows.known(new_run.agent_id, sender, message.id)
        if row is not None:
            return Submitted(row.submitted_run or row.run_id or new_run.run_id, None)
        return Submitted(new_run.run_id, None) if new_run.run_id in self._rows.runs else None

    def _flag(self, record: RunRecord, reason: str) -> list[tuple[RunId, AgentId]]:
        rows, flagged = self._rows, []
        asked = {
            run.cause.run_id for run in rows.subtree(record) if run.cancel_requested is not None
        }
        for run in ask_to_stop(rows, record, reason):
            run_id, agent = run.cause.run_id, run.cause.agent_id
            flagged.append((run_id, agent))
            if run_id not in asked:
                rows.sessions.write_change(agent, run_id, ASKED_TO_STOP, is_success=True)
            self._notify(Nudge("cancel", agent, run_id))
        return flagged
