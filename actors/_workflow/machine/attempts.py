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
from actors._workflow.machine.plans import attempt_of, started, told_to_model
from actors._workflow.machine.records import ANSWERS, OpenStep, Transition, behind, told_of_end
from actors._workflow.machine.spec import EffectPolicy, is_event_key
from actors._workflow.machine.variables import RUNTIME, namespace, place_of
from actors._workflow.machine.waits import delta_behind, ended_with, reply, room_at
from actors.errors import NotSerializableError

_DEEPEST_WAIT: Final = WRAPPED - 8
"""Maximum depth of a wait. The details may have an effect, whose payload has `MAX_DEPTH` at most, within waits.

The rest is for the record, the checkpoint and the bundle that contain the wait.
"""
_ENDS: Final = frozenset({StepStatus.COMPLETED, StepStatus.WAITING, StepStatus.FAILED})


def ended(
    state: RunState,
    opened: OpenStep,
    outcome: Any,
    policy: EffectPolicy,
    *,
    at: str,
    taken: Collection[str] = (),
) -> Transition:
    """Decide on the outcome of an attempt of an effect, as a handler returned it. See `ended_soundly`."""
    return ended_soundly(state, opened, sound(outcome, opened), policy, at=at, taken=taken)


def ended_soundly(
    state: RunState,
    opened: OpenStep,
    found: EffectOutcome,
    policy: EffectPolicy,
    *,
    at: str,
    taken: Collection[str] = (),
) -> Transition:
    """Decide on an outcome that `sound` returned. `taken`: the keys of the waits of other branches."""
    attempt = partial(attempt_of, state, opened, at=at)
    if found.status == StepStatus.FAILED:
        return _attempt_failed(state, opened, found, policy, at=at)
    if found.status == StepStatus.WAITING and found.wait is not None:
        whole = replace(
            found.wait,
            resume_to_node=found.wait.resume_to_node or opened.next_node,
            result_key=found.wait.result_key or opened.effect.result_key,
        )
        wait = _unshared(whole, state, taken)
        waits = {"seq": opened.seq, "status": RunStatus.WAITING.value}
        parked = attempt(StepStatus.WAITING, result={"wait": wait.to_dict()}, delta=waits)
        return _answered_early(behind(state, parked, opened), at=at)
    delta = delta_behind(opened.seq, opened.effect.result_key, opened.next_node)
    done = attempt(StepStatus.COMPLETED, result=found.result, delta=(found.changes or {}) | delta)
    try:
        after = behind(state, done, opened)
    except GraphError as exc:  # the changes cannot be applied to the vars
        problem = EffectOutcome.failed(str(exc), retryable=False)
        return _attempt_failed(state, opened, problem, policy, at=at)
    return after if opened.next_node else ended_with(after, found.result, at=at)


def retried(state: RunState, opened: OpenStep, *, at: str) -> Transition:
    """Begin the next attempt of an effect, which is due."""
    again = replace(opened, due=None, started_at=at)
    again = replace(again, effect=told_to_model(again.effect, again))
    return Transition(state, (started(state, again),), again)


def in_doubt(opened: OpenStep, problem: str | None = None) -> EffectOutcome:
    """Return the outcome of an at-most-once effect that a crash left without a result.

    The run waits for a decision, as for a job. `problem` is the reason why `reconcile` did not decide.
    """
    effect, mode = opened.effect, opened.effect.mode.value
    prompt = (
        f"Did effect {effect.type.value} of node {opened.node_id!r} happen? A crash came between its start and "
        f"its result. Its mode is {mode}, so it is not executed again. Its idempotency key is {opened.key}. "
    )
    if problem is not None:
        prompt += f"Its reconcile function did not decide: {clean_text(problem)}. "
    wait = WaitState(
        WaitReason.JOB,
        wait_key=f"{IN_DOUBT}:{opened.step_id}",
        prompt=prompt + DECIDE[0].upper() + DECIDE[1:],
        details={
            "mode": IN_DOUBT,
            "node": opened.node_id,
            "effect": effect.to_dict(),
            "idempotency_key": opened.key,
            "seq": opened.first_seq,
        },
    )
    return EffectOutcome.waiting(wait)


