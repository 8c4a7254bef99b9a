"""The outputs of nodes that ask the host for an effect, from the effect's result."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, Final

from actors._workflow.visual.drawing import DrawnNode
from actors._workflow.visual.visits import Outputs

OutputsOf = Callable[[DrawnNode, Any], Outputs]


def _outputs_by_name(pin: str) -> OutputsOf:
    """Return a function whose outputs are the names of the result.

    A result that is not an object is at `pin`.
    """

    def outputs(_node: DrawnNode, raw: Any) -> Outputs:
        fields = raw if isinstance(raw, dict) else {pin: raw}
        return {"result": raw, "raw": raw, **fields}

    return outputs


def _part(raw: Any, name: str) -> Any:
    return raw.get(name) if isinstance(raw, dict) else None


def _on_schedule(node: DrawnNode, raw: Any) -> Outputs:
    recurrent = node.part("eventConfig").get("recurrent")
    timestamp = _part(raw, "waited_until") if isinstance(raw, dict) else raw
    return {"timestamp": timestamp, "recurrent": recurrent is not False, "raw": raw}


def _agent(_node: DrawnNode, raw: Any) -> Outputs:
    child = _part(raw, "output")
    names = ("response", "answer", "result")
    answers = (_part(child, name) for name in names)
    response = child if isinstance(child, str) else next(filter(None, answers), "")
    meta = {name: _part(child, name) for name in ("provider", "model", "iterations")}
    return {
        "response": response if isinstance(response, str) else json.dumps(response),
        "result": child,
        "success": _part(child, "success") is not False,
        "data": _part(child, "data"),
        "meta": {name: value for name, value in meta.items() if value is not None}
        | {"sub_run_id": _part(raw, "sub_run_id")},
        "raw": raw,
    }


def _llm_call(_node: DrawnNode, raw: Any) -> Outputs:
    data, calls = _part(raw, "data"), _part(raw, "tool_calls")
    content = _part(raw, "content") if isinstance(raw, dict) else raw
    response = content
    if isinstance(data, dict | list):
        response = json.dumps(data, ensure_ascii=False, separators=(",", ":"))
    names = ("provider", "model", "finish_reason", "usage", "gen_time")
    return {
        "response": "" if response is None else str(response),
        "data": data,
        "tool_calls": calls if isinstance(calls, list) else [],
        "success": True,
        "meta": {name: raw[name] for name in names if _part(raw, name) is not None},
        "result": raw,
        "raw": raw,
    }


def _results(raw: Any) -> list[Any]:
    results = _part(raw, "results")
    return results if isinstance(results, list) else []


def _was_executed(raw: Any) -> bool:
    return _part(raw, "mode") in {None, "", "executed"}


def _tool_calls(_node: DrawnNode, raw: Any) -> Outputs:
    results = _results(raw)
    is_right = all(_part(row, "success") is True for row in results)
    return {"results": results, "success": is_right and _was_executed(raw), "raw": raw}


def _call_tool(_node: DrawnNode, raw: Any) -> Outputs:
    first = next(iter(_results(raw)), None)
    if not _was_executed(raw):
        result: Any = f"the tool was not executed ({_part(raw, 'mode')})"
    elif _part(first, "success") is True:
        return {"result": _part(first, "output"), "success": True, "raw": raw}
    else:
        result = _part(first, "error") or "the tool gave no result"
    return {"result": result, "success": False, "raw": raw}


def _subflow(node: DrawnNode, raw: Any) -> Outputs:
    child = _part(raw, "output") if isinstance(raw, dict) else raw
    output = child["result"] if isinstance(child, dict) and "result" in child else child
    pins = [pin for pin in node.pins("outputs") if pin not in {"output", "child_output"}]
    if isinstance(output, dict):
        values = {pin: output.get(pin) for pin in pins}
    else:
        values = {pins[0]: output} if len(pins) == 1 else {}
    return {
        **values,
        "sub_run_id": _part(raw, "sub_run_id"),
        "output": output,
        "child_output": child,
    }


def _memory(pin: str) -> OutputsOf:
    """Return a function for a memory note: its id at `pin`, and the output of the handler's first result."""

    def outputs(_node: DrawnNode, raw: Any) -> Outputs:
        first = next(iter(_results(raw)), None)
        meta = _part(first, "meta")
        ids = ("span_id", "note_id", "artifact_id")
        values = (_part(part, name) for part in (raw, meta) for name in ids)
        return {
            pin: next(filter(None, values), None),
            "rendered": _part(first, "output") or "",
            "raw": raw,
        }

    return outputs


def _query(_node: DrawnNode, raw: Any) -> Outputs:
    first = next(iter(_results(raw)), None)
    meta = _part(first, "meta")
    return {
        "rendered": _part(first, "output") or "",
        "results": _part(meta, "matches") or [],
        "span_ids": _part(meta, "span_ids") or [],
        "raw": raw,
    }


def _tag(_node: DrawnNode, raw: Any) -> Outputs:
    first = next(iter(_results(raw)), None)
    return {
        "rendered": _part(first, "output") or "",
        "success": _part(first, "success") is True,
        "results": _results(raw),
        "raw": raw,
    }


RESULTS: Final[dict[str, OutputsOf]] = {
    "ask_user": lambda _node, raw: (
        {**raw, "raw": raw} if isinstance(raw, dict) else {"response": raw, "raw": raw}
    ),
    "answer_user": _outputs_by_name("message"),
    "wait_until": _outputs_by_name("result"),
    "delay": _outputs_by_name("result"),
    "wait_event": lambda _node, raw: {
        "event_data": raw,
        "raw": raw,
        "timed_out": _part(raw, "timed_out") is True,
    },
    "on_event": lambda _node, raw: {
        "event": raw,
        **{name: _part(raw, name) for name in ("payload", "event_id", "name")},
    },
    "on_schedule": _on_schedule,
    "emit_event": _outputs_by_name("result"),
    "agent": _agent,
    "subflow": _subflow,
    "llm_call": _llm_call,
    "tool_calls": _tool_calls,
    "call_tool": _call_tool,
    "memory_note": _memory("note_id"),
    "memory_query": _query,
    "memory_tag": _tag,
    "memory_compact": _memory("span_id"),
    "memory_rehydrate": _outputs_by_name("result"),
    "memory_kg_assert": _outputs_by_name("assertion_ids"),
    "memory_kg_query": _outputs_by_name("items"),
    "memory_kg_resolve": _outputs_by_name("candidates"),
}
"""By type: the function that makes the node's outputs of the result of its effect."""
