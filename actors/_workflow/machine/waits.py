"""Waits of a run: the effects that begin them, and their end by an answer, an instant, or the end of a child.

Two further effects need no I/O: answers to users, and reads of the vars.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any, Final

from actors._kernel.json_data import clean_text
from actors._kernel.runtime.ids import derive_id
from actors._kernel.workflow.durable import MAX_DEPTH, durable_copy, normalize_utc_iso
from actors._kernel.workflow.effects import (
    IN_DOUBT,
    EffectOutcome,
    EffectType,
    RunStatus,
    StepStatus,
    WaitReason,
    WaitState,
    check_answer,
    details_of_node,
    effect_behind,
    failure_in,
    result_of_answer,
)
from actors._kernel.workflow.errors import GraphError, StaleResumeError
from actors._kernel.workflow.run_state import RunState, open_wait
from actors._workflow.machine.branches import Leaf, find_branch_state, leaves, lift_to_run
from actors._workflow.machine.records import (
    OpenStep,
    Transition,
    add_end_event,
    completed,
    failed,
    is_paused,
    node_record,
    transition_of,
)
from actors._workflow.machine.recovery import THEN, open_step_after
from actors._workflow.machine.spec import key_of_payload
from actors._workflow.machine.variables import (
    RUNTIME,
    namespace,
    place_of,
    seq_of,
    split_key,
    value_at,
)

SEEN: Final = "events_seen"
"""Name in `_runtime`. Its value has ids of events in runs that an earlier release began."""
HEARD: Final = "events_heard"
"""Name in `_runtime`. Its value has a number for each of the last events that answered a wait, by its id."""
MOST_HEARD: Final = 1000
"""Number of events whose ids a run keeps. An event with one of these ids answers no wait of the run again."""
_LONGEST_ID: Final = 64
"""Longer ids are kept as their hashes, since each checkpoint has all of them."""


def answer_wait(state: RunState, wait_key: str | None, payload: Any, *, at: str) -> Transition:
    """Decide on an answer to the run's wait, or to the wait of the first branch that has this key.

    Raises:
        StaleResumeError: The run does not wait, or waits for another key.
        GraphError: The answer does not fit the tool calls that the run waits for.
        NotSerializableError: `payload` is not JSON data.
    """
    waiting_leaves = [leaf for leaf in leaves(state) if leaf.wait is not None]
    if not waiting_leaves:
        is_on_pause = is_paused(state) and not state.status.is_terminal
        status = "paused" if is_on_pause else state.status.value
        raise StaleResumeError(state.run_id, f"Run is not waiting, but {status}")
    for leaf in waiting_leaves:
        if leaf.wait is not None and leaf.wait.wait_key == wait_key:
            return _answer_leaf(state, leaf, payload, at=at)
    keys = [leaf.wait.wait_key for leaf in waiting_leaves if leaf.wait is not None]
    raise StaleResumeError(state.run_id, mismatch(keys, wait_key))


def check_early(run_id: str, wait_key: str) -> None:
    """Check that an answer may come before its wait.

    Raises:
        StaleResumeError: It is a decision on an effect that is not in doubt.
        NotSerializableError: No database takes the key.
    """
    durable_copy(wait_key, "wait_key")
    if wait_key.startswith(f"{IN_DOUBT}:"):
        raise StaleResumeError(run_id, f"Run does not wait for {wait_key!r}")


def mismatch(keys: Iterable[str | None], wait_key: str | None) -> str:
    """Return the reason why an answer with `wait_key` fits none of the run's waits, which have `keys`."""
    own_keys = ", ".join(map(repr, keys))
    return f"wait_key mismatch: it waits for {own_keys}, not {wait_key!r}"


