"""The application of a commit to the rows of the in-memory store: check everything first, then write all."""

from __future__ import annotations

from collections.abc import Sequence
from typing import assert_never

from typing_extensions import override

from actors._inmemory.runs.records import InboxRow, RunRecord, pack
from actors._inmemory.runs.rows import MemoryRole, MemoryRows, check_entries
from actors._inmemory.runs.topics import change_and_post
from actors._inmemory.runs.tree import (
    answer_end,
    clear_waits,
    cycles_of,
    over_budget,
    release_slot,
    reply,
    resolve_orphans,
    set_waits,
    spawn,
)
from actors._kernel.agent.message import MessageKey
from actors._kernel.runtime.commit import (
    Answered,
    Commit,
    CommitOutcome,
    Committed,
    Conflict,
    Continue,
    Deleted,
    Finish,
    LeaseLost,
    Missing,
    OutOfOrder,
    Park,
    Retry,
    Suspend,
)
from actors._kernel.runtime.hints import Nudge
from actors._kernel.runtime.ids import AgentId
from actors._kernel.runtime.log_entry import EntryKind, NewEntry
from actors._kernel.runtime.scheduler import Lease, RunStatus
from actors._kernel.runtime.sources import TELLING, ends_execution
from actors._kernel.runtime.waits import WakeSet
from actors._kernel.stores.runs import CommitStore
from actors._kernel.stores.topics import check_topics
from actors.errors import (
    ConcurrentAppendError,
    IllegalTransitionError,
    LeaseLostError,
    OutOfOrderError,
)


class MemoryCommits(MemoryRole, CommitStore):
    """Writes commits, each without an await in the middle."""

    @override
    async def append(self, lease: Lease, entries: Sequence[NewEntry], *, expected_seq: int) -> int:
        check_entries(entries)
        record = self._appendable(lease, expected_seq)
        record.status, record.attempt = RunStatus.RUNNING, lease.attempt
        record.wake = record.wake_at = record.parked = None
        self._rows.add_entries(record, entries)
        return record.last_seq

    @override
    async def commit(self, commit: Commit) -> CommitOutcome:
        return write_commit(self._rows, commit)

    def _appendable(self, lease: Lease, expected_seq: int) -> RunRecord:
        if not fenced(self._rows, lease):
            raise LeaseLostError(lease.shard, lease.owner, lease.epoch)
        record = self._rows.record(lease.run_id)
        if record.status.is_terminal:
            raise IllegalTransitionError(lease.run_id, record.status, RunStatus.RUNNING)
        if record.last_seq != expected_seq:
            raise ConcurrentAppendError(lease.run_id, expected_seq, record.last_seq)
        if expected_seq < 0 and overtaken(self._rows, Commit(lease, expected_seq, ())):
            raise OutOfOrderError(lease.run_id, expected_seq, record.last_seq)
        return record


def fenced(rows: MemoryRows, lease: Lease) -> bool:
    """Return True if the lease still is the shard's: owner and epoch, not its expiry."""
    return rows.shard.is_held_by(lease)


