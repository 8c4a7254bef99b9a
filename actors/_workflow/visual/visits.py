"""A run's visit of a node: the values of the node's pins, and the way to the next node."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from actors._kernel.workflow.effects import StepPlan
from actors._kernel.workflow.run_state import RunState
from actors._workflow.documents.expressions import ExpressionError, NodeScope
from actors._workflow.machine.variables import branch_of
from actors._workflow.visual.drawing import OUT_OF_CONTROL, RETURN_MARK, DrawnNode, DrawnWire
from actors._workflow.visual.expressions import PinExpression
from actors._workflow.visual.flow_state import FlowState
from actors._workflow.visual.passes import MUX, Pin

WHOLE: Final = ""
"""Name in the outputs of a node. Its value is the value of each pin that has no value of its own."""

Outputs = dict[str, Any]
"""The outputs of a node by pin."""
Compute = Callable[["Visit", DrawnNode, dict[str, Any]], Outputs]
"""Function that computes the outputs of a node that is not a step, from its inputs."""


class VisualNodeError(ValueError):
    """A node of a drawing cannot be executed with its inputs. The run fails, and the message names the node."""


class ComputedValueError(VisualNodeError):
    """A value that a node reads cannot be computed. The message names the node that should compute it."""


@dataclass(frozen=True, slots=True)
class WiredNode:
    """A node with its wires.

    Attributes:
        drawn: The node.
        inputs: The sources of its pins' values, by pin.
        ways: The wires of execution from it, by pin.
        is_step: True if the node is a step of the graph, false if it is computed when another node reads its
            outputs.
        is_read: True if another node reads its outputs.
        takes_last: True if pins without a value get the values of the same names that the previous node
            computed.
        needs: The nodes that are computed for it, each after the nodes that it reads.
        compute: The function that computes its outputs, if it is not a step.
        outputs_of: The function that makes its outputs of the result of its effect.
        expressions: The expressions at its pins.
    """

    drawn: DrawnNode
    inputs: Mapping[str, Pin]
    ways: Mapping[str, DrawnWire]
    is_step: bool
    is_read: bool
    takes_last: bool
    needs: tuple[str, ...] = ()
    compute: Compute | None = None
    outputs_of: Callable[[DrawnNode, Any], Outputs] | None = None
    expressions: Mapping[str, PinExpression] = field(default_factory=dict)


@dataclass(slots=True)
class Visit:
    """A run's visit of a node.

    Attributes:
        run: A copy of the run, which may be changed.
        now: The instant in ISO 8601, in UTC.
        nodes: All nodes of the drawing.
        node: The node that is visited.
        state: The state that the run keeps between steps.
    """

    run: RunState
    now: str
    nodes: Mapping[str, WiredNode]
    node: WiredNode
    state: FlowState
    _outputs_by_node: dict[str, Outputs | Exception] = field(default_factory=dict)

    def inputs(self) -> dict[str, Any]:
        """Return the values of the pins that have one.

        Raises:
            VisualNodeError: A value cannot be computed.
        """
        for name in self.node.needs:  # each node once, after the nodes that it reads
            if name not in self._outputs_by_node:
                self._outputs_by_node[name] = self._compute(self.nodes[name])
        last_value = self.state.last if self.node.takes_last else None
        return self._inputs_of(self.node, last_value)

    def _compute(self, node: WiredNode) -> Outputs | Exception:
        assert node.compute is not None
        try:
            pins = {} if node.drawn.type == MUX else self._inputs_of(node, None)
            return node.compute(self, node.drawn, pins)
        except ComputedValueError as exc:
            return exc
        # Raised only when the value is read: a pin with values by route reads one of several.
        except Exception as exc:  # noqa: BLE001
            return ComputedValueError(f"node {node.drawn.id!r} ({node.drawn.type}): {exc}")

    def _inputs_of(self, node: WiredNode, last_value: Any) -> dict[str, Any]:
        values: dict[str, Any] = dict(last_value) if isinstance(last_value, dict) else {}
        for pin in node.inputs:
            values.pop(pin, None)
            values |= self.at_pin(node, pin)
        declared_pins = {*node.drawn.pins("inputs")}
        for pin, value in node.drawn.part("pinDefaults").items():
            if pin not in node.inputs and (pin in declared_pins or pin not in values):
                # The default belongs to the graph, which all runs share: a run must not change it for others.
                values[pin] = copy.deepcopy(value)
        for pin, expression in node.expressions.items():
            scope = NodeScope(self.run.vars, branch_of(self.run.vars), self.now)
            try:
                values[pin] = expression.value(values.get(pin), scope)
            except ExpressionError as exc:
                raise VisualNodeError(f"pin {pin!r}: {exc}") from None
        return values

    def at_pin(self, node: WiredNode, pin: str) -> dict[str, Any]:
        """Return the value that a wire leads to a pin, by the pin's name; empty if there is no value yet."""
        source, out = node.inputs[pin]
        outputs = self._outputs_of(self.nodes[source])
        if isinstance(outputs, Exception):
            raise outputs
        if outputs is not None and out in outputs:
            return {pin: outputs[out]}
        return {pin: outputs[WHOLE]} if outputs is not None and WHOLE in outputs else {}

    def _outputs_of(self, node: WiredNode) -> Outputs | Exception | None:
        name = node.drawn.id
        if not node.is_step:
            return self._outputs_by_node.get(name)
        if node.outputs_of is None:
            return self.state.outputs(name)
        result = self.state.result(name)
        return None if result is ... else node.outputs_of(node.drawn, result)

    def go(self, out: str = OUT_OF_CONTROL) -> str | None:
        """Return the node that the way from a pin leads to, or None if the run ends here.

        Without a wire that is the innermost loop, sequence or join that contains the node.
        """
        wire = self.node.ways.get(out)
        if wire is None:
            frame = self.state.frames.top()
            return None if frame is None else f"{frame['node']}{RETURN_MARK}"
        if wire.route is not None:
            self.state.take_route(wire.target, wire.route)
        return wire.target

    def keep(self, outputs: Outputs) -> None:
        """Store the outputs of the node, if a node reads them."""
        if self.node.is_read:
            self.state.keep(self.node.drawn.id, outputs)

    def plan(self, out: str = OUT_OF_CONTROL, *, result: Any = ...) -> StepPlan:
        """Return the move along a pin, or the end of the run.

        `result` is the value that the node computed, if any.
        """
        if result is not ...:
            self.state.last = result
        target = self.go(out)
        if target is not None:
            return StepPlan(self.run.current_node, next_node=target)
        is_passed = result is ...
        output = {"success": True, "result": self.state.last} if is_passed else ending_in(result)
        return StepPlan(self.run.current_node, complete_output=output)


def ending_in(value: Any) -> dict[str, Any]:
    """Return the output of a run that ends with a value."""
    return (
        {"success": True, **value}
        if isinstance(value, dict)
        else {"success": True, "response": value}
    )
