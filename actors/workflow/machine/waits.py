"""The end of a wait: an answer, an instant, or the end of a child."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

from actors.kernel.runtime.ids import derive_id
from actors.kernel.workflow.durable import MAX_DEPTH, durable_copy
from actors.kernel.workflow.effects import RunStatus, StepStatus, WaitReason, WaitState
from actors.kernel.workflow.errors import GraphError, StaleResumeError
from actors.kernel.workflow.run_state import RunState, open_wait
from actors.workflow.machine.records import Transition, behind, completed, failed, recorded
from actors.workflow.machine.variables import RUNTIME, namespace, seq_of, split_key

SEEN: Final = "events_seen"
"""In `_runtime`: ids of the last events that answered a wait of the run."""
MOST_SEEN: Final = 64


def answered(
    state: RunState,
    wait_key: str | None,
    payload: Any,
    *,
    at: str,
    more: dict[str, Any] | None = None,
) -> Transition:
    """Decide on an answer to a wait; `more` is what else its delta changes.

    Raises:
        StaleResumeError: The run does not wait, or for another key.
        NotSerializableError: `payload` is not JSON data.
    """
    wait = open_wait(state)
    if wait is None:
        raise StaleResumeError(state.run_id, f"Run is not waiting, but {state.status.value}")
    if wait_key != wait.wait_key:
        raise StaleResumeError(
            state.run_id, f"wait_key mismatch: it waits for {wait.wait_key!r}, not {wait_key!r}"
        )
    return reply(
        state,
        wait,
        durable_copy(payload, "payload", deepest=room_at(wait.result_key)),
        at=at,
        more=more,
    )


def heard(state: RunState, key: str, event: dict[str, Any], *, at: str) -> Transition | None:
    """Decide on an event; None: the run does not wait for it, or got one of its `event_id` before."""
    wait, seen = open_wait(state), namespace(state.vars, RUNTIME).get(SEEN) or []
    if wait is None or wait.reason is not WaitReason.EVENT or wait.wait_key != key:
        return None
    if event["event_id"] in seen:
        return None
    more = {"set": [[[RUNTIME, SEEN], [*seen, event["event_id"]][-MOST_SEEN:]]]}
    return answered(state, key, event, at=at, more=more)


def fell_due(state: RunState, *, at: str) -> Transition | None:
    """Decide on a waiting run whose instant or deadline may have come; None: it has not."""
    wait = open_wait(state)
    if wait is None or not wait.until or wait.until > at:
        return None
    timer = wait.reason is WaitReason.UNTIL
    payload = {"waited_until": wait.until} if timer else {"timed_out": True, "until": wait.until}
    return reply(state, wait, payload, at=at)


def child_ended(state: RunState, child: RunState | None, *, at: str) -> Transition | None:
    """Decide on a run that waits for another one; `child` is None if that is gone. None: it goes on waiting."""
    wait = open_wait(state)
    if wait is None or wait.reason is not WaitReason.SUBWORKFLOW:
        return None
    details = wait.details or {}
    name = f"subworkflow {details.get('sub_workflow_id')!r} (run {details.get('sub_run_id')})"
    if child is None:
        return failed(state, f"{name} is gone: it was deleted", at=at)
    if not child.status.is_terminal:
        return None
    if child.status is RunStatus.COMPLETED:
        return reply(state, wait, {"sub_run_id": child.run_id, "output": child.output}, at=at)
    return failed(state, f"{name} {child.status.value}: {child.error}", at=at)


def reply(
    state: RunState, wait: WaitState, payload: Any, *, at: str, more: dict[str, Any] | None = None
) -> Transition:
    """Return the end of a wait by this answer, and of the run, if there is no node behind the wait."""
    seq = seq_of(state.vars)
    told = {"wait_key": wait.wait_key, "reason": wait.reason.value}
    effect = {"type": "resume", "payload": told, "result_key": wait.result_key}
    delta = delta_behind(seq, wait.result_key, wait.resume_to_node) | (more or {})
    record = recorded(
        state,
        StepStatus.COMPLETED,
        at,
        effect=effect,
        result=payload,
        delta=delta | {"status": RunStatus.RUNNING.value},
    )
    record = replace(record, idempotency_key=derive_id(state.run_id, seq, "resume"))
    try:
        after = behind(state, record)
    except GraphError as exc:
        return failed(state, f"answer to {wait.wait_key!r}: {exc}", at=at)
    via = {"via": "resume", "wait_key": wait.wait_key}
    return after if wait.resume_to_node else ended_with(after, payload, at=at, via=via)


def room_at(result_key: str | None) -> int:
    """Return how deep a value may be that goes to this place in the vars."""
    return MAX_DEPTH - (result_key or "").count(".") - 1


def delta_behind(seq: int, result_key: str | None, node: str | None) -> dict[str, Any]:
    """Return the delta of a result that goes to `result_key`, and of the move to `node`."""
    delta: dict[str, Any] = {"seq": seq}
    if result_key:
        delta["key"] = split_key(result_key)
    if node:
        delta["node"] = node
    return delta


def ended_with(
    after: Transition, result: Any, *, at: str, via: dict[str, Any] | None = None
) -> Transition:
    """Return the end of a run whose last node was an effect or a wait."""
    output = {"success": True, "result": result}
    end = completed(after.state, output, {}, at=at, via=via)
    return replace(end, records=after.records + end.records)
