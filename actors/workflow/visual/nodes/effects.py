"""Nodes that ask the host for an effect. The payload is made of the values of their pins.

Nodes that read and write files: calls of the host's tools ``read_file`` and ``write_file``.

A node is two nodes of the graph: the first one asks for the call, the second one looks at its result. A call
that failed fails the run there.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from typing import Any, Final

from actors.kernel.workflow.durable import normalize_utc_iso
from actors.kernel.workflow.effects import Effect, EffectType, StepPlan
from actors.workflow.visual.drawing import RETURN_MARK, DrawnNode
from actors.workflow.visual.flow_state import result_key_of
from actors.workflow.visual.nodes.texts import text_of
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


Given = Mapping[str, Any]
PayloadOf = Callable[[DrawnNode, Given], dict[str, Any]]

_UNITS: Final = {"seconds": 1, "minutes": 60, "hours": 3600, "days": 86400}
_INTERVAL: Final = re.compile(r"([0-9]{1,9}(?:\.[0-9]{1,9})?)\s*(ms|s|m|h|d)", re.IGNORECASE)
_SECONDS: Final = {"ms": 0.001, "s": 1, "m": 60, "h": 3600, "d": 86400}
_LEVELS: Final = {"warn": "warning", "warning": "warning", "error": "error"}
_TRUE: Final = {"true", "1", "yes", "on"}
GIVE_CONTEXT: Final = "Give the context at a pin"
_CONTEXT: Final = ("inherit_context", "inheritContext")
_SESSION: Final = ("child_session_id", "childSessionId", "session_id", "sessionId")
SUBFLOW_NAMES: Final = ("subflowId", "flowId", "workflowId", "workflow_id")
"""Names in the data of a node ``subflow`` that may have the name of the flow."""


def _first(*found: Any) -> Any:
    return next((one for one in found if one is not None), None)


def _chosen(given: Given, config: Given, *names: str) -> Any:
    return _first(*(given.get(one) for one in names), *(config.get(one) for one in names))


def _flag(value: Any) -> bool:
    return value.strip().lower() in _TRUE if isinstance(value, str) else bool(value)


def _some(given: Given, *names: str) -> dict[str, Any]:
    """Return the pins of these names that have a value."""
    return {name: given[name] for name in names if given.get(name) not in (None, "")}


def _deadline(given: Given) -> dict[str, Any]:
    if isinstance(given.get("until"), str) and given["until"].strip():
        return {"until": given["until"].strip()}
    seconds = given.get("timeout_s")
    if isinstance(seconds, bool) or not isinstance(seconds, int | float) or seconds <= 0:
        return {}
    return {"timeout_s": seconds}


def ask_user(node: DrawnNode, given: Given) -> dict[str, Any]:
    """Return the payload of a question."""
    config, choices = node.part("effectConfig"), given.get("choices")
    free = _first(given.get("allow_free_text"), config.get("allowFreeText"), True)
    return {
        "prompt": text_of(_first(given.get("prompt"), "Please respond:")),
        "choices": choices if isinstance(choices, list) else [],
        "allow_free_text": bool(free),
        **_deadline(given),
    }


def answer_user(_node: DrawnNode, given: Given) -> dict[str, Any]:
    """Return the payload of a message."""
    level = _LEVELS.get(text_of(given.get("level")).strip().lower(), "message")
    return {"message": text_of(given.get("message")), "level": level}


def wait_until(node: DrawnNode, given: Given) -> dict[str, Any]:
    """Return the payload of a pause. Its length is in the node's unit, or it is an instant."""
    unit, duration = node.part("effectConfig").get("durationType"), given.get("duration")
    if unit == "timestamp":
        return {"until": text_of(duration)}
    try:
        return {"timeout_s": max(0.0, float(duration or 0)) * _UNITS.get(str(unit), 1)}
    except (TypeError, ValueError):
        raise VisualNodeError(f"duration needs a number, not {duration!r}") from None