def _answer_leaf(
    state: RunState, leaf: Leaf, payload: Any, *, at: str, more: dict[str, Any] | None = None
) -> Transition:
    branch_state = find_branch_state(state, leaf.path)
    assert branch_state is not None
    assert leaf.wait is not None
    check_answer(leaf.wait, payload)
    answer = durable_copy(payload, "payload", deepest=max_depth_at(leaf.wait.result_key))
    return lift_to_run(state, leaf.path, reply(branch_state, leaf.wait, answer, at=at, more=more))


def deliver_event(
    state: RunState, key: str, event: dict[str, Any], *, at: str
) -> Transition | None:
    """Decide on an event for all branches that wait for it.

    Return None if no branch waits for it, or if an event of its `event_id` answered a wait of the run before.
    """
    if has_heard(state, event["event_id"]):
        return None
    note = note_of(state, event)
    transition = Transition(state)
    for leaf in leaves(state):
        wait = leaf.wait
        if wait is not None and wait.reason is WaitReason.EVENT and wait.wait_key == key:
            next_transition = _answer_leaf(transition.state, leaf, event, at=at, more=note)
            transition = replace(
                next_transition, records=transition.records + next_transition.records
            )
    return transition if transition.records else None


def has_heard(state: RunState, event_id: Any) -> bool:
    """Return True if an event of this id is among the last ones that answered a wait of the run."""
    runtime = namespace(state.vars, RUNTIME)
    return _stored_id(event_id) in namespace(runtime, HEARD) or event_id in (
        runtime.get(SEEN) or ()
    )


def note_of(state: RunState, event: dict[str, Any]) -> dict[str, Any]:
    """Return the delta that adds an event to the events that answered a wait of the run.

    It has one id, not all of them: a run that hears many events would write them all with each.
    """
    numbers = namespace(namespace(state.vars, RUNTIME), HEARD)
    number = max(numbers.values(), default=0) + 1
    delta: dict[str, Any] = {"set": [[[RUNTIME, HEARD, _stored_id(event["event_id"])], number]]}
    if len(numbers) >= MOST_HEARD:
        delta["unset"] = [[RUNTIME, HEARD, min(numbers, key=lambda event_id: numbers[event_id])]]
    return delta


def _stored_id(event_id: Any) -> str:
    text = str(event_id)
    return text if len(text) <= _LONGEST_ID else derive_id("event", text)


def fell_due(state: RunState, *, at: str) -> Transition | None:
    """Decide on a waiting run whose timer or deadline may be due. Return None if it is not due."""
    wait = open_wait(state)
    if wait is None or not wait.until or wait.until > at:
        return None
    is_timer = wait.reason is WaitReason.UNTIL
    payload = {"waited_until": wait.until} if is_timer else {"timed_out": True, "until": wait.until}
    return reply(state, wait, payload, at=at)


def child_ended(state: RunState, child: RunState | None, *, at: str) -> Transition | None:
    """Decide on a run that waits for a child. `child` is None if it was deleted.

    Return None if the run continues to wait.
    """
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
    """Return the end of a wait by this answer. If no node follows the wait, the run ends, too.

    After a decision on tool calls, the effect that executes them is open. So is an effect in doubt that is to
    be executed now. It keeps its idempotency key.
    """
    seq, error = seq_of(state.vars), failure_in(wait, payload)
    next_effect, payload = effect_behind(wait, payload), result_of_answer(wait, payload)
    key, delta = wait.result_key, delta_behind(seq, wait.result_key, wait.resume_to_node)
    if next_effect is not None:
        then = {"effect": next_effect.to_dict(), "next": wait.resume_to_node}
        details = wait.details or {}
        renamed_details = {"idempotency_key": "key", "seq": "origin"}  # of an effect in doubt
        then |= {new: details[name] for name, new in renamed_details.items() if name in details}
        key, delta = None, {"seq": seq, THEN: then}
    status = RunStatus.RUNNING
    if error is not None:
        key, delta, status = None, {"seq": seq}, RunStatus.FAILED
    resume_payload = {"wait_key": wait.wait_key, "reason": wait.reason.value}
    record = node_record(
        state,
        StepStatus.COMPLETED if error is None else StepStatus.FAILED,
        at,
        effect={"type": "resume", "payload": resume_payload, "result_key": key},
        result=payload,
        error=error and clean_text(error),
        delta=delta | (more or {}) | {"status": status.value},
        key=derive_id(place_of(state.run_id, state.vars), seq, "resume"),
    )
    try:
        transition = transition_of(state, record)
    except GraphError as exc:  # the answer's path leads through a value that is not an object
        return failed(state, f"answer to {wait.wait_key!r}: {exc}", at=at)
    if error is not None:
        return add_end_event(transition, at=at)
    if next_effect is not None:
        return replace(transition, opened=open_step_after(transition.state, record))
    via = {"via": "resume", "wait_key": wait.wait_key}
    return transition if wait.resume_to_node else end_run_with(transition, payload, at=at, via=via)


