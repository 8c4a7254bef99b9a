"""Random graphs as VisualFlow: the same programs, drawn."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from typing_extensions import override

from actors._kernel.runtime.effects import EffectMode
from actors._workflow.documents.nodes import DocumentNode
from actors.workflow import WorkflowSpec, compile_visualflow
from tests.properties.documents import Written
from tests.properties.graphs import summed

if TYPE_CHECKING:
    from actors._kernel.workflow.run_state import RunState
    from actors.workflow import StepPlan


def can_be_drawn(program: list[Any], *, in_branch: bool = False) -> bool:
    """Return False for what a drawing does not have: the end of a branch only, and a loop without a body."""
    for kind, *words in program:
        if kind == "end" and in_branch:
            return False
        if kind == "loop" and not (words[1] and can_be_drawn(words[1], in_branch=in_branch)):
            return False
        if kind == "switch" and not all(
            can_be_drawn(part, in_branch=in_branch) for part in words[1]
        ):
            return False
        if kind == "par" and not all(can_be_drawn(part, in_branch=True) for part in words[0]):
            return False
        if kind == "sub" and not can_be_drawn(words[0]):
            return False
    return True


@dataclass
class Drawn(Written):
    """A program as VisualFlow; one that cannot be drawn is written as flow documents. See `Compiled`."""

    @override
    def graph(self, name: str, program: list[Any]) -> WorkflowSpec:
        """Return the graph of a program; those of its sub-graphs are kept, too."""
        if not can_be_drawn(program):
            return super().graph(name, program)
        sketch = _Sketch(self)
        entry = sketch.block(program, name, "end")
        sketch.node("end", "on_flow_end", *"abr")
        for letter in "abr":
            sketch.reads(letter, "end", letter)
        flow = {"id": name, "nodes": sketch.nodes, "edges": sketch.edges, "entryNode": entry}
        spec = compile_visualflow(flow)
        nodes = {node_id: sketch.with_payload(node) for node_id, node in spec.nodes.items()}
        joins = {f"{node['id']}~" for node in sketch.nodes if node["type"] == "parallel"}
        self.joins |= joins
        reducers = {**spec.reducers, "a": summed}
        self.specs[name] = WorkflowSpec(name, spec.entry_node, nodes, reducers)
        return self.specs[name]


class _Sketch:
    """The nodes and edges of a flow that is drawn."""

    def __init__(self, compiled: Drawn) -> None:
        self.nodes: list[dict[str, Any]] = []
        self.edges: list[dict[str, Any]] = []
        self._compiled = compiled
        self._asks: dict[str, tuple[dict[str, Any], EffectMode]] = {}

    def node(self, name: str, kind: str, *pins: str, **data: Any) -> None:
        """Draw a node."""
        inputs = [{"id": "exec-in", "type": "execution"}, *({"id": pin} for pin in pins)]
        pin_data = {"inputs": inputs} if pins else {}
        self.nodes.append({"id": name, "type": kind, "data": pin_data | data})

    def wire(self, source: str, out: str, target: str | None, into: str = "exec-in") -> None:
        """Draw an edge; to None there is none."""
        if target is not None:
            ends = {"sourceHandle": out, "targetHandle": into}
            self.edges.append({"source": source, "target": target, **ends})

    def reads(self, variable: str, target: str, into: str) -> None:
        """Connect a pin with a variable."""
        name = f"{variable} for {target}"
        self.node(name, "get_var", pinDefaults={"name": variable})
        self.wire(name, "value", target, into)

    def block(self, block: list[Any], path: str, after: str | None) -> str | None:
        """Draw statements, and return the first one; behind them comes `after`."""
        for index in reversed(range(len(block))):
            node = f"{path}.{index}"
            self._statement(block[index], node, after)
            after = node
        return after

    def _statement(self, statement: Any, node: str, after: str | None) -> None:
        kind, *words = statement
        if kind == "add" and words[1] % 4 == 3:
            expressions = {"value": f"value + vars['{words[0]}']"}
            pins = {"name": words[0], "value": words[1]}
            self.node(
                node, "set_var", "name", "value", pinDefaults=pins, pinExpressions=expressions
            )
            self.wire(node, "exec-out", after)
        elif kind == "add":
            self.node(node, "set_var", "name", "value", pinDefaults={"name": words[0]})
            if words[1] % 8 == 1:
                self.node(f"sum for {node}", "function", expression=f"a + {words[1]}")
            else:
                self.node(f"sum for {node}", "add", pinDefaults={"b": words[1]})
            self.reads(words[0], f"sum for {node}", "a")
            self.wire(f"sum for {node}", "result", node, "value")
            self.wire(node, "exec-out", after)
        elif kind == "end":
            self.node(node, "on_flow_end", *"abr")
            for letter in "abr":
                self.reads(letter, node, letter)
        elif kind == "raise":
            self.node(node, "if")
            self.node(f"no for {node}", "divide", pinDefaults={"a": 1, "b": 0})
            self.wire(f"no for {node}", "result", node, "condition")
            self.wire(node, "true", after)
        elif kind == "loop":
            self.node(node, "for", pinDefaults={"start": 0, "end": words[0]})
            self.wire(node, "loop", self.block(words[1], f"{node}.body", None))
            self.wire(node, "done", after)
        elif kind in {"par", "switch"}:
            self._ways(kind, words, node, after)
        else:
            self._effect(kind, words, node, after)

    def _ways(self, kind: str, words: list[Any], node: str, after: str | None) -> None:
        is_fork = kind == "par"
        for number, way in enumerate(words[-1]):
            first = self.block(way, f"{node}.{number}{kind[0]}", None if is_fork else after)
            self.wire(node, f"then:{number}" if is_fork else f"case:{number}", first)
        if is_fork:
            self.node(node, "parallel")
            self.wire(node, "completed", after)
            return
        many = len(words[1])
        cases = [{"id": str(number), "value": f"{number}.0"} for number in range(many)]
        self.node(node, "switch", switchConfig={"cases": cases})
        self.node(f"rest for {node}", "modulo", pinDefaults={"b": many})
        self.reads(words[0], f"rest for {node}", "a")
        self.wire(f"rest for {node}", "result", node, "value")

    def _effect(self, kind: str, words: list[Any], node: str, after: str | None) -> None:
        """Draw an effect. What an editor has no words for is added to its payload; see `with_payload`."""
        compiled, more, mode = self._compiled, {"node": node}, EffectMode.IDEMPOTENT
        if kind == "work":
            self.node(node, "llm_call", pinDefaults={"prompt": "?"})
            more |= {"fails": words[0], "value": words[1]}
            mode = EffectMode.AT_MOST_ONCE if words[2] else mode
            compiled.once |= {node} if words[2] else set()
        elif kind == "wait":
            compiled.answers[node] = words[1]
            pins = {"event_key": node, "prompt": "?", "duration": compiled.timeout_s}
            pins |= {"timeout_s": compiled.timeout_s} if words[0] == "deadline" else {}
            kinds = {"user": "ask_user", "until": "wait_until"}
            self.node(node, kinds.get(words[0], "wait_event"), pinDefaults=pins)
            more |= {"wait_key": node} if words[0] == "user" else {}
        elif kind == "emit":
            compiled.ears += [node] if words[0] else []
            self.node(node, "emit_event", pinDefaults={"name": node, "scope": "global"})
        else:
            child = compiled.graph(f"{node}s", words[0]).workflow_id
            self.node(node, "subflow", *"abr", subflowId=child, pinDefaults={"b": 1, "r": {}})
            self.reads("a", node, "a")
            more |= {"async": words[1]}
        self._asks[node] = more, mode
        self.wire(node, "exec-out", after)

    def with_payload(self, node: Any) -> Any:
        """Return a node of the graph whose effect has its payload, mode and place of the program."""
        if node.name not in self._asks:
            return node
        more, mode = self._asks[node.name]

        def step(run: RunState, scope: Any) -> StepPlan:
            plan: StepPlan = node.step(run, scope)
            assert plan.effect is not None
            key = f"r.{node.name.replace('.', '_')}"
            payload = {**plan.effect.payload, **more}
            effect = replace(plan.effect, payload=payload, result_key=key, mode=mode)
            return replace(plan, effect=effect)

        assert isinstance(node, DocumentNode)
        source = json.dumps([node.source, more, mode])
        return replace(node, step=step, source=source)
