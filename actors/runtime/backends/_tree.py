"""Trees of runs in memory: children, what a tree may have and spend, cancels, a dead run's redrive."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import timedelta
from typing import TYPE_CHECKING

from actors.errors import AlreadyRedrivenError, IllegalTransitionError, UnknownRunError
from actors.kernel.agent.message import Message
from actors.kernel.agent.supervision import ExecutionBudget, HistoryRetention, SpawnBudget
from actors.kernel.runtime.commit import NewRun, OverBudget
from actors.kernel.runtime.ids import RunId, derive_id
from actors.kernel.runtime.log_entry import EntryKind
from actors.kernel.runtime.scheduler import RunStatus
from actors.kernel.runtime.store import Nudge, Submitted

if TYPE_CHECKING:
    from collections.abc import Sequence

    from actors.kernel.agent.supervision import Supervision
    from actors.kernel.runtime.commit import BudgetDelta, Commit, Spawned
    from actors.runtime.backends._records import RunRecord
    from actors.runtime.backends._rows import MemoryRows


@dataclass(slots=True)
class TreeAccount:
    """What a tree may have and spend, and what it has and spent."""

    spawn: SpawnBudget
    execution: ExecutionBudget
    runs: int = 0
    open: int = 0
    tokens: int = 0
    cost_usd: float = 0.0
    turns: int = 0

    @classmethod
    def of(cls, supervision: Supervision | None) -> TreeAccount:
        """Return the empty account of a root with these terms."""
        if supervision is None:
            return cls(SpawnBudget(), ExecutionBudget())
        return cls(supervision.spawn_budget, supervision.execution_budget)

    def places(self) -> tuple[int, str]:
        """Return how many runs may be spawned now, and which limit says so."""
        places, limit = self.spawn.max_runs - self.runs, f"max_runs {self.spawn.max_runs}"
        concurrent = self.spawn.max_concurrent
        if concurrent is not None and concurrent - self.open < places:
            places, limit = concurrent - self.open, f"max_concurrent {concurrent}"
        return max(0, places), limit

    def exhausted(self, delta: BudgetDelta) -> str | None:
        """Return the limit that forbids what the turn begins, None when it may begin."""
        terms = self.execution
        if delta.turns == 0:
            return None
        if terms.max_turns is not None and self.turns + delta.turns > terms.max_turns:
            return f"max_turns {terms.max_turns}"
        if terms.max_tokens is not None and self.tokens >= terms.max_tokens:
            return f"max_tokens {terms.max_tokens}"
        if terms.max_cost_usd is not None and self.cost_usd >= terms.max_cost_usd:
            return f"max_cost_usd {terms.max_cost_usd}"
        return None

    def spend(self, delta: BudgetDelta) -> None:
        """Add what a turn used."""
        self.tokens += delta.tokens
        self.cost_usd += delta.cost_usd
        self.turns += delta.turns


# --- children and their tree's account ------------------------------------------------------------


def over_budget(rows: MemoryRows, commit: Commit) -> OverBudget | None:
    """Return what of the turn the tree has no place for, None when all of it fits."""
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
    """Create the turn's children, and count them and what it spends; return each with its arrival."""
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


def give_place_back(rows: MemoryRows, record: RunRecord) -> None:
    """Let the tree spawn another run in place of one that has ended."""
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
    """Return the root that counts for the turn: that of the run that spawns, whatever a child says."""
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


# --- cancels and orphans --------------------------------------------------------------------------


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


# --- redrive --------------------------------------------------------------------------------------


def redrive_dead(rows: MemoryRows, run_id: RunId) -> Submitted:
    """See `RunStore.redrive_run`."""
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
        assert row is not None, "an id derived from this run's is new when the run is"
        mail.append(row)
    new = NewRun(
        new_id,
        dead.cause.agent_id,
        priority=dead.cause.priority,
        retry_policy=dead.cause.retry_policy,
        version=dead.cause.version,
        trace=dead.cause.trace,
        supervision=own_terms(dead.cause.supervision, new_id),
    )
    deadline_s = new.supervision.execution_budget.deadline_s if new.supervision else None
    if deadline_s is not None:
        new = replace(new, deadline_at=rows.clock.now() + timedelta(seconds=deadline_s))
    record = rows.create_run(new, arrival=mail[0].arrival if mail else None)
    for row in mail:
        rows.bind(row, record)
    for number in left:
        del rows.dead[number]
    return Submitted(new_id, mail[0].arrived() if mail else None)


def first_messages(record: RunRecord) -> Sequence[Message]:
    """Return the messages that a run began with, and has not given back, as its log tells them."""
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


def own_terms(supervision: Supervision | None, run_id: RunId) -> Supervision | None:
    """Return a run's terms as those of a root."""
    if supervision is None:
        return None
    place = {"run_id": run_id, "root_id": run_id, "parent_id": None, "depth": 0}
    return supervision.model_copy(update=place)


def children_of(rows: MemoryRows, run_id: RunId) -> Sequence[RunRecord]:
    """Return the runs that are children of this one, in the order of creation."""
    record = rows.runs.get(run_id)
    found = [rows.runs[child] for child in record.children] if record is not None else []
    return sorted(found, key=lambda child: child.created_at)
