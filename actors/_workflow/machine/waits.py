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
    shaped,
)
from actors._kernel.workflow.errors import GraphError, StaleResumeError
from actors._kernel.workflow.run_state import RunState, open_wait
from actors._workflow.machine.branches import Leaf, leaves, lifted, seen_at
from actors._workflow.machine.records import (
    OpenStep,
    Transition,
    behind,
    completed,
    failed,
    is_paused,
    recorded,
    told_of_end,
)
from actors._workflow.machine.recovery import THEN, opened_behind
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


def answered(state: RunState, wait_key: str | None, payload: Any, *, at: str) -> Transition:
    """Decide on an answer to the run's wait, or to the wait of the first branch that has this key.

    Raises:
        StaleResumeError: The run does not wait, or waits for another key.
        GraphError: The answer does not fit the tool calls that the run waits for.
        NotSerializableError: `payload` is not JSON data.
    """
    found = [one for one in leaves(state) if one.wait is not None]
    if not found:
        is_held = is_paused(state) and not state.status.is_terminal
        status = "paused" if is_held else state.status.value
        raise StaleResumeError(state.run_id, f"Run is not waiting, but {status}")
    for leaf in found:
        if leaf.wait is not None and leaf.wait.wait_key == wait_key:
            return _answered_at(state, leaf, payload, at=at)
    keys = [one.wait.wait_key for one in found if one.wait is not None]
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
    known = ", ".join(map(repr, keys))
    return f"wait_key mismatch: it waits for {known}, not {wait_key!r}"


def _answered_at(
    state: RunState, leaf: Leaf, payload: Any, *, at: str, more: dict[str, Any] | None = None
) -> Transition:
    seen = seen_at(state, leaf.path)
    assert seen is not None
    assert leaf.wait is not None
    check_answer(leaf.wait, payload)
    answer = durable_copy(payload, "payload", deepest=room_at(leaf.wait.result_key))
    return lifted(state, leaf.path, reply(seen, leaf.wait, answer, at=at, more=more))


def heard(state: RunState, key: str, event: dict[str, Any], *, at: str) -> Transition | None:
    """Decide on an event for all branches that wait for it.

    None: no branch waits for it, or an event of its `event_id` answered a wait of the run before.
    """
    if has_heard(state, event["event_id"]):
        return None
    more = note_of(state, event)
    decided = Transition(state)
    for leaf in leaves(state):
        wait = leaf.wait
        if wait is not None and wait.reason is WaitReason.EVENT and wait.wait_key == key:
            after = _answered_at(decided.state, leaf, event, at=at, more=more)
            decided = replace(after, records=decided.records + after.records)
    return decided if decided.records else None


def has_heard(state: RunState, event_id: Any) -> bool:
    """Return True if an event of this id is among the last ones that answered a wait of the run."""
    own = namespace(state.vars, RUNTIME)
    return _id_kept(event_id) in namespace(own, HEARD) or event_id in (own.get(SEEN) or ())


def note_of(state: RunState, event: dict[str, Any]) -> dict[str, Any]:
    """Return the delta that adds an event to the events that answered a wait of the run.

    It has one id, not all of them: a run that hears many events would write them all with each.
    """
    heard = namespace(namespace(state.vars, RUNTIME), HEARD)
    number = max(heard.values(), default=0) + 1
    delta: dict[str, Any] = {"set": [[[RUNTIME, HEARD, _id_kept(event["event_id"])], number]]}
    if len(heard) >= MOST_HEARD:
        delta["unset"] = [[RUNTIME, HEARD, min(heard, key=lambda one: heard[one])]]
    return delta


def _id_kept(event_id: Any) -> str:
    text = str(event_id)
    return text if len(text) <= _LONGEST_ID else derive_id("event", text)


def fell_due(state: RunState, *, at: str) -> Transition | None:
    """Decide on a waiting run whose timer or deadline may be due. None: it is not due."""
    wait = open_wait(state)
    if wait is None or not wait.until or wait.until > at:
        return None
    timer = wait.reason is WaitReason.UNTIL
    payload = {"waited_until": wait.until} if timer else {"timed_out": True, "until": wait.until}
    return reply(state, wait, payload, at=at)


