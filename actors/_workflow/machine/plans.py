"""Calls of nodes and their answers: a move, a fork, an effect that begins, or the end.

Code of a graph's author is called here and by reducers only. Nodes that call each other without end are found.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Final

from actors._kernel.runtime.ids import derive_id
from actors._kernel.workflow.durable import durable_copy
from actors._kernel.workflow.effects import DECISIONS, Effect, EffectType, StepPlan, StepStatus
from actors._kernel.workflow.errors import GraphError
from actors._kernel.workflow.run_state import RunState
from actors._kernel.workflow.step_record import StepRecord
from actors._workflow.machine import records
from actors._workflow.machine.records import (
    OpenStep,
    Transition,
    behind,
    completed,
    failed,
    recorded,
    varied,
)
from actors._workflow.machine.spec import WorkflowSpec, compute_idempotency_key
from actors._workflow.machine.variables import (
    BRANCH,
    RUNTIME,
    branch_of,
    changes,
    is_runtimes,
    namespace,
    place_of,
    seq_of,
    split_key,
    with_path,
)
from actors.errors import NotSerializableError

MOST_BRANCHES: Final = 1000
DEEPEST_FORK: Final = 4
"""Maximum depth of nested forks."""


def planned(
    spec: WorkflowSpec, state: RunState, variables: Any, plan: Any, *, at: str
) -> Transition:
    """Decide on the answer of a node.

    Args:
        spec: The graph.
        state: The run before the node.
        variables: The run's vars as the node left them.
        plan: The node's return value.
        at: The instant of the decision.
    """
    try:
        checked = _checked(spec, plan)
        _check_branches(state, checked)
        next_node = durable_copy(checked.next_node, "next_node")
        branches = checked.parallel and durable_copy({**checked.parallel}, "parallel")
        changed = _changed(state.vars, variables)
        if checked.effect is not None:
            return _opened(state, checked.effect, next_node, changed, at=at)
        if checked.complete_output is not None:
            output = durable_copy(checked.complete_output, "output")
            return completed(state, output, changed, at=at)
    except (GraphError, NotSerializableError) as exc:
        return failed(state, f"node {state.current_node!r}: {exc}", at=at)
    told: dict[str, Any] = {"next_node": next_node}
    goes: dict[str, Any] = {"node": next_node}
    if branches is not None:
        told["parallel"] = listed = [[name, node] for name, node in branches.items()]
        goes = {"fork": {"join": next_node, "branches": listed}}
    delta = changed | {"seq": seq_of(state.vars)} | goes
    record = recorded(state, StepStatus.COMPLETED, at, result=told, delta=delta, checked=True)
    return behind(state, record)


def _checked(spec: WorkflowSpec, plan: Any) -> StepPlan:
    if not isinstance(plan, StepPlan):
        problem = f"it returned a {type(plan).__name__}. Return a StepPlan; a node is no coroutine"
        raise GraphError("its answer", problem)
    ends = plan.complete_output is not None
    if plan.effect is None and plan.next_node is None and plan.parallel is None and not ends:
        raise GraphError("its plan", "it says nothing. Give it an effect, a next_node or an output")
    if ends and (plan.effect is not None or plan.next_node is not None):
        raise GraphError("its plan", "complete_output stands alone: leave effect and next_node out")
    if plan.effect is not None and not isinstance(plan.effect, Effect):
        raise GraphError("its plan", f"effect is a {type(plan.effect).__name__}. Make an Effect")
    resumed = None if plan.effect is None else plan.effect.payload.get("resume_to_node")
    targets = [plan.next_node, resumed, *(plan.parallel or {}).values()]
    for target in targets:
        if target is not None and target not in spec.nodes:
            raise GraphError("its plan", f"graph {spec.workflow_id!r} has no node {target!r}")
    return plan


def _check_branches(state: RunState, plan: StepPlan) -> None:
    if plan.parallel is None:
        return
    if plan.effect is not None or plan.next_node is None:
        problem = "parallel goes with next_node, the node at which the branches meet, and without an effect"
        raise GraphError("its plan", problem)
    if "" in plan.parallel:
        raise GraphError("its plan", "a branch has no name. Give parallel={name: node}")
    if len(plan.parallel) > MOST_BRANCHES:
        problem = f"it has {len(plan.parallel)} branches, more than {MOST_BRANCHES}. Use a loop"
        raise GraphError("its plan", problem)
    if len(branch_of(state.vars)) >= DEEPEST_FORK:
        problem = (
            f"{DEEPEST_FORK} forks are within each other: this would be one more. Use a sub-graph"
        )
        raise GraphError("its plan", problem)


def _changed(before: dict[str, Any], after: Any) -> dict[str, Any]:
    """Return the changes of a node as a delta. Only changed values are checked and copied.

    Changes of what only the runtime writes are left out.

    Raises:
        NotSerializableError: A changed value is not JSON data; the error has its path.
        GraphError: The node left no object, as the vars or as `_runtime`.
    """
    if not isinstance(after, dict):
        durable_copy(after, "vars")
        raise GraphError("vars", f"the node left a {type(after).__name__}. Leave an object")
    if not isinstance(after.get(RUNTIME), dict):
        raise GraphError(f"vars[{RUNTIME!r}]", "the node left no object, and it is the runtime's")
    found = [one for one in changes(before, after) if not is_runtimes(one[0])]
    sets = [[path, _clean(path, value)] for path, value, there in found if there]
    unsets = [path for path, _, there in found if not there]
    return ({"set": sets} if sets else {}) | ({"unset": unsets} if unsets else {})


def _clean(path: list[str], value: Any) -> Any:
    """Return a copy of a value at a path. The names of the path are checked, too."""
    whole = value
    for name in reversed(path):
        whole = {name: whole}
    copy = durable_copy(whole, "vars")
    for name in path:
        copy = copy[name]
    return copy


def _opened(
    state: RunState, asked: Effect, next_node: str | None, changed: dict[str, Any], *, at: str
) -> Transition:
    seq, place = seq_of(state.vars), place_of(state.run_id, state.vars)
    payload = durable_copy(asked.payload, "effect.payload")
    payload.pop(DECISIONS, None)  # decisions come from a person, never from a node
    key = durable_copy(asked.result_key, "effect.result_key")
    effect = Effect(asked.type, payload, key, asked.mode)
    opened = OpenStep(
        seq=seq,
        node_id=state.current_node,
        effect=effect,
        next_node=payload.get("resume_to_node") or next_node,
        changed=changed,
        attempt=1,
        key=compute_idempotency_key(
            run_id=place, node_id=state.current_node, effect=effect, seq=seq
        ),
        step_id=derive_id(place, seq, 1),
        started_at=at,
    )
    if effect.result_key:  # a path that cannot be written is refused before the effect starts
        _trial(state, opened)
    told = told_to_model(effect, opened)
    if told is not effect:
        opened = replace(opened, effect=told)
    return Transition(state, (started(state, opened),), opened)


def _trial(state: RunState, opened: OpenStep) -> None:
    after, path = varied(state.vars, opened.changed), split_key(opened.effect.result_key or "")
    if is_runtimes(path):
        raise GraphError(
            f"result_key {'.'.join(path)!r}", "it is the runtime's. Choose another one"
        )
    with_path(after, path, None)


def started(state: RunState, opened: OpenStep) -> StepRecord:
    """Return the record of the start of an attempt, with status STARTED."""
    delta = opened.changed | {"open": opened.seq, "next": opened.next_node}
    if opened.origin is not None:
        delta["origin"] = opened.origin
    return attempt_of(state, opened, StepStatus.STARTED, at=None, delta=delta)


def attempt_of(
    state: RunState,
    opened: OpenStep,
    status: StepStatus,
    *,
    at: str | None,
    result: Any = None,
    error: str | None = None,
    delta: dict[str, Any] | None = None,
    checked: bool = True,
) -> StepRecord:
    """Return a record about an attempt; `at` is its end. `checked`: see `StepRecord`."""
    return StepRecord(
        run_id=state.run_id,
        step_id=opened.step_id,
        node_id=opened.node_id,
        status=status,
        effect=opened.effect.to_dict(),
        result=result,
        error=error,
        started_at=opened.started_at,
        ended_at=at,
        actor_id=state.actor_id,
        session_id=state.session_id,
        attempt=opened.attempt,
        idempotency_key=opened.key,
        delta=delta,
        checked=checked,
    )


def told_to_model(effect: Effect, opened: OpenStep) -> Effect:
    """Return the effect with the facts about the attempt that a model's client may send to its provider."""
    params = effect.payload.get("params") or {}
    if effect.type is not EffectType.LLM_CALL or not isinstance(params, dict):
        return effect
    told = (params.get("trace_metadata") or {}) | {
        "step_id": opened.step_id,
        "effect_idempotency_key": opened.key,
        "attempt": opened.attempt,
    }
    payload = {**effect.payload, "params": {**params, "trace_metadata": told}}
    return replace(effect, payload=payload)


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeContext:
    """Second argument of a node.

    Attributes:
        now: Function that returns the instant, in ISO 8601 in UTC.
        artifacts: The artifact store of the driver, or None.
    """

    now: Callable[[], str]
    artifacts: Any = None


