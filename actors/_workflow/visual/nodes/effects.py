"""Nodes that ask the host for an effect, whose payload is made of the values of their pins.

A node that reads or writes a file is two nodes of the graph: the first one asks for a call of the host's tool
``read_file`` or ``write_file``, the second one looks at its result. A call that failed fails the run there.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Mapping
from typing import Any, Final

from actors._kernel.workflow.durable import normalize_utc_iso
from actors._kernel.workflow.effects import Effect, EffectType, StepPlan
from actors._workflow.visual.drawing import RETURN_MARK, DrawnNode
from actors._workflow.visual.flow_state import result_key_of
from actors._workflow.visual.nodes.texts import text_of
from actors._workflow.visual.visits import Outputs, Visit, VisualNodeError

Pins = Mapping[str, Any]
"""The values of a node's pins by name."""
PayloadOf = Callable[[DrawnNode, Pins], dict[str, Any]]

GIVE_CONTEXT: Final = "Give the context at a pin"
READ: Final = "read_file"
WRITE: Final = "write_file"
FILES: Final = frozenset({READ, WRITE})
SUBFLOW_NAMES: Final = ("subflowId", "flowId", "workflowId", "workflow_id")
"""Names in the data of a node ``subflow`` that may have the name of the flow."""
_JSON: Final = ".json"
_UNITS: Final = {"seconds": 1, "minutes": 60, "hours": 3600, "days": 86400}
_INTERVAL: Final = re.compile(r"([0-9]{1,9}(?:\.[0-9]{1,9})?)\s*(ms|s|m|h|d)", re.IGNORECASE)
_SECONDS: Final = {"ms": 0.001, "s": 1, "m": 60, "h": 3600, "d": 86400}
_LEVELS: Final = {"warn": "warning", "warning": "warning", "error": "error"}
_TRUE: Final = {"true", "1", "yes", "on"}
_CONTEXT: Final = ("inherit_context", "inheritContext")
_SESSION: Final = ("child_session_id", "childSessionId", "session_id", "sessionId")


def ask_user(node: DrawnNode, pins: Pins) -> dict[str, Any]:
    """Return the payload of a question."""
    config, choices = node.part("effectConfig"), pins.get("choices")
    allows_free_text = _first(pins.get("allow_free_text"), config.get("allowFreeText"), True)
    return {
        "prompt": text_of(_first(pins.get("prompt"), "Please respond:")),
        "choices": choices if isinstance(choices, list) else [],
        "allow_free_text": bool(allows_free_text),
        **_deadline(pins),
    }


def answer_user(_node: DrawnNode, pins: Pins) -> dict[str, Any]:
    """Return the payload of a message."""
    level = _LEVELS.get(text_of(pins.get("level")).strip().lower(), "message")
    return {"message": text_of(pins.get("message")), "level": level}


def wait_until(node: DrawnNode, pins: Pins) -> dict[str, Any]:
    """Return the payload of a pause. Its length is in the node's unit, or it is an instant."""
    unit, duration = node.part("effectConfig").get("durationType"), pins.get("duration")
    if unit == "timestamp":
        return {"until": text_of(duration)}
    try:
        seconds = float(duration or 0) * _UNITS.get(str(unit), 1)
    except (TypeError, ValueError, OverflowError):
        seconds = math.nan
    if not math.isfinite(seconds):
        raise VisualNodeError(f"duration needs a number, not {duration!r:.60}")
    return {"timeout_s": max(0.0, seconds)}


def wait_event(_node: DrawnNode, pins: Pins) -> dict[str, Any]:
    """Return the payload of a wait for an event by its key."""
    allows_free_text = _first(pins.get("allow_free_text"), pins.get("allowFreeText"), True)
    prompt, choices, details = pins.get("prompt"), pins.get("choices"), pins.get("details")
    return {
        "wait_key": text_of(_first(pins.get("event_key"), pins.get("wait_key"), "default")),
        **({"prompt": prompt} if prompt not in (None, "") else {}),
        **({"choices": choices} if isinstance(choices, list) else {}),
        "allow_free_text": bool(allows_free_text),
        **_deadline(pins),
        **({"details": details} if isinstance(details, dict) and details else {}),
    }


def on_schedule(node: DrawnNode, pins: Pins) -> dict[str, Any]:
    """Return the payload of a wait for the next time of a schedule: an interval, or an instant."""
    config = node.part("eventConfig")
    schedule = text_of(_setting(pins, config, "schedule") or "15s").strip()
    interval = _INTERVAL.fullmatch(schedule)
    if interval is None:
        if normalize_utc_iso(schedule) is None:
            raise VisualNodeError(
                f"its schedule {schedule!r} is neither 30s, 5m, 1h nor an instant"
            )
        return {"until": schedule}
    seconds = float(interval[1]) * _SECONDS[interval[2].lower()]
    if seconds <= 0:
        raise VisualNodeError(f"its schedule {schedule!r} has no length")
    return {"timeout_s": seconds}


