"""The decisions on the outcome of an attempt of an effect."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from datetime import datetime, timedelta
from functools import partial
from typing import Any, Final

from actors._kernel.json_data import clean_text
from actors._kernel.runtime.effects import EffectMode
from actors._kernel.runtime.ids import derive_id
from actors._kernel.workflow.durable import MAX_DEPTH, WRAPPED, durable_copy, normalize_utc_iso
from actors._kernel.workflow.effects import (
    DECIDE,
    IN_DOUBT,
    EffectOutcome,
    EffectType,
    RunStatus,
    StepStatus,
    WaitReason,
    WaitState,
)
from actors._kernel.workflow.errors import GraphError
from actors._kernel.workflow.run_state import RunState
from actors._workflow.machine.plans import attempt_of, start_record_of, with_attempt_facts
from actors._workflow.machine.records import (
    ANSWERS,
    OpenStep,
    Transition,
    add_end_event,
    transition_of,
)
from actors._workflow.machine.spec import EffectPolicy, is_event_key
from actors._workflow.machine.variables import RUNTIME, namespace, place_of
from actors._workflow.machine.waits import delta_behind, end_run_with, max_depth_at, reply
from actors.errors import NotSerializableError

_DEEPEST_WAIT: Final = WRAPPED - 8
"""Maximum depth of a wait. The details may have an effect, whose payload has `MAX_DEPTH` at most, within waits.

The rest is for the record, the checkpoint and the bundle that contain the wait.
"""
_ENDS: Final = frozenset({StepStatus.COMPLETED, StepStatus.WAITING, StepStatus.FAILED})


def apply_outcome(
    state: RunState,
    open_step: OpenStep,
    outcome: Any,
    policy: EffectPolicy,
    *,
    at: str,
    used_keys: Collection[str] = (),
) -> Transition:
    """Decide on the outcome of an attempt of an effect, as a handler returned it, once it is checked."""
    return apply_sound_outcome(
        state, open_step, sound(outcome, open_step), policy, at=at, used_keys=used_keys
    )


def apply_sound_outcome(
    state: RunState,
    open_step: OpenStep,
    outcome: EffectOutcome,
    policy: EffectPolicy,
    *,
    at: str,
    used_keys: Collection[str] = (),
) -> Transition:
    """Decide on an outcome that `sound` returned. `used_keys`: the keys of the waits of other branches."""
    record_of = partial(attempt_of, state, open_step, at=at)
    if outcome.status == StepStatus.FAILED:
        return _attempt_failed(state, open_step, outcome, policy, at=at)
    if outcome.status == StepStatus.WAITING and outcome.wait is not None:
        full_wait = replace(
            outcome.wait,
            resume_to_node=outcome.wait.resume_to_node or open_step.next_node,
            result_key=outcome.wait.result_key or open_step.effect.result_key,
        )
        wait = _with_own_key(full_wait, state, used_keys)
        wait_delta = {"seq": open_step.seq, "status": RunStatus.WAITING.value}
        waiting_record = record_of(
            StepStatus.WAITING, result={"wait": wait.to_dict()}, delta=wait_delta
        )
        return _apply_early_answer(transition_of(state, waiting_record, open_step), at=at)
    delta = delta_behind(open_step.seq, open_step.effect.result_key, open_step.next_node)
    completed_record = record_of(
        StepStatus.COMPLETED, result=outcome.result, delta=(outcome.changes or {}) | delta
    )
    try:
        transition = transition_of(state, completed_record, open_step)
    except GraphError as exc:  # the changes cannot be applied to the vars
        problem = EffectOutcome.failed(str(exc), retryable=False)
        return _attempt_failed(state, open_step, problem, policy, at=at)
    return transition if open_step.next_node else end_run_with(transition, outcome.result, at=at)


def begin_next_attempt(state: RunState, open_step: OpenStep, *, at: str) -> Transition:
    """Begin the next attempt of an effect, which is due."""
    next_attempt = replace(open_step, due=None, started_at=at)
    next_attempt = replace(
        next_attempt, effect=with_attempt_facts(next_attempt.effect, next_attempt)
    )
    return Transition(state, (start_record_of(state, next_attempt),), next_attempt)


def in_doubt(open_step: OpenStep, problem: str | None = None) -> EffectOutcome:
    """Return the outcome of an at-most-once effect that a crash left without a result.

    The run waits for a decision, as for a job. `problem` is the reason why `reconcile` did not decide.
    """
    effect, mode = open_step.effect, open_step.effect.mode.value
    prompt = (
        f"Did effect {effect.type.value} of node {open_step.node_id!r} happen? A crash came between its "
        f"start and its result. Its mode is {mode}, so it is not executed again. Its idempotency key is "
        f"{open_step.key}. "
    )
    if problem is not None:
        prompt += f"Its reconcile function did not decide: {clean_text(problem)}. "
    wait = WaitState(
        WaitReason.JOB,
        wait_key=f"{IN_DOUBT}:{open_step.step_id}",
        prompt=prompt + DECIDE[0].upper() + DECIDE[1:],
        details={
            "mode": IN_DOUBT,
            "node": open_step.node_id,
            "effect": effect.to_dict(),
            "idempotency_key": open_step.key,
            "seq": open_step.first_seq,
        },
    )
    return EffectOutcome.waiting(wait)


def outcome_of_reconcile(open_step: OpenStep, answer: Any) -> EffectOutcome:
    """Return the outcome of an effect in doubt of which a `reconcile` function returned `answer`.

    Without a sound outcome the run waits for a decision.
    """
    if answer is None:
        return in_doubt(open_step)
    outcome = sound(answer, open_step)
    is_reported_failure = isinstance(answer, EffectOutcome) and answer.status == StepStatus.FAILED
    if outcome.status == StepStatus.FAILED and not is_reported_failure:
        return in_doubt(open_step, outcome.error)
    return outcome


def aborted(
    state: RunState, open_step: OpenStep, outcome: Any, cancellation: dict[str, Any], *, at: str
) -> Transition:
    """Decide on an effect during which the run was cancelled. The effect's record has its outcome."""
    valid_outcome = sound(outcome, open_step)
    record = attempt_of(
        state,
        open_step,
        StepStatus.CANCELLED,
        at=at,
        error=clean_text(str(cancellation.get("reason") or "cancelled")),
        result=cancellation
        | {"outcome": str(valid_outcome.status), "result": valid_outcome.result},
        delta={"seq": open_step.seq, "status": RunStatus.CANCELLED.value},
        checked=False,  # the reason is a caller's text that nobody has checked
    )
    return add_end_event(transition_of(state, record, open_step), at=at)


