"""The decisions of the machine as records, with the state after them, and the decisions that end a run."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Final

from actors.kernel.json_data import clean_text
from actors.kernel.runtime.ids import derive_id
from actors.kernel.workflow.durable import MAX_DEPTH, durable_copy
from actors.kernel.workflow.effects import EffectType, RunStatus, StepStatus
from actors.kernel.workflow.run_state import RunState
from actors.kernel.workflow.step_record import StepRecord
from actors.workflow.machine.deltas import OpenStep, applied
from actors.workflow.machine.variables import (
    BRANCH,
    RUNTIME,
    namespace,
    place_of,
    seq_of,
    with_path,
)

STATUS_EVENT: Final = "abstract.status"
"""The event in the last record of a run, by which web pages see that the run ended.

AbstractFramework names it so.
"""
ANSWERS: Final = "answers"
"""Name in `_runtime`. Its value has answers that came before their wait, by wait key."""
CONTROL: Final = "control"
"""Name in `_runtime`. Its value says if the run is paused, and the reason."""
INBOX: Final = "inbox"
"""Name in `_runtime`. Its value has messages of `steer`, the oldest first."""
MOST_MESSAGES: Final = 200


@dataclass(frozen=True, slots=True)
class Transition:
    """A decision.

    Attributes:
        state: The state after the decision.
        records: The records of the decision, in order.
        opened: The effect that the driver has to execute now, or at its `due` if it has one. None: the driver
            has to call the node, if the state is RUNNING.
    """

    state: RunState
    records: tuple[StepRecord, ...] = ()
    opened: OpenStep | None = None


def recorded(  # noqa: PLR0913 - the values of a record
    state: RunState,
    status: StepStatus,
    at: str,
    *,
    effect: dict[str, Any] | None = None,
    result: Any = None,
    error: str | None = None,
    delta: dict[str, Any] | None = None,
    key: str | None = None,
    checked: bool = False,
) -> StepRecord:
    """Return a record about the current node of a run, with `key` as its idempotency key.

    `checked`: see `StepRecord`.
    """
    return StepRecord(
        run_id=state.run_id,
        step_id=derive_id(place_of(state.run_id, state.vars), seq_of(state.vars), 0),
        node_id=state.current_node,
        status=status,
        effect=effect,
        result=result,
        error=error,
        started_at=at,
        ended_at=at,
        actor_id=state.actor_id,
        session_id=state.session_id,
        idempotency_key=key,
        delta=delta,
        checked=checked,
    )


def behind(state: RunState, record: StepRecord, opened: OpenStep | None = None) -> Transition:
    """Return the decision of one record, with the state after it; see `applied`."""
    return Transition(applied(state, record, opened), (record,))


def completed(
    state: RunState,
    output: Any,
    changed: dict[str, Any],
    *,
    at: str,
    via: dict[str, Any] | None = None,
) -> Transition:
    """Decide that a run ends with this output. `via` says where the output is from, if not from a node.

    All are checked JSON data.
    """
    delta = changed | {"seq": seq_of(state.vars), "status": RunStatus.COMPLETED.value}
    result = {"completed": True, "output": output} | (via or {})
    record = recorded(state, StepStatus.COMPLETED, at, result=result, delta=delta, checked=True)
    return told_of_end(behind(state, record), at=at)


def failed(state: RunState, error: str, *, at: str) -> Transition:
    """Decide that a run fails."""
    record = recorded(
        state,
        StepStatus.FAILED,
        at,
        error=clean_text(error),
        delta={"seq": seq_of(state.vars), "status": RunStatus.FAILED.value},
    )
    return told_of_end(behind(state, record), at=at)


def cancelled(state: RunState, reason: str | None, by: str, *, at: str) -> Transition:
    """Decide on a request to cancel a run. A run that has ended stays as it is."""
    if state.status.is_terminal:
        return Transition(state)
    record = recorded(
        state,
        StepStatus.CANCELLED,
        at,
        result={"cancelled_by": by, "reason": reason},
        error=clean_text(reason or "cancelled"),
        delta={"seq": seq_of(state.vars), "status": RunStatus.CANCELLED.value},
    )
    return told_of_end(behind(state, record), at=at)


def noted(state: RunState, kind: str, path: list[str], value: Any, *, at: str) -> Transition:
    """Change one value of a run's vars for an external request, and write a record of this kind.

    The record has no delta. The change is durable with the next checkpoint. An effect that has started stays
    open.

    Raises:
        NotSerializableError: `value` is not JSON data.
        GraphError: The path leads through a value that is not an object.
    """
    clean = durable_copy(value, ".".join(path), deepest=MAX_DEPTH - len(path))
    effect = {"type": kind, "payload": {"value": clean}, "result_key": None}
    key = derive_id(state.run_id, seq_of(state.vars), kind, at)
    record = recorded(state, StepStatus.COMPLETED, at, effect=effect, key=key)
    changed = replace(state, vars=with_path(state.vars, path, clean), updated_at=at)
    return Transition(changed, (record,))


def told_of_end(after: Transition, *, at: str) -> Transition:
    """Return the end of a run with the record of its status event. The end of a branch has no such record."""
    state = after.state
    if BRANCH in namespace(state.vars, RUNTIME):
        return after
    payload = {
        "name": STATUS_EVENT,
        "scope": "session",
        "payload": {"run_id": state.run_id, "status": state.status.value},
    }
    effect = {"type": EffectType.EMIT_EVENT.value, "payload": payload, "result_key": None}
    record = recorded(
        state,
        StepStatus.COMPLETED,
        at,
        effect=effect,
        result={"delivered": 0},
        key=derive_id(state.run_id, seq_of(state.vars), "end"),
        checked=True,
    )
    return Transition(state, (*after.records, record), after.opened)


def is_paused(state: RunState) -> bool:
    """Return True if the run is paused."""
    return bool(namespace(namespace(state.vars, RUNTIME), CONTROL).get("paused"))


def with_message(state: RunState, message: Any) -> list[dict[str, Any]]:
    """Return the inbox of a run with a message added. The message's number follows that of the last one."""
    messages = namespace(state.vars, RUNTIME).get(INBOX)
    # A node may write the inbox: what is no message there is left out.
    inbox = [
        message
        for message in (messages if isinstance(messages, list) else ())
        if isinstance(message, dict) and type(message.get("seq")) is int
    ]
    seq = inbox[-1]["seq"] + 1 if inbox else 1
    content = message if isinstance(message, dict) else {"role": "user", "content": message}
    return [*inbox, {"seq": seq, "message": content}][-MOST_MESSAGES:]