def reconciled(opened: OpenStep, found: Any) -> EffectOutcome:
    """Return the outcome of an effect in doubt of which a `reconcile` function returned `found`.

    Without a sound outcome the run waits for a decision.
    """
    if found is None:
        return in_doubt(opened)
    outcome = sound(found, opened)
    is_told = isinstance(found, EffectOutcome) and found.status == StepStatus.FAILED
    if outcome.status == StepStatus.FAILED and not is_told:
        return in_doubt(opened, outcome.error)
    return outcome


def aborted(
    state: RunState, opened: OpenStep, outcome: Any, how: dict[str, Any], *, at: str
) -> Transition:
    """Decide on an effect during which the run was cancelled. The effect's record has its outcome."""
    found = sound(outcome, opened)
    record = attempt_of(
        state,
        opened,
        StepStatus.CANCELLED,
        at=at,
        error=clean_text(str(how.get("reason") or "cancelled")),
        result=how | {"outcome": str(found.status), "result": found.result},
        delta={"seq": opened.seq, "status": RunStatus.CANCELLED.value},
        checked=False,
    )
    return told_of_end(behind(state, record, opened), at=at)


def _attempt_failed(
    state: RunState, opened: OpenStep, outcome: EffectOutcome, policy: EffectPolicy, *, at: str
) -> Transition:
    text = clean_text(outcome.error or "it failed")
    failure = partial(attempt_of, state, opened, StepStatus.FAILED, at=at)
    once = opened.effect.mode is EffectMode.AT_MOST_ONCE
    if outcome.retryable and not once and opened.attempt < policy.max_attempts(opened.effect):
        pause_s = policy.backoff_seconds(effect=opened.effect, attempt=opened.attempt)
        due = (datetime.fromisoformat(at) + timedelta(seconds=max(0.0, pause_s))).isoformat()
        again = replace(
            opened,
            attempt=opened.attempt + 1,
            step_id=derive_id(place_of(state.run_id, state.vars), opened.seq, opened.attempt + 1),
            due=due,
        )
        return Transition(state, (failure(error=text, delta={"retry": due}),), again)
    tries = f"after {opened.attempt} attempts" if opened.attempt > 1 else "at its first attempt"
    error = f"effect {opened.effect.type.value} of node {opened.node_id!r} failed {tries}: {text}"
    delta = {"seq": opened.seq, "status": RunStatus.FAILED.value}
    after = behind(state, failure(error=error, delta=delta), opened)
    return told_of_end(after, at=at)


def sound(outcome: Any, opened: OpenStep) -> EffectOutcome:  # noqa: PLR0911
    """Return a handler's outcome with a copy of its result. An invalid outcome becomes a failure."""
    name = f"handler of {opened.effect.type.value}"
    if not isinstance(outcome, EffectOutcome):
        problem = f"{name} returned a {type(outcome).__name__}. Return an EffectOutcome; it is no coroutine"
        return EffectOutcome.failed(problem, retryable=False)
    if outcome.status not in _ENDS:
        told = f"{name}: status {outcome.status!r} is none of {', '.join(sorted(_ENDS))}"
        return EffectOutcome.failed(told, retryable=False)
    try:
        if outcome.status == StepStatus.COMPLETED:
            room = room_at(opened.effect.result_key)
            result = _kept_result(outcome.result, opened, f"result of {name}", deepest=room)
            changes = _sound_changes(outcome.changes, name)
            return EffectOutcome(
                outcome.status, result, retryable=outcome.retryable, changes=changes
            )
        if outcome.status == StepStatus.WAITING:
            if outcome.wait is None:
                return EffectOutcome.failed(f"{name} waits for nothing: give it a WaitState")
            told = durable_copy(outcome.wait.to_dict(), f"wait of {name}", deepest=_DEEPEST_WAIT)
            wait = WaitState.from_dict(told)
            if wait.until is not None and normalize_utc_iso(wait.until) is None:
                problem = f"until {wait.until!r} is not a valid ISO timestamp"
                return EffectOutcome.failed(f"{name}: {problem}", retryable=False)
            return replace(outcome, wait=replace(wait, until=normalize_utc_iso(wait.until)))
    except (NotSerializableError, GraphError) as exc:
        return EffectOutcome.failed(str(exc), retryable=False)
    return outcome


