"""Ties between runs in memory: trees, budgets, cancels, redrives, answers, waits and cycles of waits."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from datetime import timedelta
from operator import attrgetter
from typing import Final

from actors._inmemory.runs.records import AnswerRow, RunRecord, TreeAccount, WaitRow, pack, unpack
from actors._inmemory.runs.rows import MemoryRows
from actors._kernel.agent.agent import HistoryRetention
from actors._kernel.agent.message import Message
from actors._kernel.json import JsonValue
from actors._kernel.runtime.commit import Commit, OverBudget, Spawned
from actors._kernel.runtime.hints import Nudge
from actors._kernel.runtime.ids import RunId, derive_id
from actors._kernel.runtime.log_entry import EntryKind
from actors._kernel.runtime.rows import ForkPoint, NewRun
from actors._kernel.runtime.scheduler import RunStatus
from actors._kernel.runtime.waits import Answer, AnswerStatus, OpenWait, Wait, WaitCycle
from actors._kernel.stores.runs import Submitted
from actors.errors import AlreadyRedrivenError, IllegalTransitionError, UnknownRunError


def over_budget(rows: MemoryRows, commit: Commit) -> OverBudget | None:
    """Return the parts of the commit that the tree's budget does not allow; None when all of it fits."""
    new = [child for child in commit.spawned if child.run.run_id not in rows.runs]
    if not new and commit.budget is None:
        return None
    account = _account(rows, _root_of(rows, commit))
    slots, limit = account.free_slots()
    if len(new) > slots:
        return OverBudget(tuple(child.position for child in new[slots:]), limit)
    limit_of_calls = account.exhausted(commit.budget) if commit.budget is not None else None
    if commit.budget is not None and limit_of_calls is not None:
        return OverBudget((commit.budget.position,), limit_of_calls)
    return None


def spawn(rows: MemoryRows, commit: Commit) -> tuple[tuple[Spawned, int], ...]:
    """Create the commit's children, and count them and what it spends; return each with its arrival."""
    if commit.spawned or commit.budget is not None:
        account = _account(rows, _root_of(rows, commit))
        if commit.budget is not None:
            account.spend(commit.budget)
        for child in commit.spawned:
            # Ids of children are derived: a child that a replay spawns again exists, and is counted.
            if child.run.run_id in rows.runs:
                continue
            account.runs += 1
            account.open += 1
            sender, agent = f"spawn:{commit.lease.agent_id}", child.run.agent_id
            boot = None if child.boot is None else rows.put_mail(child.boot, sender, agent)
            record = rows.create_run(child.run, arrival=None if boot is None else boot.arrival)
            if boot is not None:
                rows.bind(boot, record)
    return tuple((child, rows.runs[child.run.run_id].arrival) for child in commit.spawned)


def account_of(rows: MemoryRows, record: RunRecord) -> TreeAccount:
    """Return the account of the run's tree."""
    return _account(rows, record.cause.root or record.cause.run_id)


def release_slot(rows: MemoryRows, record: RunRecord) -> None:
    """Let the tree spawn another run instead of one that has ended."""
    root_id = record.cause.root or record.cause.run_id
    account = rows.accounts.get(root_id)
    if account is not None and record.cause.parent is not None:
        account.open -= 1


def _root_of(rows: MemoryRows, commit: Commit) -> RunId:
    """Return the root that counts for the commit: that of the run that spawns, whatever a child says."""
    run_id = commit.lease.run_id
    record = rows.runs.get(run_id)
    cause = record.cause if record is not None else commit.create
    return run_id if cause is None or cause.root is None else cause.root


def _account(rows: MemoryRows, root_id: RunId) -> TreeAccount:
    account = rows.accounts.get(root_id)
    if account is None:
        record = rows.runs.get(root_id)
        supervision = record.cause.supervision if record is not None else None
        account = rows.accounts[root_id] = TreeAccount.of(supervision)
    return account


def ask_to_stop(rows: MemoryRows, record: RunRecord, reason: str) -> list[RunRecord]:
    """Flag the run and all below it; return those that are open, parents first."""
    open_runs = [run for run in rows.subtree(record) if not run.status.is_terminal]
    for run in open_runs:
        if run.cancel_requested is None:
            run.cancel_requested = reason
    return open_runs