def wait_event(_node: DrawnNode, given: Given) -> dict[str, Any]:
    """Return the payload of a wait for an event by its key."""
    free = _first(given.get("allow_free_text"), given.get("allowFreeText"), True)
    told = {"wait_key": text_of(_first(given.get("event_key"), given.get("wait_key"), "default"))}
    details = given.get("details")
    return {
        **told,
        **_some(given, "prompt"),
        **({"choices": given["choices"]} if isinstance(given.get("choices"), list) else {}),
        "allow_free_text": bool(free),
        **_deadline(given),
        **({"details": details} if isinstance(details, dict) and details else {}),
    }


def on_schedule(node: DrawnNode, given: Given) -> dict[str, Any]:
    """Return the payload of a wait for the next time of a schedule: an interval, or an instant."""
    config = node.part("eventConfig")
    told = text_of(_chosen(given, config, "schedule") or "15s").strip()
    interval = _INTERVAL.fullmatch(told)
    if interval is None:
        if normalize_utc_iso(told) is None:
            raise VisualNodeError(f"its schedule {told!r} is neither 30s, 5m, 1h nor an instant")
        return {"until": told}
    seconds = float(interval[1]) * _SECONDS[interval[2].lower()]
    if seconds <= 0:
        raise VisualNodeError(f"its schedule {told!r} has no length")
    return {"timeout_s": seconds}


def schedule_problem(node: DrawnNode) -> str | None:
    """Return what is wrong with the schedule that a node has in its data; None: nothing."""
    try:
        on_schedule(node, node.part("pinDefaults"))
    except VisualNodeError as exc:
        return str(exc)
    return None


def _event(node: DrawnNode, given: Given) -> dict[str, Any]:
    config = node.part("effectConfig") | node.part("eventConfig")
    name = text_of(given.get("name") or config.get("name") or config.get("event_name")).strip()
    if not name:
        raise VisualNodeError("it needs the name of an event")
    scope = text_of(_first(given.get("scope"), config.get("scope"), "session")).strip().lower()
    return {"name": name, "scope": scope or "session"}


def emit_event(node: DrawnNode, given: Given) -> dict[str, Any]:
    """Return the payload of an event."""
    config = node.part("effectConfig") | node.part("eventConfig")
    told, session = given.get("payload"), _chosen(given, config, "session_id", "sessionId")
    payload = told if isinstance(told, dict) else {} if told is None else {"value": told}
    more = {"session_id": session} if isinstance(session, str) and session.strip() else {}
    return _event(node, given) | {"payload": payload} | more


def _listed(value: Any, pin: str) -> list[dict[str, Any]]:
    """Return tool calls from a list, from one call, or from either as JSON text."""
    if isinstance(value, str) and value.strip():
        try:
            value = json.loads(value)
        except ValueError as exc:
            raise VisualNodeError(f"pin {pin!r} is no JSON: {exc}") from None
    calls = value if isinstance(value, list) else [] if value in (None, "") else [value]
    if not all(isinstance(one, dict) for one in calls):
        raise VisualNodeError(f"pin {pin!r} needs calls of tools: objects with name and arguments")
    return calls


def _tools(node: DrawnNode, given: Given, calls: list[dict[str, Any]]) -> dict[str, Any]:
    allowed = _chosen(given, node.part("effectConfig"), "allowed_tools", "allowedTools")
    return {
        "tool_calls": calls,
        **({"allowed_tools": allowed} if isinstance(allowed, list) else {}),
    }


def tool_calls(node: DrawnNode, given: Given) -> dict[str, Any]:
    """Return the payload of tool calls."""
    return _tools(node, given, _listed(given.get("tool_calls"), "tool_calls"))


def call_tool(node: DrawnNode, given: Given) -> dict[str, Any]:
    """Return the payload of one tool call."""
    call = _first(given.get("tool_call"), given.get("toolCall"))
    return _tools(node, given, _listed(call, "tool_call")[:1])


