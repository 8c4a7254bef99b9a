"""Conversion of a graph's records and outcomes to the form that a log keeps, and back: pure functions."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any, Final

from actors._kernel.runtime.log_entry import EntryKind as K
from actors._kernel.runtime.log_entry import RunLogEntry
from actors._kernel.workflow.effects import EffectOutcome, StepStatus, WaitState
from actors._kernel.workflow.run_state import RunState
from actors._kernel.workflow.step_record import FIELDS, StepRecord, hashed_text
from actors._workflow.machine.branches import Path
from actors._workflow.machine.records import OpenStep
from actors._workflow.machine.recovery import behind_record
from actors._workflow.machine.variables import with_path

START: Final = "start"
"""Name in the delta of a ledger's first record. Its value is the state that the run begins with."""
RESULT_AT: Final = "result_at"
"""Name in a record of a log.

Its value is the position of the effect whose recorded result is the record's result.
"""
OPENED: Final = "opened"
"""Name in a record of a log. It says that the record's effect is the effect that has started in the branch."""
NOTE: Final = "note"
"""Name in a record of a log. Its value is the path in the vars that gets the value of the record's effect."""
STATE: Final = "graph"
"""Name in the input of a run that continues as new. Its value is the state of the graph."""
OPENED_STEP: Final = "step"
"""Name beside `STATE`. Its value is the effect that a node asked for."""
_OF_RUN: Final = ("run_id", "actor_id", "session_id")


def linked(record: StepRecord, prev_hash: str | None) -> tuple[dict[str, Any], int]:
    """Return a record as the next link of the chain, and its size in bytes of JSON.

    Its values are not copied, since the machine has checked them.
    """
    told = record.values()
    told["prev_hash"] = prev_hash
    text = hashed_text(told)
    told["record_hash"] = hashlib.sha256(text).hexdigest()
    return told, len(text)


def packed(record: dict[str, Any], opened: OpenStep | None, result_at: str) -> dict[str, Any]:
    """Return a record without the values that the run or an earlier entry of the log has.

    Args:
        record: The record, whole.
        opened: The effect that has started in the record's branch. None: no effect has.
        result_at: The position of the effect whose entry has the record's result. Empty: no entry has it.
    """
    told = {
        name: value for name, value in record.items() if value is not None and name not in _OF_RUN
    }
    if opened is not None and record["effect"] == opened.effect.to_dict():
        del told["effect"]
        told[OPENED] = True
    if result_at:
        told.pop("result", None)
        told[RESULT_AT] = result_at
    return told


def unpacked(
    told: dict[str, Any], run: RunState, opened: dict[Path, OpenStep], results: dict[str, Any]
) -> dict[str, Any]:
    """Return the whole record from which `packed` made `told`.

    Args:
        told: The record as the log has it.
        run: The run's state before the record.
        opened: The effects that have started and have not ended, by branch.
        results: The results of the run's effects, by position.
    """
    record = dict.fromkeys(FIELDS) | told
    for name in _OF_RUN:
        record[name] = getattr(run, name)
    record.pop(NOTE, None)
    place = record.pop(RESULT_AT, None)
    if place is not None:
        record["result"] = results.get(place)
    if record.pop(OPENED, False):
        begun = opened.get(tuple((told.get("delta") or {}).get("branch") or ()))
        record["effect"] = None if begun is None else begun.effect.to_dict()
    return record


def with_note(state: RunState, told: dict[str, Any]) -> RunState:
    """Return the state with the value that a record of a log notes. A record without a note changes nothing."""
    if NOTE not in told:
        return state
    value = told["effect"]["payload"]["value"]
    at = told.get("ended_at") or state.updated_at
    return replace(state, vars=with_path(state.vars, told[NOTE], value), updated_at=at)


def carried(given: dict[str, Any]) -> tuple[RunState, dict[Path, OpenStep]]:
    """Return the state with which a run continues as new, and by branch the effect that a node asked for."""
    step = given.get(OPENED_STEP)
    opened: dict[Path, OpenStep] = {} if step is None else {(): OpenStep.from_dict(step)}
    return RunState.from_dict(given[STATE]), opened


@dataclass(slots=True)
class Folded:
    """The fold of a graph run's log, from its start or from a ``run.continued`` on.

    Attributes:
        state: The state after the last entry. None: the run has not begun.
        opened: The effects that have started and have not ended, by branch.
        records: The whole records, in order.
        taken: The numbers of the signals that the run took.
        seq: The number of the last entry.
    """

    state: RunState | None = None
    opened: dict[Path, OpenStep] = field(default_factory=dict)
    records: list[dict[str, Any]] = field(default_factory=list)
    taken: set[int] = field(default_factory=set)
    seq: int = 0
    _results: dict[str, Any] = field(default_factory=dict)

    def add(self, entry: RunLogEntry) -> None:
        """Add the next entry, and keep its records."""
        self.records.extend(self.added(entry))

    def added(self, entry: RunLogEntry) -> Iterator[dict[str, Any]]:
        """Add the next entry; yield each whole record. At each yield `state` is the state after that record."""
        payload: dict[str, Any] = entry.payload
        self.seq = entry.seq
        if entry.kind == K.RUN_CONTINUED and isinstance(payload["input"], dict):
            self.state, self.opened = carried(payload["input"])
            self._results.clear()
        elif entry.kind in {K.EFFECT_RESULT, K.IN_DOUBT_RESOLVED}:
            self._results[entry.position] = outcome_in(payload.get("value")).result
        elif entry.kind == K.SIGNAL_RECEIVED:
            self.taken.add(payload["n"])
        elif entry.kind == K.GRAPH_STEP:
            for told in payload["records"]:
                yield from self._taken(told)

    def _taken(self, told: dict[str, Any]) -> Iterator[dict[str, Any]]:
        delta = told.get("delta") or {}
        if START in delta:
            self.state = RunState.from_dict(delta[START])
        if self.state is not None:
            record = unpacked(told, self.state, self.opened, self._results)
            self.state = with_note(behind_record(self.state, self.opened, record), told)
            yield record


_STATUSES: Final = frozenset(StepStatus)


def told_of(outcome: EffectOutcome) -> dict[str, Any]:
    """Return a checked outcome as JSON data."""
    told: dict[str, Any] = {"status": str(outcome.status), "result": outcome.result}
    if outcome.changes is not None:
        told["changes"] = outcome.changes
    if outcome.wait is not None:
        told["wait"] = outcome.wait.to_dict()
    if outcome.error is not None:
        told |= {"error": outcome.error, "retryable": outcome.retryable}
    return told


def outcome_in(told: Any) -> EffectOutcome:
    """Return the outcome that an entry keeps. A value that an operator set in its place becomes the result."""
    if not isinstance(told, dict) or told.get("status") not in _STATUSES:
        return EffectOutcome.completed(told)
    wait = told.get("wait")
    return EffectOutcome(
        StepStatus(told["status"]),
        result=told.get("result"),
        wait=None if wait is None else WaitState.from_dict(wait),
        error=told.get("error"),
        changes=told.get("changes"),
        retryable=bool(told.get("retryable", True)),
    )
