"""The state behind a crash: the last checkpoint, and what the ledger has beyond it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import fields, replace
from typing import Any

from actors.kernel.runtime.ids import derive_id
from actors.kernel.workflow.effects import Effect, StepStatus
from actors.kernel.workflow.run_state import RunState
from actors.kernel.workflow.step_record import StepRecord
from actors.workflow.machine.deltas import OpenStep, applied
from actors.workflow.machine.variables import seq_of

_FIELDS = frozenset(one.name for one in fields(StepRecord))


def record_from(data: Mapping[str, Any]) -> StepRecord:
    """Return the record that `StepRecord.to_dict` described; fields of others are left out."""
    told = {name: value for name, value in data.items() if name in _FIELDS}
    return StepRecord(**{**told, "status": StepStatus(told["status"])})


def folded(
    state: RunState, records: Iterable[Mapping[str, Any]]
) -> tuple[RunState, OpenStep | None]:
    """Return the state behind all records, and the effect that has begun and has no end.

    A record that the state has in it already, or that somebody else wrote, changes nothing. No node and no
    handler is called: a recorded step is applied.
    """
    opened: OpenStep | None = None
    for data in records:
        state, opened = behind_record(state, opened, data)
    return state, opened


def behind_record(
    state: RunState, opened: OpenStep | None, data: Mapping[str, Any]
) -> tuple[RunState, OpenStep | None]:
    """Return what `folded` does, behind one more record."""
    delta = data.get("delta")
    if not isinstance(delta, dict):
        return state, opened
    seq = seq_of(state.vars)
    record = record_from(data)
    if delta.get("open") == seq:
        return state, _opened_by(record, delta)
    if "retry" in delta and opened is not None and opened.attempt == record.attempt:
        return state, _next_attempt(opened, record, str(delta["retry"]))
    if delta.get("seq") == seq:
        return applied(state, record, opened), None
    return state, opened


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
    )


def _next_attempt(opened: OpenStep, record: StepRecord, due: str) -> OpenStep:
    attempt = opened.attempt + 1
    step_id = derive_id(record.run_id, opened.seq, attempt)
    return replace(opened, attempt=attempt, step_id=step_id, due=due)
