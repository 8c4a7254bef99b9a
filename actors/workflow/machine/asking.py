"""The call of a node. Code of a graph's author is called here and by reducers only."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from actors.kernel.workflow.run_state import RunState
from actors.workflow.machine import records
from actors.workflow.machine.plans import planned
from actors.workflow.machine.records import Transition
from actors.workflow.machine.spec import WorkflowSpec


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
