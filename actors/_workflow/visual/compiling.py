"""The compiler of drawings. It makes a graph of a VisualFlow, or a list of all mistakes in it."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from actors._kernel.workflow.effects import StepPlan
from actors._kernel.workflow.run_state import RunState
from actors._workflow.documents.expressions import NodeScope
from actors._workflow.documents.findings import FlowFinding
from actors._workflow.documents.nodes import DocumentNode
from actors._workflow.machine.spec import WorkflowSpec
from actors._workflow.visual.checks import TYPES, check, check_bodies, controlled_in, is_step
from actors._workflow.visual.drawing import (
    RETURN_MARK,
    SEQUENTIAL,
    Drawing,
    DrawingFindings,
    DrawnWire,
    read_drawing,
)
from actors._workflow.visual.expressions import PinExpression, expressions_in
from actors._workflow.visual.flow_state import PLACE, FlowState, in_turn
from actors._workflow.visual.nodes import code
from actors._workflow.visual.nodes.control import CONTROL
from actors._workflow.visual.nodes.effects import (
    EFFECTS,
    FILES,
    ask,
    begin_file,
    end_file,
    listen,
    subflow_name,
    tick,
)
from actors._workflow.visual.nodes.results import RESULTS
from actors._workflow.visual.nodes.values import VALUES
from actors._workflow.visual.nodes.variables import VARIABLES
from actors._workflow.visual.passes import (
    AGENT,
    CODE,
    SUBFLOW,
    Pin,
    with_known_types,
    with_routes,
    without_branches,
    without_limited_wires,
    without_reroutes,
)
from actors._workflow.visual.visits import WHOLE, Visit, WiredNode

_OWN_PINS: Final = frozenset(
    {"set_vars", "add_to_list", "loop_limit", "string_template", "make_object"}
)
"""Types that read only their pins, and not the values that the previous node computed."""
MOST_NEEDS: Final = 500_000
MOST_SOURCE: Final = 64 * 2**20
"""Maximum number of nodes that are computed for the steps of a flow, and size of their data in characters.

Each step counts all nodes that are computed for it.
"""
_SHOWN: Final = frozenset({"label", "description", "icon", "headerColor", "nodeType"})
"""Names in a node's data that are only shown to people."""

Decide = Callable[[Visit], StepPlan]


def compile_drawing(
    flow: Any, file: str, names: Mapping[str, str] | None = None
) -> tuple[WorkflowSpec, list[FlowFinding]]:
    """Return the graph of a VisualFlow and the warnings about the flow.

    Args:
        flow: The flow's JSON data.
        file: The flow's name in findings.
        names: The names of graphs by the ids of flows, for this flow and its sub-flows. By default the names
            are the ids.

    Raises:
        FlowError: The flow has mistakes; the error has all of them.
    """
    findings = DrawingFindings(file)
    drawing = apply_passes(read_drawing(flow, findings), findings)
    check(drawing, findings)
    functions = flow.get("functions") if isinstance(flow, Mapping) else None
    expressions = expressions_in(drawing, functions, findings)
    if isinstance(flow, Mapping) and flow.get(SEQUENTIAL):
        if flow[SEQUENTIAL] is not True:
            findings.add(f"{SEQUENTIAL} is neither true nor false", "Correct it", SEQUENTIAL)
        drawing = without_branches(drawing)
    compiler = _DrawingCompiler(drawing, findings, expressions, names or {})
    entry = compiler.entry()
    findings.warnings()  # a drawing with mistakes is not compiled
    return compiler.spec(entry), findings.warnings()


def apply_passes(drawing: Drawing, findings: DrawingFindings) -> Drawing:
    """Return a drawing after all passes, in their order."""
    drawing = with_known_types(without_reroutes(drawing, findings))
    check_bodies(drawing, findings)
    # Routes come last: the limit in a wire becomes the source of the wire's route.
    return with_routes(without_limited_wires(drawing, findings), findings)


