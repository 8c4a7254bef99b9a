"""Turns that a provider accepts: no blank text, an id of its own for each call, results first, roles in order.

A conversation may have turns that its provider refuses: another provider or a small model gave the answer, the
model called a tool that does not exist, a tool gave nothing, or a user sent white space. Every later request of
that conversation would be refused, too.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from copy import copy
from dataclasses import replace

from pydantic_ai.messages import (
    CachePoint,
    ModelMessage,
    ModelRequest,
    ModelRequestPart,
    ModelResponse,
    ModelResponsePart,
    SystemPromptPart,
    TextPart,
    ToolCallPart,
    ToolReturnPart,
    UserContent,
    UserPromptPart,
)

from actors._context.fitting import EARLIER, EMPTY_MESSAGE, NO_OUTPUT, CallIds, ProviderRules
from actors._kernel.agent.models import GenerationOptions
from compose._models.messages import ENVELOPES


def called_names(messages: Iterable[ModelMessage]) -> list[str]:
    """Return the names of tools in turns, in order."""
    return [
        part.tool_name
        for message in messages
        for part in message.parts
        if isinstance(part, ToolCallPart | ToolReturnPart)
    ]


def rename_call(call: ToolCallPart, names: Mapping[str, str]) -> ToolCallPart:
    """Return the call with the name that `names` has for its own."""
    if (name := names.get(call.tool_name, call.tool_name)) == call.tool_name:
        return call
    # Not by `replace`, because the SDK has kinds of calls whose names cannot be given.
    new_call = copy(call)
    new_call.tool_name = name
    return new_call


def fitted_options(options: GenerationOptions, names: Mapping[str, str]) -> GenerationOptions:
    """Return the options with names of tools that the provider accepts."""
    if all(name == sent for name, sent in names.items()):
        return options
    tools = tuple(
        tool.model_copy(update={"name": names.get(tool.name, tool.name)}) for tool in options.tools
    )
    choice = options.tool_choice
    choice = names.get(choice, choice) if choice is not None else None
    return options.model_copy(update={"tools": tools, "tool_choice": choice})


def fitted_turns(
    messages: Sequence[ModelMessage], rules: ProviderRules, names: Mapping[str, str]
) -> list[ModelMessage]:
    """Return the turns of a request as its provider accepts them.

    Args:
        messages: The turns, as `repaired` returns them: results are right behind the answer with their calls.
        rules: The provider's.
        names: The provider's names of tools by ours.
    """
    ids = CallIds(rules)
    turns: list[ModelMessage] = []
    for message in _with_answered_calls(messages):
        if isinstance(message, ModelRequest):
            if (request := _request(message, rules, names, ids)).parts:
                _add(turns, request)
        elif (answer := _answer(message, rules, names, ids)).parts:
            _add(turns, answer, is_merged=not rules.takes_equal_roles)
    if not rules.takes_first_answer:
        _begin_with_user(turns)
    turns = [_with_one_prompt(turn) for turn in turns] if not rules.takes_equal_roles else turns
    last = turns[-1] if turns and not rules.takes_blank_text else None
    if isinstance(last, ModelResponse) and isinstance(text := last.parts[-1], TextPart):
        # The model is to continue this answer: it may not end with white space.
        text = replace(text, content=text.content.rstrip())
        turns[-1] = replace(last, parts=[*last.parts[:-1], text])
    return turns


def _with_answered_calls(messages: Sequence[ModelMessage]) -> Iterable[ModelMessage]:
    """Yield the messages without calls whose results are not sent, because they are in the answer itself."""
    for index, message in enumerate(messages):
        if not isinstance(message, ModelResponse):
            yield message
            continue
        next_message = messages[index + 1] if index + 1 < len(messages) else None
        results = Counter(
            part.tool_call_id
            for part in (next_message.parts if isinstance(next_message, ModelRequest) else ())
            if isinstance(part, ToolReturnPart)
        )
        parts: list[ModelResponsePart] = []
        for part in message.parts:
            if isinstance(part, ToolCallPart):
                results[part.tool_call_id] -= 1
                if results[part.tool_call_id] < 0:
                    continue
            parts.append(part)
        yield message if len(parts) == len(message.parts) else replace(message, parts=parts)


def _add(turns: list[ModelMessage], message: ModelMessage, *, is_merged: bool = True) -> None:
    """Add a message. It becomes a part of the last one if that has the same role."""
    last = turns[-1] if turns and is_merged else None
    match last, message:
        case ModelRequest(parts=request_parts), ModelRequest(parts=more_request_parts):
            turns[-1] = replace(last, parts=[*request_parts, *more_request_parts])
        case ModelResponse(parts=answer_parts), ModelResponse(parts=more_answer_parts):
            turns[-1] = replace(last, parts=[*answer_parts, *more_answer_parts])
        case _:
            turns.append(message)


def _request(
    request: ModelRequest, rules: ProviderRules, names: Mapping[str, str], ids: CallIds
) -> ModelRequest:
    results: list[ToolReturnPart] = []
    other_parts: list[ModelRequestPart] = []
    for part in request.parts:
        if isinstance(part, ToolReturnPart):
            results.append(_result(part, rules, names, ids))
        elif isinstance(part, UserPromptPart):
            content = [item for item in _contents(part) if _is_sent(item, rules)]
            if content:
                other_parts.append(replace(part, content=content))
        elif not isinstance(part, SystemPromptPart) or part.content.strip():
            other_parts.append(part)
    # Some providers match results with calls by the order, not by the id.
    results.sort(key=lambda part: ids.place_of(part.tool_call_id))
    # Media of a result would otherwise stand between it and the next result.
    parts: list[ModelRequestPart] = [*results, *other_parts]
    says_nothing = all(  # points of the cache say nothing
        isinstance(part, UserPromptPart)
        and all(isinstance(content, CachePoint) for content in _contents(part))
        for part in parts
    )
    # A message of the user may have nothing to send.
    envelopes = (request.metadata or {}).get(ENVELOPES, ())
    if says_nothing and any(envelope["role"] == "user" for envelope in envelopes):
        parts = [UserPromptPart(EMPTY_MESSAGE), *parts]
    return replace(request, parts=parts)


def _result(
    part: ToolReturnPart, rules: ProviderRules, names: Mapping[str, str], ids: CallIds
) -> ToolReturnPart:
    content = part.content
    if not rules.takes_blank_result and isinstance(content, str) and not content.strip():
        content = NO_OUTPUT
    name = names.get(part.tool_name, part.tool_name)
    return replace(
        part, content=content, tool_name=name, tool_call_id=ids.of_result(part.tool_call_id)
    )


def _answer(
    answer: ModelResponse, rules: ProviderRules, names: Mapping[str, str], ids: CallIds
) -> ModelResponse:
    ids.next_answer()
    parts: list[ModelResponsePart] = []
    for part in answer.parts:
        if isinstance(part, ToolCallPart):
            parts.append(
                rename_call(replace(part, tool_call_id=ids.of_call(part.tool_call_id)), names)
            )
        elif not isinstance(part, TextPart) or _is_sent(part.content, rules):
            parts.append(part)
    return replace(answer, parts=parts)


def _contents(part: UserPromptPart) -> list[UserContent]:
    return [part.content] if isinstance(part.content, str) else [*part.content]


def _is_sent(content: UserContent, rules: ProviderRules) -> bool:
    return not isinstance(content, str) or bool(
        content if rules.takes_blank_text else content.strip()
    )


def _begin_with_user(turns: list[ModelMessage]) -> None:
    """Put a user's turn before a conversation that begins with an answer, or that has system texts only."""
    first = turns[0] if turns else None
    text = EARLIER if any(isinstance(turn, ModelResponse) for turn in turns) else EMPTY_MESSAGE
    if not isinstance(first, ModelRequest):
        turns.insert(0, ModelRequest(parts=[UserPromptPart(text)]))
    elif all(isinstance(part, SystemPromptPart) for part in first.parts):
        turns[0] = replace(first, parts=[*first.parts, UserPromptPart(text)])


def _with_one_prompt(message: ModelMessage) -> ModelMessage:
    """Return a request whose prompts are one: chat templates refuse two turns of a user in a row."""
    prompts = [part for part in message.parts if isinstance(part, UserPromptPart)]
    if not isinstance(message, ModelRequest) or len(prompts) < 2:  # noqa: PLR2004 - nothing to join
        return message
    contents = [content for part in prompts for content in _contents(part)]
    texts = [content for content in contents if isinstance(content, str)]
    content = "\n\n".join(texts) if len(texts) == len(contents) else contents
    prompt = replace(prompts[0], content=content)
    other_parts = [part for part in message.parts if not isinstance(part, UserPromptPart)]
    return replace(message, parts=[*other_parts, prompt])