def child_ended(state: RunState, child: RunState | None, *, at: str) -> Transition | None:
    """Decide on a run that waits for a child. `child` is None if it is gone: it was deleted.

    None: the run continues to wait.
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
    behind_it, payload = effect_behind(wait, payload), shaped(wait, payload)
    key, delta = wait.result_key, delta_behind(seq, wait.result_key, wait.resume_to_node)
    if behind_it is not None:
        then = {"effect": behind_it.to_dict(), "next": wait.resume_to_node}
        details = wait.details or {}
        kept = {"idempotency_key": "key", "seq": "origin"}  # of an effect in doubt
        then |= {new: details[name] for name, new in kept.items() if name in details}
        key, delta = None, {"seq": seq, THEN: then}
    status = RunStatus.RUNNING
    if error is not None:
        key, delta, status = None, {"seq": seq}, RunStatus.FAILED
    told = {"wait_key": wait.wait_key, "reason": wait.reason.value}
    record = recorded(
        state,
        StepStatus.COMPLETED if error is None else StepStatus.FAILED,
        at,
        effect={"type": "resume", "payload": told, "result_key": key},
        result=payload,
        error=error and clean_text(error),
        delta=delta | (more or {}) | {"status": status.value},
        key=derive_id(place_of(state.run_id, state.vars), seq, "resume"),
    )
    try:
        after = behind(state, record)
    except GraphError as exc:
        return failed(state, f"answer to {wait.wait_key!r}: {exc}", at=at)
    if error is not None:
        return told_of_end(after, at=at)
    if behind_it is not None:
        return replace(after, opened=opened_behind(after.state, record))
    via = {"via": "resume", "wait_key": wait.wait_key}
    return after if wait.resume_to_node else ended_with(after, payload, at=at, via=via)


def room_at(result_key: str | None) -> int:
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


def ended_with(
    after: Transition, result: Any, *, at: str, via: dict[str, Any] | None = None
) -> Transition:
    """Return the end of a run whose last node was an effect or a wait."""
    output = {"success": True, "result": result}
    end = completed(after.state, output, {}, at=at, via=via)
    return replace(end, records=after.records + end.records)


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


def outcome_of(run: RunState, opened: OpenStep, at: str) -> EffectOutcome | None:
    """Return the outcome of an effect that the machine executes itself. None: a handler has to execute it."""
    answer = _ANSWERS.get(opened.effect.type)
    if answer is None:
        return None
    try:
        return answer(run, opened, at)
    except (GraphError, LookupError) as exc:
        return EffectOutcome.failed(str(exc), retryable=False)


def _wait_event(run: RunState, opened: OpenStep, at: str) -> EffectOutcome:
    payload = opened.effect.payload
    key = payload.get("wait_key") or key_of_payload(run, payload)
    until = deadline_of(payload, at)
    return EffectOutcome.waiting(
        WaitState(
            WaitReason.EVENT,
            wait_key=str(key),
            until=until,
            prompt=payload.get("prompt"),
            choices=payload.get("choices"),
            allow_free_text=bool(payload.get("allow_free_text", True)),
            details=details_of_node(payload.get("details")),
        )
    )


def _wait_until(run: RunState, opened: OpenStep, at: str) -> EffectOutcome:
    del run
    until = deadline_of(opened.effect.payload, at)
    if until is None:
        return EffectOutcome.failed(
            "wait_until needs payload.until, an ISO timestamp, or payload.timeout_s",
            retryable=False,
        )
    if until <= at:
        return EffectOutcome.completed({"waited_until": until})
    key = opened.effect.payload.get("wait_key") or f"until:{opened.key}"
    return EffectOutcome.waiting(WaitState(WaitReason.UNTIL, wait_key=str(key), until=until))


def _ask_user(run: RunState, opened: OpenStep, at: str) -> EffectOutcome:
    del run
    payload = opened.effect.payload
    if not payload.get("prompt"):
        return EffectOutcome.failed("ask_user needs payload.prompt", retryable=False)
    return EffectOutcome.waiting(
        WaitState(
            WaitReason.USER,
            wait_key=str(payload.get("wait_key") or f"user:{opened.key}"),
            until=deadline_of(payload, at),
            prompt=str(payload["prompt"]),
            choices=payload.get("choices"),
            allow_free_text=bool(payload.get("allow_free_text", True)),
            details=details_of_node(payload.get("details")),
        )
    )


def _answer_user(run: RunState, opened: OpenStep, at: str) -> EffectOutcome:
    del run, at
    payload = opened.effect.payload
    if "message" not in payload:
        return EffectOutcome.failed("answer_user needs payload.message", retryable=False)
    level = str(payload.get("level") or "message")
    return EffectOutcome.completed({"message": payload["message"], "level": level})


def _vars_query(run: RunState, opened: OpenStep, at: str) -> EffectOutcome:
    del at
    path = str(opened.effect.payload.get("path") or "")
    row: dict[str, Any] = {"name": "vars_query", "call_id": opened.effect.payload.get("call_id")}
    try:
        found = value_at(run.vars, path) if path else run.vars
        told: dict[str, Any] = {"path": path, "type": type(found).__name__}
        if opened.effect.payload.get("keys_only"):
            keys = [*found] if isinstance(found, dict) else None
            told |= {"keys": keys, "length": len(found) if hasattr(found, "__len__") else None}
        else:
            told["value"] = found
        text = json.dumps(told, ensure_ascii=False)
        long = f"{path!r} has {len(text)} characters. Read a part, or use keys_only"
        fits = len(text) <= LONGEST_VALUE
        row |= {"success": fits, "output": text if fits else None, "error": None if fits else long}
    except (GraphError, LookupError) as exc:
        problem = exc.args[0] if isinstance(exc, LookupError) else str(exc)
        row |= {"success": False, "output": None, "error": problem}
    return EffectOutcome.completed({"mode": "executed", "results": [row]})


def deadline_of(payload: dict[str, Any], at: str) -> str | None:
    """Return the instant of a payload's `until`, or the instant `timeout_s` seconds after `at`.

    None: the payload has neither.

    Raises:
        GraphError: The value cannot be read.
    """
    if payload.get("until") is not None:
        until = normalize_utc_iso(payload["until"])
        if until is None:
            raise GraphError("payload.until", f"{payload['until']!r} is not a valid ISO timestamp")
        return until
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
