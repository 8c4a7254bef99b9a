"""Requests that providers of models refuse, with the error that they give.

The rules are those that all providers have in common. What only some refuse (blank texts, ids of other
providers, made-up names), their clients mend, see `actors.context.fitting`. A request that breaks a common rule
is a fault of the code that made it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

from actors.errors import ModelError
from actors.kernel.agent.message import ChatMessage, ContentBlock
from actors.kernel.agent.models import GenerationOptions

_CALL: Final = "tool_call"
_RESULT: Final = "tool_result"


def check_request(messages: Sequence[ChatMessage], options: GenerationOptions) -> None:
    """Check that a provider takes a request.

    Raises:
        ModelError: It does not; the kind is ``invalid``.
    """
    for problem in (*_of_turns(messages), *_of_options(options)):
        raise ModelError("invalid", problem=f"{problem} (ScriptedModel(strict=False) takes it)")


def _of_turns(messages: Sequence[ChatMessage]) -> Iterator[str]:
    if not any(message.role != "system" for message in messages):
        yield "messages: at least one message is required"
    waiting: list[str] = []
    for n, message in enumerate(messages):
        kinds = [block.type for block in message.content]
        if message.role != "assistant" and _CALL in kinds:
            yield f"messages.{n}: a message with role {message.role!r} has no tool_call"
        results = [_id_of(block) for block in message.content if block.type == _RESULT]
        for id_ in results if message.role != "assistant" else ():
            if id_ not in waiting:
                yield f"messages.{n}: unexpected id of a tool_result without its call: {id_!r}"
            else:
                waiting.remove(id_)
        if waiting and not results:
            yield f"messages.{n}: tool_calls were found without results right behind: {waiting}"
            waiting = []
        if message.role == "assistant":
            calls = [block for block in message.content if block.type == _CALL]
            yield from _of_calls(calls, n)
            # A provider may have answered a call itself, within the answer.
            waiting = [id_ for block in calls if (id_ := _id_of(block)) not in results]
    if waiting:
        yield f"messages.{len(messages) - 1}: tool_calls were found without results: {waiting}"


def _of_calls(calls: Sequence[ContentBlock], n: int) -> Iterator[str]:
    seen: set[str] = set()
    for call in calls:
        id_ = _id_of(call)
        if not id_:
            yield f"messages.{n}: a tool_call has no id"
        elif id_ in seen:
            yield f"messages.{n}: ids of tool_calls must be unique: {id_!r}"
        seen.add(id_)


def _of_options(options: GenerationOptions) -> Iterator[str]:
    names = [tool.name for tool in options.tools]
    for tool in options.tools:
        if not tool.name:
            yield "tools: a tool has no name"
        if names.count(tool.name) > 1:
            yield f"tools: names must be unique: {tool.name!r}"
        if tool.parameters.get("type") != "object":
            yield f"tools.{tool.name}: the schema must be of type object"
    schema = options.response_format
    if schema is not None and (schema.get("type") != "object" or "anyOf" in schema):
        yield "response_format: the schema must be of type object, without anyOf at its root"


def _id_of(block: ContentBlock) -> str:
    data: dict[str, Any] = block.model_extra or {}
    return str(data.get("id") or "")
