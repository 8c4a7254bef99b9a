"""Loading of flow documents and of VisualFlow JSON. The content decides the format."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from actors._workflow.documents.compiling import compile_document
from actors._workflow.documents.findings import MOST_FINDINGS, FlowError, FlowFinding, bounded
from actors._workflow.documents.reading import document_of, name_of, read_data
from actors._workflow.machine.spec import WorkflowSpec
from actors._workflow.visual.compiling import compile_drawing
from actors._workflow.visual.drawing import (
    DrawingFindings,
    is_visualflow,
    one_by_one,
    plain_flow,
    read_drawing,
)
from actors._workflow.visual.nodes.effects import subflow_name
from actors._workflow.visual.passes import AGENT, named_agent

FlowSource = str | Path | bytes | Mapping[str, Any]


def compile_visualflow(
    flow: Any, *, file: str | None = None, sequential: bool = False
) -> WorkflowSpec:
    """Return the graph of a VisualFlow.

    Args:
        flow: The flow's JSON data, or an object whose `model_dump` returns it.
        file: The flow's name in findings; ``flow`` by default.
        sequential: If true, branches of ``parallel`` are executed one after the other, in the order of their
            pins. Otherwise only if the flow has ``"sequential": true``.

    Raises:
        FlowError: The flow has mistakes; the error has all of them.
    """
    data = plain_flow(flow)
    return compile_drawing(one_by_one(data) if sequential else data, file or "flow")[0]


def compile_visualflow_tree(
    root_id: str | None, flows_by_id: Mapping[str, Any], *, sequential: bool = False
) -> dict[str, WorkflowSpec]:
    """Return the graphs of a flow and of all flows that it refers to, by name. References may form a cycle.

    Args:
        root_id: The id of the root flow; None for the first flow.
        flows_by_id: The flows by id. References to other flows are resolved by the runtime that executes the
            graphs.
        sequential: As for `compile_visualflow`, for all of the flows.

    Raises:
        FlowError: A flow has mistakes; the error has all of the first such flow. Or there is no flow `root_id`.
    """
    flows = {name: plain_flow(flow) for name, flow in flows_by_id.items()}
    if sequential:
        flows = {name: one_by_one(flow) for name, flow in flows.items()}
    root = root_id or next(iter(flows), "")
    if root not in flows:
        ids = ", ".join(flows) or "none"
        problem = f"there is no flow {root!r}"
        raise FlowError((FlowFinding("flows", "", problem, f"There are: {ids}"),))
    specs: dict[str, WorkflowSpec] = {}
    pending_ids, visited_ids = [root], {root}
    while pending_ids:
        name = pending_ids.pop(0)
        spec, _ = compile_drawing(flows[name], name)
        specs[spec.workflow_id] = spec
        new_ids = [
            flow for flow in subflows_of(flows[name]) if flow in flows and flow not in visited_ids
        ]
        visited_ids |= {*new_ids}
        pending_ids += dict.fromkeys(new_ids)
    return specs


def subflows_of(flow: Any) -> list[str]:
    """Return the ids of the flows that a VisualFlow refers to, as sub-flows or agents, each once."""
    drawing = read_drawing(flow, DrawingFindings(""))
    nodes = [named_agent(node, drawing.id) for node in drawing.nodes.values()]
    ids = (subflow_name(node) for node in nodes if node.type in {"subflow", AGENT})
    return list(dict.fromkeys(flow_id for flow_id in ids if flow_id is not None))


def load_flow(source: FlowSource, *, file: str | None = None) -> WorkflowSpec:
    """Return the graph of a flow document or of a VisualFlow.

    Args:
        source: The path of a file, or the flow: bytes (JSON), or JSON data.
        file: The flow's name in findings; by default the path, or ``flow``.

    Raises:
        FlowError: The flow has mistakes; the error has all of them.
        OSError: The file cannot be read.
    """
    name = file or name_of(source)
    return _compile(read_data(source, name), name)[0]


def check_flow(source: FlowSource, *, file: str | None = None) -> list[FlowFinding]:
    """Return all mistakes of a flow document or a VisualFlow. If there are none, return its warnings.

    Raises:
        OSError: The file cannot be read.
    """
    name = file or name_of(source)
    try:
        data = read_data(source, name)
    except FlowError as exc:
        return [*exc.findings]
    try:
        return _compile(data, name)[1]
    except FlowError as exc:
        if len(exc.findings) >= MOST_FINDINGS:
            return [*exc.findings]
        return bounded([*exc.findings, *_findings_of_others(exc.findings, data, name)])


def _findings_of_others(findings: Sequence[FlowFinding], data: Any, file: str) -> list[FlowFinding]:
    """Return the mistakes of a document's other nodes, if its form has mistakes.

    A document is compiled only if its form is right. So the nodes with such a mistake are replaced by ends, and
    the rest is compiled.
    """
    nodes = data.get("nodes") if isinstance(data, dict) else None
    places = [finding.pointer.split("/") for finding in findings]
    wrong = {steps[2] for steps in places if steps[1:2] == ["nodes"] and len(steps) > 2}  # noqa: PLR2004 - "", "nodes", name
    wrong = {step.replace("~1", "/").replace("~0", "~") for step in wrong}
    if is_visualflow(data) or not isinstance(nodes, dict) or not nodes:
        return []
    other_nodes = {name: {"end": None} if name in wrong else node for name, node in nodes.items()}
    start = data.get("start")
    is_start = isinstance(start, str) and not any(
        finding.pointer == "/start" for finding in findings
    )
    document = {
        "flow": 1,
        "id": "flow",
        "start": start if is_start else next(iter(other_nodes)),
        "nodes": other_nodes,
    }
    try:
        compile_document(document_of(document, file), file)
    except FlowError as exc:
        return [new for new in exc.findings if new.level == "error" and new not in findings]
    return []


def _compile(data: Any, name: str) -> tuple[WorkflowSpec, list[FlowFinding]]:
    if is_visualflow(data):
        return compile_drawing(data, name)
    return compile_document(document_of(data, name), name)
