"""The checks of a drawing before it is compiled."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from typing import Final

from actors._workflow.visual.drawing import (
    OUT_OF_CONTROL,
    Drawing,
    DrawingFindings,
    DrawnNode,
    DrawnWire,
)
from actors._workflow.visual.nodes import code
from actors._workflow.visual.nodes.control import CONTROL
from actors._workflow.visual.nodes.effects import (
    EFFECTS,
    GIVE_CONTEXT,
    inherits_context,
    schedule_problem,
    subflow_name,
)
from actors._workflow.visual.nodes.values import VALUES
from actors._workflow.visual.nodes.variables import VARIABLES, names_set
from actors._workflow.visual.passes import CODE

STEPS: Final = frozenset({*CONTROL, *VARIABLES, *EFFECTS})
"""The types of nodes that are always executed. Other nodes are executed if a wire of execution touches them."""
TYPES: Final = STEPS | {*VALUES, CODE}
LOOPS: Final = frozenset({"loop", "for", "while"})
_OUTS: Final = {
    "if": "true|false",
    "switch": "case:.*|default",
    "loop_limit": "again|limit_reached",
    **dict.fromkeys(LOOPS, "loop|done"),
    "sequence": r"then:\d+",
    "parallel": r"then:\d+|completed",
    "on_flow_end": "(?!)",
}
"""By type: a pattern of the pins by which execution leaves the node. Other types have one such pin."""
_INSTEAD: Final = {
    **dict.fromkeys(
        (
            *("list_folder_files", "read_pdf", "write_pdf", "write_docx", "read_artifact"),
            *("import_workspace_file", "export_artifact", "generate_image", "edit_image"),
            *("image_to_image", "upscale_image", "image_upscale", "generate_video"),
            *("text_to_video", "image_to_video", "generate_voice", "generate_music"),
            *("transcribe_audio", "listen_voice"),
        ),
        "Let a tool of the host do it, and call that by call_tool",
    ),
    **dict.fromkeys(
        ("make_context", "make_meta", "make_scratchpad", "add_message", "get_context"),
        "Make the object with make_object, or in a code node",
    ),
    **dict.fromkeys(
        ("random_int", "random_float", "get_random_element", "format"), "Use a code node"
    ),
}
"""By type of AbstractFlow that nothing here executes: the way out."""


def check(drawing: Drawing, findings: DrawingFindings) -> None:
    """Add a finding for each mistake in nodes and wires."""
    wires_by_node: dict[str, list[DrawnWire]] = defaultdict(list)
    for wire in drawing.wires:
        wires_by_node[wire.source].append(wire)
        wires_by_node[wire.target].append(wire)
    for node in drawing.nodes.values():
        if (
            node.id in wires_by_node or node.id == drawing.entry
        ):  # a node without wires is decoration
            _check_node(node, wires_by_node[node.id], findings)
            if node.type in VARIABLES:
                _check_names(node, wires_by_node[node.id], drawing, findings)
    _check_wires(drawing, findings)
    _check_cycles(drawing, findings)


def _check_node(node: DrawnNode, wires: list[DrawnWire], findings: DrawingFindings) -> None:
    if node.type not in TYPES:
        otherwise = "Remove it, or use nodes that are supported"
        remedy = _INSTEAD.get(node.type) or findings.suggestion(node.type, TYPES, otherwise)
        problem = f"nothing here executes the type {node.type!r}"
        findings.at_node(node, problem, remedy, "type")
        return
    code_problem = code.problem_of(node) if node.type == CODE else None
    if code_problem is not None:
        parts = ("expression", "codeBody", "code")
        data_key = next((key for key in parts if key in node.data), "code")
        findings.at_node(node, *code_problem, "data", data_key)
    if node.type == "subflow" and subflow_name(node) is None:
        findings.at_node(node, "it names no flow", "Give its data a subflowId", "data")
    if node.type == "subflow" and (context := inherits_context(node)):
        findings.at_node(node, "inherit_context is not supported", GIVE_CONTEXT, "data", *context)
    if node.type == "on_schedule" and not _has_value(node, wires, "schedule"):
        wrong = schedule_problem(node)
        if wrong is not None:
            findings.at_node(node, wrong, "Correct its eventConfig", "data", "eventConfig")
    if node.type in {"on_event", "emit_event"} and not _has_value(node, wires, "name"):
        config = node.part("effectConfig") | node.part("eventConfig") | node.part("pinDefaults")
        if not config.get("name") and not config.get("event_name"):
            problem = "it has no name of an event"
            findings.at_node(node, problem, "Give its eventConfig a name", "data", "eventConfig")


def _check_names(
    node: DrawnNode, wires: list[DrawnWire], drawing: Drawing, findings: DrawingFindings
) -> None:
    """Add a finding for each name of the runtime that a node sets. A computed name is checked by the run."""
    values, computed_pins = node.part("pinDefaults"), {*node.part("pinExpressions")}
    for wire in wires:
        source = drawing.nodes[wire.source]
        if wire.target == node.id and source.type.startswith("literal_"):
            values[wire.into] = source.data.get("literalValue")
        elif wire.target == node.id and not wire.is_control:
            computed_pins.add(wire.into)
            values.setdefault(wire.into, None)
    for name in names_set(node.type, values, computed_pins):
        if name.strip().startswith("_"):
            problem = f"names that begin with _ are reserved: {name!r} is one"
            findings.at_node(node, problem, "Give it another name", "data", "pinDefaults")


def _has_value(node: DrawnNode, wires: list[DrawnWire], pin: str) -> bool:
    """Return True if a pin gets a value when the node runs."""
    is_wired = any(w.target == node.id and w.into == pin for w in wires)
    return is_wired or pin in node.part("pinExpressions")


def _check_wires(drawing: Drawing, findings: DrawingFindings) -> None:
    wires_into: Counter[tuple[str, str]] = Counter()
    wires_out: Counter[tuple[str, str]] = Counter()
    for wire in drawing.wires:
        node = drawing.nodes[wire.source]
        if not wire.is_control:
            wires_into[wire.target, wire.into] += 1
            if wires_into[wire.target, wire.into] == 2:  # noqa: PLR2004 - one finding for each pin
                remedy = "Remove one, or give the pin values by route (inputRouteOverrides)"
                findings.at_wire(wire, "another edge leads to this pin, too", remedy)
            continue
        wires_out[wire.source, wire.out] += 1
        if wires_out[wire.source, wire.out] == 2:  # noqa: PLR2004
            remedy = "Remove one, or put a sequence or a parallel node in between"
            findings.at_wire(wire, "another edge of execution comes from this pin, too", remedy)
        exits_pattern = _OUTS.get(node.type, OUT_OF_CONTROL)
        if node.type in TYPES and not re.fullmatch(exits_pattern, wire.out):
            problem = f"execution never leaves a node {node.type!r} by {wire.out!r}"
            findings.at_wire(wire, problem, "Connect another pin")


def is_step(node: DrawnNode, control_nodes: set[str]) -> bool:
    """Return True if a node is executed. `control_nodes` are the nodes that wires of execution touch."""
    return node.type in STEPS or node.id in control_nodes


def controlled_in(drawing: Drawing) -> set[str]:
    """Return the nodes that wires of execution touch."""
    return {end for wire in drawing.wires if wire.is_control for end in (wire.source, wire.target)}


def _check_cycles(drawing: Drawing, findings: DrawingFindings) -> None:
    """Add a finding for each node whose value depends on itself."""
    control_nodes = controlled_in(drawing)
    reads: dict[str, set[str]] = {
        name: set() for name, node in drawing.nodes.items() if not is_step(node, control_nodes)
    }
    for wire in drawing.wires:
        if not wire.is_control and wire.source in reads and wire.target in reads:
            reads[wire.target].add(wire.source)
    readers: dict[str, list[str]] = defaultdict(list)
    for name, sources in reads.items():
        for source in sources:
            readers[source].append(name)
    resolvable = [name for name, sources in reads.items() if not sources]
    while resolvable:
        resolved_name = resolvable.pop()
        del reads[resolved_name]
        for name in readers[resolved_name]:
            reads[name].discard(resolved_name)
            if not reads[name]:
                resolvable.append(name)
    for name in reads:
        problem = "its value depends on itself"
        findings.at_node(drawing.nodes[name], problem, "Remove an edge of the cycle")


def check_bodies(drawing: Drawing, findings: DrawingFindings) -> None:
    """Add a finding for each wire of execution that leads from a loop's body back to the loop or before it.

    At the end of the body execution returns to the loop without a wire. Such a wire would start the loop again
    without end.
    """
    ways: dict[str, list[DrawnWire]] = defaultdict(list)
    for wire in drawing.wires:
        if wire.is_control:
            ways[wire.source].append(wire)
    finished_nodes: set[str] = set()
    for name in filter(None, [drawing.entry, *drawing.nodes]):
        if name in drawing.nodes and name not in finished_nodes:
            for wire in _out_of_bodies(name, ways, drawing.nodes, finished_nodes):
                remedy = "Remove it. The end of the body returns to the loop without an edge"
                findings.at_wire(wire, "it leads back out of the body of a loop", remedy)


def _out_of_bodies(
    root_id: str,
    ways: Mapping[str, list[DrawnWire]],
    nodes: Mapping[str, DrawnNode],
    finished_nodes: set[str],
) -> Iterator[DrawnWire]:
    """Yield the wires from bodies back to their loops, on all ways from `root_id`.

    `depths` has the nodes on the current way by their places in it, `bodies` the places of the loops whose
    bodies the way is in.
    """
    depths: dict[str, int] = {root_id: 0}
    bodies: list[int] = []
    iterators = [iter(ways.get(root_id, ()))]
    while iterators:
        wire = next(iterators[-1], None)
        if wire is None:
            iterators.pop()
            name, depth = depths.popitem()
            finished_nodes.add(name)
        else:
            depth = depths[wire.source]
        if bodies and bodies[-1] == depth:
            bodies.pop()
        if wire is None:
            continue
        if wire.out == "loop" and nodes[wire.source].type in LOOPS:
            bodies.append(depth)
        if wire.target in depths:
            if bodies and bodies[-1] >= depths[wire.target]:
                yield wire
        elif wire.target not in finished_nodes:
            depths[wire.target] = len(depths)
            iterators.append(iter(ways.get(wire.target, ())))
