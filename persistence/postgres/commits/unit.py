"""Commits as the committer groups them: encoded where they are called, merged where they meet."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, TypeAlias, assert_never

from actors.errors import ContractError
from actors.kernel.json import JsonValue
from actors.kernel.runtime.commit import (
    Answered,
    Commit,
    Committed,
    Conflict,
    Continue,
    Deleted,
    Finish,
    LeaseLost,
    Missing,
    Outgoing,
    OutOfOrder,
    OverBudget,
    Park,
    Retry,
    Spawned,
    Suspend,
    Then,
)
from actors.kernel.runtime.ids import AgentId, RunId, partition_hash
from actors.kernel.runtime.log_entry import EntryKind, NewEntry, check_entry
from actors.kernel.runtime.scheduler import Lease
from actors.kernel.stores.topics import check_topics
from persistence.postgres.commits.encode import json_text, message_text, run_columns
from persistence.postgres.commits.rare_columns import runs_named, talk_of
from persistence.postgres.commits.transcript_rows import transcript_rows
from persistence.postgres.commits.usage_rows import UsageRow, usage_row
from persistence.postgres.connection.batch import Batched

_CONTINUED: Final = EntryKind.RUN_CONTINUED
_ANSWERED: Final = EntryKind.LLM_CALL
RUNNING: Final = "RUNNING"

ThenColumns: TypeAlias = tuple[object, ...]
"""status, attempt, wake, wake_at, parked, result, error, retry_from, dead_letter."""


class Ended:
    """The run has ended with this status."""

    __slots__ = ("status",)

    def __init__(self, status: str) -> None:
        self.status = status


class Unknown:
    """Outcome of a commit: the run does not exist."""

    __slots__ = ()


class CommitRows:
    """The rows of a commit beside entries, as columns. The caller encodes them, not the committer."""

    __slots__ = (
        "answers",
        "bound",
        "creates",
        "named",
        "orphans",
        "sent",
        "signals",
        "spawned",
        "state",
        "talk",
        "then",
        "transcripts",
    )

    def __init__(self, commit: Commit) -> None:
        run_id, agent = commit.lease.run_id, str(commit.lease.agent_id)
        self.then = then_columns(commit.then, commit.attempt)
        self.creates = commit.create is not None
        self.spawned = _spawned_rows(commit) if self.creates or commit.spawned else ()
        self.bound = [(run_id, agent, key.sender, key.message_id) for key in commit.bind]
        self.sent = [
            _outgoing_row(out, out.target)
            for out in commit.outgoing
            if isinstance(out.target, AgentId)
        ]
        self.signals = [(run_id, key.n) for key in commit.take_signals]
        self.answers = [(run_id, key) for key in commit.take_answers]
        self.orphans = None if commit.orphans is None else commit.orphans.value
        self.talk = talk_of(commit)
        self.named = () if self.talk is None else runs_named(self.talk)
        self.transcripts = transcript_rows(commit)
        self.state = [(agent, key, _state_text(value)) for key, value in commit.state.items()]


class Write:
    """A call of the committer. `rows` are (kind, position, payload text) in order."""

    __slots__ = (
        "attempt",
        "commit",
        "expected",
        "is_usual",
        "lease",
        "log_from",
        "parts",
        "rows",
        "usage",
    )

    def __init__(
        self, lease: Lease, expected: int, entries: Sequence[NewEntry], commit: Commit | None = None
    ) -> None:
        self.lease, self.expected = lease, expected
        self.attempt = lease.attempt if commit is None else commit.attempt
        self.commit = commit
        self.is_usual = True
        self.log_from: int | None = None
        self.rows: list[tuple[str, str, str]] = []
        self.usage: Sequence[UsageRow] = ()
        for entry in entries:
            check_entry(entry)
            if entry.kind == _CONTINUED:
                self.log_from = expected + 1 + len(self.rows)
            elif entry.kind == _ANSWERED:
                self._count(entry)
            self.rows.append((entry.kind, entry.position, json_text(entry.payload, entry.kind)))
        self.parts = None if commit is None else CommitRows(commit)

    def _count(self, call: NewEntry) -> None:
        """Keep what a model's answer adds to the totals of usage."""
        row = usage_row(self.lease.agent_id, call.payload)
        if row is not None:
            self.usage = (*self.usage, row)

    @property
    def last(self) -> int:
        """The seq of the log's last entry after this commit."""
        return self.expected + len(self.rows)


WriteResult: TypeAlias = (
    Committed
    | LeaseLost
    | Conflict
    | Missing
    | OutOfOrder
    | OverBudget
    | Answered
    | Ended
    | Unknown
)
WriteCall: TypeAlias = "Batched[Write, WriteResult]"


