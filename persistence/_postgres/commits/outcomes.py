"""A group of commits in one round trip, what the rows say of each, and its hand-over to readers.

A group is appends, the fast path, or the general function. Readers of logs and of sessions need not read what
is handed over to them.

A statement of commits returns the instants and the facts that it has written, if somebody reads them. Texts of
entries are known here. A commit whose answer is lost hands over nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Final, LiteralString, TypeAlias

from pydantic_core import from_json

from actors._kernel.agent.message import ChatMessage, MessageKey
from actors._kernel.runtime.commit import (
    Answered,
    Conflict,
    LeaseLost,
    Missing,
    OutOfOrder,
    OverBudget,
    Spawned,
)
from actors._kernel.runtime.hints import Nudge
from actors._kernel.runtime.ids import AgentId, RunId
from actors._kernel.runtime.log_entry import RunLogEntry
from actors._kernel.runtime.scheduler import Lease
from actors._kernel.runtime.waits import WaitCycle
from actors._kernel.stores.conversations import SessionFact
from actors.errors import (
    ConcurrentAppendError,
    IllegalTransitionError,
    LeaseLostError,
    OutOfOrderError,
    UnknownRunError,
)
from persistence._postgres.commits.columns import (
    COMMIT_ARGUMENTS,
    FAST_ARGUMENTS,
    append_arguments,
    commit_arguments,
    fast_arguments,
    relation_arguments,
    transcripts_argument,
    usage_argument,
)
from persistence._postgres.commits.encode import columns
from persistence._postgres.commits.unit import Ended, Unit, Unknown, WriteResult
from persistence._postgres.connection.link import Connection, Row, StoreSettings
from persistence._postgres.connection.listener import nudge_of
from persistence.errors import DRIVER_ERRORS

# The nudges of commits whose first answer was lost. Posts need none: scans of the shards' owners find them.
SQL_FIND_NUDGES: Final[LiteralString] = """
with t as (select * from unnest($1::text[]) t(run_id)),
ended as (
  select r.run_id, r.parent from t
    cross join lateral (select * from runs r where r.run_id = t.run_id offset 0) r
    where r.ended_at is not null
),
children as (
  select t.run_id as parent, c.run_id, c.status, c.cancel_requested from t
    cross join lateral (select * from runs r where r.parent = t.run_id offset 0) c
),
concerned as (
  select 'run' as kind, c.run_id from children c where c.status = 'PENDING'
  union
  select 'signal', n.run_id from unnest($2::text[]) n(run_id)
  union
  select 'signal', e.parent from ended e
  union
  select 'signal', w.run_id from t
    cross join lateral (select * from waits w where w.target_run = t.run_id offset 0) w
  union
  select 'signal', e.payload -> 'message' ->> 'reply_to' from t
    cross join lateral (select * from event_log e where e.run_id = t.run_id offset 0) e
    where e.kind = 'msg.received'
  union
  select 'cancel', c.run_id from children c
    where c.cancel_requested is not null and c.parent in (select e.run_id from ended e)
)
select 1 as turn, c.kind as detail, r.agent, r.run_id as message_id, null::bigint as arrival, s.owner
  from concerned c
  cross join lateral (select * from runs r where r.run_id = c.run_id offset 0) r
  join shards s on s.shard = r.shard
  where r.ended_at is null
