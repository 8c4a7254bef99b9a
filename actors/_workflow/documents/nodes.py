"""Nodes of compiled flow documents. A graph calls them like nodes written in Python."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, Protocol

from actors._kernel.runtime.effects import EffectMode
from actors._kernel.workflow.effects import Effect, EffectType, StepPlan
from actors._kernel.workflow.run_state import RunState
from actors._workflow.documents import sandbox
from actors._workflow.documents.document import (
    TIMEOUT_MARK,
    CodeNode,
    EachNode,
    EffectNode,
    EndNode,
    FlowNode,
    ForkNode,
    LoopNode,
    SetNode,
    SwitchNode,
)
from actors._workflow.documents.expressions import Expression, ExpressionError, NodeScope
from actors._workflow.documents.templates import Template
from actors._workflow.machine.plans import NodeContext
from actors._workflow.machine.variables import TEMP, branch_of, split_key, with_path

DEADLINES: Final = frozenset({EffectType.ASK_USER, EffectType.WAIT_EVENT})
"""The effects whose wait may have a deadline."""


class Step(Protocol):
    """The decision of a node. It gets a copy of the run's state as `run`, whose vars it may change."""

    def __call__(self, run: RunState, scope: NodeScope) -> StepPlan:
        """Return the plan."""


@dataclass(frozen=True, slots=True)
class DocumentNode:
    """A node of a document.

    Attributes:
        name: The node's name.
        kind: The node's kind, for example ``effect``.
        source: The node's data as JSON text. The graph's hash is made of it.
        targets: The nodes that may follow, each with the label of the way to it.
        step: The node's decision.
        title: A title for people to read.
        effect: The effect that the node asks for, or None if it asks for none.
        is_code: True if the node evaluates code of its author, which may take seconds. A host calls it beside
            the event loop.
    """

    name: str
    kind: str
    source: str
    targets: tuple[tuple[str, str], ...]
    step: Step
    title: str | None = None
    effect: EffectType | None = None
    is_code: bool = False

    def __call__(self, run: RunState, ctx: NodeContext) -> StepPlan:
        """Return the plan of the node.

        Raises:
            ExpressionError: An expression has no value.
        """
        return self.step(run, NodeScope(run.vars, branch_of(run.vars), ctx.now()))


def effect_step(name: str, node: EffectNode, inputs: Template) -> Step:
    """Return the step of an effect."""
    kind, mode, key = EffectType(node.effect), EffectMode(node.mode), result_key_of(name, node)
    next_node = name + TIMEOUT_MARK if node.on_timeout else node.next
    more: dict[str, Any] = {}
    if node.deadline is not None:
        more["timeout_s"] = node.deadline
    if node.retry is not None:
        more["retry"] = {"max_attempts": node.retry}

    def step(run: RunState, scope: NodeScope) -> StepPlan:
        effect = Effect(kind, inputs.value(scope) | more, key, mode)
        return StepPlan(run.current_node, effect=effect, next_node=next_node)

    return step


def result_key_of(name: str, node: EffectNode) -> str | None:
    """Return the place of an effect's result. An effect with `on_timeout` always has a place."""
    if node.into is None and node.on_timeout is not None:
        return f"{TEMP}.{name.replace('.', '_')}"
    return node.into


def timeout_step(name: str, node: EffectNode) -> Step:
    """Return the step after a wait. It continues at `next` if the wait was answered, else at `on_timeout`."""
    answer_path = split_key(result_key_of(name, node) or "")

    def step(run: RunState, scope: NodeScope) -> StepPlan:
        answer: Any = scope.vars
        for key in answer_path:
            answer = answer.get(key) if isinstance(answer, dict) else None
        is_late = isinstance(answer, dict) and answer.get("timed_out") is True
        return StepPlan(run.current_node, next_node=node.on_timeout if is_late else node.next)

    return step


def flow_step(_name: str, node: FlowNode, inputs: Template) -> Step:
    """Return the step that starts a sub-graph."""

    def step(run: RunState, scope: NodeScope) -> StepPlan:
        payload = {"workflow_id": node.flow, "vars": inputs.value(scope), "async": node.async_}
        effect = Effect(EffectType.START_SUBWORKFLOW, payload, node.into)
        return StepPlan(run.current_node, effect=effect, next_node=node.next)

    return step