def _attempt_failed(
    state: RunState, open_step: OpenStep, outcome: EffectOutcome, policy: EffectPolicy, *, at: str
) -> Transition:
    text = clean_text(outcome.error or "it failed")
    failure_record = partial(attempt_of, state, open_step, StepStatus.FAILED, at=at)
    # A handler that raised may have executed the effect, so another attempt could repeat it.
    is_at_most_once = open_step.effect.mode is EffectMode.AT_MOST_ONCE
    if (
        outcome.retryable
        and not is_at_most_once
        and open_step.attempt < policy.max_attempts(open_step.effect)
    ):
        pause_s = policy.backoff_seconds(effect=open_step.effect, attempt=open_step.attempt)
        due_at = (datetime.fromisoformat(at) + timedelta(seconds=max(0.0, pause_s))).isoformat()
        next_attempt = replace(
            open_step,
            attempt=open_step.attempt + 1,
            step_id=derive_id(
                place_of(state.run_id, state.vars), open_step.seq, open_step.attempt + 1
            ),
            due=due_at,
        )
        return Transition(
            state, (failure_record(error=text, delta={"retry": due_at}),), next_attempt
        )
    tries = (
        f"after {open_step.attempt} attempts" if open_step.attempt > 1 else "at its first attempt"
    )
    error = (
        f"effect {open_step.effect.type.value} of node {open_step.node_id!r} failed {tries}: {text}"
    )
    delta = {"seq": open_step.seq, "status": RunStatus.FAILED.value}
    transition = transition_of(state, failure_record(error=error, delta=delta), open_step)
    return add_end_event(transition, at=at)


