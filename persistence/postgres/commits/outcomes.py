"""The rows that `commit_turns` returns, sorted by commit and turned into the kernel's values."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, LiteralString

from actors.errors import (
    ConcurrentAppendError,
    IllegalTransitionError,
    LeaseLostError,
    OutOfOrderError,
    UnknownRunError,
)
from actors.kernel.agent.message import MessageKey
from actors.kernel.runtime.commit import (
    Answered,
    Conflict,
    LeaseLost,
    Missing,
    OutOfOrder,
    OverBudget,
    Spawned,
)
from actors.kernel.runtime.hints import Nudge
from actors.kernel.runtime.ids import AgentId
from actors.kernel.runtime.scheduler import Lease
from actors.kernel.runtime.waits import WaitCycle
from persistence.postgres.commits.hand_over import Written
from persistence.postgres.commits.unit import Ended, Unit, Unknown, WriteResult
from persistence.postgres.connection.link import Row
from persistence.postgres.connection.listener import nudge_of

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

    __slots__ = ("cycles", "notes", "nudges", "posted", "refused", "routed", "written")

    def __init__(self, units: list[Unit], rows: list[Row]) -> None:
        self.refused: dict[int, WriteResult] = {}
        self.notes: dict[int, Row] = {}
        self.cycles: dict[int, list[WaitCycle]] = {}
        self.nudges: list[Row] = []
        self.routed: list[Row] = []
        self.posted: list[Row] = []
        self.written: dict[int, Written] = {}
        withdrawn: set[tuple[str, str, str]] = set()
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
                withdrawn.add(_key(row))
            elif outcome in ("entries", "fact"):
                self.written.setdefault(number, Written()).take(row)
            elif outcome == "cycle":
                self.cycles.setdefault(number, []).append(_cycle(units[number - 1], row))
            else:
                self.refused[number] = _refusal(row, units[number - 1], self.refused.get(number))
        if withdrawn:  # they never left
            self.routed = [row for row in self.routed if _key(row) not in withdrawn]
            self.posted = [row for row in self.posted if _key(row) not in withdrawn]
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
    found: dict[int, CommitNudges] = {}
    for row in rows:
        owner = row["owner"]
        if owner is None:
            continue
        number: int = row["turn"]
        unit = units[number - 1]
        nudge = nudge_of(row["detail"], row["agent"], row["message_id"])
        nudges = found.setdefault(number, CommitNudges())
        if owner != unit.first.lease.owner:
            on_foreign(owner, nudge)
        elif nudge.kind == "run" and row["arrival"] is not None:
            nudges.spawned.append((unit.child(nudge.run_id), row["arrival"]))
        else:
            nudges.nudges[nudge] = None
    return found


def _key(row: Row) -> tuple[str, str, str]:
    return row["agent"], row["sender"], row["message_id"]


def _cycle(unit: Unit, row: Row) -> WaitCycle:
    lease = unit.first.lease
    agents = tuple(AgentId.parse(agent) for agent in row["agent"].split("\n"))
    return WaitCycle(lease.run_id, lease.agent_id, row["detail"], agents)


def _one_run_each(found: dict[int, list[WaitCycle]]) -> dict[int, list[WaitCycle]]:
    """Return the cycles without what several commits of a group say of one: the greatest run fails."""
    fails: dict[tuple[AgentId, ...], str] = {}
    for cycle in (cycle for cycles in found.values() for cycle in cycles):
        agents = _from_the_least(cycle.agents)
        fails[agents] = max(cycle.run_id, fails.get(agents, ""))
    return {
        number: [c for c in cycles if fails[_from_the_least(c.agents)] == c.run_id]
        for number, cycles in found.items()
    }


def _from_the_least(agents: tuple[AgentId, ...]) -> tuple[AgentId, ...]:
    n = min(range(len(agents)), key=lambda i: str(agents[i]))
    return (*agents[n:], *agents[:n])


def _refusal(  # noqa: PLR0911 - one each
    row: Row, unit: Unit, before: WriteResult | None
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
            there = before.keys if isinstance(before, Answered) else ()
            return Answered((*there, row["detail"]))
        case "over":
            places = before.positions if isinstance(before, OverBudget) else ()
            return OverBudget((*places, row["detail"]), row["message_id"])
        case "early" if not isinstance(before, Missing):
            keys = before.keys if isinstance(before, OutOfOrder) else ()
            if (sender := row.get("sender")) is not None:  # an append names none
                keys = (*keys, MessageKey(unit.first.lease.agent_id, sender, row["detail"]))
            verdict: WriteResult = OutOfOrder(keys)
        case _:
            known = before.what if isinstance(before, Missing) else ()
            verdict = Missing((*known, row["detail"]))
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