def schedule_problem(node: DrawnNode) -> str | None:
    """Return the problem of the schedule in a node's data, or None if it has none."""
    try:
        on_schedule(node, node.part("pinDefaults"))
    except VisualNodeError as exc:
        return str(exc)
    return None


def _event(node: DrawnNode, pins: Pins) -> dict[str, Any]:
    config = node.part("effectConfig") | node.part("eventConfig")
    name = text_of(pins.get("name") or config.get("name") or config.get("event_name")).strip()
    if not name:
        raise VisualNodeError("it needs the name of an event")
    scope = text_of(_first(pins.get("scope"), config.get("scope"), "session")).strip().lower()
    return {"name": name, "scope": scope or "session"}


def emit_event(node: DrawnNode, pins: Pins) -> dict[str, Any]:
    """Return the payload of an event."""
    config = node.part("effectConfig") | node.part("eventConfig")
    value, session = pins.get("payload"), _setting(pins, config, "session_id", "sessionId")
    payload = value if isinstance(value, dict) else {} if value is None else {"value": value}
    address = {"session_id": session} if isinstance(session, str) and session.strip() else {}
    return _event(node, pins) | {"payload": payload} | address


def _calls_in(value: Any, pin: str) -> list[dict[str, Any]]:
    """Return tool calls from a list, from one call, or from either as JSON text."""
    if isinstance(value, str) and value.strip():
        try:
            value = json.loads(value)
        except ValueError as exc:
            raise VisualNodeError(f"pin {pin!r} is no JSON: {exc}") from None
    calls = value if isinstance(value, list) else [] if value in (None, "") else [value]
    if not all(isinstance(call, dict) for call in calls):
        raise VisualNodeError(f"pin {pin!r} needs calls of tools: objects with name and arguments")
    return calls


def _tools(node: DrawnNode, pins: Pins, calls: list[dict[str, Any]]) -> dict[str, Any]:
    allowed_tools = _setting(pins, node.part("effectConfig"), "allowed_tools", "allowedTools")
    return {
        "tool_calls": calls,
        **({"allowed_tools": allowed_tools} if isinstance(allowed_tools, list) else {}),
    }


def tool_calls(node: DrawnNode, pins: Pins) -> dict[str, Any]:
    """Return the payload of tool calls."""
    return _tools(node, pins, _calls_in(pins.get("tool_calls"), "tool_calls"))


def call_tool(node: DrawnNode, pins: Pins) -> dict[str, Any]:
    """Return the payload of one tool call."""
    call = _first(pins.get("tool_call"), pins.get("toolCall"))
    return _tools(node, pins, _calls_in(call, "tool_call")[:1])


def llm_call(node: DrawnNode, pins: Pins) -> dict[str, Any]:
    """Return the payload of a model call. Provider and model are left out if the node names none."""
    config = node.part("effectConfig")
    params = {
        "temperature": _setting(pins, config, "temperature"),
        "seed": _setting(pins, config, "seed"),
        "thinking": _setting(pins, config, "thinking"),
        "max_output_tokens": _setting(
            pins, config, "max_out_tokens", "max_output_tokens", "maxOutputTokens"
        ),
    }
    seed = params["seed"]
    if isinstance(seed, int | float) and seed < 0:
        params["seed"] = None
    options = {
        "system_prompt": _setting(pins, config, "system", "system_prompt"),
        "provider": _setting(pins, config, "provider", "provider_text"),
        "model": _setting(pins, config, "model", "model_text"),
        "tools": _setting(pins, config, "tools"),
        "response_schema": _setting(pins, config, "resp_schema", "response_schema"),
    }
    payload = {name: value for name, value in options.items() if value not in (None, "", [], {})}
    payload["params"] = {name: value for name, value in params.items() if value is not None}
    context = pins.get("context")
    messages = context.get("messages") if isinstance(context, dict) else None
    prompt = text_of(pins.get("prompt"))
    if isinstance(messages, list) and messages:
        return payload | {"messages": [*messages, {"role": "user", "content": prompt}]}
    return payload | {"prompt": prompt}