def sound(outcome: Any, open_step: OpenStep) -> EffectOutcome:  # noqa: PLR0911
    """Return a handler's outcome with a copy of its result. An invalid outcome becomes a failure."""
    name = f"handler of {open_step.effect.type.value}"
    if not isinstance(outcome, EffectOutcome):
        problem = f"{name} returned a {type(outcome).__name__}. Return an EffectOutcome; it is no coroutine"
        return EffectOutcome.failed(problem, retryable=False)
    if outcome.status not in _ENDS:
        problem = f"{name}: status {outcome.status!r} is none of {', '.join(sorted(_ENDS))}"
        return EffectOutcome.failed(problem, retryable=False)
    try:
        if outcome.status == StepStatus.COMPLETED:
            depth = max_depth_at(open_step.effect.result_key)
            result = _copy_result(outcome.result, open_step, f"result of {name}", deepest=depth)
            changes = _copy_changes(outcome.changes, name)
            return EffectOutcome(
                outcome.status, result, retryable=outcome.retryable, changes=changes
            )
        if outcome.status == StepStatus.WAITING:
            if outcome.wait is None:
                return EffectOutcome.failed(f"{name} waits for nothing: give it a WaitState")
            wait_data = durable_copy(
                outcome.wait.to_dict(), f"wait of {name}", deepest=_DEEPEST_WAIT
            )
            wait = WaitState.from_dict(wait_data)
            if wait.until is not None and normalize_utc_iso(wait.until) is None:
                problem = f"until {wait.until!r} is not a valid ISO timestamp"
                return EffectOutcome.failed(f"{name}: {problem}", retryable=False)
            return replace(outcome, wait=replace(wait, until=normalize_utc_iso(wait.until)))
    except (NotSerializableError, GraphError) as exc:
        return EffectOutcome.failed(str(exc), retryable=False)
    return outcome


def _copy_result(result: Any, open_step: OpenStep, where: str, *, deepest: int) -> Any:
    """Return a copy of a result. A tool call whose row cannot be kept, for example for a NUL, is unsuccessful.

    Raises:
        NotSerializableError: Another part of the result is not JSON data.
    """
    try:
        return durable_copy(result, where, deepest=deepest)
    except NotSerializableError:
        rows = result.get("results") if isinstance(result, dict) else None
        if open_step.effect.type is not EffectType.TOOL_CALLS or not isinstance(rows, list):
            raise
    rows = [_copy_row(row, deepest=deepest - 2) for row in rows]
    return durable_copy({**result, "results": rows}, where, deepest=deepest)


def _copy_row(row: Any, *, deepest: int) -> Any:
    try:
        return durable_copy(row, "output", deepest=deepest)
    except NotSerializableError as exc:
        if not isinstance(row, dict):
            raise
        identity = {name: clean_text(str(row.get(name) or "")) for name in ("call_id", "name")}
        error = f"the output cannot be kept: {clean_text(str(exc))[:500]}"
        return {**identity, "success": False, "output": None, "error": error}


def _copy_changes(changes: Any, name: str) -> dict[str, Any] | None:
    """Return a copy of the changes that come with a result.

    Raises:
        NotSerializableError: The changes are not JSON data, or they have too many levels for their place.
        GraphError: The changes do not have the form that `EffectOutcome.changes` describes.
    """
    if changes is None:
        return None
    copy: dict[str, Any] = durable_copy(changes, f"changes of {name}", deepest=WRAPPED)
    try:
        for path, value in copy.get("set", ()):
            durable_copy(value, ".".join(path), deepest=MAX_DEPTH - len(path))
        for path, key, item in copy.get("put", ()):
            durable_copy(item, ".".join(path), deepest=MAX_DEPTH - len(path) - 1)
            item[key]
        is_valid = copy.keys() <= {"set", "put"} and all(
            row[0] for rows in copy.values() for row in rows
        )
    except (TypeError, ValueError, LookupError, AttributeError):
        is_valid = False
    if not is_valid:
        rule = "use set: [[path, value]] and put: [[path, name, object]]; paths are lists of names"
        raise GraphError(f"changes of {name}", rule)
    return copy


def _with_own_key(wait: WaitState, state: RunState, used_keys: Collection[str]) -> WaitState:
    """Return the wait with a key of its own, if a wait of another branch has its key.

    Otherwise a second copy of the answer to one question would answer the other. An event, and the end of a
    sub-graph, are for all branches that wait for them.
    """
    is_shared = wait.reason is WaitReason.SUBWORKFLOW or is_event_key(wait.wait_key or "")
    if wait.wait_key not in used_keys or is_shared:
        return wait
    suffix = derive_id(place_of(state.run_id, state.vars))[:12]
    return replace(wait, wait_key=f"{wait.wait_key}~{suffix}")


def _apply_early_answer(transition: Transition, *, at: str) -> Transition:
    """Return `transition`, or the transition after an answer that came before the wait."""
    wait = transition.state.waiting
    early_answers = namespace(namespace(transition.state.vars, RUNTIME), ANSWERS)
    if wait is None or wait.wait_key is None or wait.wait_key not in early_answers:
        return transition
    unset = {"unset": [[RUNTIME, ANSWERS, wait.wait_key]]}
    reply_transition = reply(
        transition.state, wait, early_answers[wait.wait_key], at=at, more=unset
    )
    return replace(reply_transition, records=transition.records + reply_transition.records)
