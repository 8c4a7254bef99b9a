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
    apply_delta,
    completed,
    failed,
    node_record,
    transition_of,
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


def apply_plan(
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
        valid_plan = _check_plan(spec, plan)
        _check_branches(state, valid_plan)
        next_node = durable_copy(valid_plan.next_node, "next_node")
        branches = valid_plan.parallel and durable_copy({**valid_plan.parallel}, "parallel")
        var_changes = _var_changes(state.vars, variables)
        if valid_plan.effect is not None:
            return _open_effect(state, valid_plan.effect, next_node, var_changes, at=at)
        if valid_plan.complete_output is not None:
            output = durable_copy(valid_plan.complete_output, "output")
            return completed(state, output, var_changes, at=at)
    except (GraphError, NotSerializableError) as exc:
        return failed(state, f"node {state.current_node!r}: {exc}", at=at)
    result: dict[str, Any] = {"next_node": next_node}
    move: dict[str, Any] = {"node": next_node}
    if branches is not None:
        result["parallel"] = branch_rows = [[name, node] for name, node in branches.items()]
        move = {"fork": {"join": next_node, "branches": branch_rows}}
    delta = var_changes | {"seq": seq_of(state.vars)} | move
    record = node_record(state, StepStatus.COMPLETED, at, result=result, delta=delta, checked=True)
    return transition_of(state, record)


def _check_plan(spec: WorkflowSpec, plan: Any) -> StepPlan:
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
    resume_node = None if plan.effect is None else plan.effect.payload.get("resume_to_node")
    targets = [plan.next_node, resume_node, *(plan.parallel or {}).values()]
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


def _var_changes(before: dict[str, Any], after: Any) -> dict[str, Any]:
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
    differences = [
        difference for difference in changes(before, after) if not is_runtimes(difference[0])
    ]
    sets = [[path, _clean(path, value)] for path, value, is_present in differences if is_present]
    unsets = [path for path, _, is_present in differences if not is_present]
    return ({"set": sets} if sets else {}) | ({"unset": unsets} if unsets else {})


def _clean(path: list[str], value: Any) -> Any:
    """Return a copy of a value at a path. The names of the path are checked, too."""
    # Within its path, so that an error names the path, and the depth is counted from the vars.
    wrapped_value = value
    for name in reversed(path):
        wrapped_value = {name: wrapped_value}
    copy = durable_copy(wrapped_value, "vars")
    for name in path:
        copy = copy[name]
    return copy


def _open_effect(
    state: RunState, request: Effect, next_node: str | None, var_changes: dict[str, Any], *, at: str
) -> Transition:
    seq, run_path = seq_of(state.vars), place_of(state.run_id, state.vars)
    payload = durable_copy(request.payload, "effect.payload")
    payload.pop(DECISIONS, None)  # decisions come from a person, never from a node
    key = durable_copy(request.result_key, "effect.result_key")
    effect = Effect(request.type, payload, key, request.mode)
    open_step = OpenStep(
        seq=seq,
        node_id=state.current_node,
        effect=effect,
        next_node=payload.get("resume_to_node") or next_node,
        changed=var_changes,
        attempt=1,
        key=compute_idempotency_key(
            run_id=run_path, node_id=state.current_node, effect=effect, seq=seq
        ),
        step_id=derive_id(run_path, seq, 1),
        started_at=at,
    )
    if effect.result_key:  # a path that cannot be written is refused before the effect starts
        _trial(state, open_step)
    model_effect = with_attempt_facts(effect, open_step)
    if model_effect is not effect:
        open_step = replace(open_step, effect=model_effect)
    return Transition(state, (start_record_of(state, open_step),), open_step)


def _trial(state: RunState, open_step: OpenStep) -> None:
    variables, path = (
        apply_delta(state.vars, open_step.changed),
        split_key(open_step.effect.result_key or ""),
    )
    if is_runtimes(path):
        raise GraphError(
            f"result_key {'.'.join(path)!r}", "it is the runtime's. Choose another one"
        )
    with_path(variables, path, None)


def start_record_of(state: RunState, open_step: OpenStep) -> StepRecord:
    """Return the record of the start of an attempt, with status STARTED."""
    delta = open_step.changed | {"open": open_step.seq, "next": open_step.next_node}
    if open_step.origin is not None:
        delta["origin"] = open_step.origin
    return attempt_of(state, open_step, StepStatus.STARTED, at=None, delta=delta)


def attempt_of(
    state: RunState,
    open_step: OpenStep,
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
        step_id=open_step.step_id,
        node_id=open_step.node_id,
        status=status,
        effect=open_step.effect.to_dict(),
        result=result,
        error=error,
        started_at=open_step.started_at,
        ended_at=at,
        actor_id=state.actor_id,
        session_id=state.session_id,
        attempt=open_step.attempt,
        idempotency_key=open_step.key,
        delta=delta,
        checked=checked,
    )


def with_attempt_facts(effect: Effect, open_step: OpenStep) -> Effect:
    """Return the effect with the facts about the attempt that a model's client may send to its provider."""
    params = effect.payload.get("params") or {}
    if effect.type is not EffectType.LLM_CALL or not isinstance(params, dict):
        return effect
    trace_metadata = (params.get("trace_metadata") or {}) | {
        "step_id": open_step.step_id,
        "effect_idempotency_key": open_step.key,
        "attempt": open_step.attempt,
    }
    payload = {**effect.payload, "params": {**params, "trace_metadata": trace_metadata}}
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


def call_node(
    spec: WorkflowSpec, state: RunState, context: NodeContext, now: Callable[[], str]
) -> Transition:
    """Call the current node with a copy of the run and `context`; return the decision on its answer."""
    node = spec.nodes.get(state.current_node)
    if node is None:
        problem = f"graph {spec.workflow_id!r} has no node {state.current_node!r}"
        return records.failed(state, problem, at=now())
    # The node may change the vars of its copy in place. Its changes are the differences from `state`.
    copy = state.cloned()
    try:
        plan = settled(node(copy, context))
    # An author's function may raise anything. Its run fails, and the driver continues with other runs.
    except Exception as exc:  # noqa: BLE001 - the error is recorded
        problem = f"node {state.current_node!r} raised {type(exc).__name__}: {exc}"
        return records.failed(state, problem, at=now())
    return apply_plan(spec, state, copy.vars, plan, at=now())


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
        self._kept_state: tuple[object, ...] | None = None

    def is_endless(self, state: RunState) -> bool:
        """Return True if the kept state comes again. Called after each pure step."""
        self._steps += 1
        if self._kept_state is None and self._steps < BEGIN:
            return False
        variables = {name: value for name, value in state.vars.items() if name != RUNTIME}
        branch = namespace(state.vars, RUNTIME).get(BRANCH)
        current_state = (state.current_node, state.status, branch, variables)
        if current_state == self._kept_state:
            return True
        if self._steps >= self._next:
            self._kept_state, self._next = current_state, self._next * 2
        return False

    def forget(self) -> None:
        """Start again, since an effect or a wait may change the next steps."""
        self._steps, self._next, self._kept_state = 0, BEGIN, None


def fail_endless_loop(state: RunState, *, at: str) -> Transition:
    """Decide on a run in an endless loop: it fails."""
    problem = (
        f"node {state.current_node!r} is called again with the same vars and without an effect: "
        "an endless loop"
    )
    return failed(state, problem, at=at)