class Unit:
    """Calls of one run whose entries follow each other, sent as one commit."""

    __slots__ = ("_children", "calls", "first", "rows")

    def __init__(self, call: WriteCall) -> None:
        self.calls = [call]
        self.first = call.args
        self.rows = call.args.rows
        self._children: dict[str, Spawned] | None = None

    @property
    def last(self) -> int:
        """The seq of the log's last entry after the unit."""
        return self.first.expected + len(self.rows)

    @property
    def parts(self) -> CommitRows | None:
        """The rows beside entries of the commit that closes the unit; None for appends."""
        return self.calls[-1].args.parts

    @property
    def outgoing(self) -> tuple[Outgoing, ...]:
        """Messages that leave with the unit."""
        commit = self.calls[-1].args.commit
        return () if commit is None else commit.outgoing

    def child(self, run_id: RunId | None) -> Spawned:
        """The child with this id that the unit spawns."""
        if self._children is None:
            commit = self.calls[-1].args.commit
            assert commit is not None, "only a whole commit spawns"
            self._children = {child.run.run_id: child for child in commit.spawned}
        return self._children[run_id or ""]

    @property
    def attempt(self) -> int:
        """The attempt that the last call names."""
        return self.calls[-1].args.attempt

    @property
    def log_from(self) -> int | None:
        """The seq of the last run.continued in here."""
        return max(
            (c.args.log_from for c in self.calls if c.args.log_from is not None), default=None
        )

    def take(self, call: WriteCall) -> bool:
        """Add a call of the same run if it follows; only appends can be followed."""
        write = call.args
        if write.expected != self.last or self.parts is not None or write.lease != self.first.lease:
            return False
        if write.parts is not None and write.parts.creates:
            return False
        self.rows = self.rows + write.rows
        self.calls.append(call)
        return True


def units_of(calls: list[WriteCall]) -> tuple[list[Unit], list[WriteCall]]:
    """Return what can be sent at once, one unit a run, and the calls that have to wait for it."""
    units: dict[str, Unit] = {}
    later: list[WriteCall] = []
    held: set[str] = set()
    for call in calls:
        run_id = call.args.lease.run_id
        unit = units.get(run_id)
        if unit is None:
            units[run_id] = Unit(call)
        elif run_id in held or not unit.take(call):
            held.add(run_id)
            later.append(call)
    return list(units.values()), later


def then_columns(then: Then, attempt: int) -> ThenColumns:
    """Return what becomes of the run, as columns of its row (`log_from` is put in later)."""
    match then:
        case Continue():
            return (RUNNING, attempt, None, None, None, None, None, None, None)
        case Suspend(wake):
            text = json_text(wake.to_json(), "wake set")
            return ("SUSPENDED", attempt, text, wake.at, None, None, None, None, None)
        case Retry(at, error, retry_from, _):
            failed = json_text(error, "error")
            return ("PENDING", attempt, None, at, None, None, failed, retry_from, None)
        case Finish(status, result, error, dead_letter):
            if not status.is_terminal:
                msg = f"Finish takes a status a run ends with, not {status}"
                raise ContractError(msg)
            value = None if result is None else json_text(result, "result")
            problem = None if error is None else json_text(error, "error")
            return (status.value, attempt, None, None, None, value, problem, None, dead_letter)
        case Park(reason):
            return ("SUSPENDED", attempt, None, None, reason, None, None, None, None)
        case _:
            assert_never(then)


def check_commit(commit: Commit) -> None:
    """Check that this store can write everything in the commit.

    Raises:
        ContractError: It binds another agent's messages, or creates another run.
        OtherTenantError: It follows or posts to a topic of another tenant.
    """
    check_topics(commit)
    lease = commit.lease
    for key in commit.bind:
        if key.agent != lease.agent_id:
            msg = f"run {lease.run_id} of {lease.agent_id} cannot bind a message of {key.agent}"
            raise ContractError(msg)
    if commit.create is not None and commit.create.run_id != lease.run_id:
        msg = f"the lease is for run {lease.run_id}, not for the created {commit.create.run_id}"
        raise ContractError(msg)


def _outgoing_row(outgoing: Outgoing, target: AgentId) -> tuple[str, int, str, str, str]:
    body = message_text(outgoing.message, outgoing.sender)
    return (str(target), partition_hash(target), outgoing.sender, outgoing.message.id, body)


def _spawned_rows(commit: Commit) -> list[tuple[object, ...]]:
    """(spawner or None, run columns) of each run that the commit creates."""
    rows: list[tuple[object, ...]] = []
    if commit.create is not None:
        rows.append((None, *run_columns(commit.create)))
    rows.extend((commit.lease.run_id, *run_columns(child.run)) for child in commit.spawned)
    return rows


def _state_text(value: JsonValue | Deleted) -> str | None:
    return None if isinstance(value, Deleted) else json_text(value, "state")
