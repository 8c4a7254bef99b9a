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
_MAPPED: Final = frozenset(
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
    rows = payload.get("messages")
    if rows is not None and not isinstance(rows, list):
        raise GraphError("llm_call: messages", "give a list of objects with role and content")
    system = payload.get("system_prompt")
    messages = [ChatMessage.of("system", str(system))] if system else []
    messages += [_message(row, index) for index, row in enumerate(rows or ())]
    prompt = payload.get("prompt")
    if prompt not in (None, "") or not rows:
        if prompt is None:
            raise GraphError("llm_call", "it needs payload.prompt or payload.messages")
        messages.append(
            ChatMessage.of("user", prompt if isinstance(prompt, str) else json.dumps(prompt))
        )
    return messages


def _message(data: Any, index: int) -> ChatMessage:
    if not isinstance(data, dict):
        raise GraphError(f"llm_call: messages[{index}]", "give an object with role and content")
    role = _ROLES.get(str(data.get("role")), data.get("role"))
    blocks = _blocks(data.get("content"))
    if role == "tool":
        text = "".join(b.text or "" for b in blocks)
        name, id_ = str(data.get("name") or ""), str(data.get("tool_call_id") or "")
        block = {"type": "tool_result", "id": id_, "name": name, "text": text}
        blocks = [ContentBlock.model_validate(block)]
    for call in calls_in(data.get("tool_calls")):
        block = {"type": "tool_call", "id": call["call_id"], "name": call["name"]}
        blocks.append(ContentBlock.model_validate(block | {"arguments": call["arguments"]}))
    try:
        return ChatMessage(role=role, content=blocks)
    except ValidationError:
        problem = f"role {data.get('role')!r} is none of system, user, assistant, tool"
        raise GraphError(f"llm_call: messages[{index}]", problem) from None


def _blocks(content: Any) -> list[ContentBlock]:
    if content is None:
        return []
    if not isinstance(content, list):
        text = content if isinstance(content, str) else json.dumps(content, ensure_ascii=False)
        return [ContentBlock(type="text", text=text)]
    return [_block(part) for part in content]


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
    max_tokens = params.get("max_tokens", params.get("max_output_tokens"))
    try:
        return GenerationOptions(
            tools=tuple(_spec(tool, tools) for tool in payload.get("tools") or ()),
            tool_choice=params.get("tool_choice"),
            temperature=params.get("temperature"),
            max_tokens=max_tokens,
            stop=(stop,) if isinstance(stop, str) else tuple(stop),
            response_format=schema if isinstance(schema, dict) and schema else None,
            extra={
                name: value
                for name, value in params.items()
                if name not in _MAPPED and value is not None
            },
        )
    except (ValidationError, TypeError) as exc:
        first = str(exc).splitlines()
        raise GraphError("llm_call: params", " ".join(first[1:3]) or first[0]) from None


def _spec(name_or_definition: Any, tools: Sequence[Tool]) -> ToolSpec:
    if isinstance(name_or_definition, str):
        for tool in tools:
            if tool.name == name_or_definition:
                return tool.spec()
        tool_names = ", ".join(sorted(tool.name for tool in tools)) or "none"
        raise GraphError(
            "llm_call: tools", f"the host has no tool {name_or_definition!r}. It has: {tool_names}"
        )
    function = name_or_definition.get("function") if isinstance(name_or_definition, dict) else None
    definition = function if isinstance(function, dict) else name_or_definition
    if not isinstance(definition, dict) or not isinstance(definition.get("name"), str):
        raise GraphError("llm_call: tools", "give names of tools, or objects with a name")
    spec_fields = {
        name: definition[name]
        for name in ("name", "description", "parameters")
        if definition.get(name)
    }
    return ToolSpec(**spec_fields)


def result_of(response: LLMResponse, payload: Mapping[str, Any]) -> dict[str, Any]:
    """Return a model's answer as the effect's result, which is JSON data for any answer."""
    usage = response.usage
    result: dict[str, Any] = {
        "content": _storable(response.text),
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
        result["usage"]["cost_usd"] = usage.cost_usd
    reasoning = "".join(block.text or "" for block in response.content if block.type == "reasoning")
    if reasoning:
        result["reasoning"] = _storable(reasoning)
    if payload.get("response_schema"):
        result |= _data(response.text)
    return result


def _storable(text: str) -> str:
    """Return the whole text with unstorable characters escaped. A character becomes at most six characters."""
    return clean_text(text, limit=6 * len(text))


def _tool_calls(response: LLMResponse) -> list[dict[str, Any]]:
    blocks = [b.model_extra or {} for b in response.content if b.type == "tool_call"]
    # Arguments that were cut may fit all the same.
    cut_error = {"error": "a limit of tokens cut the answer off"} if response.reached_limit else {}
    return calls_in(
        [
            {
                "call_id": block.get("id"),
                "name": block.get("name"),
                "arguments": block.get("invalid_arguments") or block.get("arguments"),
                **cut_error,
            }
            for block in blocks
        ]
    )


def _data(text: str) -> dict[str, Any]:
    """Return the JSON data in an answer. Markdown fences around it are removed."""
    try:
        data = json.loads(unfenced(text))
    except (ValueError, RecursionError) as exc:
        return {"data": None, "data_error": clean_text(f"the answer is no JSON: {exc}")[:300]}
    if (problem := storage_problem(data)) is not None:
        return {"data": None, "data_error": f"the answer cannot be kept: {problem}"}
    return {"data": data}


_DEEPEST: Final = MAX_DEPTH - 16
"""Maximum depth of a value. The rest of the depth is for the effect's result and the path in the vars."""


def calls_in(data: Any) -> list[dict[str, Any]]:
    """Return calls in any form as objects with ``call_id``, ``name`` and ``arguments``.

    Ids are unique among them. A call that cannot be read also has ``error``.
    """
    ids: set[str] = set()
    calls = []
    for index, item in enumerate(data if isinstance(data, list) else ()):
        call = _call(item, index)
        while call["call_id"] in ids:
            call["call_id"] = f"{call['call_id']}~{index}"
        ids.add(call["call_id"])
        calls.append(call)
    return calls


def effect_id(run: RunState) -> str:
    """Return the id of the effect that a run, or a branch of it, is at.

    It is the same for each attempt, also if the effect is executed again after it was in doubt.
    """
    seq = run.effect_seq if isinstance(run, ShownRun) else seq_of(run.vars)
    return derive_id(place_of(run.run_id, run.vars), seq)


def storage_problem(value: Any) -> str | None:
    """Return the reason why a value of a model or a tool cannot be stored in a run, or None if it can."""
    try:
        durable_copy(value, "value", deepest=_DEEPEST)
    except NotSerializableError as exc:
        return clean_text(str(exc))[:500]
    return None


def _call(data: Any, index: int) -> dict[str, Any]:
    outer = data if isinstance(data, dict) else {}
    function = outer.get("function")
    inner = function if isinstance(function, dict) else outer
    id_ = outer.get("call_id") or outer.get("id")
    name = clean_text(str(inner.get("name") or ""))
    call = {"call_id": clean_text(str(id_ or index)), "name": name, "arguments": {}}
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
    if (problem := storage_problem(arguments)) is not None:
        return call | {"error": f"the arguments cannot be kept: {problem}"}
    if outer.get("error"):
        return call | {"error": clean_text(str(outer["error"]))}
    return call | {"arguments": arguments}