def write_commit(rows: MemoryRows, commit: Commit) -> CommitOutcome:
    """Write the commit, all or nothing. See `CommitStore.commit`.

    Raises:
        InvalidEntryError: An entry's kind or payload is wrong; nothing was written.
        OtherTenantError: It follows or posts to a topic of another tenant; nothing was written.
    """
    check_entries(commit.entries)
    check_topics(commit)
    outcome = refusal(rows, commit)
    if outcome is not None:
        return outcome
    if commit.create is None:
        record = rows.runs[commit.lease.run_id]
    else:
        first_arrival = min((rows.inbox[key].arrival for key in commit.bind), default=None)
        record = rows.create_run(commit.create, arrival=first_arrival)
    if begins_attempt(commit):
        record.attempt = commit.attempt
    rows.add_entries(record, commit.entries)
    for key in commit.bind:
        # A submit may have bound the message to this run already.
        if rows.inbox[key].state == "pending":
            rows.bind(rows.inbox[key], record)
    if isinstance(commit.then, Retry):
        rows.release(commit.then.release, record)
    if commit.take_signals:
        taken_numbers = {n for _, n in commit.take_signals}
        record.signals = [signal for signal in record.signals if signal.n not in taken_numbers]
    for answer_key in commit.take_answers:
        record.answers[answer_key].is_taken = True
    _write_state(rows, commit)
    _write_turns(rows, commit)
    spawned_children = spawn(rows, commit)
    nudges = reply(rows, record, commit.answers)
    nudges += change_and_post(rows, commit)
    routed_rows = _route(rows, commit)
    # Before the runs that wait for this one are answered: the answer has its status and result.
    set_status(rows, record, commit)
    nudges += _settle_with_others(rows, record, commit)
    if commit.session is not None:
        is_success = record.status is RunStatus.COMPLETED
        lease = commit.lease
        rows.sessions.write_change(
            lease.agent_id, lease.run_id, commit.session, is_success=is_success
        )
    for question in commit.withdraw:
        rows.withdraw(question)
    return Committed(
        record.last_seq,
        record.cancel_requested,
        tuple(row.arrived() for row in routed_rows if row.state == "pending"),
        # What the run waits for may have come while it executed: no notification follows then.
        wake_now=isinstance(commit.then, Suspend) and has_arrived(rows, record, commit.then.wake),
        cycles=cycles_of(rows, record) if commit.waits else (),
        nudges=tuple(dict.fromkeys(nudges)),
        spawned=spawned_children,
    )


def _write_turns(rows: MemoryRows, commit: Commit) -> None:
    """Move a session's head, then write what the commit adds to sessions of its agent, or takes from them."""
    lease = commit.lease
    # The head first: the commit's turns follow it.
    if commit.session is not None and commit.session.head is not None:
        rows.transcripts.move_head(lease.agent_id, lease.agent_id.key, commit.session.head)
    if commit.turns or commit.cuts:
        rows.transcripts.write(lease.agent_id, lease.run_id, commit.turns, commit.cuts)
    if commit.clear_turns:
        rows.transcripts.forget_run(lease.run_id)


def _settle_with_others(rows: MemoryRows, record: RunRecord, commit: Commit) -> list[Nudge]:
    """Write what the commit's end means for runs that wait for this one, or that it waits for."""
    if not isinstance(commit.then, Finish):
        return [] if commit.waits is None else set_waits(rows, record, commit.waits)
    clear_waits(rows, record)
    nudges = answer_end(rows, record)
    release_slot(rows, record)
    nudges += resolve_orphans(rows, record, commit.orphans)
    # Last: it drops the messages whose askers `answer_end` answers.
    rows.end_run(record, dead_letter=commit.then.dead_letter)
    return nudges


def begins_attempt(commit: Commit) -> bool:
    """Return True if the commit was written by code that executes, as `fold` sees it.

    A run that is cancelled or parked without being executed keeps the number of its last attempt.
    """
    if isinstance(commit.then, Continue | Retry):
        return True
    if any(entry.kind == EntryKind.RUN_ATTEMPT_FAILED for entry in commit.entries):
        return True  # the last attempt failed and the run is parked with it
    return any(entry.kind not in TELLING or ends_execution(entry) for entry in commit.entries)


def set_status(rows: MemoryRows, record: RunRecord, commit: Commit) -> None:
    """Write what becomes of the run into its columns."""
    record.wake = record.wake_at = record.parked = None
    match commit.then:
        case Continue():
            record.status = RunStatus.RUNNING
        case Suspend(wake):
            record.status, record.wake, record.wake_at = RunStatus.SUSPENDED, wake, wake.at
        case Retry(at, error):
            record.status, record.wake_at = RunStatus.PENDING, at
            record.error = pack(error)
        case Park(reason):
            record.status, record.parked = RunStatus.SUSPENDED, reason
        case Finish(status, result, error):
            record.status = status
            record.result, record.error = pack(result), pack(error)
        case _:
            assert_never(commit.then)


def has_arrived(rows: MemoryRows, record: RunRecord, wake: WakeSet) -> bool:
    """Return True if something that `wake` waits for has come already."""
    if wake.message and record.cause.agent_id in rows.pending:
        return True
    if any(signal.name in wake.signals for signal in record.signals):
        return True
    answers = (record.answers.get(key) for key in wake.runs)
    return any(row is not None and not row.is_taken for row in answers)


