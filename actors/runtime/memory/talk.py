"""Answers and open waits of runs, in memory."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from datetime import datetime
from operator import attrgetter
from typing import Final

from actors.errors import UnknownRunError
from actors.kernel.json import JsonValue
from actors.kernel.runtime.hints import Nudge
from actors.kernel.runtime.ids import RunId
from actors.kernel.runtime.scheduler import RunStatus
from actors.kernel.runtime.waits import Answer, AnswerStatus, OpenWait, Wait
from actors.runtime.memory.records import AnswerRow, RunRecord, WaitRow, pack, unpack
from actors.runtime.memory.rows import MemoryRows

_END_STATUS: Final[dict[RunStatus, AnswerStatus]] = {
    RunStatus.COMPLETED: "completed",
    RunStatus.FAILED: "failed",
    RunStatus.CANCELLED: "cancelled",
}


def keep_answer(rows: MemoryRows, answer: Answer) -> RunRecord | None:
    """Return the run that has this answer now; None when its key has one already.

    Raises:
        UnknownRunError: There is no such run.
    """
    record = rows.runs.get(answer.run_id)
    if record is None:
        raise UnknownRunError(answer.run_id)
    if answer.key in record.answers or record.swept:
        return None
    record.answers[answer.key] = AnswerRow.of(answer)
    return record


def reply(rows: MemoryRows, record: RunRecord, answers: Iterable[Answer]) -> list[Nudge]:
    """Write what a run's commit replies; a reply to what its agent was never asked is ignored."""
    nudges: list[Nudge] = []
    for answer in answers:
        asker = rows.runs.get(answer.run_id)
        if asker is None or not _was_asked(rows, record, asker, answer.key):
            continue
        last_seq = record.last_seq if answer.last_seq < 0 else answer.last_seq
        full = replace(answer, by=answer.by or record.cause.run_id, last_seq=last_seq)
        if keep_answer(rows, full) is not None:
            nudges += _nudges_of(asker)
    return nudges


def answer_end(rows: MemoryRows, record: RunRecord) -> list[Nudge]:
    """Answer all runs that wait for the end of a run that has just ended, and its parent."""
    run_id = record.cause.run_id
    ends: dict[tuple[RunId, str], None] = {}
    if record.cause.parent is not None:
        ends[record.cause.parent, run_id] = None
    for waiter in rows.waiters.get(run_id, ()):
        for row in rows.runs[waiter].waits:
            if row.wait.target_run == run_id:
                ends[waiter, row.wait.key] = None
    for mail in record.bound:
        asker = rows.runs.get(mail.shell.reply_to) if mail.shell and mail.shell.reply_to else None
        if asker is not None and mail.key.sender == f"agent:{asker.cause.agent_id}":
            ends[asker.cause.run_id, mail.key.message_id] = None
    nudges: list[Nudge] = []
    for waiting, key in ends:
        nudges += _deliver_end(rows, record, waiting, key)
    return nudges


def _deliver_end(rows: MemoryRows, ended: RunRecord, waiting: RunId, key: str) -> list[Nudge]:
    record = rows.runs.get(waiting)
    if record is None or record.cause.agent_id.tenant != ended.cause.agent_id.tenant:
        return []
    if keep_answer(rows, _end_of(ended, waiting, key)) is None:
        return []
    return _nudges_of(record)


def _end_of(ended: RunRecord, waiting: RunId, key: str) -> Answer:
    """Return how a run ended as the answer to `key` of the run `waiting`."""
    result: JsonValue = None
    error: JsonValue = None
    match ended.status:
        case RunStatus.COMPLETED:
            result = unpack(ended.result)
        case RunStatus.CANCELLED:
            error = {"message": ended.cancel_reason()}
        case _:
            error = unpack(ended.error)
    return Answer(
        run_id=waiting,
        key=key,
        status=_END_STATUS[ended.status],
        result=result,
        error=error if isinstance(error, dict) else None,
        by=ended.cause.run_id,
        last_seq=ended.last_seq,
    )


def _was_asked(rows: MemoryRows, record: RunRecord, asker: RunRecord, key: str) -> bool:
    """Return whether the asker's agent sent this run's agent a message with this id."""
    agent, asking = record.cause.agent_id, asker.cause.agent_id
    if agent.tenant != asking.tenant:
        return False
    return rows.known(agent, f"agent:{asking}", key) is not None


def _nudges_of(record: RunRecord) -> list[Nudge]:
    if record.status.is_terminal:
        return []
    return [Nudge("signal", record.cause.agent_id, record.cause.run_id)]


def set_waits(rows: MemoryRows, record: RunRecord, waits: Iterable[Wait]) -> list[Nudge]:
    """Replace the run's open waits. If a wait's target run has ended, its answer is delivered at once.

    It is delivered again if the run has already consumed it, because a run may join another run twice.
    """
    known = {(row.wait.position, row.wait.key): row for row in record.waits}
    clear_waits(rows, record)
    run_id, nudges = record.cause.run_id, list[Nudge]()
    for wait in waits:
        before = known.get((wait.position, wait.key))
        record.waits.append(_wait_row(wait, before, rows.clock.now()))
        if wait.target_run is None:
            continue
        rows.waiters.setdefault(wait.target_run, {})[run_id] = None
        target = rows.runs.get(wait.target_run)
        if target is not None and target.status.is_terminal:
            nudges += _deliver_end(rows, target, run_id, wait.key)
            nudges += _give_again(record, wait.key)
    if record.waits:
        rows.waiting[run_id] = record
    return nudges


def _wait_row(wait: Wait, before: WaitRow | None, now: datetime) -> WaitRow:
    since = now if before is None else before.since
    must_since = before.must_since if before is not None and before.wait.must else now
    return WaitRow(replace(wait, request=None), pack(wait.request), since, must_since)


def _give_again(record: RunRecord, key: str) -> list[Nudge]:
    row = record.answers.get(key)
    if row is None or not row.is_taken:
        return []
    row.is_taken = False
    return _nudges_of(record)


def clear_waits(rows: MemoryRows, record: RunRecord) -> None:
    """Forget the run's open waits."""
    run_id = record.cause.run_id
    for row in record.waits:
        target = row.wait.target_run
        others = rows.waiters.get(target) if target is not None else None
        if target is not None and others is not None:
            others.pop(run_id, None)
            if not others:
                del rows.waiters[target]
    record.waits = []
    rows.waiting.pop(run_id, None)


def open_waits(rows: MemoryRows, *, run_id: RunId | None = None) -> list[OpenWait]:
    """Return waits without an answer, oldest first: of one run, or of all."""
    waiting = rows.waiting.values() if run_id is None else [rows.waiting.get(run_id)]
    found = [
        row.opened(record)
        for record in waiting
        if record is not None
        for row in record.waits
        if not _is_answered(record, row.wait.key)
    ]
    return sorted(found, key=attrgetter("place"))


def _is_answered(record: RunRecord, key: str) -> bool:
    row = record.answers.get(key)
    return row is not None and not row.is_taken