def subflow(node: DrawnNode, pins: Pins) -> dict[str, Any]:
    """Return the payload of a run of another flow.

    The run's vars are the object at ``vars`` with the pins over it.
    """
    control = {*_CONTEXT, *_SESSION}
    names = [name for name in node.pins("inputs") if name not in control]
    object_vars: Mapping[str, Any] = next(
        (pins[name] for name in ("vars", "input") if isinstance(pins.get(name), dict)), {}
    )
    pin_vars = {name: pins[name] for name in names if name in pins}
    if not names and not object_vars:
        pin_vars = {name: value for name, value in pins.items() if name not in control}
    for name in ("vars", "input"):
        if isinstance(pin_vars.get(name), dict):
            del pin_vars[name]
    session = _first(*(pins.get(name) for name in _SESSION))
    payload = {"workflow_id": subflow_name(node), "vars": {**object_vars, **pin_vars}}
    if _flag(_setting(pins, node.part("effectConfig"), *_CONTEXT)):
        raise VisualNodeError(f"inherit_context is not supported. {GIVE_CONTEXT}")
    return payload | ({"session_id": session} if isinstance(session, str) and session else {})


def inherits_context(node: DrawnNode) -> tuple[str, str] | None:
    """Return the keys in the data of a node ``subflow`` at which it asks for its parent's context, or None."""
    for part in ("pinDefaults", "effectConfig"):
        for name in _CONTEXT:
            if _flag(node.part(part).get(name)):
                return part, name
    return None


def subflow_name(node: DrawnNode) -> str | None:
    """Return the flow that a node ``subflow`` names, or None if it names none."""
    values = (node.data.get(name) for name in SUBFLOW_NAMES)
    return next((flow.strip() for flow in values if isinstance(flow, str) and flow.strip()), None)


def agent(node: DrawnNode, pins: Pins) -> dict[str, Any]:
    """Return the payload of a run of an agent's flow. Its vars are the pins over the node's configuration.

    Prompt and context are in ``context``, too: `task`, `messages` and what the context has.
    """
    names = node.pins("inputs") or [*pins]
    values = node.part("agentConfig") | {name: pins[name] for name in names if name in pins}
    inputs = {
        name: value
        for name, value in values.items()
        if value not in (None, "") and not name.startswith("_")
    }
    context = pins.get("context")
    task = text_of(_first(pins.get("prompt"), pins.get("task")))
    inner: dict[str, Any] = (
        {"messages": []} | (context if isinstance(context, dict) else {}) | {"task": task}
    )
    return {"workflow_id": subflow_name(node), "vars": inputs | {"text": task, "context": inner}}


def call_of_file(node: DrawnNode, pins: Pins) -> dict[str, Any]:
    """Return the payload of the call of a node's tool."""
    arguments = {"path": _path(pins)}
    if node.type == WRITE:
        arguments["content"] = _file_text(arguments["path"], pins.get("content"))
    return {"tool_calls": [{"name": node.type, "arguments": arguments}]}


def _path(pins: Pins) -> str:
    path = text_of(pins.get("file_path")).strip()
    if not path:
        raise VisualNodeError("it needs a file_path")
    return path


def _file_text(path: str, content: Any) -> str:
    """Return the text of a file; that of ``.json`` is JSON with an end of line."""
    is_json = path.lower().endswith(_JSON)
    if is_json and isinstance(content, str):
        content = _parse_json(path, content)
    if is_json or isinstance(content, dict | list):
        return json.dumps(content, ensure_ascii=False, indent=2) + "\n" * is_json
    return text_of(content)