def asked(
    spec: WorkflowSpec, state: RunState, context: NodeContext, now: Callable[[], str]
) -> Transition:
    """Call the current node with a copy of the run and `context`; return the decision on its answer."""
    node = spec.nodes.get(state.current_node)
    if node is None:
        problem = f"graph {spec.workflow_id!r} has no node {state.current_node!r}"
        return records.failed(state, problem, at=now())
    copy = state.cloned()
    try:
        plan = settled(node(copy, context))
    except Exception as exc:  # noqa: BLE001 - the exception of an author's function is recorded
        problem = f"node {state.current_node!r} raised {type(exc).__name__}: {exc}"
        return records.failed(state, problem, at=now())
    return planned(spec, state, copy.vars, plan, at=now())


def settled(answer: Any) -> Any:
    """Return a function's result. A coroutine is closed, since it will not be awaited."""
    if inspect.iscoroutine(answer):
        answer.close()
    return answer


BEGIN = 64


class LoopWatch:
    """A watch of the pure steps of a run for a state that comes again (Brent's algorithm).

    It keeps one state, and replaces it each time the number of steps has doubled. If a node is called again
    with the same vars and without an effect in between, the loop is endless.
    """

    def __init__(self) -> None:
        self._steps, self._next = 0, BEGIN
        self._seen: tuple[object, ...] | None = None

    def is_endless(self, state: RunState) -> bool:
        """Return True if the kept state comes again. Called after each pure step."""
        self._steps += 1
        if self._seen is None and self._steps < BEGIN:
            return False
        variables = {name: value for name, value in state.vars.items() if name != RUNTIME}
        branch = namespace(state.vars, RUNTIME).get(BRANCH)
        now = (state.current_node, state.status, branch, variables)
        if now == self._seen:
            return True
        if self._steps >= self._next:
            self._seen, self._next = now, self._next * 2
        return False

    def forget(self) -> None:
        """Start again, since an effect or a wait may change the next steps."""
        self._steps, self._next, self._seen = 0, BEGIN, None


def endless(state: RunState, *, at: str) -> Transition:
    """Decide on a run in an endless loop: it fails."""
    problem = (
        f"node {state.current_node!r} is called again with the same vars and without an effect: "
        "an endless loop"
    )
    return failed(state, problem, at=at)