def resolve_orphans(
    rows: MemoryRows, record: RunRecord, policy: HistoryRetention | None
) -> list[Nudge]:
    """Do what `policy` says with the open children of a run that has ended."""
    if policy is None:
        return []
    orphans = [rows.runs[child] for child in record.children]
    orphans = [child for child in orphans if not child.status.is_terminal]
    if policy is HistoryRetention.PERMANENT:
        for child in orphans:
            _give_to_root(rows, record, child)
        return []
    reason = f"parent run {record.cause.run_id} has ended"
    return [
        Nudge("cancel", run.cause.agent_id, run.cause.run_id)
        for child in orphans
        for run in ask_to_stop(rows, child, reason)
    ]


def _give_to_root(rows: MemoryRows, record: RunRecord, child: RunRecord) -> None:
    root = rows.runs.get(record.cause.root) if record.cause.root is not None else None
    if root is None or root is record:
        return
    record.children.remove(child.cause.run_id)
    root.children.append(child.cause.run_id)
    child.cause = replace(child.cause, parent=root.cause.run_id)


def redrive_dead(rows: MemoryRows, run_id: RunId) -> Submitted:
    """Begin a failed run again as a new root, with the messages that it began with."""
    failed_run = rows.record(run_id)
    if failed_run.swept:
        raise UnknownRunError(run_id)
    if failed_run.status is not RunStatus.FAILED:
        raise IllegalTransitionError(run_id, failed_run.status, RunStatus.PENDING)
    new_id = RunId(derive_id("redrive", run_id))
    if new_id in rows.runs:
        return Submitted(new_id, None)
    messages = list(first_messages(failed_run))
    message_keys = {(message.sender, message.id) for message in messages}
    remaining_letters, redriven_letters = (
        tuple(
            letter.id
            for letter in letters
            if (letter.message.sender, letter.message.id) in message_keys
        )
        for letters in (
            [letter for letter, _ in rows.dead.values() if letter.run_id == run_id],
            rows.given_back.get(run_id, ()),
        )
    )
    if redriven_letters:
        raise AlreadyRedrivenError(run_id, redriven_letters, remaining_letters)
    inbox_rows = []
    for message in messages:
        copy = replace(message, id=derive_id("redrive", message.id, run_id))
        row = rows.put_mail(copy, message.sender or "", failed_run.cause.agent_id)
        assert row is not None, "no earlier redrive has used an id that derives from this run's"
        inbox_rows.append(row)
    new_run = make_root_run(rows, failed_run.cause, new_id)
    record = rows.create_run(new_run, arrival=inbox_rows[0].arrival if inbox_rows else None)
    for row in inbox_rows:
        rows.bind(row, record)
    for number in remaining_letters:
        del rows.dead[number]
    return Submitted(new_id, inbox_rows[0].arrived() if inbox_rows else None)


def first_messages(record: RunRecord) -> Sequence[Message]:
    """Return the messages that a run began with, and has not given back, by its log."""
    messages: list[Message] = []
    for line in record.log:
        if line.kind == EntryKind.RUN_CONTINUED:
            break
        payload = line.entry(record.cause.run_id).payload
        if line.kind == EntryKind.RUN_ATTEMPT_FAILED and "kept" in payload:
            # A failed attempt gave back the messages after the first `kept` ones.
            del messages[int(str(payload["kept"])) :]
        if line.kind == EntryKind.MSG_RECEIVED and line.position.startswith("in."):
            body = payload["message"]
            assert isinstance(body, dict), "written by `message_payload`"
            messages.append(Message.from_json(body))
    return messages


def make_root_run(
    rows: MemoryRows, cause: NewRun, run_id: RunId, fork: ForkPoint | None = None
) -> NewRun:
    """Return a run as another one that is a root, with its own time limit."""
    supervision = None if cause.supervision is None else cause.supervision.as_root(run_id)
    limit_s = None if supervision is None else supervision.execution_budget.deadline_s
    return replace(
        cause,
        run_id=run_id,
        parent=None,
        root=None,
        depth=0,
        deadline_at=None if limit_s is None else rows.clock.now() + timedelta(seconds=limit_s),
        supervision=supervision,
        fork=fork,
        parent_agent=None,
    )


def children_of(rows: MemoryRows, run_id: RunId) -> Sequence[RunRecord]:
    """Return the runs that are children of this one, in the order of creation."""
    record = rows.runs.get(run_id)
    children = [rows.runs[child] for child in record.children] if record is not None else []
    return sorted(children, key=lambda child: child.created_at)


