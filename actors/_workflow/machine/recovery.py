"""The state after a crash: the last checkpoint plus the ledger's records after it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any, Final

from actors._kernel.runtime.ids import derive_id
from actors._kernel.workflow.effects import Effect, StepStatus
from actors._kernel.workflow.run_state import RunState
from actors._kernel.workflow.step_record import FIELDS, StepRecord
from actors._workflow.machine.branches import Path, put, seen_at
from actors._workflow.machine.records import OpenStep, applied
from actors._workflow.machine.spec import compute_idempotency_key
from actors._workflow.machine.variables import place_of, seq_of

THEN: Final = "then"
"""Name in the delta of an answer's record. Its value is the effect that is open after it, and the next node."""
_FIELDS = frozenset(FIELDS)


def record_from(data: Mapping[str, Any]) -> StepRecord:
    """Return the record from the data of `StepRecord.to_dict`. Unknown fields are left out."""
    told = {name: value for name, value in data.items() if name in _FIELDS}
    return StepRecord(**{**told, "status": StepStatus(told["status"])})


def folded(
    state: RunState, records: Iterable[Mapping[str, Any]]
) -> tuple[RunState, dict[Path, OpenStep]]:
    """Return the state after all records, and by branch the effects that have started and have not ended.

    A record changes nothing if the state includes it already, or if another writer wrote it. Recorded steps are
    applied without a call of a node or a handler.
    """
    opened: dict[Path, OpenStep] = {}
    for data in records:
        state = behind_record(state, opened, data)
    return state, opened


def behind_record(
    state: RunState, opened: dict[Path, OpenStep], data: Mapping[str, Any]
) -> RunState:
    """Return the state after one more record, and update `opened`.

    A record that changes nothing gives the same state.
    """
    delta = data.get("delta")
    if not isinstance(delta, dict):
        return state
    path = tuple(delta.get("branch") or ())
    seen = seen_at(state, path)
    if seen is None:
        return state
    record, begun, seq = record_from(data), opened.get(path), seq_of(seen.vars)
    if delta.get("open") == seq:
        opened[path] = _opened_by(record, delta)
    elif "retry" in delta and begun is not None and begun.attempt == record.attempt:
        attempt, due = begun.attempt + 1, str(delta["retry"])
        step_id = derive_id(place_of(seen.run_id, seen.vars), begun.seq, attempt)
        opened[path] = replace(begun, attempt=attempt, step_id=step_id, due=due)
    elif delta.get("seq") == seq:
        opened.pop(path, None)
        seen = applied(seen, record, begun)
        state = put(state, path, seen)
    if THEN in delta and delta["seq"] + 1 == seq_of(seen.vars):
        opened[path] = opened_behind(seen, record)
    return state


def _opened_by(record: StepRecord, delta: dict[str, Any]) -> OpenStep:
    assert record.effect is not None
    return OpenStep(
        seq=int(delta["open"]),
        node_id=record.node_id,
        effect=Effect.from_dict(record.effect),
        next_node=delta.get("next"),
        changed={name: delta[name] for name in ("set", "unset") if name in delta},
        attempt=record.attempt,
        key=record.idempotency_key or "",
        step_id=record.step_id,
        started_at=record.started_at or "",
        origin=delta.get("origin"),
    )


def opened_behind(seen: RunState, record: StepRecord) -> OpenStep:
    """Return the effect that the record of an answer opens. Its first attempt has not started."""
    told = (record.delta or {})[THEN]
    effect, seq = Effect.from_dict(told["effect"]), seq_of(seen.vars)
    place, at = place_of(seen.run_id, seen.vars), record.ended_at or ""
    key = told.get("key") or compute_idempotency_key(
        run_id=place, node_id=record.node_id, effect=effect, seq=seq
    )
    return OpenStep(
        seq=seq,
        node_id=record.node_id,
        effect=effect,
        next_node=told["next"],
        changed={},
        attempt=1,
        key=key,
        step_id=derive_id(place, seq, 1),
        started_at=at,
        due=at,
        origin=told.get("origin"),
    )
