"""Trees of runs in memory: children, what a tree may have and spend, cancels, a dead run's redrive."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta

from actors.errors import AlreadyRedrivenError, IllegalTransitionError, UnknownRunError
from actors.kernel.agent.agent import HistoryRetention
from actors.kernel.agent.message import Message
from actors.kernel.runtime.commit import Commit, OverBudget, Spawned
from actors.kernel.runtime.hints import Nudge
from actors.kernel.runtime.ids import RunId, derive_id
from actors.kernel.runtime.log_entry import EntryKind
from actors.kernel.runtime.rows import ForkPoint, NewRun
from actors.kernel.runtime.scheduler import RunStatus
from actors.kernel.stores.runs import Submitted
from actors.runtime.memory.records import RunRecord, TreeAccount
from actors.runtime.memory.rows import MemoryRows


def over_budget(rows: MemoryRows, commit: Commit) -> OverBudget | None:
    """Return the parts of the commit that the tree's budget does not allow; None when all of it fits."""
    new = [child for child in commit.spawned if child.run.run_id not in rows.runs]
    if not new and commit.budget is None:
        return None
    account = _account(rows, _root_of(rows, commit))
    places, limit = account.places()
    if len(new) > places:
        return OverBudget(tuple(child.position for child in new[places:]), limit)
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
            if child.run.run_id not in rows.runs:
                account.runs += 1
                account.open += 1
                _create(rows, child, f"spawn:{commit.lease.agent_id}")
    return tuple((child, rows.runs[child.run.run_id].arrival) for child in commit.spawned)


def account_of(rows: MemoryRows, record: RunRecord) -> TreeAccount:
    """Return the account of the run's tree."""
    return _account(rows, record.cause.root or record.cause.run_id)


def release_slot(rows: MemoryRows, record: RunRecord) -> None:
    """Let the tree spawn another run instead of one that has ended."""
    root = record.cause.root or record.cause.run_id
    account = rows.accounts.get(root)
    if account is not None and record.cause.parent is not None:
        account.open -= 1


def _create(rows: MemoryRows, child: Spawned, sender: str) -> None:
    agent = child.run.agent_id
    boot = rows.put_mail(child.boot, sender, agent) if child.boot is not None else None
    record = rows.create_run(child.run, arrival=boot.arrival if boot is not None else None)
    if boot is not None:
        rows.bind(boot, record)


def _root_of(rows: MemoryRows, commit: Commit) -> RunId:
    """Return the root that counts for the commit: that of the run that spawns, whatever a child says."""
    run_id = commit.lease.run_id
    record = rows.runs.get(run_id)
    cause = record.cause if record is not None else commit.create
    return run_id if cause is None or cause.root is None else cause.root


def _account(rows: MemoryRows, root: RunId) -> TreeAccount:
    account = rows.accounts.get(root)
    if account is None:
        record = rows.runs.get(root)
        terms = record.cause.supervision if record is not None else None
        account = rows.accounts[root] = TreeAccount.of(terms)
    return account


def ask_to_stop(rows: MemoryRows, record: RunRecord, reason: str) -> list[RunRecord]:
    """Flag the run and all below it; return those that are open, parents first."""
    flagged = [run for run in rows.subtree(record) if not run.status.is_terminal]
    for run in flagged:
        if run.cancel_requested is None:
            run.cancel_requested = reason
    return flagged


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
    """See `OperatorStore.redrive_run`."""
    dead = rows.record(run_id)
    if dead.swept:
        raise UnknownRunError(run_id)
    if dead.status is not RunStatus.FAILED:
        raise IllegalTransitionError(run_id, dead.status, RunStatus.PENDING)
    new_id = RunId(derive_id("redrive", run_id))
    if new_id in rows.runs:
        return Submitted(new_id, None)
    first = list(first_messages(dead))
    began = {(message.sender, message.id) for message in first}
    left, given = (
        tuple(
            letter.id for letter in letters if (letter.message.sender, letter.message.id) in began
        )
        for letters in (
            [letter for letter, _ in rows.dead.values() if letter.run_id == run_id],
            rows.given_back.get(run_id, ()),
        )
    )
    if given:
        raise AlreadyRedrivenError(run_id, given, left)
    mail = []
    for message in first:
        copy = replace(message, id=derive_id("redrive", message.id, run_id))
        row = rows.put_mail(copy, message.sender or "", dead.cause.agent_id)
        assert row is not None, "no earlier redrive has used an id that derives from this run's"
        mail.append(row)
    new = begun_anew(rows, dead.cause, new_id)
    record = rows.create_run(new, arrival=mail[0].arrival if mail else None)
    for row in mail:
        rows.bind(row, record)
    for number in left:
        del rows.dead[number]
    return Submitted(new_id, mail[0].arrived() if mail else None)


def first_messages(record: RunRecord) -> Sequence[Message]:
    """Return the messages that a run began with, and has not given back, by its log."""
    found: list[Message] = []
    for line in record.log:
        if line.kind == EntryKind.RUN_CONTINUED:
            break
        payload = line.entry(record.cause.run_id).payload
        if line.kind == EntryKind.RUN_ATTEMPT_FAILED and "kept" in payload:
            del found[int(str(payload["kept"])) :]
        if line.kind == EntryKind.MSG_RECEIVED and line.position.startswith("in."):
            body = payload["message"]
            assert isinstance(body, dict), "written by `message_payload`"
            found.append(Message.from_json(body))
    return found


def begun_anew(
    rows: MemoryRows, cause: NewRun, run_id: RunId, fork: ForkPoint | None = None
) -> NewRun:
    """Return a run as another one that is a root, with its own time limit."""
    terms = None if cause.supervision is None else cause.supervision.as_root(run_id)
    limit_s = None if terms is None else terms.execution_budget.deadline_s
    return replace(
        cause,
        run_id=run_id,
        parent=None,
        root=None,
        depth=0,
        deadline_at=None if limit_s is None else rows.clock.now() + timedelta(seconds=limit_s),
        supervision=terms,
        fork=fork,
        parent_agent=None,
    )


def children_of(rows: MemoryRows, run_id: RunId) -> Sequence[RunRecord]:
    """Return the runs that are children of this one, in the order of creation."""
    record = rows.runs.get(run_id)
    found = [rows.runs[child] for child in record.children] if record is not None else []
    return sorted(found, key=lambda child: child.created_at)
