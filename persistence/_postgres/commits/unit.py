"""Commits as the committer groups them: encoded where they are called, merged where they meet.

What few commits have goes as the one JSON argument of `commit_runs`, which is null when no commit has any:
spawns, answers, waits, what is spent, follows, posts, messages given back and refused questions. Turns and cuts
of conversations go as `write_transcripts` takes them, answers of models as `add_usage` does.

Author data and messages go as text, so that they are stored as they were written. A large turn is kept apart,
as an artifact that is stored before the row that names it: a crash in between leaves an artifact without a pin.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, TypeAlias, assert_never

from pydantic_core import from_json

from actors._kernel.agent.agent import SessionChange
from actors._kernel.agent.message import ChatMessage, MessageKey
from actors._kernel.agent.transcript import NewTurn, answer_of, is_visible, message_json
from actors._kernel.json import JsonValue
from actors._kernel.runtime.commit import (
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
from actors._kernel.runtime.ids import AgentId, RunId, TopicId, partition_hash, place_of
from actors._kernel.runtime.log_entry import EntryKind, NewEntry, check_entry
from actors._kernel.runtime.scheduler import Lease, RunStatus
from actors._kernel.runtime.waits import Wait
from actors._kernel.stores.artifacts import ArtifactStore
from actors._kernel.stores.topics import check_topics
from actors.errors import ContractError
from persistence._postgres.commits.encode import json_text, message_text, run_columns
from persistence._postgres.connection.batch import Batched

RelationRow: TypeAlias = "dict[str, Any]"
Relations: TypeAlias = "Mapping[str, list[RelationRow]]"
"""Spawns, answers, waits, spends, follows, posts, releases and withdraws of a commit."""

WAITING: Final = "waiting"
"""Key of commits that replace all waits of their run, because they are few or the stored rows are unknown."""

_MUST: Final = "must"
"""Mark of a wait without which the run cannot continue."""

FEW_WAITS: Final = 16
"""Largest number of waits that a commit replaces as a whole; of more it writes the changes."""

_ANY_ORDER: Final = "any_order"
"""Mark of commits whose bound messages may overtake older ones."""

TranscriptRows: TypeAlias = "dict[str, list[dict[str, JsonValue] | None]]"
"""Rows by name: ``turns``, ``artifacts`` (of turns that are kept apart), ``cuts``, ``kept`` (conversations of
sessions with a cut), ``clear``, ``sessions``."""
ArtifactsOf: TypeAlias = "Callable[[str, str], ArtifactStore]"
"""Returns the artifacts of a tenant and a scope."""
MAX_ROW_BYTES: Final = 256 * 1024
"""Largest JSON of a turn in its row. A larger turn is stored as an artifact."""

_CONTINUED: Final = EntryKind.RUN_CONTINUED
_ANSWERED: Final = EntryKind.LLM_CALL
RUNNING: Final = "RUNNING"

ThenColumns: TypeAlias = tuple[object, ...]
"""status, attempt, wake, wake_at, parked, result, error, retry_from, dead_letter."""

UsageRow: TypeAlias = "dict[str, JsonValue]"


def relations_of(commit: Commit) -> Relations | None:
    """Return the rare rows of the commit, None if it has none."""
    posts = [out for out in commit.outgoing if isinstance(out.target, TopicId)]
    if not (
        posts
        or commit.spawned
        or commit.answers
        or commit.follows
        or commit.waits is not None
        or commit.budget is not None
        or commit.any_order
        or commit.withdraw
        or (isinstance(commit.then, Retry) and commit.then.release)
        or commit.unless_answered
    ):
        return None
    sender = f"spawn:{commit.lease.agent_id}"
    follower = partition_hash(commit.lease.agent_id)
    releases = commit.then.release if isinstance(commit.then, Retry) else ()
    relations: dict[str, list[RelationRow]] = {
        "spawns": [_spawn(child, sender) for child in commit.spawned],
        "answers": _answers(commit),
        "spends": _spends(commit),
        "follows": [
            {"hash": follower, "topic": str(change.topic), "mode": change.mode}
            for change in commit.follows
        ],
        "posts": [_post(out) for out in posts],
        "releases": [{"sender": key.sender, "id": key.message_id} for key in releases],
        "withdraws": [_withdraw(question) for question in commit.withdraw],
        "unanswered": [{"key": key} for key in commit.unless_answered],
    }
    if commit.waits is not None:
        relations |= _waits(commit.waits, commit.known_waits)
    if commit.any_order:
        relations[_ANY_ORDER] = [{}]
    return relations


def relations_argument(relations_of_commits: Iterable[tuple[int, Relations]]) -> str | None:
    """Return JSON with the rows of these commits, each with its commit's number; None if there are no rows."""
    rows_by_name: dict[str, list[Any]] = {}
    for number, relations in relations_of_commits:
        for name, rows in relations.items():
            if not rows:
                continue
            if name in (WAITING, _MUST, _ANY_ORDER):
                rows_by_name.setdefault(name, []).append(number)
            else:
                rows_by_name.setdefault(name, []).extend({"t": number, **row} for row in rows)
    return json_text(rows_by_name, "turn") if rows_by_name else None


