"""Nodes that read and write files: calls of the host's tools ``read_file`` and ``write_file``.

A node is two nodes of the graph: the first one asks for the call, the second one looks at its result. A call
that failed fails the run there.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

from actors.kernel.workflow.effects import Effect, EffectType, StepPlan
from actors.workflow.visual.drawing import DrawnNode
from actors.workflow.visual.flow_state import result_key_of
from actors.workflow.visual.nodes.texts import text_of
from actors.workflow.visual.reading import RETURN_MARK
from actors.workflow.visual.visits import Outputs, Visit, VisualNodeError

READ: Final = "read_file"
WRITE: Final = "write_file"
FILES: Final = frozenset({READ, WRITE})
_JSON: Final = ".json"


def call_of_file(node: DrawnNode, given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the payload of the call of a node's tool."""
    arguments = {"path": _path(given)}
    if node.type == WRITE:
        arguments["content"] = _written(arguments["path"], given.get("content"))
    return {"tool_calls": [{"name": node.type, "arguments": arguments}]}


def _path(given: Mapping[str, Any]) -> str:
    path = text_of(given.get("file_path")).strip()
    if not path:
        raise VisualNodeError("it needs a file_path")
    return path


def _written(path: str, content: Any) -> str:
    """Return the text of a file; that of ``.json`` is JSON with an end of line."""
    is_json = path.lower().endswith(_JSON)
    if is_json and isinstance(content, str):
        content = _parsed(path, content)
    if is_json or isinstance(content, dict | list):
        return json.dumps(content, ensure_ascii=False, indent=2) + "\n" * is_json
    return text_of(content)


def _parsed(path: str, text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as exc:
        raise VisualNodeError(f"{path} is no JSON: {exc}") from None


def begin_file(visit: Visit) -> StepPlan:
    """Ask for the call."""
    node = visit.node.drawn
    effect = Effect(
        EffectType.TOOL_CALLS, call_of_file(node, visit.inputs()), result_key_of(node.id)
    )
    return StepPlan(visit.run.current_node, effect=effect, next_node=node.id + RETURN_MARK)


def end_file(visit: Visit) -> StepPlan:
    """Go on with what the call gave.

    Raises:
        VisualNodeError: It failed, or the tool did not give all of the file.
    """
    node, path = visit.node.drawn, _path(visit.inputs())
    raw = visit.state.result(node.id)
    results = raw.get("results") if isinstance(raw, dict) else None
    first = results[0] if isinstance(results, list) and results else None
    row: dict[str, Any] = first if isinstance(first, dict) else {}
    if row.get("success") is not True:
        raise VisualNodeError(f"{path}: {row.get('error') or 'the tool gave no result'}")
    outputs = _read(path, row.get("output")) if node.type == READ else _size(row.get("output"))
    outputs |= {"file_path": path}
    visit.keep(outputs)
    return visit.plan(result=outputs)


def _read(path: str, output: Any) -> Outputs:
    """Return the content of a file: data, if it is JSON."""
    told = output if isinstance(output, dict) else {"text": output}
    if told.get("next_offset") is not None:
        size = told.get("size_bytes")
        problem = f"{path} has {size} bytes, more than one call of the tool gives"
        raise VisualNodeError(f"{problem}: read its parts by call_tool")
    text = text_of(told.get("text", told.get("content")))
    if path.lower().endswith(_JSON):
        return {"content": _parsed(path, text)}
    if text.lstrip()[:1] in {"{", "["}:
        try:
            return {"content": json.loads(text)}
        except (ValueError, RecursionError):
            pass
    return {"content": text}


def _size(output: Any) -> Outputs:
    return {"bytes": output.get("size_bytes") if isinstance(output, dict) else None}
