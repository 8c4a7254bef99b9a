"""A drawing: the nodes and wires of a VisualFlow, read from its JSON and changed by the compiler's passes."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from actors._workflow.documents.document import MOST_NODES
from actors._workflow.documents.findings import FindingList

INTO_CONTROL: Final = "exec-in"
OUT_OF_CONTROL: Final = "exec-out"


@dataclass(frozen=True, slots=True)
class DrawnNode:
    """A node.

    Attributes:
        id: The node's name in the drawing.
        type: The node's type, for example ``ask_user``.
        data: The node's data in the editor's JSON.
        index: The node's number in the list of nodes, or None if a pass of the compiler added it.
    """

    id: str
    type: str
    data: Mapping[str, Any]
    index: int | None = None

    def pins(self, side: str) -> list[str]:
        """Return the names of the data pins of a side, in their order.

        The side is ``inputs`` or ``outputs``.
        """
        return [name for name, kind in _pins_of(self.data, side) if kind != "execution"]

    def control_pins(self, side: str) -> frozenset[str]:
        """Return the pins of a side that the node declares as pins of execution."""
        return frozenset(name for name, kind in _pins_of(self.data, side) if kind == "execution")

    def part(self, name: str) -> dict[str, Any]:
        """Return an object in the data; empty if it is missing or is not an object."""
        value = self.data.get(name)
        return dict(value) if isinstance(value, dict) else {}


def _pins_of(data: Mapping[str, Any], side: str) -> list[tuple[str, str]]:
    pins = data.get(side)
    return [
        (p["id"], str(p.get("type") or ""))
        for p in (pins if isinstance(pins, list) else ())
        if isinstance(p, dict) and isinstance(p.get("id"), str) and p["id"]
    ]


@dataclass(frozen=True, slots=True)
class DrawnWire:
    """A wire from an output pin to an input pin.

    Attributes:
        source: The node that it comes from.
        out: The output pin of the source.
        target: The node that it leads to.
        into: The input pin of the target.
        is_control: True if the wire carries execution, False if it carries data.
        index: The wire's number in the list of edges, or None if a pass of the compiler added it.
        limit: The editor's limit of how often execution may take the wire, or None.
        route: The wire's number among the ways into `target`, if values of pins there depend on it.
    """

    source: str
    out: str
    target: str
    into: str
    is_control: bool
    index: int | None = None
    limit: Any = None
    route: int | None = None


@dataclass(frozen=True, slots=True)
class Drawing:
    """A drawn flow.

    Attributes:
        id: The name of the flow.
        nodes: The nodes by id, in the order of the document.
        wires: The wires, in the order of the document.
        entry: The entry node that the flow names, or None if it names none.
    """

    id: str
    nodes: Mapping[str, DrawnNode]
    wires: tuple[DrawnWire, ...]
    entry: str | None = None


class DrawingFindings(FindingList):
    """The findings of a drawing so far."""

    def at_node(self, node: DrawnNode, problem: str, remedy: str, *path: str | int) -> None:
        """Add a mistake in a node."""
        position = () if node.index is None else ("nodes", node.index)
        self.add(f"node {node.id!r}: {problem}", remedy, *position, *path)

    def at_wire(self, wire: DrawnWire, problem: str, remedy: str) -> None:
        """Add a mistake of a wire."""
        position = () if wire.index is None else ("edges", wire.index)
        name = f"{wire.source}.{wire.out} -> {wire.target}.{wire.into}"
        self.add(f"edge {name}: {problem}", remedy, *position)


RETURN_MARK: Final = "~"
"""Suffix of a graph's node that continues a loop, a sequence or branches; see `control`."""
SEQUENTIAL: Final = "sequential"
"""Name in a flow. If its value is true, branches of `parallel` nodes are executed one after the other."""
_UNFIT: Final = re.compile("[\\x00-\\x1f\\ud800-\\udfff]")
_IDS: Final = ("id", "flow_id", "workflow_id")
_ENDS: Final = ("source", "sourceHandle", "target", "targetHandle")


def is_visualflow(data: Any) -> bool:
    """Return True for the JSON data of a VisualFlow, whose nodes are a list.

    A flow document's nodes are an object.
    """
    return isinstance(data, Mapping) and isinstance(data.get("nodes"), list)


def plain_flow(flow: Any) -> Any:
    """Return a flow as JSON data. An object with `model_dump`, such as a pydantic model, is dumped."""
    dump = getattr(flow, "model_dump", None)
    if not callable(dump):
        return flow
    try:
        return dump(mode="json")
    except TypeError:
        return dump()


def one_by_one(flow: Any) -> Any:
    """Return a VisualFlow whose parallel branches are executed one after the other; all else as it is."""
    return {**flow, SEQUENTIAL: True} if is_visualflow(flow) else flow


