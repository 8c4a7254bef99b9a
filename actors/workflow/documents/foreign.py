"""Recognition of workflow files of other systems, which are read by none of our formats."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

_DRAW: Final = "Write it as a flow document; docs/graphs/coming-from.md compares the words"
_AGENT: Final = "Write it as a flow document or an agent; docs/graphs/documents.md has the format"


def foreign_system(data: Any) -> tuple[str, str] | None:
    """Return the system whose workflow this JSON data is, and the remedy; None: no system is recognised."""
    if isinstance(data, list):
        is_red = bool(data) and all(isinstance(node, dict) and "wires" in node for node in data[:3])
        return ("Node-RED", _AGENT) if is_red else None
    if not isinstance(data, Mapping) or "flow" in data:  # a flow document names its format
        return None
    return next(((name, remedy) for name, is_its, remedy in _SYSTEMS if is_its(data)), None)


def _is_langflow(data: Mapping[str, Any]) -> bool:
    inner = data.get("data")
    if isinstance(inner, Mapping) and isinstance(inner.get("nodes"), list):
        return "edges" in inner
    return _first_node(data).get("type") == "genericNode"


def _is_flowise(data: Mapping[str, Any]) -> bool:
    return _first_node(data).get("type") == "customNode"


def _is_n8n(data: Mapping[str, Any]) -> bool:
    kind = _first_node(data).get("type")
    is_its = isinstance(kind, str) and ("n8n-nodes" in kind or "typeVersion" in _first_node(data))
    return is_its or (
        isinstance(data.get("nodes"), list) and isinstance(data.get("connections"), Mapping)
    )


def _is_conductor(data: Mapping[str, Any]) -> bool:
    tasks = data.get("tasks")
    first = tasks[0] if isinstance(tasks, list) and tasks else None
    return isinstance(first, Mapping) and "taskReferenceName" in first


def _is_serverless(data: Mapping[str, Any]) -> bool:
    document = data.get("document")
    is_current = isinstance(document, Mapping) and "dsl" in document
    return is_current or ("states" in data and "specVersion" in data)


def _is_dify(data: Mapping[str, Any]) -> bool:
    return isinstance(data.get("workflow"), Mapping) and "graph" in data["workflow"]


def _is_states_language(data: Mapping[str, Any]) -> bool:
    return "StartAt" in data and isinstance(data.get("States"), Mapping)


def _is_comfy(data: Mapping[str, Any]) -> bool:
    values = list(data.values())[:3]
    return bool(values) and all(
        isinstance(node, Mapping) and "class_type" in node for node in values
    )


def _first_node(data: Mapping[str, Any]) -> Mapping[str, Any]:
    nodes = data.get("nodes")
    first = nodes[0] if isinstance(nodes, list) and nodes else None
    return first if isinstance(first, Mapping) else {}


_SYSTEMS: Final[tuple[tuple[str, Callable[[Mapping[str, Any]], bool], str], ...]] = (
    ("LangFlow", _is_langflow, _AGENT),
    ("Flowise", _is_flowise, _AGENT),
    ("n8n", _is_n8n, _AGENT),
    ("Conductor", _is_conductor, _DRAW),
    ("Serverless Workflow", _is_serverless, _DRAW),
    ("Dify", _is_dify, _AGENT),
    ("Amazon States Language", _is_states_language, _DRAW),
    ("ComfyUI", _is_comfy, _AGENT),
)
"""Systems by name, each with the test of its files and the remedy."""