def runs_named(relations: Relations) -> list[str]:
    """Return the ids of runs that this commit answers or begins to wait for. The commit locks them, too."""
    run_ids: list[str] = [answer["run"] for answer in relations["answers"]]
    run_ids += [wait["target"] for wait in relations.get("waits", ()) if wait["target"] is not None]
    return run_ids


def text_or_none(value: JsonValue, where: str) -> str | None:
    """Return JSON data as text; None stays None."""
    return None if value is None else json_text(value, where)


def _spawn(child: Spawned, sender: str) -> RelationRow:
    row: RelationRow = {"run": child.run.run_id, "place": child.position}
    if child.boot is not None:
        body = message_text(child.boot, sender)
        row |= {"sender": sender, "id": child.boot.id, "body": body}
    return row


def _answers(commit: Commit) -> list[RelationRow]:
    return [
        {
            "run": answer.run_id,
            "key": answer.key,
            "status": answer.status,
            "result": text_or_none(answer.result, "reply"),
            "error": text_or_none(answer.error, "reply"),
            "by": answer.by,
            "last": answer.last_seq,
        }
        for answer in commit.answers
    ]


def _waits(waits: Sequence[Wait], previous: Sequence[Wait] | None) -> dict[str, list[RelationRow]]:
    """Return the rows that change a run's waits. An unchanged wait is the same object in `previous`."""
    if previous is None or len(waits) <= FEW_WAITS:
        return {WAITING: [{}], "waits": [_wait(wait) for wait in waits]}
    previous_ids, current_ids = set(map(id, previous)), set(map(id, waits))
    new_waits = [wait for wait in waits if id(wait) not in previous_ids]
    changed_keys = {(wait.position, wait.key) for wait in new_waits}
    removed_waits = [
        {"position": wait.position, "key": wait.key}
        for wait in previous
        if id(wait) not in current_ids and (wait.position, wait.key) not in changed_keys
    ]
    must_mark: list[RelationRow] = [{}] if any(wait.must for wait in waits) else []
    return {"waits": [_wait(wait) for wait in new_waits], "gone": removed_waits, _MUST: must_mark}


def _wait(wait: Wait) -> RelationRow:
    return {
        "position": wait.position,
        "key": wait.key,
        "kind": wait.kind,
        "agent": None if wait.agent is None else str(wait.agent),
        "target": wait.target_run,
        "must": wait.must,
        "request": text_or_none(wait.request, "request"),
        "expires_at": wait.expires_at,
    }


def _spends(commit: Commit) -> list[RelationRow]:
    spend = commit.budget
    if spend is None:
        return []
    return [
        {
            "tokens": spend.tokens,
            "cost_usd": spend.cost_usd,
            "turns": spend.turns,
            "place": spend.position,
        }
    ]


def _withdraw(question: MessageKey) -> RelationRow:
    return {
        "agent": str(question.agent),
        "hash": partition_hash(question.agent),
        "sender": question.sender,
        "id": question.message_id,
    }


def _post(out: Outgoing) -> RelationRow:
    assert isinstance(out.target, TopicId)
    return {
        "topic": str(out.target),
        "hash": partition_hash(place_of(out.target)),
        "sender": out.sender,
        "id": out.message.id,
        "body": message_text(out.message, out.sender),
    }