def read_drawing(data: Any, findings: DrawingFindings) -> Drawing:
    """Return the drawing of a flow. Parts that cannot be read are left out and added to `findings`."""
    if not isinstance(data, Mapping):
        problem = f"it is a {type(data).__name__}, not an object"
        findings.add(problem, "Give the JSON of a VisualFlow")
        return Drawing("", {}, ())
    name = next((text for key in _IDS if (text := _text(data.get(key)))), "")
    if not name or _UNFIT.search(name):
        problem = "its id has characters that cannot be kept" if name else "it has no id"
        findings.add(problem, "Give it a name", "id")
    nodes = _nodes(data.get("nodes"), findings)
    wires = _wires(data.get("edges"), nodes, findings)
    return Drawing(name, nodes, wires, _text(data.get("entryNode")) or None)


def _text(value: Any) -> str:
    return value.strip() if isinstance(value, str) else ""


def _nodes(raw: Any, findings: DrawingFindings) -> dict[str, DrawnNode]:
    nodes: dict[str, DrawnNode] = {}
    if not isinstance(raw, list):
        findings.add("nodes is no list", "Give a list of nodes", "nodes")
        return nodes
    if len(raw) > MOST_NODES:
        problem = f"it has {len(raw)} nodes, more than {MOST_NODES}"
        findings.add(problem, "Divide it into flows, and call them as subflow nodes", "nodes")
        return nodes
    for index, item in enumerate(raw):
        node = _node(item, index, findings)
        if node is not None and node.id in nodes:
            findings.add(f"node {node.id!r} is there twice", "Rename one", "nodes", index, "id")
        elif node is not None:
            nodes[node.id] = node
    return nodes


def _node(raw: Any, index: int, findings: DrawingFindings) -> DrawnNode | None:
    if not isinstance(raw, dict):
        findings.add("a node is no object", 'Write {"id": …, "type": …}', "nodes", index)
        return None
    name, kind = _text(raw.get("id")), raw.get("type")
    if isinstance(kind, dict):
        kind = kind.get("value")
    kind = _text(kind)
    if kind.startswith("NodeType."):
        kind = kind.removeprefix("NodeType.").lower()
    if not name or name.endswith(RETURN_MARK) or _UNFIT.search(name):
        remedy = f"Give it a name that does not end with {RETURN_MARK}, without control characters"
        findings.add(f"a node has the id {raw.get('id')!r}", remedy, "nodes", index, "id")
        return None
    if not kind:
        findings.add(f"node {name!r} has no type", "Give it one", "nodes", index, "type")
    data = raw.get("data") or {}
    if not isinstance(data, dict):
        findings.add(f"data of node {name!r} is no object", "Correct it", "nodes", index, "data")
        data = {}
    return DrawnNode(name, kind, data, index)


def _wires(
    raw: Any, nodes: Mapping[str, DrawnNode], findings: DrawingFindings
) -> tuple[DrawnWire, ...]:
    if raw is not None and not isinstance(raw, list):
        findings.add("edges is no list", "Give a list of edges", "edges")
        return ()
    wires = []
    pins = _ControlPins(nodes)
    for index, item in enumerate(raw or ()):
        wire = _wire(item, index, pins, findings)
        if wire is not None:
            wires.append(wire)
    return tuple(wires)


class _ControlPins:
    """The pins of execution that nodes declare. The declarations of a node are read once, not for each edge."""

    def __init__(self, nodes: Mapping[str, DrawnNode]) -> None:
        self.nodes = nodes
        self._pins: dict[tuple[str, str], frozenset[str]] = {}

    def has(self, node_id: str, side: str, pin: str) -> bool:
        """Return True if the node declares this pin as a pin of execution."""
        if (node_id, side) not in self._pins:
            self._pins[node_id, side] = self.nodes[node_id].control_pins(side)
        return pin in self._pins[node_id, side]


def _wire(raw: Any, index: int, pins: _ControlPins, findings: DrawingFindings) -> DrawnWire | None:
    nodes = pins.nodes
    ends = [_text(raw.get(key)) for key in _ENDS] if isinstance(raw, dict) else [""]
    if not all(ends):
        problem = f"an edge has no {_ENDS[ends.index('')]}"
        findings.add(problem, f"Give it {', '.join(_ENDS)}", "edges", index)
        return None
    source, out, target, into = ends
    for name, end in ((source, "source"), (target, "target")):
        if name not in nodes:
            problem = f"there is no node {name!r}"
            findings.add(problem, "Remove the edge, or add the node", "edges", index, end)
    if source not in nodes or target not in nodes:
        return None
    is_control = into == INTO_CONTROL or pins.has(target, "inputs", into)
    data = raw.get("data")
    limit = data.get("loopLimit") if isinstance(data, dict) else None
    wire = DrawnWire(source, out, target, into, is_control, index, limit)
    if pins.has(source, "outputs", out) and not is_control:
        problem = "it leads from a pin of execution to one of data"
        findings.at_wire(wire, problem, "Connect pins of one kind")
    return wire