def refusal(  # noqa: PLR0911 - one each
    rows: MemoryRows, commit: Commit
) -> CommitOutcome | None:
    """Return why the commit may not be written now, or None when it may."""
    if not fenced(rows, commit.lease):
        return LeaseLost()
    run_id = commit.lease.run_id
    record = rows.runs.get(run_id)
    if record is None and commit.create is None:
        return Missing((f"run {run_id}",))
    if record is not None and record.status.is_terminal:
        return Missing((f"run {run_id} is {record.status}",))
    last_seq = -1 if record is None else record.last_seq
    if last_seq != commit.expected_seq:
        return Conflict(last_seq)
    missing_inputs = [
        f"message {key.message_id} from {key.sender}"
        for key in commit.bind
        if (row := rows.inbox.get(key)) is None
        or not (row.state == "pending" or (row.state == "bound" and row.run_id == run_id))
    ]
    if commit.take_signals:
        buffered_signals = (
            {(signal.name, signal.n) for signal in record.signals} if record else set()
        )
        missing_inputs += [
            f"signal {name} {n}"
            for name, n in commit.take_signals
            if (name, n) not in buffered_signals
        ]
    answers = record.answers if record else {}
    missing_inputs += [
        f"answer {key}"
        for key in commit.take_answers
        if (answer := answers.get(key)) is None or answer.is_taken
    ]
    if missing_inputs:
        return Missing(tuple(missing_inputs))
    answered_keys = tuple(
        k for k in commit.unless_answered if k in answers and not answers[k].is_taken
    )
    if answered_keys:
        return Answered(answered_keys)
    before_older = overtaken(rows, commit)
    return OutOfOrder(before_older) if before_older else over_budget(rows, commit)


def overtaken(rows: MemoryRows, commit: Commit) -> tuple[MessageKey, ...]:
    """Return what the commit takes, or begins with, although something older of its sender waits."""
    agent_id, begins = commit.lease.agent_id, commit.expected_seq < 0
    record = rows.runs.get(commit.lease.run_id)
    if begins and record is not None:
        # A run that is asked to stop may end at any time, so it overtakes none.
        taken_rows = record.bound if record.cancel_requested is None else []
        upto = record.arrival
    else:
        taken_rows = [rows.inbox[key] for key in commit.bind if rows.inbox[key].state == "pending"]
        upto = max((row.arrival for row in taken_rows), default=-1)
    arrivals = {row.arrival for row in taken_rows}
    first = _queued_before(rows, agent_id, upto) if begins else {}
    for arrival, row in () if commit.any_order else rows.waiting_mail(agent_id):
        if arrival >= upto:
            break
        if arrival not in arrivals:
            first[row.key.sender] = min(arrival, first.get(row.key.sender, arrival))
    return tuple(
        row.key for row in taken_rows if row.arrival > first.get(row.key.sender, row.arrival)
    )


def _queued_before(rows: MemoryRows, agent_id: AgentId, upto: int) -> dict[str, int]:
    """Return each sender's first of the runs that wait to begin before a position in an agent's queue."""
    first: dict[str, int] = {}
    for run in rows.open_by_agent.get(agent_id, {}).values():
        if not run.log and run.arrival < upto and run.cancel_requested is None:
            for row in run.bound:
                first[row.key.sender] = min(run.arrival, first.get(row.key.sender, run.arrival))
    return first


def _write_state(rows: MemoryRows, commit: Commit) -> None:
    for key, value in commit.state.items():
        values = rows.states[commit.lease.agent_id]
        if isinstance(value, Deleted):
            values.pop(key, None)
        else:
            values[key] = pack(value)


def _route(rows: MemoryRows, commit: Commit) -> list[InboxRow]:
    rows_written = []
    for out in commit.outgoing:
        if not isinstance(out.target, AgentId):
            continue
        row = rows.put_mail(out.message, out.sender, out.target)
        if row is not None:
            rows_written.append(row)
    return rows_written