"""


class Verdicts:
    """The rows of one group: what was refused, whom to notify, and what became of messages."""

    __slots__ = ("cycles", "notes", "nudges", "posted", "refusals", "routed", "written")

    def __init__(self, units: list[Unit], rows: list[Row]) -> None:
        self.refusals: dict[int, WriteResult] = {}
        self.notes: dict[int, Row] = {}
        self.cycles: dict[int, list[WaitCycle]] = {}
        self.nudges: list[Row] = []
        self.routed: list[Row] = []
        self.posted: list[Row] = []
        self.written: dict[int, Written] = {}
        withdrawn_keys: set[tuple[str, str, str]] = set()
        for row in rows:
            outcome, number = row["outcome"], row["turn"]
            if outcome == "routed":
                self.routed.append(row)
            elif outcome in ("outbox", "dead"):
                self.posted.append(row)
            elif outcome == "nudge":
                self.nudges.append(row)
            elif outcome == "note":
                self.notes[number] = row
            elif outcome == "withdrawn":
                withdrawn_keys.add(_key(row))
            elif outcome in ("entries", "fact"):
                self.written.setdefault(number, Written()).take(row)
            elif outcome == "cycle":
                lease = units[number - 1].first.lease
                agents = tuple(map(AgentId.parse, row["agent"].split("\n")))
                cycle = WaitCycle(lease.run_id, lease.agent_id, row["detail"], agents)
                self.cycles.setdefault(number, []).append(cycle)
            else:
                self.refusals[number] = _refusal(row, units[number - 1], self.refusals.get(number))
        if withdrawn_keys:  # they never left
            self.routed = [row for row in self.routed if _key(row) not in withdrawn_keys]
            self.posted = [row for row in self.posted if _key(row) not in withdrawn_keys]
        if len(self.cycles) > 1:
            self.cycles = _one_run_each(self.cycles)


@dataclass(slots=True)
class CommitNudges:
    """The changes of one commit for its own host."""

    nudges: dict[Nudge, None] = field(default_factory=dict)
    spawned: list[tuple[Spawned, int]] = field(default_factory=list)


def nudges_by_unit(
    units: list[Unit], rows: list[Row], on_foreign: Callable[[str, Nudge], None]
) -> dict[int, CommitNudges]:
    """Return the nudges for this host, by the number of the commit; pass the others to `on_foreign`."""
    nudges_by_number: dict[int, CommitNudges] = {}
    for row in rows:
        owner = row["owner"]
        # Nobody owns the shard: its next owner reads the rows when it claims it.
        if owner is None:
            continue
        number: int = row["turn"]
        unit = units[number - 1]
        nudge = nudge_of(row["detail"], row["agent"], row["message_id"])
        nudges = nudges_by_number.setdefault(number, CommitNudges())
        if owner != unit.first.lease.owner:
            on_foreign(owner, nudge)
        elif nudge.kind == "run" and row["arrival"] is not None:
            nudges.spawned.append((unit.child(nudge.run_id), row["arrival"]))
        else:
            nudges.nudges[nudge] = None
    return nudges_by_number


def _key(row: Row) -> tuple[str, str, str]:
    return row["agent"], row["sender"], row["message_id"]


def _one_run_each(cycles_by_number: dict[int, list[WaitCycle]]) -> dict[int, list[WaitCycle]]:
    """Return the cycles without what several commits of a group say of one: the greatest run fails."""
    failing_run: dict[tuple[AgentId, ...], str] = {}
    for cycle in (cycle for cycles in cycles_by_number.values() for cycle in cycles):
        agents = _from_the_least(cycle.agents)
        failing_run[agents] = max(cycle.run_id, failing_run.get(agents, ""))
    return {
        number: [c for c in cycles if failing_run[_from_the_least(c.agents)] == c.run_id]
        for number, cycles in cycles_by_number.items()
    }


def _from_the_least(agents: tuple[AgentId, ...]) -> tuple[AgentId, ...]:
    # Two commits may name one cycle from different agents on: rotated, both have the same key.
    n = min(range(len(agents)), key=lambda i: str(agents[i]))
    return (*agents[n:], *agents[:n])


def _refusal(  # noqa: PLR0911 - one each
    row: Row, unit: Unit, previous: WriteResult | None
) -> WriteResult:
    match row["outcome"]:
        case "lease":
            return LeaseLost()
        case "unknown":
            return Unknown()
        case "ended":
            return Ended(row["detail"])
        case "conflict":
            return Conflict(row["actual"])
        case "answered":
            answered_keys = previous.keys if isinstance(previous, Answered) else ()
            return Answered((*answered_keys, row["detail"]))
        case "over":
            positions = previous.positions if isinstance(previous, OverBudget) else ()
            return OverBudget((*positions, row["detail"]), row["message_id"])
        case "early" if not isinstance(previous, Missing):
            keys = previous.keys if isinstance(previous, OutOfOrder) else ()
            if (sender := row.get("sender")) is not None:  # an append names none
                keys = (*keys, MessageKey(unit.first.lease.agent_id, sender, row["detail"]))
            verdict: WriteResult = OutOfOrder(keys)
        case _:
            missing_parts = previous.what if isinstance(previous, Missing) else ()
            verdict = Missing((*missing_parts, row["detail"]))
    return verdict


def append_error(result: WriteResult, lease: Lease, expected_seq: int) -> Exception:
    """Return why entries were not appended; see `CommitStore.append`."""
    match result:
        case LeaseLost():
            return LeaseLostError(lease.shard, lease.owner, lease.epoch)
        case Conflict(actual):
            return ConcurrentAppendError(lease.run_id, expected_seq, actual)
        case OutOfOrder():
            return OutOfOrderError(lease.run_id, expected_seq, expected_seq)
        case Ended(status=status):
            return IllegalTransitionError(lease.run_id, status, "RUNNING")
        case _:
            return UnknownRunError(lease.run_id)


SQL_APPEND_ENTRIES: Final[LiteralString] = (
    "select turn, outcome, actual, detail"
    " from append_entries($1,$2,$3,$4,$5,$6,$7,$8,$9,$10,$11,$12,$13,$14)"
)
SQL_APPEND_AND_WRITTEN: Final[LiteralString] = (
    SQL_APPEND_ENTRIES  # noqa: S608 - constants only
    + " union all select turn, outcome, actual, detail from written($15,$16,$17,$18,$19)"
)


def _call(function: str, count: int, first: int = 1) -> str:
    placeholders = ",".join(f"${n}" for n in range(first, first + count))
    return f"select * from {function}({placeholders})"  # noqa: S608


def _with_written(statement: str, count: int) -> str:
    """Return a statement with these arguments that also calls `written`, behind its own function."""
    return f"{statement} union all {_call('written', 5, count + 1)}"


SQL_COMMIT_RUNS: Final = _call("commit_runs", COMMIT_ARGUMENTS + 6)
SQL_COMMIT_RUNS_AND_WRITTEN: Final = _with_written(SQL_COMMIT_RUNS, COMMIT_ARGUMENTS + 6)
SQL_COMMIT_FAST: Final = _call("commit_fast", FAST_ARGUMENTS)
SQL_COMMIT_FAST_AND_WRITTEN: Final = _with_written(SQL_COMMIT_FAST, FAST_ARGUMENTS)
_GENERAL: Final = "general"
"""The outcome of the one row that says: nothing was written, `commit_runs` decides."""
_NOT_THERE: Final = "CB002"
"""The SQLSTATE that says the same."""


def are_appends(units: list[Unit]) -> bool:
    """Return True if the units only add entries to the logs of runs that execute."""
    return all(unit.parts is None and unit.log_from is None for unit in units)


async def write_appends(
    connection: Connection,
    units: list[Unit],
    settings: StoreSettings,
    written_args: WrittenArgs | None,
) -> list[Row]:
    """Write a group of appends; return the rows of its function, then those of `written` if asked for."""
    args = append_arguments(units)
    if written_args is None:
        return await connection.fetch(SQL_APPEND_ENTRIES, *args, timeout=settings.answer_s)
    return await connection.fetch(
        SQL_APPEND_AND_WRITTEN, *args, *written_args, timeout=settings.answer_s
    )


async def write_commits(
    connection: Connection,
    units: list[Unit],
    settings: StoreSettings,
    written_args: WrittenArgs | None,
) -> tuple[list[Row], bool]:
    """Write any group; return what its function says of it, and whether that was the fast path.

    With `written_args`, the rows of `written` come last.
    """
    timeout, extra_args = settings.answer_s, written_args or ()
    if (fast_args := fast_arguments(units)) is not None:
        statement = SQL_COMMIT_FAST if written_args is None else SQL_COMMIT_FAST_AND_WRITTEN
        rows = await _fast(connection, statement, [*fast_args, *extra_args], timeout)
        if rows is not None:
            return rows, True
    args = commit_arguments(units)
    mode = (settings.brokered, settings.local_delivery)
    rare_args = (*relation_arguments(units), transcripts_argument(units), usage_argument(units))
    statement = SQL_COMMIT_RUNS if written_args is None else SQL_COMMIT_RUNS_AND_WRITTEN
    general_rows = await connection.fetch(
        statement, *args, *mode, *rare_args, *extra_args, timeout=timeout
    )
    return general_rows, False


async def _fast(
    connection: Connection, statement: str, args: Sequence[object], timeout: float
) -> list[Row] | None:
    """Return the rows of the fast path, or None if it wrote nothing because something is not as usual."""
    try:
        rows: list[Row] = await connection.fetch(statement, *args, timeout=timeout)
    except DRIVER_ERRORS as exc:
        # Any other error is a fault of the group, and the general function would only repeat it.
        if getattr(exc, "sqlstate", None) != _NOT_THERE:
            raise
        return None
    return None if rows and rows[0]["outcome"] == _GENERAL else rows


WrittenArgs: TypeAlias = "Sequence[Sequence[object]]"
"""The arguments of `written`."""

MAX_HANDED_CHARS: Final = 64 * 1024
"""Largest text of the entries that a commit hands over. Readers read larger commits."""
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(slots=True)
class Written:
    """Answer of a statement about a commit that it has written.

    Attributes:
        at: The instant of the commit's entries, or None if nobody reads them.
        facts: The last facts of the commit's session, by number.
    """

    at: datetime | None = None
    facts: list[SessionFact] = field(default_factory=list)

    def take(self, row: Row) -> None:
        """Take a row of `written`."""
        at = _EPOCH + timedelta(microseconds=int(row["detail"]))
        if row["outcome"] == "entries":
            self.at = at
        else:
            run_id = RunId(row["message_id"])
            fact = SessionFact(row["actual"], row["sender"], run_id, row["arrival"], at)
            self.facts.append(fact)


@dataclass(frozen=True, slots=True)
class HandOver:
    """The readers to whom commits are handed over.

    Attributes:
        is_log_read: Returns True if somebody reads the log of a run, here or in another process.
        is_session_read: Returns True if somebody reads the facts of a session here.
        on_entries: Called with the new entries of a log; with none if they have to be read.
        on_facts: Called with new facts of a session; with none if they have to be read.
    """

    is_log_read: Callable[[RunId], bool]
    is_session_read: Callable[[AgentId], bool]
    on_entries: Callable[[RunId, Sequence[RunLogEntry]], None]
    on_facts: Callable[[AgentId, Sequence[SessionFact]], None]

    def written_args(self, units: Sequence[Unit]) -> WrittenArgs | None:
        """Return the arguments of `written` for these commits, or None if nobody reads them."""
        rows = [row for i, unit in enumerate(units, 1) if (row := self._written_row(i, unit))]
        return columns(rows, 5) if rows else None

    def _written_row(self, number: int, unit: Unit) -> tuple[object, ...] | None:
        lease, commit = unit.first.lease, unit.calls[-1].args.commit
        facts = () if commit is None or commit.session is None else commit.session.facts
        is_log_read = bool(unit.rows) and self.is_log_read(lease.run_id)
        # A large commit would be kept in memory for each reader; readers take it from the store when they come
        # to it.
        if is_log_read and sum(len(text) for _, _, text in unit.rows) > MAX_HANDED_CHARS:
            is_log_read = False
        log = (lease.run_id, unit.last) if is_log_read else (None, None)
        if facts and self.is_session_read(lease.agent_id):
            return (number, *log, str(lease.agent_id), len(facts))
        return (number, *log, None, None) if is_log_read else None

    def give(self, unit: Unit, written: Written | None) -> None:
        """Notify the readers of a commit, and hand over what is known of it."""
        at = None if written is None else written.at
        self.on_entries(unit.first.lease.run_id, () if at is None else _entries(unit, at))
        commit = unit.calls[-1].args.commit
        if commit is not None and commit.session is not None:
            self.on_facts(commit.lease.agent_id, () if written is None else written.facts)


def _entries(unit: Unit, at: datetime) -> tuple[RunLogEntry, ...]:
    run_id, first, turns = unit.first.lease.run_id, unit.first.expected + 1, _session_turns(unit)
    return tuple(
        RunLogEntry(run_id, seq, kind, position, from_json(text), at, turns)
        for seq, (kind, position, text) in enumerate(unit.rows, first)
    )


def _session_turns(unit: Unit) -> Mapping[str, ChatMessage] | None:
    """Return the turns of a commit that are nodes of a session, as readers would read them.

    None if readers have to read them, because they are cleared or large.
    """
    rows = None if unit.parts is None else unit.parts.transcripts
    if rows is None or rows.keys().isdisjoint(("turns", "artifacts", "clear")):
        return {}
    key = unit.first.lease.agent_id.key
    bodies_by_id = {
        str(row["id"]): str(row["body"])
        for row in rows.get("turns", ())
        if row is not None and row["session"] == key
    }
    if (
        "clear" in rows
        or "artifacts" in rows
        or sum(map(len, bodies_by_id.values())) > MAX_HANDED_CHARS
    ):
        return None
    return {id_: ChatMessage.model_validate_json(body) for id_, body in bodies_by_id.items()}