def transcript_rows(commit: Commit) -> TranscriptRows | None:
    """Return the commit's turns, cuts and cleared sessions, by name; None if it has none of them."""
    rows: TranscriptRows = {}
    key = commit.lease.agent_id.key
    if commit.turns:
        rows["turns"] = turn_rows(commit.turns, key)
    if commit.cuts:
        rows["cuts"] = [
            {
                "session": cut.session,
                "upto": cut.upto,
                "previous": cut.previous,
                "strategy": cut.strategy,
                "summary": None if cut.summary is None else _message_text(cut.summary),
                "changes": _changes_text(cut.changes) if cut.changes else None,
            }
            for cut in commit.cuts
        ]
        if any(cut.session == key for cut in commit.cuts):
            rows["kept"] = [{"session": key}]
    if commit.clear_turns:
        rows["clear"] = [None]
    if commit.session is not None:
        rows["sessions"] = [_change_row(commit, commit.session)]
    return rows or None


def turn_rows(turns: Iterable[NewTurn], key: str) -> list[dict[str, JsonValue] | None]:
    """Return turns as `write_transcripts` takes them.

    Args:
        turns: Turns of one agent.
        key: The agent's key. In the conversation with this name, rows have a mark if a user sees the turn.
    """
    rows: list[dict[str, JsonValue] | None] = []
    for new in turns:
        row: dict[str, JsonValue] = {
            "session": new.session,
            "id": new.id,
            "parent": new.parent,
            "tokens": new.tokens,
            "body": _message_text(new.message),
        }
        if new.session == key and is_visible(new.message):
            row["visible"] = True
        rows.append(row)
    return rows


def _change_row(commit: Commit, change: SessionChange) -> dict[str, JsonValue]:
    then = commit.then
    is_success = isinstance(then, Finish) and then.status is RunStatus.COMPLETED
    return {
        "session": commit.lease.agent_id.key,
        "facts": list(change.facts),
        "head": change.head,
        "failed": "ended" in change.facts and not is_success,
    }


def _message_text(message: ChatMessage) -> str:
    return json_text(message_json(message), "turn")


def _changes_text(changes: Mapping[str, ChatMessage | None]) -> str:
    messages = {
        turn: None if message is None else message_json(message)
        for turn, message in changes.items()
    }
    return json_text(messages, "turn")


async def put_apart(rows: TranscriptRows, agent: AgentId, artifacts_of: ArtifactsOf) -> None:
    """Store the bodies of turns over 256 KiB as artifacts, and let their rows refer to them.

    Rows that are changed already stay. Without a large turn nothing is asked of a server.

    Raises:
        PersistenceError: The server could not be asked. The same may be done again.
    """
    for row in rows.get("turns", ()):
        assert row is not None
        body = row["body"]
        assert isinstance(body, str)
        # A character has at most 4 bytes: most bodies are known to be small without being encoded.
        if 4 * len(body) <= MAX_ROW_BYTES or len(data := body.encode()) <= MAX_ROW_BYTES:
            continue
        text = f"{agent}\n{row['session']}\n{row['id']}"
        scope = f"turn:{hashlib.sha256(text.encode(errors='surrogatepass')).hexdigest()}"
        # Before the row that names it: a crash in between leaves an artifact without a pin, which is collected.
        ref = await artifacts_of(agent.tenant, scope).store(data, content_type="application/json")
        body_reference = {"role": from_json(body)["role"], "artifact": ref.model_dump(mode="json")}
        row["body"], row["artifact"] = json_text(body_reference, "turn"), scope
        artifact_row = {
            "scope": scope,
            "artifact": ref.id,
            "session": row["session"],
            "turn": row["id"],
        }
        rows.setdefault("artifacts", []).append(artifact_row)


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
        "relations",
        "sent",
        "signals",
        "spawned",
        "state",
        "then",
        "transcripts",
    )

    def __init__(self, commit: Commit) -> None:
        run_id, agent = commit.lease.run_id, str(commit.lease.agent_id)
        self.then: ThenColumns = then_columns(commit.then, commit.attempt)
        self.creates: bool = commit.create is not None
        self.spawned: list[tuple[object, ...]] = [
            (run_id, *run_columns(child.run)) for child in commit.spawned
        ]
        """(spawner or None, run columns) of each run that the commit creates."""
        if commit.create is not None:
            self.spawned.insert(0, (None, *run_columns(commit.create)))
        self.bound: list[tuple[RunId, str, str, str]] = [
            (run_id, agent, key.sender, key.message_id) for key in commit.bind
        ]
        self.sent: list[tuple[str, int, str, str, str]] = [
            (
                str(out.target),
                partition_hash(out.target),
                out.sender,
                out.message.id,
                message_text(out.message, out.sender),
            )
            for out in commit.outgoing
            if isinstance(out.target, AgentId)
        ]
        self.signals: list[tuple[RunId, int]] = [(run_id, key.n) for key in commit.take_signals]
        self.answers: list[tuple[RunId, str]] = [(run_id, key) for key in commit.take_answers]
        self.orphans = None if commit.orphans is None else commit.orphans.value
        self.relations: Relations | None = relations_of(commit)
        self.named: tuple[()] | list[str] = (
            () if self.relations is None else runs_named(self.relations)
        )
        self.transcripts: TranscriptRows | None = transcript_rows(commit)
        self.state: list[tuple[str, str, str | None]] = [
            (agent, key, None if isinstance(value, Deleted) else json_text(value, "state"))
            for key, value in commit.state.items()
        ]