def llm_call(node: DrawnNode, given: Given) -> dict[str, Any]:
    """Return the payload of a model call. Provider and model are left out if the node names none."""
    config = node.part("effectConfig")
    params = {
        "temperature": _chosen(given, config, "temperature"),
        "seed": _chosen(given, config, "seed"),
        "thinking": _chosen(given, config, "thinking"),
        "max_output_tokens": _chosen(
            given, config, "max_out_tokens", "max_output_tokens", "maxOutputTokens"
        ),
    }
    seed = params["seed"]
    if isinstance(seed, int | float) and seed < 0:
        params["seed"] = None
    told = {
        "system_prompt": _chosen(given, config, "system", "system_prompt"),
        "provider": _chosen(given, config, "provider", "provider_text"),
        "model": _chosen(given, config, "model", "model_text"),
        "tools": _chosen(given, config, "tools"),
        "response_schema": _chosen(given, config, "resp_schema", "response_schema"),
    }
    payload = {name: one for name, one in told.items() if one not in (None, "", [], {})}
    payload["params"] = {name: one for name, one in params.items() if one is not None}
    context = given.get("context")
    messages = context.get("messages") if isinstance(context, dict) else None
    prompt = text_of(given.get("prompt"))
    if isinstance(messages, list) and messages:
        return payload | {"messages": [*messages, {"role": "user", "content": prompt}]}
    return payload | {"prompt": prompt}


def subflow(node: DrawnNode, given: Given) -> dict[str, Any]:
    """Return the payload of a run of another flow.

    The run's vars are the object at ``vars`` with the pins over it.
    """
    control = {*_CONTEXT, *_SESSION}
    pins = [one for one in node.pins("inputs") if one not in control]
    inner: Given = next(
        (given[one] for one in ("vars", "input") if isinstance(given.get(one), dict)), {}
    )
    own = {one: given[one] for one in pins if one in given}
    if not pins and not inner:
        own = {name: value for name, value in given.items() if name not in control}
    for name in ("vars", "input"):
        if isinstance(own.get(name), dict):
            del own[name]
    session = _first(*(given.get(one) for one in _SESSION))
    named = subflow_name(node)
    payload = {"workflow_id": named, "vars": {**inner, **own}}
    if _flag(_chosen(given, node.part("effectConfig"), *_CONTEXT)):
        raise VisualNodeError(f"inherit_context is not supported. {GIVE_CONTEXT}")
    return payload | ({"session_id": session} if isinstance(session, str) and session else {})


def inherits_context(node: DrawnNode) -> tuple[str, str] | None:
    """Return the place in the data of a node ``subflow`` at which it asks for its parent's context."""
    for part in ("pinDefaults", "effectConfig"):
        for name in _CONTEXT:
            if _flag(node.part(part).get(name)):
                return part, name
    return None


def subflow_name(node: DrawnNode) -> str | None:
    """Return the flow that a node ``subflow`` names. None: it names none."""
    found = (node.data.get(one) for one in SUBFLOW_NAMES)
    return next((one.strip() for one in found if isinstance(one, str) and one.strip()), None)


def agent(node: DrawnNode, given: Given) -> dict[str, Any]:
    """Return the payload of a run of an agent's flow. Its vars are the pins over the node's configuration.

    Prompt and context are in ``context``, too: `task`, `messages` and what the context has.
    """
    pins = node.pins("inputs") or [*given]
    told = node.part("agentConfig") | {one: given[one] for one in pins if one in given}
    named = {
        name: one
        for name, one in told.items()
        if one not in (None, "") and not name.startswith("_")
    }
    context = given.get("context")
    task = text_of(_first(given.get("prompt"), given.get("task")))
    inner: dict[str, Any] = (
        {"messages": []} | (context if isinstance(context, dict) else {}) | {"task": task}
    )
    return {"workflow_id": subflow_name(node), "vars": named | {"text": task, "context": inner}}


def _plain(**renamed: str) -> PayloadOf:
    """Return a function that makes a payload of the pins. `renamed` has the names that differ from the pins."""

    def payload(node: DrawnNode, given: Given) -> dict[str, Any]:
        config = node.part("effectConfig")
        names = [one for one in node.pins("inputs") or given if one in given or one in config]
        found = {renamed.get(one, one): _chosen(given, config, one) for one in names}
        return {name: value for name, value in found.items() if value is not None}

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
    given = visit.inputs()
    recurrent = _chosen(given, node.part("eventConfig"), "recurrent")
    if (recurrent is None or _flag(recurrent)) and "timeout_s" in on_schedule(node, given):
        visit.state.frames.push(node.id, "on_schedule")
    return ask(visit)