def _parse_json(path: str, text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as exc:
        raise VisualNodeError(f"{path} is no JSON: {exc}") from None


def _plain(**new_names: str) -> PayloadOf:
    """Return a function that makes a payload of the pins. `new_names` has the names that are not the pins'."""

    def payload(node: DrawnNode, pins: Pins) -> dict[str, Any]:
        config = node.part("effectConfig")
        names = [name for name in node.pins("inputs") or pins if name in pins or name in config]
        values = {new_names.get(name, name): _setting(pins, config, name) for name in names}
        return {name: value for name, value in values.items() if value is not None}

    return payload


EFFECTS: Final[dict[str, tuple[EffectType, PayloadOf]]] = {
    "ask_user": (EffectType.ASK_USER, ask_user),
    "answer_user": (EffectType.ANSWER_USER, answer_user),
    "wait_until": (EffectType.WAIT_UNTIL, wait_until),
    "delay": (EffectType.WAIT_UNTIL, wait_until),
    "wait_event": (EffectType.WAIT_EVENT, wait_event),
    "on_event": (EffectType.WAIT_EVENT, _event),
    "on_schedule": (EffectType.WAIT_UNTIL, on_schedule),
    "emit_event": (EffectType.EMIT_EVENT, emit_event),
    "agent": (EffectType.START_SUBWORKFLOW, agent),
    "read_file": (EffectType.TOOL_CALLS, call_of_file),
    "write_file": (EffectType.TOOL_CALLS, call_of_file),
    "subflow": (EffectType.START_SUBWORKFLOW, subflow),
    "llm_call": (EffectType.LLM_CALL, llm_call),
    "tool_calls": (EffectType.TOOL_CALLS, tool_calls),
    "call_tool": (EffectType.TOOL_CALLS, call_tool),
    "memory_note": (
        EffectType.MEMORY_NOTE,
        _plain(content="note", keepInContext="keep_in_context"),
    ),
    "memory_query": (EffectType.MEMORY_QUERY, _plain(limit="limit_spans")),
    "memory_tag": (EffectType.MEMORY_TAG, _plain(spanId="span_id")),
    "memory_compact": (EffectType.MEMORY_COMPACT, _plain()),
    "memory_rehydrate": (EffectType.MEMORY_REHYDRATE, _plain(span_id="span_ids")),
    "memory_kg_assert": (EffectType.MEMORY_KG_ASSERT, _plain()),
    "memory_kg_query": (EffectType.MEMORY_KG_QUERY, _plain()),
    "memory_kg_resolve": (EffectType.MEMORY_KG_RESOLVE, _plain()),
}
"""By type: the effect, and the function that makes its payload."""


def ask(visit: Visit) -> StepPlan:
    """Return the plan of a node that asks the host for an effect."""
    node = visit.node
    kind, payload_of = EFFECTS[node.drawn.type]
    payload = payload_of(node.drawn, visit.inputs())
    key = result_key_of(node.drawn.id) if node.is_read else None
    return StepPlan(visit.run.current_node, effect=Effect(kind, payload, key), next_node=visit.go())


def listen(visit: Visit) -> StepPlan:
    """Return the plan of an entry that waits for an event.

    When execution of the event ends, it waits for the next.
    """
    visit.state.frames.push(visit.node.drawn.id, "on_event")
    return ask(visit)


def tick(visit: Visit) -> StepPlan:
    """Return the plan of an entry that waits for a time; where execution ends, it waits for the next one.

    An instant comes once.
    """
    node = visit.node.drawn
    pins = visit.inputs()
    recurrent = _setting(pins, node.part("eventConfig"), "recurrent")
    if (recurrent is None or _flag(recurrent)) and "timeout_s" in on_schedule(node, pins):
        visit.state.frames.push(node.id, "on_schedule")
    return ask(visit)


def begin_file(visit: Visit) -> StepPlan:
    """Ask for the call."""
    node = visit.node.drawn
    effect = Effect(
        EffectType.TOOL_CALLS, call_of_file(node, visit.inputs()), result_key_of(node.id)
    )
    return StepPlan(visit.run.current_node, effect=effect, next_node=node.id + RETURN_MARK)


def end_file(visit: Visit) -> StepPlan:
    """Continue with the result of the call.

    Raises:
        VisualNodeError: The call failed, or the tool did not return all of the file.
    """
    node, path = visit.node.drawn, _path(visit.inputs())
    raw = visit.state.result(node.id)
    results = raw.get("results") if isinstance(raw, dict) else None
    first = results[0] if isinstance(results, list) and results else None
    row: dict[str, Any] = first if isinstance(first, dict) else {}
    if row.get("success") is not True:
        raise VisualNodeError(f"{path}: {row.get('error') or 'the tool gave no result'}")
    output = row.get("output")
    if node.type == READ:
        outputs = _read(path, output)
    else:
        outputs = {"bytes": output.get("size_bytes") if isinstance(output, dict) else None}
    outputs |= {"file_path": path}
    visit.keep(outputs)
    return visit.plan(result=outputs)


def _read(path: str, output: Any) -> Outputs:
    """Return the content of a file: data, if it is JSON."""
    file = output if isinstance(output, dict) else {"text": output}
    if file.get("next_offset") is not None:
        size = file.get("size_bytes")
        problem = f"{path} has {size} bytes, more than one call of the tool gives"
        raise VisualNodeError(f"{problem}: read its parts by call_tool")
    text = text_of(file.get("text", file.get("content")))
    if path.lower().endswith(_JSON):
        return {"content": _parse_json(path, text)}
    if text.lstrip()[:1] in {"{", "["}:
        try:
            return {"content": json.loads(text)}
        except (ValueError, RecursionError):
            pass
    return {"content": text}


def _first(*values: Any) -> Any:
    return next((value for value in values if value is not None), None)


def _setting(pins: Pins, config: Mapping[str, Any], *names: str) -> Any:
    """Return the value under the first of the names that has one, in the pins, else in the configuration."""
    return _first(*map(pins.get, names), *map(config.get, names))


def _flag(value: Any) -> bool:
    return value.strip().lower() in _TRUE if isinstance(value, str) else bool(value)


def _deadline(pins: Pins) -> dict[str, Any]:
    if isinstance(pins.get("until"), str) and pins["until"].strip():
        return {"until": pins["until"].strip()}
    seconds = pins.get("timeout_s")
    if isinstance(seconds, bool) or not isinstance(seconds, int | float) or seconds <= 0:
        return {}
    return {"timeout_s": seconds}