_STEPS: Final = 1000
"""Number of runs that are followed from one wait, at most."""


def cycles_of(rows: MemoryRows, record: RunRecord) -> tuple[WaitCycle, ...]:
    """Return the run's waits that lead back to itself."""
    cycles = []
    for row, target in _blockers(rows, record):
        path = _path(rows, target, record)
        if path is not None:
            cycles.append(_cycle([record, *path], row.wait.position))
    return tuple(cycles)


def young_cycles(rows: MemoryRows, *, younger_than_s: float) -> list[WaitCycle]:
    """Return every cycle with a wait that is younger, once: the wait of its greatest run id."""
    since = rows.clock.now() - timedelta(seconds=younger_than_s)
    cycles_by_wait: dict[tuple[RunId, str], WaitCycle] = {}
    for record in rows.waiting.values():
        for row, target in _blockers(rows, record):
            if row.must_since <= since:
                continue
            path = _path(rows, target, record)
            if path is None:
                continue
            cycle = _greatest_first(rows, [record, *path])
            cycles_by_wait.setdefault((cycle.run_id, cycle.position), cycle)
    return list(cycles_by_wait.values())


def _greatest_first(rows: MemoryRows, cycle: Sequence[RunRecord]) -> WaitCycle:
    start = max(range(len(cycle)), key=lambda n: cycle[n].cause.run_id)
    rotated_cycle = [*cycle[start:], *cycle[:start]]
    successor = rotated_cycle[1 % len(rotated_cycle)]
    position = next(
        row.wait.position
        for row, target in _blockers(rows, rotated_cycle[0])
        if target is successor
    )
    return _cycle(rotated_cycle, position)


def _cycle(cycle: Sequence[RunRecord], position: str) -> WaitCycle:
    first = cycle[0].cause
    agents = tuple(record.cause.agent_id for record in cycle)
    return WaitCycle(first.run_id, first.agent_id, position, agents)


def _path(rows: MemoryRows, first: RunRecord, last: RunRecord) -> list[RunRecord] | None:
    """Return the runs from `first` up to `last`, without it; None when no way leads there."""
    came_from: dict[RunId, RunRecord | None] = {first.cause.run_id: None}
    to_visit = [first]
    for record in to_visit:
        if record is last:
            return _way_to(record, came_from)
        if len(to_visit) > _STEPS:
            return None
        for _, target in _blockers(rows, record):
            if target.cause.run_id not in came_from:
                came_from[target.cause.run_id] = record
                to_visit.append(target)
    return None


def _way_to(record: RunRecord, came_from: dict[RunId, RunRecord | None]) -> list[RunRecord]:
    path: list[RunRecord] = []
    before = came_from[record.cause.run_id]
    while before is not None:
        path.insert(0, before)
        before = came_from[before.cause.run_id]
    return path


def _blockers(rows: MemoryRows, record: RunRecord) -> Iterator[tuple[WaitRow, RunRecord]]:
    """Yield the waits without which the run cannot go on, each with the run that it depends on."""
    if not _is_stuck(record):
        return
    for row in record.waits:
        if row.wait.key not in record.answers:
            target = _target_of(rows, row.wait)
            if target is not None:
                yield row, target


def _is_stuck(record: RunRecord) -> bool:
    """Return True if the run waits and nothing else than its waits lets it go on."""
    if record.status not in (RunStatus.RUNNING, RunStatus.SUSPENDED) or record.parked is not None:
        return False
    if record.wake is not None and record.wake.message:
        return False
    if not any(row.wait.must for row in record.waits):
        return False
    answers = record.answers
    return not any(
        row.wait.key in answers and not answers[row.wait.key].is_taken for row in record.waits
    )


def _target_of(rows: MemoryRows, wait: Wait) -> RunRecord | None:
    target = rows.runs.get(wait.target_run) if wait.target_run is not None else None
    if target is not None:
        if target.status.is_terminal:
            return None
        return target if target.log else rows.started(target.cause.agent_id)
    return None if wait.agent is None else rows.started(wait.agent)


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
    agent, nudges = record.cause.agent_id, list[Nudge]()
    for answer in answers:
        asker = rows.runs.get(answer.run_id)
        if asker is None or asker.cause.agent_id.tenant != agent.tenant:
            continue
        if rows.message_row(agent, f"agent:{asker.cause.agent_id}", answer.key) is None:
            continue
        last_seq = record.last_seq if answer.last_seq < 0 else answer.last_seq
        full_answer = replace(answer, by=answer.by or record.cause.run_id, last_seq=last_seq)
        if keep_answer(rows, full_answer) is not None:
            nudges += _nudges_of(asker)
    return nudges


