"""Conversion of an LLM_CALL payload to messages and options, and of a model's answer to the effect's result.

Tool calls get one form, from the forms in which models and nodes write them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final

from pydantic import ValidationError

from actors._kernel.agent.message import ChatMessage, ContentBlock
from actors._kernel.agent.models import GenerationOptions, LLMResponse
from actors._kernel.agent.tools import Tool, ToolSpec
from actors._kernel.json import unfenced
from actors._kernel.json_data import clean_text
from actors._kernel.runtime.ids import derive_id
from actors._kernel.workflow.durable import MAX_DEPTH, durable_copy
from actors._kernel.workflow.errors import GraphError
from actors._kernel.workflow.run_state import RunState
from actors._workflow.machine.records import ShownRun
from actors._workflow.machine.variables import place_of, seq_of
from actors.errors import NotSerializableError

_ROLES: Final = {"developer": "system", "function": "tool"}
_KNOWN: Final = frozenset(
    {"temperature", "max_tokens", "max_output_tokens", "stop", "tool_choice", "trace_metadata"}
)
_LOGINS: Final = frozenset(
    {"api_key", "apikey", "api_keys", "authorization", "headers", "provider_api_key"}
)


def check_no_login(payload: Mapping[str, Any]) -> None:
    """Check that a payload holds no key of a provider, since the ledger stores payloads.

    Raises:
        GraphError: The payload holds a key. The error has the field's name but not its value.
    """
    params = payload.get("params")
    for part in (payload, params if isinstance(params, dict) else {}):
        for name in part:
            if name.lower() in _LOGINS and part[name]:
                problem = "keys are no part of a payload. Give the integration a Secret('NAME')"
                raise GraphError(f"llm_call: {name}", problem)


def messages_of(payload: Mapping[str, Any]) -> list[ChatMessage]:
    """Return the conversation: ``system_prompt``, ``messages``, then ``prompt`` as a message of the user.

    Raises:
        GraphError: The payload has no conversation, or it cannot be read.
    """
    given = payload.get("messages")
    if given is not None and not isinstance(given, list):
        raise GraphError("llm_call: messages", "give a list of objects with role and content")
    system = payload.get("system_prompt")
    found = [ChatMessage.of("system", str(system))] if system else []
    found += [_message(one, place) for place, one in enumerate(given or ())]
    prompt = payload.get("prompt")
    if prompt not in (None, "") or not given:
        if prompt is None:
            raise GraphError("llm_call", "it needs payload.prompt or payload.messages")
        found.append(
            ChatMessage.of("user", prompt if isinstance(prompt, str) else json.dumps(prompt))
        )
    return found


def _message(told: Any, place: int) -> ChatMessage:
    if not isinstance(told, dict):
        raise GraphError(f"llm_call: messages[{place}]", "give an object with role and content")
    role = _ROLES.get(str(told.get("role")), told.get("role"))
    blocks = _blocks(told.get("content"))
    if role == "tool":
        text = "".join(one.text or "" for one in blocks)
        name, id_ = str(told.get("name") or ""), str(told.get("tool_call_id") or "")
        block = {"type": "tool_result", "id": id_, "name": name, "text": text}
        blocks = [ContentBlock.model_validate(block)]
    for call in calls_in(told.get("tool_calls")):
        block = {"type": "tool_call", "id": call["call_id"], "name": call["name"]}
        blocks.append(ContentBlock.model_validate(block | {"arguments": call["arguments"]}))
    try:
        return ChatMessage(role=role, content=blocks)
    except ValidationError:
        problem = f"role {told.get('role')!r} is none of system, user, assistant, tool"
        raise GraphError(f"llm_call: messages[{place}]", problem) from None


def _blocks(content: Any) -> list[ContentBlock]:
    if content is None:
        return []
    if not isinstance(content, list):
        text = content if isinstance(content, str) else json.dumps(content, ensure_ascii=False)
        return [ContentBlock(type="text", text=text)]
    return [_block(one) for one in content]


def _block(part: Any) -> ContentBlock:
    if not isinstance(part, dict):
        return ContentBlock(type="text", text=str(part))
    image = part.get("image_url")
    if isinstance(image, dict) and image.get("url"):
        return ContentBlock.model_validate({"type": "image", "url": image["url"]})
    try:
        return ContentBlock.model_validate(part)
    except ValidationError:
        return ContentBlock(type="text", text=json.dumps(part, ensure_ascii=False))


def options_of(payload: Mapping[str, Any], tools: Sequence[Tool]) -> GenerationOptions:
    """Return the options of a call. ``tools`` has names of the host's tools, or descriptions of other tools.

    Raises:
        GraphError: A tool or an option cannot be read.
    """
    params = payload.get("params") or {}
    if not isinstance(params, dict):
        raise GraphError("llm_call: params", "give an object")
    schema, stop = payload.get("response_schema"), params.get("stop") or ()
    most = params.get("max_tokens", params.get("max_output_tokens"))
    try:
        return GenerationOptions(
            tools=tuple(_spec(one, tools) for one in payload.get("tools") or ()),
            tool_choice=params.get("tool_choice"),
            temperature=params.get("temperature"),
            max_tokens=most,
            stop=(stop,) if isinstance(stop, str) else tuple(stop),
            response_format=schema if isinstance(schema, dict) and schema else None,
            extra={
                name: one for name, one in params.items() if name not in _KNOWN and one is not None
            },
        )
    except (ValidationError, TypeError) as exc:
        first = str(exc).splitlines()
        raise GraphError("llm_call: params", " ".join(first[1:3]) or first[0]) from None


def _spec(told: Any, tools: Sequence[Tool]) -> ToolSpec:
    if isinstance(told, str):
        for one in tools:
            if one.name == told:
                return one.spec()
        known = ", ".join(sorted(one.name for one in tools)) or "none"
        raise GraphError("llm_call: tools", f"the host has no tool {told!r}. It has: {known}")
    function = told.get("function") if isinstance(told, dict) else None
    given = function if isinstance(function, dict) else told
    if not isinstance(given, dict) or not isinstance(given.get("name"), str):
        raise GraphError("llm_call: tools", "give names of tools, or objects with a name")
    found = {name: given[name] for name in ("name", "description", "parameters") if given.get(name)}
    return ToolSpec(**found)


def result_of(response: LLMResponse, payload: Mapping[str, Any]) -> dict[str, Any]:
    """Return a model's answer as the effect's result, which is JSON data for any answer."""
    usage = response.usage
    told: dict[str, Any] = {
        "content": _whole(response.text),
        "tool_calls": _tool_calls(response),
        "usage": {
            "input_tokens": usage.input,
            "output_tokens": usage.output,
            "total_tokens": usage.total,
            "cached_tokens": usage.cached,
        },
        "model": clean_text(response.model) or payload.get("model"),
        "provider": payload.get("provider"),
        "finish_reason": response.stop_reason and clean_text(response.stop_reason),
    }
    if usage.cost_usd is not None:
        told["usage"]["cost_usd"] = usage.cost_usd
    reasoning = "".join(one.text or "" for one in response.content if one.type == "reasoning")
    if reasoning:
        told["reasoning"] = _whole(reasoning)
    if payload.get("response_schema"):
        told |= _data(response.text)
    return told


def _whole(text: str) -> str:
    """Return the whole text with unstorable characters escaped. A character becomes at most six characters."""
    return clean_text(text, limit=6 * len(text))


def _tool_calls(response: LLMResponse) -> list[dict[str, Any]]:
    blocks = [one.model_extra or {} for one in response.content if one.type == "tool_call"]
    # Arguments that were cut may fit all the same.
    cut = {"error": "a limit of tokens cut the answer off"} if response.reached_limit else {}
    return calls_in(
        [
            {
                "call_id": one.get("id"),
                "name": one.get("name"),
                "arguments": one.get("invalid_arguments") or one.get("arguments"),
                **cut,
            }
            for one in blocks
        ]
    )


def _data(text: str) -> dict[str, Any]:
    """Return the JSON data in an answer. Markdown fences around it are removed."""
    try:
        data = json.loads(unfenced(text))
    except (ValueError, RecursionError) as exc:
        return {"data": None, "data_error": clean_text(f"the answer is no JSON: {exc}")[:300]}
    if (problem := unfit(data)) is not None:
        return {"data": None, "data_error": f"the answer cannot be kept: {problem}"}
    return {"data": data}


_DEEPEST: Final = MAX_DEPTH - 16
"""Maximum depth of a value. The rest of the depth is for the effect's result and the path in the vars."""