@dataclass(slots=True)
class _DrawingCompiler:
    drawing: Drawing
    findings: DrawingFindings
    expressions: Mapping[str, Mapping[str, PinExpression]]
    names: Mapping[str, str]
    nodes: dict[str, WiredNode] = field(default_factory=dict)
    data: dict[str, str] = field(default_factory=dict)
    reads: dict[str, tuple[str, ...]] = field(default_factory=dict)
    size: int = 0
    """Size of the sources of all steps, in characters."""
    need_count: int = 0
    """Number of the nodes that are computed for steps, each as often as it is computed."""

    def entry(self) -> str:
        """Return the entry node: the one that the flow names, else the first one without a wire into it."""
        drawing, control_nodes = self.drawing, controlled_in(self.drawing)
        if drawing.entry is not None and drawing.entry not in drawing.nodes:
            problem = f"there is no node {drawing.entry!r} to begin with"
            self.findings.add(problem, "Name another one", "entryNode")
            return ""
        steps = [node.id for node in drawing.nodes.values() if is_step(node, control_nodes)]
        if drawing.entry in steps:
            return drawing.entry or ""
        targets = {wire.target for wire in drawing.wires if wire.is_control}
        starts = [name for name in steps if name not in targets] or steps
        if not starts:
            problem = "it has no node that execution could begin with"
            self.findings.add(problem, "Add on_flow_start, and name it as entryNode", "nodes")
        return starts[0] if starts else ""

    def spec(self, entry: str) -> WorkflowSpec:
        """Return the graph with this entry node."""
        self._wire()
        nodes: dict[str, DocumentNode] = {}
        for name in self._reachable_nodes(entry):
            nodes |= self._steps_of(self.nodes[name])
            self._check_size()
        for name, wired_node in self.nodes.items():
            if wired_node.is_step and name not in nodes and wired_node.drawn.type in TYPES:
                index = wired_node.drawn.index
                position = () if index is None else ("nodes", index)
                self.findings.warn(f"no way leads to node {name!r}", "Remove it", *position)
        has_branches = any(w.drawn.type == "parallel" for w in self.nodes.values())
        reducers = {PLACE: in_turn} if has_branches else {}
        flow_id = self.drawing.id
        return WorkflowSpec(self.names.get(flow_id, flow_id), entry, nodes, reducers)

    def _check_size(self) -> None:
        """Refuse a flow whose nodes are computed for so many steps that its graph would fill the memory.

        Raises:
            FlowError: The flow is one.
        """
        if self.need_count > MOST_NEEDS or self.size > MOST_SOURCE:
            problem = "too many of its nodes are computed again for each of many steps"
            remedy = "Keep their values in variables, or divide it into flows"
            self.findings.add(problem, remedy, "nodes")
            self.findings.warnings()

    def _wire(self) -> None:
        """Connect all nodes with their wires."""
        inputs: dict[str, dict[str, Pin]] = defaultdict(dict)
        ways: dict[str, dict[str, DrawnWire]] = defaultdict(dict)
        for wire in self.drawing.wires:
            if wire.is_control:
                ways[wire.source][wire.out] = wire
            else:
                inputs[wire.target][wire.into] = (wire.source, wire.out)
        read_nodes = {source for pins in inputs.values() for source, _ in pins.values()}
        control_nodes = controlled_in(self.drawing)
        for name, node in self.drawing.nodes.items():
            flow = subflow_name(node) if node.type in {"subflow", AGENT} else None
            drawn_node = node
            if flow is not None and flow in self.names:
                drawn_node = replace(node, data={**node.data, SUBFLOW: self.names[flow]})
            self.nodes[name] = WiredNode(
                drawn_node,
                inputs[name],
                ways[name],
                is_step=is_step(node, control_nodes),
                is_read=name in read_nodes,
                takes_last=node.type not in _OWN_PINS,
                compute=code.compute if node.type == CODE else VALUES.get(node.type),
                outputs_of=RESULTS.get(node.type),
                expressions=self.expressions.get(name, {}),
            )
        for name, wired_node in self.nodes.items():
            if wired_node.is_step:
                self.nodes[name] = replace(wired_node, needs=tuple(self._needs(wired_node)))
                self.need_count += len(self.nodes[name].needs)
                self._check_size()

    def _needs(self, node: WiredNode) -> list[str]:
        """Return the nodes that are computed for a step, each after the nodes that it reads."""
        needs: list[str] = []
        path = [("", iter(self._computed_sources(node)))]
        visited_nodes: set[str] = set()
        while path:
            name, sources = path[-1]
            for source in sources:
                if source not in visited_nodes:
                    visited_nodes.add(source)
                    path.append((source, iter(self._computed_sources(self.nodes[source]))))
                    break
            else:
                path.pop()
                needs.append(name)
        needs.pop()  # the step itself
        return needs

    def _computed_sources(self, node: WiredNode) -> tuple[str, ...]:
        """Return the nodes whose values a node reads and that are not steps; many steps may ask for a node."""
        name = node.drawn.id
        if name not in self.reads:
            sources = (source for source, _ in node.inputs.values())
            self.reads[name] = tuple(
                source_name for source_name in sources if not self.nodes[source_name].is_step
            )
        return self.reads[name]

    def _reachable_nodes(self, entry: str) -> list[str]:
        names = {entry: None}
        pending_nodes = [entry]
        while pending_nodes:
            for wire in self.nodes[pending_nodes.pop()].ways.values():
                if wire.target not in names:
                    names[wire.target] = None
                    pending_nodes.append(wire.target)
        return list(names)

    def _steps_of(self, node: WiredNode) -> dict[str, DocumentNode]:
        """Return the nodes of the graph that a node of the drawing becomes."""
        name, kind = node.drawn.id, node.drawn.type
        begin, back = _decisions_of(node)
        ways = [(out, wire.target) for out, wire in node.ways.items()]
        if kind == "parallel":
            begin_ways = (
                *[way for way in ways if way[0] != "completed"],
                ("join", name + RETURN_MARK),
            )
            back_ways = tuple(way for way in ways if way[0] == "completed")
        elif kind in FILES:
            begin_ways, back_ways = (("result", name + RETURN_MARK),), tuple(ways)
        else:
            begin_ways, back_ways = tuple(ways), tuple(ways)
        steps = {name: self._step(node, begin, begin_ways)}
        if back is not None:
            steps[name + RETURN_MARK] = self._step(node, back, back_ways, RETURN_MARK)
        return steps

    def _data_of(self, name: str) -> str:
        """Return the JSON text of the data that decides a node's computation; many steps may read a node.

        The graph's hash is made of it.
        """
        if name not in self.data:
            node = self.nodes[name]
            kind, values = node.drawn.type, node.drawn.data.items()
            data = {key: value for key, value in values if key not in _SHOWN}
            functions = {pin.functions for pin in node.expressions.values() if pin.functions}
            row = [node.drawn.id, kind, data, sorted(node.inputs.items()), *sorted(functions)]
            self.data[name] = _json(row)
        return self.data[name]

    def _step(
        self, node: WiredNode, decide: Decide, ways: tuple[tuple[str, str], ...], mark: str = ""
    ) -> DocumentNode:
        texts = ", ".join(self._data_of(name) for name in (node.drawn.id, *node.needs))
        source = f'{{"drawn": [{texts}], "ways": {_json(ways)}}}'
        self.size += len(source)
        name, kind, title = node.drawn.id + mark, node.drawn.type, node.drawn.data.get("label")
        is_asking = kind in EFFECTS and not (mark and kind in FILES)
        effect = EFFECTS[kind][0] if is_asking else None
        # The code of a step is its own, or that of a node that is computed for it.
        is_code = any(
            w.drawn.type == CODE or any(text.is_code for text in w.expressions.values())
            for w in (node, *map(self.nodes.__getitem__, node.needs))
        )
        nodes = self.nodes

        def step(run: RunState, scope: NodeScope) -> StepPlan:
            return decide(Visit(run, scope.now, nodes, node, FlowState(run.vars)))

        label = title if isinstance(title, str) else None
        return DocumentNode(name, kind, source, ways, step, label, effect, is_code)


def _json(data: Any) -> str:
    return json.dumps(data, sort_keys=True, ensure_ascii=False)


def _decisions_of(node: WiredNode) -> tuple[Decide, Decide | None]:
    kind = node.drawn.type
    if kind in CONTROL:
        return CONTROL[kind]
    if kind in VARIABLES:
        return VARIABLES[kind], None
    if kind == "on_event":
        return listen, listen
    if kind == "on_schedule":
        return tick, tick
    if kind in FILES:
        return begin_file, end_file
    return (ask if kind in EFFECTS else _compute), None


def _compute(visit: Visit) -> StepPlan:
    """Compute the outputs of a node that is a step, and return the move to the next node."""
    node, pins = visit.node, visit.inputs()
    if node.drawn.type == CODE:
        result = code.result_of(node.drawn, pins)
        outputs = code.outputs_of(result)
    else:
        assert node.compute is not None
        outputs = node.compute(visit, node.drawn, pins)
        result = outputs.get(WHOLE, outputs)
    visit.keep(outputs)
    return visit.plan(result=result)