class Write:
    """A call of the committer. `rows` are (kind, position, payload text) in order."""

    expected: int
    lease: Lease

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
        self.attempt: int = lease.attempt if commit is None else commit.attempt
        self.commit: Commit | None = commit
        self.is_usual: bool = True
        self.log_from: int | None = None
        self.rows: list[tuple[str, str, str]] = []
        self.usage: Sequence[UsageRow] = ()
        for entry in entries:
            check_entry(entry)
            if entry.kind == _CONTINUED:
                self.log_from = expected + 1 + len(self.rows)
            elif entry.kind == _ANSWERED:
                row = usage_row(lease.agent_id, entry.payload)
                if row is not None:
                    self.usage = (*self.usage, row)
            self.rows.append((entry.kind, entry.position, json_text(entry.payload, entry.kind)))
        self.parts: CommitRows | None = None if commit is None else CommitRows(commit)

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
        self.calls: list[WriteCall] = [call]
        self.first: Write = call.args
        self.rows: list[tuple[str, str, str]] = call.args.rows
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
    units_by_run_id: dict[str, Unit] = {}
    later_calls: list[WriteCall] = []
    blocked_run_ids: set[str] = set()
    for call in calls:
        run_id = call.args.lease.run_id
        unit = units_by_run_id.get(run_id)
        if unit is None:
            units_by_run_id[run_id] = Unit(call)
        elif run_id in blocked_run_ids or not unit.take(call):
            blocked_run_ids.add(run_id)
            later_calls.append(call)
    return list(units_by_run_id.values()), later_calls


def then_columns(then: Then, attempt: int) -> ThenColumns:
    """Return what becomes of the run, as columns of its row (`log_from` is put in later)."""
    match then:
        case Continue():
            return (RUNNING, attempt, None, None, None, None, None, None, None)
        case Suspend(wake):
            text = json_text(wake.to_json(), "wake set")
            return ("SUSPENDED", attempt, text, wake.at, None, None, None, None, None)
        case Retry(at, error, retry_from, _):
            error_text = json_text(error, "error")
            return ("PENDING", attempt, None, at, None, None, error_text, retry_from, None)
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


def usage_row(agent: AgentId, payload: Mapping[str, JsonValue]) -> UsageRow | None:
    """Return the usage row of an `llm.call` entry with this payload, or None if the entry records an error."""
    answer = answer_of(payload)
    if answer is None:
        return None
    return {
        "agent": str(agent),
        "model": answer.model,
        "input": answer.usage.input,
        "output": answer.usage.output,
        "cached": answer.usage.cached,
        "cache_written": answer.usage.cache_written,
        "cost_usd": answer.usage.cost_usd,
    }