def max_depth_at(result_key: str | None) -> int:
    """Return the maximum depth of a value that is stored at `result_key` in the vars."""
    return MAX_DEPTH - (result_key or "").count(".") - 1


def delta_behind(seq: int, result_key: str | None, node: str | None) -> dict[str, Any]:
    """Return the delta that stores a result at `result_key` and moves the run to `node`."""
    delta: dict[str, Any] = {"seq": seq}
    if result_key:
        delta["key"] = split_key(result_key)
    if node:
        delta["node"] = node
    return delta


def end_run_with(
    transition: Transition, result: Any, *, at: str, via: dict[str, Any] | None = None
) -> Transition:
    """Return the end of a run whose last node was an effect or a wait."""
    output = {"success": True, "result": result}
    end = completed(transition.state, output, {}, at=at, via=via)
    return replace(end, records=transition.records + end.records)


def subworkflow_key(child_id: str) -> str:
    """Return the key of a wait for the end of a child."""
    return f"subworkflow:{child_id}"


def waiting_for(name: str, child_id: str, more: dict[str, Any]) -> EffectOutcome:
    """Return the outcome of an effect that waits for the end of a child.

    `more` is added to the wait's details.
    """
    details = {"sub_run_id": child_id, "sub_workflow_id": name, **more}
    wait = WaitState(WaitReason.SUBWORKFLOW, wait_key=subworkflow_key(child_id), details=details)
    return EffectOutcome.waiting(wait)


LONGEST_VALUE: Final = 200_000
"""Maximum length of a value that a read of the vars returns, in characters."""


def outcome_of(run: RunState, open_step: OpenStep, at: str) -> EffectOutcome | None:
    """Return the outcome of an effect that the machine executes itself, or None if a handler executes it."""
    answer = _ANSWERS.get(open_step.effect.type)
    if answer is None:
        return None
    try:
        return answer(run, open_step, at)
    except (GraphError, LookupError) as exc:
        return EffectOutcome.failed(str(exc), retryable=False)


def _wait_event(run: RunState, open_step: OpenStep, at: str) -> EffectOutcome:
    payload = open_step.effect.payload
    key = payload.get("wait_key") or key_of_payload(run, payload)
    until_iso = deadline_of(payload, at)
    return EffectOutcome.waiting(
        WaitState(
            WaitReason.EVENT,
            wait_key=str(key),
            until=until_iso,
            prompt=payload.get("prompt"),
            choices=payload.get("choices"),
            allow_free_text=bool(payload.get("allow_free_text", True)),
            details=details_of_node(payload.get("details")),
        )
    )


def _wait_until(run: RunState, open_step: OpenStep, at: str) -> EffectOutcome:
    del run
    until_iso = deadline_of(open_step.effect.payload, at)
    if until_iso is None:
        return EffectOutcome.failed(
            "wait_until needs payload.until, an ISO timestamp, or payload.timeout_s",
            retryable=False,
        )
    if until_iso <= at:
        return EffectOutcome.completed({"waited_until": until_iso})
    key = open_step.effect.payload.get("wait_key") or f"until:{open_step.key}"
    return EffectOutcome.waiting(WaitState(WaitReason.UNTIL, wait_key=str(key), until=until_iso))