def answer_end(rows: MemoryRows, record: RunRecord) -> list[Nudge]:
    """Answer all runs that wait for the end of a run that has just ended, and its parent."""
    run_id = record.cause.run_id
    wait_keys: dict[tuple[RunId, str], None] = {}
    if record.cause.parent is not None:
        wait_keys[record.cause.parent, run_id] = None
    for waiter in rows.waiters.get(run_id, ()):
        for row in rows.runs[waiter].waits:
            if row.wait.target_run == run_id:
                wait_keys[waiter, row.wait.key] = None
    # A question that the run received: without an answer its asker would wait for ever.
    for mail in record.bound:
        asker = rows.runs.get(mail.shell.reply_to) if mail.shell and mail.shell.reply_to else None
        if asker is not None and mail.key.sender == f"agent:{asker.cause.agent_id}":
            wait_keys[asker.cause.run_id, mail.key.message_id] = None
    nudges: list[Nudge] = []
    for waiting_run_id, key in wait_keys:
        nudges += _deliver_end(rows, record, waiting_run_id, key)
    return nudges


def _deliver_end(
    rows: MemoryRows, ended_run: RunRecord, waiting_run_id: RunId, key: str
) -> list[Nudge]:
    record = rows.runs.get(waiting_run_id)
    if record is None or record.cause.agent_id.tenant != ended_run.cause.agent_id.tenant:
        return []
    if keep_answer(rows, _end_of(ended_run, waiting_run_id, key)) is None:
        return []
    return _nudges_of(record)


def _end_of(ended_run: RunRecord, waiting_run_id: RunId, key: str) -> Answer:
    """Return how a run ended as the answer to `key` of the run `waiting_run_id`."""
    result: JsonValue = None
    error: JsonValue = None
    match ended_run.status:
        case RunStatus.COMPLETED:
            result = unpack(ended_run.result)
        case RunStatus.CANCELLED:
            error = {"message": ended_run.cancel_reason()}
        case _:
            error = unpack(ended_run.error)
    return Answer(
        run_id=waiting_run_id,
        key=key,
        status=_END_STATUS[ended_run.status],
        result=result,
        error=error if isinstance(error, dict) else None,
        by=ended_run.cause.run_id,
        last_seq=ended_run.last_seq,
    )


def _nudges_of(record: RunRecord) -> list[Nudge]:
    if record.status.is_terminal:
        return []
    return [Nudge("signal", record.cause.agent_id, record.cause.run_id)]


def set_waits(rows: MemoryRows, record: RunRecord, waits: Iterable[Wait]) -> list[Nudge]:
    """Replace the run's open waits. If a wait's target run has ended, its answer is delivered at once.

    It is delivered again if the run has already consumed it, because a run may join another run twice.
    """
    previous_rows_by_key = {(row.wait.position, row.wait.key): row for row in record.waits}
    clear_waits(rows, record)
    run_id, nudges = record.cause.run_id, list[Nudge]()
    for wait in waits:
        previous_row, now = previous_rows_by_key.get((wait.position, wait.key)), rows.clock.now()
        since = now if previous_row is None else previous_row.since
        must_since = (
            previous_row.must_since if previous_row is not None and previous_row.wait.must else now
        )
        record.waits.append(
            WaitRow(replace(wait, request=None), pack(wait.request), since, must_since)
        )
        if wait.target_run is None:
            continue
        rows.waiters.setdefault(wait.target_run, {})[run_id] = None
        target = rows.runs.get(wait.target_run)
        if target is not None and target.status.is_terminal:
            nudges += _deliver_end(rows, target, run_id, wait.key)
            answer = record.answers.get(wait.key)
            if answer is not None and answer.is_taken:
                answer.is_taken = False
                nudges += _nudges_of(record)
    if record.waits:
        rows.waiting[run_id] = record
    return nudges


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
    records = rows.waiting.values() if run_id is None else [rows.waiting.get(run_id)]
    waits = [
        row.opened(record)
        for record in records
        if record is not None
        for row in record.waits
        if (answer := record.answers.get(row.wait.key)) is None or answer.is_taken
    ]
    return sorted(waits, key=attrgetter("place"))
