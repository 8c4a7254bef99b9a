"""A report on a VisualFlow of another program: the types that it uses, and which are not supported."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from actors._kernel.workflow.effects import EffectType
from actors._workflow.documents.findings import FlowError, FlowFinding
from actors._workflow.documents.reading import name_of, read_data
from actors._workflow.visual.checks import TYPES
from actors._workflow.visual.compiling import compile_drawing
from actors._workflow.visual.drawing import DrawingFindings, DrawnNode, is_visualflow, read_drawing
from actors._workflow.visual.nodes.effects import EFFECTS

_PASSES: Final = frozenset({"reroute", "function"})
"""Types that a pass of the compiler replaces by others."""
KNOWN: Final = TYPES | _PASSES
"""The types of nodes that are executed here."""
_HANDLERS: Final = "handlers"
_NEEDS: Final = {
    **dict.fromkeys((EffectType.LLM_CALL, EffectType.TOOL_CALLS), _HANDLERS),
    **{effect: _HANDLERS for effect in EffectType if effect.startswith("memory_kg_")},
    **dict.fromkeys(
        (EffectType.MEMORY_NOTE, EffectType.MEMORY_QUERY, EffectType.MEMORY_REHYDRATE),
        "artifact_store",
    ),
    EffectType.MEMORY_COMPACT: "artifact_store, chat_summarizer",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeReport:
    """A node of the report.

    Attributes:
        id: The node's name.
        type: The node's type.
        needs: The handler or stores that the host has to give for the node; empty if none.
        findings: The findings about the node and the edges from it.
        is_known: False for a node of an unknown type in a flow that as a whole cannot be executed.
    """

    id: str
    type: str
    needs: str = ""
    findings: list[FlowFinding] = field(default_factory=list)
    is_known: bool = True

    @property
    def is_supported(self) -> bool:
        """True unless a finding refuses the node, or nothing here executes it."""
        return self.is_known and all(f.level == "warning" for f in self.findings)


@dataclass(frozen=True, slots=True, kw_only=True)
class FlowReport:
    """The report on a flow.

    Attributes:
        file: The flow's name.
        nodes: The nodes, in the order of the document.
        others: The findings about the flow as a whole.
    """

    file: str
    nodes: list[NodeReport]
    others: list[FlowFinding]

    @property
    def is_supported(self) -> bool:
        """True if the flow can be executed here."""
        is_right = all(f.level == "warning" for f in self.others)
        return is_right and all(n.is_supported for n in self.nodes)

    @property
    def types(self) -> dict[str, int]:
        """The number of nodes by type."""
        return dict(sorted(Counter(n.type for n in self.nodes).items()))

    def to_dict(self) -> dict[str, Any]:
        """Return the report as JSON data."""
        nodes = [
            {
                "id": node.id,
                "type": node.type,
                "supported": node.is_supported,
                "needs": node.needs,
                "findings": [f.to_dict() for f in node.findings],
            }
            for node in self.nodes
        ]
        return {
            "file": self.file,
            "supported": self.is_supported,
            "types": self.types,
            "nodes": nodes,
            "findings": [finding.to_dict() for finding in self.others],
        }


def report_flow(source: str | Path | bytes | Mapping[str, Any]) -> FlowReport:
    """Return a report on the nodes of a VisualFlow and on those that are not supported.

    Raises:
        FlowError: The source is not a VisualFlow.
        OSError: The file cannot be read.
    """
    file = name_of(source)
    data = read_data(source, file)
    if not is_visualflow(data):
        problem = "it is no VisualFlow: its nodes are no list"
        raise FlowError((FlowFinding(file, "/nodes", problem, "Use callboard flows check"),))
    drawn_nodes = list(read_drawing(data, DrawingFindings(file)).nodes.values())
    nodes = [
        NodeReport(id=node.id, type=node.type, needs=_needs(node), is_known=node.type in KNOWN)
        for node in drawn_nodes
    ]
    nodes_by_index = {d.index: node for d, node in zip(drawn_nodes, nodes, strict=True)}
    nodes_by_id = {node.id: node for node in nodes}
    others: list[FlowFinding] = []
    try:
        findings = compile_drawing(data, file)[1]
    except FlowError as exc:
        findings = [*exc.findings]
    for finding in findings:
        node = _node_at(finding.pointer, data, nodes_by_index, nodes_by_id)
        (others if node is None else node.findings).append(finding)
    if all(finding.level == "warning" for finding in others):
        nodes = [replace(node, is_known=True) for node in nodes]  # the unknown ones are decoration
    return FlowReport(file=file, nodes=nodes, others=others)


def _needs(node: DrawnNode) -> str:
    effect = EFFECTS.get(node.type)
    need = "" if effect is None else _NEEDS.get(effect[0], "")
    is_handler = need == _HANDLERS and effect is not None
    return f"a handler of {effect[0].name}" if effect is not None and is_handler else need


def _node_at(
    pointer: str,
    data: Mapping[str, Any],
    nodes_by_index: Mapping[int | None, NodeReport],
    nodes_by_id: Mapping[str, NodeReport],
) -> NodeReport | None:
    """Return the node at a JSON pointer, or None. The node of an edge is its source."""
    steps = pointer.split("/")[1:3]
    if len(steps) < 2 or not steps[1].isdigit():  # noqa: PLR2004 - the name of a list and an index in it
        return None
    index = int(steps[1])
    if steps[0] == "nodes":
        return nodes_by_index.get(index)
    if steps[0] != "edges":
        return None
    edge = data["edges"][index]
    source = edge.get("source") if isinstance(edge, dict) else None
    return nodes_by_id.get(source) if isinstance(source, str) else None
