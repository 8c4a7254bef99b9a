"""The JSON Schema of the vars that a flow begins with: the vars that it reads and never writes."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

from actors.workflow.visual.drawing import DrawingFindings
from actors.workflow.visual.reading import is_visualflow, read_drawing

_READ: Final = re.compile(r"\bvars(?:\.([A-Za-z]\w*)|\[\\?[\"']([^\"'\\_][^\"'\\]*)\\?[\"']\])")
_TYPES: Final[Mapping[str, str]] = {
    **dict.fromkeys(("string", "number", "boolean", "object", "array"), ""),
    "text": "string",
    "list": "array",
}
"""JSON Schema type for each type of pin. Empty: the type has the same name."""


def input_schema(flow: Any) -> dict[str, Any]:
    """Return the JSON Schema of the vars that a flow begins with. No var is required.

    The vars of a VisualFlow are the pins of its start node. The vars of a flow document are found by a search
    of its text for ``vars.<name>``. Names that code computes are not found, so other names are allowed.
    """
    found = _pins(flow) if is_visualflow(flow) else _read(flow)
    return {"type": "object", "properties": dict(sorted(found)), "additionalProperties": True}


def _pins(flow: Any) -> Iterator[tuple[str, dict[str, Any]]]:
    for node in read_drawing(flow, DrawingFindings("")).nodes.values():
        if node.type != "on_flow_start":
            continue
        outputs = node.data.get("outputs")
        told = {
            str(one.get("id")): one
            for one in (outputs if isinstance(outputs, list) else ())
            if isinstance(one, dict)
        }
        for name in node.pins("outputs"):
            kind = str(told.get(name, {}).get("type"))
            yield name, {"type": _TYPES[kind] or kind} if kind in _TYPES else {}


def _read(flow: Any) -> Iterator[tuple[str, dict[str, Any]]]:
    text = json.dumps(flow, ensure_ascii=False)
    read = {first or second for first, second in _READ.findall(text)}
    for name in read - {*_written(flow)}:
        yield name, {}


def _written(data: Any) -> Iterator[str]:
    """Yield the names of the vars that nodes write."""
    if isinstance(data, list):
        for one in data:
            yield from _written(one)
    if not isinstance(data, dict):
        return
    for key, value in data.items():
        if key in {"into", "as"} and isinstance(value, str):
            yield value.partition(".")[0]
        elif key == "set" and isinstance(value, dict):
            yield from (name.partition(".")[0] for name in value)
        yield from _written(value)
