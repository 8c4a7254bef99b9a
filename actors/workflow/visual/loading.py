"""Loading flows of either kind: flow documents, and VisualFlow JSON; their content distinguishes them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from actors.workflow.documents.compiling import compile_document
from actors.workflow.documents.findings import FlowError, FlowFinding
from actors.workflow.documents.reading import document_of, name_of, read_data
from actors.workflow.machine.spec import WorkflowSpec
from actors.workflow.visual.compiling import compile_drawing
from actors.workflow.visual.drawing import DrawingFindings
from actors.workflow.visual.lowering import AGENT, named_agent
from actors.workflow.visual.nodes.effects import subflow_name
from actors.workflow.visual.reading import is_visualflow, one_by_one, plain_flow, read_drawing

FlowSource = str | Path | bytes | Mapping[str, Any]


def compile_visualflow(
    flow: Any, *, file: str | None = None, sequential: bool = False
) -> WorkflowSpec:
    """Return the graph of a VisualFlow.

    Args:
        flow: Its JSON data, or an object with `model_dump` that returns them.
        file: Its name in findings; None: ``flow``.
        sequential: Branches of ``parallel`` are executed one after the other, in the order of their pins, also
            if the flow does not say so by ``"sequential": true``.

    Raises:
        FlowError: All mistakes of the flow.
    """
    data = plain_flow(flow)
    return compile_drawing(one_by_one(data) if sequential else data, file or "flow")[0]


def compile_visualflow_tree(
    root_id: str | None, flows_by_id: Mapping[str, Any], *, sequential: bool = False
) -> dict[str, WorkflowSpec]:
    """Return the graphs of a flow and of all that it refers to, by their names; a circle is no mistake.

    Args:
        root_id: The flow to begin with; None: the first one.
        flows_by_id: The flows; references to others are left to the runtime of the graphs.
        sequential: Of all of them. See `compile_visualflow`.

    Raises:
        FlowError: All mistakes of the first flow that has some, or there is no flow `root_id`.
    """
    flows = {name: plain_flow(one) for name, one in flows_by_id.items()}
    if sequential:
        flows = {name: one_by_one(one) for name, one in flows.items()}
    root = root_id or next(iter(flows), "")
    if root not in flows:
        known = ", ".join(flows) or "none"
        problem = f"there is no flow {root!r}"
        raise FlowError((FlowFinding("flows", "", problem, f"There are: {known}"),))
    specs: dict[str, WorkflowSpec] = {}
    left, seen = [root], {root}
    while left:
        name = left.pop(0)
        spec, _ = compile_drawing(flows[name], name)
        specs[spec.workflow_id] = spec
        new = [one for one in subflows_of(flows[name]) if one in flows and one not in seen]
        seen |= {*new}
        left += dict.fromkeys(new)
    return specs


def subflows_of(flow: Any) -> list[str]:
    """Return the flows that a VisualFlow refers to, also as agents, each once."""
    drawing = read_drawing(flow, DrawingFindings(""))
    nodes = [named_agent(one, drawing.id) for one in drawing.nodes.values()]
    found = (subflow_name(one) for one in nodes if one.type in {"subflow", AGENT})
    return list(dict.fromkeys(one for one in found if one is not None))


def load_flow(source: FlowSource, *, file: str | None = None) -> WorkflowSpec:
    """Return the graph of a flow document or of a VisualFlow.

    Args:
        source: The path of a file, or the flow: bytes (JSON), or JSON data.
        file: Its name in findings; None: the path, or ``flow``.

    Raises:
        FlowError: All mistakes of the flow.
        OSError: The file cannot be read.
    """
    return _compiled(source, file)[0]


def check_flow(source: FlowSource, *, file: str | None = None) -> list[FlowFinding]:
    """Return all mistakes and warnings of a flow document or of a VisualFlow.

    Raises:
        OSError: The file cannot be read.
    """
    try:
        return _compiled(source, file)[1]
    except FlowError as exc:
        return [*exc.findings]


def _compiled(source: FlowSource, file: str | None) -> tuple[WorkflowSpec, list[FlowFinding]]:
    name = file or name_of(source)
    data = read_data(source, name)
    if is_visualflow(data):
        return compile_drawing(data, name)
    return compile_document(document_of(data, name), name)