def calls_in(told: Any) -> list[dict[str, Any]]:
    """Return calls in any form as objects with ``call_id``, ``name`` and ``arguments``.

    Ids are unique among them. A call that cannot be read also has ``error``.
    """
    seen: set[str] = set()
    found = []
    for place, one in enumerate(told if isinstance(told, list) else ()):
        call = _call(one, place)
        while call["call_id"] in seen:
            call["call_id"] = f"{call['call_id']}~{place}"
        seen.add(call["call_id"])
        found.append(call)
    return found


def effect_place(run: RunState) -> str:
    """Return the id of the effect that a run, or a branch of it, is at.

    It is the same for each attempt, also if the effect is executed again after it was in doubt.
    """
    seq = run.effect_seq if isinstance(run, ShownRun) else seq_of(run.vars)
    return derive_id(place_of(run.run_id, run.vars), seq)


def unfit(value: Any) -> str | None:
    """Return the reason why a value of a model or a tool cannot be stored in a run. None: it can."""
    try:
        durable_copy(value, "value", deepest=_DEEPEST)
    except NotSerializableError as exc:
        return clean_text(str(exc))[:500]
    return None


def _call(told: Any, place: int) -> dict[str, Any]:
    given = told if isinstance(told, dict) else {}
    function = given.get("function")
    inner = function if isinstance(function, dict) else given
    id_ = given.get("call_id") or given.get("id")
    name = clean_text(str(inner.get("name") or ""))
    call = {"call_id": clean_text(str(id_ or place)), "name": name, "arguments": {}}
    arguments = inner.get("arguments")
    if isinstance(arguments, str) and arguments.strip():
        try:
            arguments = json.loads(arguments)
        except (ValueError, RecursionError):
            return call | {
                "error": clean_text(f"the arguments are no JSON object: {arguments[:200]}")
            }
    if arguments in (None, ""):
        arguments = {}
    if not isinstance(arguments, dict):
        return call | {"error": f"the arguments are a {type(arguments).__name__}, not an object"}
    if (problem := unfit(arguments)) is not None:
        return call | {"error": f"the arguments cannot be kept: {problem}"}
    if given.get("error"):
        return call | {"error": clean_text(str(given["error"]))}
    return call | {"arguments": arguments}
