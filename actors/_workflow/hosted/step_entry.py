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


def chain(record: StepRecord, prev_hash: str | None) -> tuple[dict[str, Any], int]:
    """Return a record as the next link of the chain, and its size in bytes of JSON.

    Its values are not copied, since the machine has checked them.
    """
    values = record.values()
    values["prev_hash"] = prev_hash
    text = hashed_text(values)
    values["record_hash"] = hashlib.sha256(text).hexdigest()
    return values, len(text)


def compact(record: dict[str, Any], open_step: OpenStep | None, result_at: str) -> dict[str, Any]:
    """Return a record without the values that the run or an earlier entry of the log has.

    Args:
        record: The record, whole.
        open_step: The effect that has started in the record's branch, or None if no effect has.
        result_at: The position of the effect whose entry has the record's result; empty if no entry has it.
    """
    log_record = {
        name: value for name, value in record.items() if value is not None and name not in _OF_RUN
    }
    if open_step is not None and record["effect"] == open_step.effect.to_dict():
        del log_record["effect"]
        log_record[OPENED] = True
    if result_at:
        log_record.pop("result", None)
        log_record[RESULT_AT] = result_at
    return log_record


def expand(
    log_record: dict[str, Any],
    run: RunState,
    open_steps: dict[Path, OpenStep],
    results: dict[str, Any],
) -> dict[str, Any]:
    """Return the whole record of a compact one: the inverse of `compact`.

    Args:
        log_record: The record as the log has it.
        run: The run's state before the record.
        open_steps: The effects that have started and have not ended, by branch.
        results: The results of the run's effects, by position.
    """
    record = dict.fromkeys(FIELDS) | log_record
    for name in _OF_RUN:
        record[name] = getattr(run, name)
    record.pop(NOTE, None)
    position = record.pop(RESULT_AT, None)
    if position is not None:
        record["result"] = results.get(position)
    if record.pop(OPENED, False):
        open_step = open_steps.get(tuple((log_record.get("delta") or {}).get("branch") or ()))
        record["effect"] = None if open_step is None else open_step.effect.to_dict()
    return record


def apply_note(state: RunState, log_record: dict[str, Any]) -> RunState:
    """Return the state with the value that a record of a log notes. A record without a note changes nothing."""
    if NOTE not in log_record:
        return state
    value = log_record["effect"]["payload"]["value"]
    at = log_record.get("ended_at") or state.updated_at
    return replace(state, vars=with_path(state.vars, log_record[NOTE], value), updated_at=at)


def continued_state(run_input: dict[str, Any]) -> tuple[RunState, dict[Path, OpenStep]]:
    """Return the state with which a run continues as new, and by branch the effect that a node asked for."""
    step = run_input.get(OPENED_STEP)
    open_steps: dict[Path, OpenStep] = {} if step is None else {(): OpenStep.from_dict(step)}
    return RunState.from_dict(run_input[STATE]), open_steps


@dataclass(slots=True)
class Folded:
    """The fold of a graph run's log, from its start or from a ``run.continued`` on.

    Attributes:
        state: The state after the last entry, or None if the run has not begun.
        opened: The effects that have started and have not ended, by branch.
        records: The whole records, in order.
        taken_signals: The numbers of the signals that the run took.
        seq: The number of the last entry.
    """

    state: RunState | None = None
    opened: dict[Path, OpenStep] = field(default_factory=dict)
    records: list[dict[str, Any]] = field(default_factory=list)
    taken_signals: set[int] = field(default_factory=set)
    seq: int = 0
    _results: dict[str, Any] = field(default_factory=dict)

    def add(self, entry: RunLogEntry) -> None:
        """Add the next entry, and keep its records."""
        self.records.extend(self.fold(entry))

    def fold(self, entry: RunLogEntry) -> Iterator[dict[str, Any]]:
        """Add the next entry; yield each whole record. At each yield `state` is the state after that record."""
        payload: dict[str, Any] = entry.payload
        self.seq = entry.seq
        if entry.kind == K.RUN_CONTINUED and isinstance(payload["input"], dict):
            self.state, self.opened = continued_state(payload["input"])
            self._results.clear()
        elif entry.kind in {K.EFFECT_RESULT, K.IN_DOUBT_RESOLVED}:
            self._results[entry.position] = outcome_from(payload.get("value")).result
        elif entry.kind == K.SIGNAL_RECEIVED:
            self.taken_signals.add(payload["n"])
        elif entry.kind == K.GRAPH_STEP:
            for log_record in payload["records"]:
                yield from self._fold_record(log_record)

    def _fold_record(self, log_record: dict[str, Any]) -> Iterator[dict[str, Any]]:
        delta = log_record.get("delta") or {}
        if START in delta:
            self.state = RunState.from_dict(delta[START])
        if self.state is not None:
            record = expand(log_record, self.state, self.opened, self._results)
            self.state = apply_note(behind_record(self.state, self.opened, record), log_record)
            yield record


_STATUSES: Final = frozenset(StepStatus)


def outcome_data(outcome: EffectOutcome) -> dict[str, Any]:
    """Return a checked outcome as JSON data."""
    data: dict[str, Any] = {"status": str(outcome.status), "result": outcome.result}
    if outcome.changes is not None:
        data["changes"] = outcome.changes
    if outcome.wait is not None:
        data["wait"] = outcome.wait.to_dict()
    if outcome.error is not None:
        data |= {"error": outcome.error, "retryable": outcome.retryable}
    return data


def outcome_from(value: Any) -> EffectOutcome:
    """Return the outcome that an entry keeps. A value that an operator set in its place becomes the result."""
    if not isinstance(value, dict) or value.get("status") not in _STATUSES:
        return EffectOutcome.completed(value)
    wait = value.get("wait")
    return EffectOutcome(
        StepStatus(value["status"]),
        result=value.get("result"),
        wait=None if wait is None else WaitState.from_dict(wait),
        error=value.get("error"),
        changes=value.get("changes"),
        retryable=bool(value.get("retryable", True)),
    )
