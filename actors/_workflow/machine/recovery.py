"""The state after a crash: the last checkpoint plus the ledger's records after it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any, Final

from actors._kernel.runtime.ids import derive_id
from actors._kernel.workflow.effects import Effect, StepStatus
from actors._kernel.workflow.run_state import RunState
from actors._kernel.workflow.step_record import FIELDS, StepRecord
from actors._workflow.machine.branches import Path, find_branch_state, with_branch
from actors._workflow.machine.records import OpenStep, apply_record
from actors._workflow.machine.spec import compute_idempotency_key
from actors._workflow.machine.variables import place_of, seq_of

THEN: Final = "then"
"""Name in the delta of an answer's record. Its value is the effect that is open after it, and the next node."""
_FIELDS = frozenset(FIELDS)


def record_from(data: Mapping[str, Any]) -> StepRecord:
    """Return the record from the data of `StepRecord.to_dict`. Unknown fields are left out."""
    values = {name: value for name, value in data.items() if name in _FIELDS}
    return StepRecord(**{**values, "status": StepStatus(values["status"])})


def fold_records(
    state: RunState, records: Iterable[Mapping[str, Any]]
) -> tuple[RunState, dict[Path, OpenStep]]:
    """Return the state after all records, and by branch the effects that have started and have not ended.

    A record changes nothing if the state includes it already, or if another writer wrote it. Recorded steps are
    applied without a call of a node or a handler.
    """
    open_steps: dict[Path, OpenStep] = {}
    for data in records:
        state = behind_record(state, open_steps, data)
    return state, open_steps


def behind_record(
    state: RunState, open_steps: dict[Path, OpenStep], data: Mapping[str, Any]
) -> RunState:
    """Return the state after one more record, and update `open_steps`.

    A record that changes nothing gives the same state.
    """
    delta = data.get("delta")
    if not isinstance(delta, dict):
        return state
    path = tuple(delta.get("branch") or ())
    branch_state = find_branch_state(state, path)
    if branch_state is None:
        return state
    record, open_step, seq = record_from(data), open_steps.get(path), seq_of(branch_state.vars)
    if delta.get("open") == seq:
        open_steps[path] = _open_step_from(record, delta)
    elif "retry" in delta and open_step is not None and open_step.attempt == record.attempt:
        attempt, due_at = open_step.attempt + 1, str(delta["retry"])
        step_id = derive_id(
            place_of(branch_state.run_id, branch_state.vars), open_step.seq, attempt
        )
        open_steps[path] = replace(open_step, attempt=attempt, step_id=step_id, due=due_at)
    elif delta.get("seq") == seq:
        open_steps.pop(path, None)
        branch_state = apply_record(branch_state, record, open_step)
        state = with_branch(state, path, branch_state)
    # Not only if the record was applied just now: the checkpoint may include it while its effect is still open.
    if THEN in delta and delta["seq"] + 1 == seq_of(branch_state.vars):
        open_steps[path] = open_step_after(branch_state, record)
    return state


def _open_step_from(record: StepRecord, delta: dict[str, Any]) -> OpenStep:
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


def open_step_after(branch_state: RunState, record: StepRecord) -> OpenStep:
    """Return the effect that the record of an answer opens. Its first attempt has not started."""
    entry = (record.delta or {})[THEN]
    effect, seq = Effect.from_dict(entry["effect"]), seq_of(branch_state.vars)
    run_path, at = place_of(branch_state.run_id, branch_state.vars), record.ended_at or ""
    key = entry.get("key") or compute_idempotency_key(
        run_id=run_path, node_id=record.node_id, effect=effect, seq=seq
    )
    return OpenStep(
        seq=seq,
        node_id=record.node_id,
        effect=effect,
        next_node=entry["next"],
        changed={},
        attempt=1,
        key=key,
        step_id=derive_id(run_path, seq, 1),
        started_at=at,
        due=at,
        origin=entry.get("origin"),
    )
