"""What `commit_turns` returns, sorted by turn and turned into the kernel's values."""

from __future__ import annotations

from typing import TYPE_CHECKING

from actors.kernel.runtime.commit import Conflict, LeaseLost, Missing, OverBudget, WaitCycle
from actors.kernel.runtime.ids import AgentId
from persistence.postgres.listener import nudge_of
from persistence.postgres.turn import Ended, Unknown

if TYPE_CHECKING:
    from collections.abc import Callable

    from actors.kernel.runtime.store import Nudge
    from persistence.postgres.link import Row
    from persistence.postgres.turn import TurnResult, Unit


class Verdicts:
    """The rows of one group: what was refused, what is to be told, and what became of messages."""

    __slots__ = ("cycles", "notes", "nudges", "posted", "refused", "routed")

    def __init__(self, units: list[Unit], rows: list[Row]) -> None:
        self.refused: dict[int, TurnResult] = {}
        self.notes: dict[int, Row] = {}
        self.cycles: dict[int, list[WaitCycle]] = {}
        self.nudges: list[Row] = []
        self.routed: list[Row] = []
        self.posted: list[Row] = []
        for row in rows:
            outcome, turn = row["outcome"], row["turn"]
            if outcome == "routed":
                self.routed.append(row)
            elif outcome in ("outbox", "dead"):
                self.posted.append(row)
            elif outcome == "nudge":
                self.nudges.append(row)
            elif outcome == "note":
                self.notes[turn] = row
            elif outcome == "cycle":
                self.cycles.setdefault(turn, []).append(_cycle(units[turn - 1], row))
            else:
                self.refused[turn] = _refusal(row, self.refused.get(turn))


def nudges_of(
    units: list[Unit], rows: list[Row], on_foreign: Callable[[str, Nudge], None]
) -> dict[int, list[Nudge]]:
    """Return what each turn changed for its own host; other owners are told by `on_foreign`."""
    found: dict[int, list[Nudge]] = {}
    for row in rows:
        owner = row["owner"]
        if owner is None:
            continue
        turn: int = row["turn"]
        nudge = nudge_of(row["detail"], row["agent"], row["message_id"])
        if owner == units[turn - 1].turn.lease.owner:
            known = found.setdefault(turn, [])
            if nudge not in known:
                known.append(nudge)
        else:
            on_foreign(owner, nudge)
    return found


def _cycle(unit: Unit, row: Row) -> WaitCycle:
    lease = unit.turn.lease
    agents = tuple(AgentId.parse(agent) for agent in row["agent"].split("\n"))
    return WaitCycle(lease.run_id, lease.agent_id, row["detail"], agents)


def _refusal(row: Row, before: TurnResult | None) -> TurnResult:
    match row["outcome"]:
        case "lease":
            return LeaseLost()
        case "unknown":
            return Unknown()
        case "ended":
            return Ended(row["detail"])
        case "conflict":
            return Conflict(row["actual"])
        case "over":
            places = before.positions if isinstance(before, OverBudget) else ()
            return OverBudget((*places, row["detail"]), row["message_id"])
        case _:
            known = before.what if isinstance(before, Missing) else ()
            return Missing((*known, row["detail"]))