def switch_step(node: SwitchNode, cases: list[Expression]) -> Step:
    """Return the step of a switch."""

    def step(run: RunState, scope: NodeScope) -> StepPlan:
        for case, expression in zip(node.switch, cases, strict=True):
            if expression.value(scope):
                return StepPlan(run.current_node, next_node=case.next)
        return StepPlan(run.current_node, next_node=node.else_)

    return step


def set_step(_name: str, node: SetNode, values: Template) -> Step:
    """Return the step that sets vars."""

    def step(run: RunState, scope: NodeScope) -> StepPlan:
        for path, value in values.value(scope).items():
            run.vars = with_path(run.vars, split_key(path), value)
        return StepPlan(run.current_node, next_node=node.next)

    return step


def code_step(_name: str, node: CodeNode, inputs: Template) -> Step:
    """Return the step that evaluates code."""
    limits = sandbox.SandboxLimits(node.limits.seconds, node.limits.memory_mib)

    def step(run: RunState, scope: NodeScope) -> StepPlan:
        value = sandbox.evaluate(node.code, inputs.value(scope), limits)
        run.vars = with_path(run.vars, split_key(node.into), value)
        return StepPlan(run.current_node, next_node=node.next)

    return step


def fork_step(node: ForkNode) -> Step:
    """Return the step that starts named branches."""

    def step(run: RunState, scope: NodeScope) -> StepPlan:
        del scope
        return StepPlan(run.current_node, parallel=node.parallel, next_node=node.join)

    return step


def each_step(_name: str, node: EachNode, items: Template) -> Step:
    """Return the step that starts a branch for each item."""

    def step(run: RunState, scope: NodeScope) -> StepPlan:
        branches = dict.fromkeys(_branch_names(items.value(scope), str(node.each)), node.do)
        return StepPlan(run.current_node, parallel=branches, next_node=node.join)

    return step


def loop_step(name: str, node: LoopNode, items: Template) -> Step:
    """Return the step of a loop.

    The loop's count is in the run's vars, so a crash of the host does not lose it.
    """

    def step(run: RunState, scope: NodeScope) -> StepPlan:
        repetitions = _repetitions(items.value(scope), str(node.loop))
        counts, key = run.vars[TEMP], f"{name}{_count_mark(scope.branch)}"
        count = counts.get(key, 0)
        if count >= len(repetitions):
            counts.pop(key, None)
            return StepPlan(run.current_node, next_node=node.next)
        counts[key] = count + 1
        if node.as_ is not None:
            run.vars = with_path(run.vars, split_key(node.as_), repetitions[count])
        return StepPlan(run.current_node, next_node=node.do)

    return step


def _count_mark(branch: list[str]) -> str:
    """Return the suffix of a branch's count names, so that branches with the same loop have separate counts."""
    return "@" + "/".join(branch)


def _repetitions(items: Any, text: str) -> list[Any] | range:
    if isinstance(items, int) and not isinstance(items, bool):
        return range(items)
    if isinstance(items, list):
        return items
    raise ExpressionError(text, f"loop needs a list or a number, not a {type(items).__name__}")


def _branch_names(items: Any, text: str) -> list[str]:
    if isinstance(items, int) and not isinstance(items, bool):
        return [str(number) for number in range(items)]
    if not isinstance(items, list) or not all(isinstance(item, str) for item in items):
        raise ExpressionError(text, "each needs a list of texts, or a number")
    if len({*items}) < len(items):
        raise ExpressionError(
            text, "an item is there twice. Branches are named after items: make them unique"
        )
    return items


def end_step(_name: str, _node: EndNode, output: Template) -> Step:
    """Return the step that ends the run."""

    def step(run: RunState, scope: NodeScope) -> StepPlan:
        value = output.value(scope)
        if scope.branch:  # if the branch is entered again, its loops start again
            mark = _count_mark(scope.branch)
            for key in [name for name in run.vars[TEMP] if name.endswith(mark)]:
                del run.vars[TEMP][key]
        return StepPlan(run.current_node, complete_output={} if value is None else value)

    return step


TEMPLATED: Final[dict[str, tuple[str, Callable[[str, Any, Template], Step]]]] = {
    EffectNode.kind: ("with_", effect_step),
    FlowNode.kind: ("with_", flow_step),
    CodeNode.kind: ("with_", code_step),
    SetNode.kind: ("set_", set_step),
    EachNode.kind: ("each", each_step),
    LoopNode.kind: ("loop", loop_step),
    EndNode.kind: ("end", end_step),
}
"""By kind: the name of the node's part that may have holes, and the function that makes the node's step."""