def _kept_result(result: Any, opened: OpenStep, where: str, *, deepest: int) -> Any:
    """Return a copy of a result. A tool call whose row cannot be kept, for example for a NUL, is unsuccessful.

    Raises:
        NotSerializableError: Another part of the result is not JSON data.
    """
    try:
        return durable_copy(result, where, deepest=deepest)
    except NotSerializableError:
        rows = result.get("results") if isinstance(result, dict) else None
        if opened.effect.type is not EffectType.TOOL_CALLS or not isinstance(rows, list):
            raise
    rows = [_kept_row(row, deepest=deepest - 2) for row in rows]
    return durable_copy({**result, "results": rows}, where, deepest=deepest)


def _kept_row(row: Any, *, deepest: int) -> Any:
    try:
        return durable_copy(row, "output", deepest=deepest)
    except NotSerializableError as exc:
        if not isinstance(row, dict):
            raise
        named = {name: clean_text(str(row.get(name) or "")) for name in ("call_id", "name")}
        error = f"the output cannot be kept: {clean_text(str(exc))[:500]}"
        return {**named, "success": False, "output": None, "error": error}


def _sound_changes(changes: Any, name: str) -> dict[str, Any] | None:
    """Return a copy of the changes that come with a result.

    Raises:
        NotSerializableError: The changes are not JSON data, or they have too many levels for their place.
        GraphError: The changes do not have the form that `EffectOutcome.changes` describes.
    """
    if changes is None:
        return None
    told: dict[str, Any] = durable_copy(changes, f"changes of {name}", deepest=WRAPPED)
    try:
        for path, value in told.get("set", ()):
            durable_copy(value, ".".join(path), deepest=MAX_DEPTH - len(path))
        for path, key, item in told.get("put", ()):
            durable_copy(item, ".".join(path), deepest=MAX_DEPTH - len(path) - 1)
            item[key]
        is_read = told.keys() <= {"set", "put"} and all(
            one[0] for rows in told.values() for one in rows
        )
    except (TypeError, ValueError, LookupError, AttributeError):
        is_read = False
    if not is_read:
        rule = "use set: [[path, value]] and put: [[path, name, object]]; paths are lists of names"
        raise GraphError(f"changes of {name}", rule)
    return told


def _unshared(wait: WaitState, state: RunState, taken: Collection[str]) -> WaitState:
    """Return the wait with a key of its own, if a wait of another branch has its key.

    Otherwise a second copy of the answer to one question would answer the other. An event, and the end of a
    sub-graph, are for all branches that wait for them.
    """
    is_shared = wait.reason is WaitReason.SUBWORKFLOW or is_event_key(wait.wait_key or "")
    if wait.wait_key not in taken or is_shared:
        return wait
    own = derive_id(place_of(state.run_id, state.vars))[:12]
    return replace(wait, wait_key=f"{wait.wait_key}~{own}")


def _answered_early(parked: Transition, *, at: str) -> Transition:
    """Return `parked`, or the transition after an answer that came before the wait."""
    wait = parked.state.waiting
    kept = namespace(namespace(parked.state.vars, RUNTIME), ANSWERS)
    if wait is None or wait.wait_key is None or wait.wait_key not in kept:
        return parked
    unset = {"unset": [[RUNTIME, ANSWERS, wait.wait_key]]}
    after = reply(parked.state, wait, kept[wait.wait_key], at=at, more=unset)
    return replace(after, records=parked.records + after.records)