def _ask_user(run: RunState, open_step: OpenStep, at: str) -> EffectOutcome:
    del run
    payload = open_step.effect.payload
    if not payload.get("prompt"):
        return EffectOutcome.failed("ask_user needs payload.prompt", retryable=False)
    return EffectOutcome.waiting(
        WaitState(
            WaitReason.USER,
            wait_key=str(payload.get("wait_key") or f"user:{open_step.key}"),
            until=deadline_of(payload, at),
            prompt=str(payload["prompt"]),
            choices=payload.get("choices"),
            allow_free_text=bool(payload.get("allow_free_text", True)),
            details=details_of_node(payload.get("details")),
        )
    )


def _answer_user(run: RunState, open_step: OpenStep, at: str) -> EffectOutcome:
    del run, at
    payload = open_step.effect.payload
    if "message" not in payload:
        return EffectOutcome.failed("answer_user needs payload.message", retryable=False)
    level = str(payload.get("level") or "message")
    return EffectOutcome.completed({"message": payload["message"], "level": level})


def _vars_query(run: RunState, open_step: OpenStep, at: str) -> EffectOutcome:
    del at
    path = str(open_step.effect.payload.get("path") or "")
    row: dict[str, Any] = {"name": "vars_query", "call_id": open_step.effect.payload.get("call_id")}
    try:
        value = value_at(run.vars, path) if path else run.vars
        view: dict[str, Any] = {"path": path, "type": type(value).__name__}
        if open_step.effect.payload.get("keys_only"):
            keys = [*value] if isinstance(value, dict) else None
            view |= {"keys": keys, "length": len(value) if hasattr(value, "__len__") else None}
        else:
            view["value"] = value
        text = json.dumps(view, ensure_ascii=False)
        too_long = f"{path!r} has {len(text)} characters. Read a part, or use keys_only"
        fits = len(text) <= LONGEST_VALUE
        row |= {
            "success": fits,
            "output": text if fits else None,
            "error": None if fits else too_long,
        }
    except (GraphError, LookupError) as exc:
        problem = exc.args[0] if isinstance(exc, LookupError) else str(exc)
        row |= {"success": False, "output": None, "error": problem}
    return EffectOutcome.completed({"mode": "executed", "results": [row]})


def deadline_of(payload: dict[str, Any], at: str) -> str | None:
    """Return the instant of a payload's `until`, or the instant `timeout_s` seconds after `at`.

    Return None if the payload has neither.

    Raises:
        GraphError: The value cannot be read.
    """
    if payload.get("until") is not None:
        until_iso = normalize_utc_iso(payload["until"])
        if until_iso is None:
            raise GraphError("payload.until", f"{payload['until']!r} is not a valid ISO timestamp")
        return until_iso
    if payload.get("timeout_s") is None:
        return None
    seconds = payload["timeout_s"]
    if isinstance(seconds, bool) or not isinstance(seconds, int | float):
        raise GraphError("payload.timeout_s", f"{seconds!r} is not a number of seconds")
    try:
        return (datetime.fromisoformat(at) + timedelta(seconds=seconds)).isoformat()
    except OverflowError:
        raise GraphError("payload.timeout_s", f"{seconds!r} is too long a time") from None


_ANSWERS: Final[dict[EffectType, Callable[[RunState, OpenStep, str], EffectOutcome]]] = {
    EffectType.WAIT_EVENT: _wait_event,
    EffectType.WAIT_UNTIL: _wait_until,
    EffectType.ASK_USER: _ask_user,
    EffectType.ANSWER_USER: _answer_user,
    EffectType.VARS_QUERY: _vars_query,
}
ANSWERED: Final = frozenset(_ANSWERS)
"""The effects that `outcome_of` executes."""
