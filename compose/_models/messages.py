"""Conversion of chat messages into pydantic-ai's messages, and back.

Each message of the model becomes a `ModelResponse`. The messages between two of them become one `ModelRequest`,
because providers require all results of one answer in one message. Data for which pydantic-ai has no field is
kept in `metadata`, which is never sent, so that `messages_of` returns equal messages.

The blocks of a model's answer are ``text``; ``reasoning`` with its signature; ``tool_call`` with
``id name arguments``, and ``invalid_arguments`` if the model's text is not a JSON object; ``provider_part`` for
any other part, unchanged. Data that a provider needs back beside the text (ids, signatures, details) is in the
block's ``provider``, so that a provider receives its own data again.

Cache points are positions in a request up to which a provider caches the prompt: a later request with the same
prefix costs less. Points are set after the tools, after the last summary, and after the last answer, because
everything after that answer is new. A request therefore has at most three points; providers accept four. If an
author sets points, no others are added.
"""

from __future__ import annotations

from base64 import b64decode
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import groupby
from typing import Any, Final

from pydantic import ValidationError
from pydantic_ai.messages import (
    AudioUrl,
    BinaryContent,
    CachePoint,
    DocumentUrl,
    FileUrl,
    ImageUrl,
    ModelMessage,
    ModelMessagesTypeAdapter,
    ModelRequest,
    ModelRequestPart,
    ModelResponse,
    ModelResponsePart,
    SystemPromptPart,
    TextPart,
    ThinkingPart,
    ToolCallPart,
    ToolReturnPart,
    UserContent,
    UserPromptPart,
    VideoUrl,
)
from pydantic_core import from_json

from actors._context.turns import is_summary
from actors._kernel.agent.message import ChatMessage, ContentBlock
from actors._kernel.json import canonical_json
from compose._models.clean_text import clean_json

ENVELOPES: Final = "callboard"
"""Key of the original messages in a message's metadata."""

_URLS: Final[dict[str, type[FileUrl]]] = {
    "image": ImageUrl,
    "audio": AudioUrl,
    "video": VideoUrl,
    "file": DocumentUrl,
}
_OUTCOMES: Final = {"ok": "success", "error": "failed", "denied": "denied"}
_FIELDS: Final = ("id", "provider_name", "provider_details", "citations")
_OF_RESPONSE: Final = ("provider_name", "provider_url", "canonical_system")
BLOCKS: Final = "callboard_blocks"
"""Key of the blocks in a response's metadata, which is never sent."""
PROVIDER: Final = "provider"
PROVIDER_PART: Final = "provider_part"
EXPLICIT: Final = frozenset(("anthropic",))
"""Providers whose requests name cache points. Others find common prefixes themselves, or have no cache."""
TOOLS: Final = {"anthropic_cache_tool_definitions": True}
_OF_AUTHORS: Final = ("anthropic_cache", "cache")
_POINT: Final = ContentBlock(type="cache_point")


def model_messages(messages: Sequence[ChatMessage]) -> list[ModelMessage]:
    """Return the messages in pydantic-ai's form. Blocks that no provider knows are kept, but not sent."""
    sdk_messages: list[ModelMessage] = []
    for is_answer, group in groupby(messages, key=lambda message: message.role == "assistant"):
        if not is_answer:
            sdk_messages.append(_request([*group]))
            continue
        for message in group:
            response = response_of(message.content)
            response.metadata = {**(response.metadata or {}), ENVELOPES: [_envelope(message)]}
            sdk_messages.append(response)
    return sdk_messages


def messages_of(messages: Sequence[ModelMessage]) -> list[ChatMessage]:
    """Return the chat messages that `model_messages` converted, or those of another program's messages."""
    return [chat for message in messages for chat in _chats(message)]


def _request(messages: Sequence[ChatMessage]) -> ModelRequest:
    parts: list[ModelRequestPart] = []
    envelopes = []
    for message in messages:
        parts += _parts(message)
        content = [block.model_dump() for block in message.content]
        envelopes.append({**_envelope(message), "content": content})
    return ModelRequest(parts=parts, metadata={ENVELOPES: envelopes})


def _envelope(message: ChatMessage) -> dict[str, Any]:
    return {"role": message.role, "name": message.name, "metadata": message.metadata}


def _parts(message: ChatMessage) -> Iterator[ModelRequestPart]:
    if message.role == "system":
        yield from (SystemPromptPart(block.text) for block in message.content if block.text)
        return
    for is_result, blocks in groupby(
        message.content, key=lambda block: block.type == "tool_result"
    ):
        if is_result:
            yield from (_tool_return(block) for block in blocks)
        elif content := [item for block in blocks if (item := _user_content(block)) is not None]:
            yield UserPromptPart(content)


def _tool_return(block: ContentBlock) -> ToolReturnPart:
    data = block.model_extra or {}
    structured = data.get("structured")
    content = block.text or ("" if structured is None else canonical_json(structured))
    # Without a status, `is_error` decides.
    status = str(data.get("status") or ("error" if data.get("is_error") else "ok"))
    return ToolReturnPart(
        tool_name=str(data.get("name") or ""),
        content=content,
        tool_call_id=str(data.get("id") or ""),
        outcome=_OUTCOMES.get(status, "failed"),  # type: ignore[arg-type]
    )


def _user_content(block: ContentBlock) -> UserContent | None:
    data = block.model_extra or {}
    if block.type == "cache_point":
        return CachePoint(ttl="1h" if data.get("ttl") == "1h" else "5m")
    if block.type in _URLS and isinstance(data.get("url"), str):
        return _URLS[block.type](url=data["url"], media_type=data.get("media_type"))  # type: ignore[return-value]
    if block.type in _URLS and isinstance(data.get("data"), str):
        try:
            return BinaryContent(
                b64decode(data["data"], validate=True), media_type=str(data.get("media_type"))
            )
        except ValueError:
            return f"[{block.type} that cannot be read]"
    return block.text or None


def _chats(message: ModelMessage) -> Iterator[ChatMessage]:
    envelopes = (message.metadata or {}).get(ENVELOPES)
    if isinstance(message, ModelResponse):
        [envelope] = envelopes or [{"name": None, "metadata": {}}]
        content = blocks_of(message)
        yield ChatMessage(
            role="assistant", content=content, name=envelope["name"], metadata=envelope["metadata"]
        )
        return
    if envelopes is None:
        yield from (_foreign_message(part) for part in message.parts)
        return
    for envelope in envelopes:
        yield ChatMessage(**envelope)


def _foreign_message(part: ModelRequestPart) -> ChatMessage:
    """Return the chat message of another program's part. An unknown part becomes a user message."""
    match part:
        case SystemPromptPart():
            return ChatMessage.of("system", part.content)
        case ToolReturnPart():
            outcomes = {outcome: status for status, outcome in _OUTCOMES.items()}
            block = {
                "type": "tool_result",
                "id": part.tool_call_id,
                "name": part.tool_name,
                "status": outcomes.get(part.outcome, "error"),
                "text": part.model_response_str(),
            }
            return ChatMessage(role="tool", content=[ContentBlock.model_validate(block)])
        case UserPromptPart(content=str(text)):
            return ChatMessage.of("user", text)
        case UserPromptPart():
            return ChatMessage(role="user", content=[_block(item) for item in part.content])
        case _:
            return ChatMessage.of("user", str(getattr(part, "content", part)))


def _block(content: UserContent) -> ContentBlock:
    match content:
        case str():
            return ContentBlock(type="text", text=content)
        case CachePoint():
            return ContentBlock.model_validate({"type": "cache_point", "ttl": content.ttl})
        case BinaryContent():
            kind = _kind(content)
            data = {"type": kind, "data": content.base64, "media_type": content.media_type}
            return ContentBlock.model_validate(data)
        case FileUrl():
            kind = next(name for name, url in _URLS.items() if isinstance(content, url))
            return ContentBlock.model_validate({"type": kind, "url": content.url})
        case _:
            return ContentBlock(type="text", text=str(getattr(content, "content", content)))


def _kind(content: BinaryContent) -> str:
    checks: dict[str, Callable[[BinaryContent], bool]] = {
        "image": lambda media: media.is_image,
        "audio": lambda media: media.is_audio,
        "video": lambda media: media.is_video,
    }
    return next((name for name, check in checks.items() if check(content)), "file")


def blocks_of(response: ModelResponse) -> list[ContentBlock]:
    """Return the answer's blocks, cleaned of characters that a log cannot store, with unique ids of calls.

    The blocks of a response from `response_of` are equal to the blocks that it was made from.
    """
    stored_blocks = (response.metadata or {}).get(BLOCKS)
    if stored_blocks is not None:
        return [ContentBlock.model_validate(block) for block in stored_blocks]
    blocks = [_incoming_block(part, response) for part in response.parts]
    return _with_unique_ids([block for block in blocks if block])


def _incoming_block(part: ModelResponsePart, response: ModelResponse) -> dict[str, Any]:
    match part:
        case TextPart():
            block: dict[str, Any] = {"type": "text", "text": part.content}
        case ThinkingPart():
            block = {"type": "reasoning", "text": part.content}
            if part.signature:
                block["signature"] = part.signature
        case ToolCallPart():
            block = {"type": "tool_call", "id": part.tool_call_id, "name": part.tool_name}
            block |= _arguments(part.args)
        case _:
            block = {"type": PROVIDER_PART, "part": _dump_part(part)}
    return clean_json(block | _provider_data(part, response))  # type: ignore[no-any-return]


def _arguments(args: object) -> dict[str, Any]:
    if not isinstance(args, str) or not args.strip():
        return {"arguments": args or {}}
    try:
        arguments = from_json(args)
    except ValueError:
        arguments = None
    if isinstance(arguments, dict):
        return {"arguments": arguments}
    return {"arguments": {}, "invalid_arguments": args}


def _provider_data(part: ModelResponsePart, response: ModelResponse) -> dict[str, Any]:
    """Return the data that only the provider understands; empty if there is none.

    Reasoning always names its provider, because it must not be sent to another one.
    """
    part_data = _dump_part(part)
    part_fields = {name: part_data[name] for name in _FIELDS if part_data.get(name) is not None}
    is_plain = set(part_fields) <= {"provider_name"} and isinstance(part, TextPart | ToolCallPart)
    if is_plain:
        return {}
    response_fields = {
        name: value for name in _OF_RESPONSE if (value := getattr(response, name)) is not None
    }
    return {PROVIDER: response_fields | part_fields}


def _dump_part(part: ModelResponsePart) -> dict[str, Any]:
    [message] = ModelMessagesTypeAdapter.dump_python([ModelResponse(parts=[part])], mode="json")
    return dict(message["parts"][0])


def _with_unique_ids(blocks: list[dict[str, Any]]) -> list[ContentBlock]:
    """Return the blocks. A call with an earlier call's id gets a new id, so that each has its own result."""
    seen_ids: set[str] = set()
    for block in blocks:
        if block["type"] == "tool_call":
            original_id, number = block["id"] or "call", 1
            block["id"] = original_id
            while block["id"] in seen_ids:
                number += 1
                block["id"] = f"{original_id}~{number}"
            seen_ids.add(block["id"])
    return [ContentBlock.model_validate(block) for block in blocks]


def response_of(blocks: Sequence[ContentBlock]) -> ModelResponse:
    """Return the answer that consists of these blocks, for any provider.

    Blocks without a counterpart are kept in `metadata` only.
    """
    stored_blocks = [block.model_dump() for block in blocks]
    providers = [
        block[PROVIDER] for block in stored_blocks if isinstance(block.get(PROVIDER), dict)
    ]
    response_fields = {
        name: providers[0][name] for name in _OF_RESPONSE if providers and name in providers[0]
    }
    parts: list[ModelResponsePart] = []
    for block in stored_blocks:
        provider = block.get(PROVIDER)
        data = provider if isinstance(provider, dict) else {}
        part_fields = {name: data[name] for name in _FIELDS if name in data}
        make_part = _PARTS.get(block["type"])
        part = None if make_part is None else make_part(block, part_fields)
        if part is not None and (sdk_part := _validate_part(part)) is not None:
            parts.append(sdk_part)
    return ModelResponse(parts=parts, metadata={BLOCKS: stored_blocks}, **response_fields)


def _text_part(block: dict[str, Any], part_fields: dict[str, Any]) -> dict[str, Any]:
    return {"part_kind": "text", "content": block.get("text") or "", **part_fields}


def _thinking_part(block: dict[str, Any], part_fields: dict[str, Any]) -> dict[str, Any]:
    part_fields.pop("citations", None)
    signature = block.get("signature")
    return {
        "part_kind": "thinking",
        "content": block.get("text") or "",
        "signature": signature,
        **part_fields,
    }


def _call_part(block: dict[str, Any], part_fields: dict[str, Any]) -> dict[str, Any]:
    part_fields.pop("citations", None)
    args = block.get("invalid_arguments") or block.get("arguments")
    return {
        "part_kind": "tool-call",
        "tool_name": str(block.get("name") or ""),
        "tool_call_id": str(block.get("id") or ""),
        "args": args if isinstance(args, str | dict) else {},
        **part_fields,
    }


def _provider_part(block: dict[str, Any], part_fields: dict[str, Any]) -> dict[str, Any] | None:
    part = block.get("part")
    return {**part, **part_fields} if isinstance(part, dict) else None


_PARTS: Final[dict[str, Callable[[dict[str, Any], dict[str, Any]], dict[str, Any] | None]]] = {
    "text": _text_part,
    "reasoning": _thinking_part,
    "tool_call": _call_part,
    PROVIDER_PART: _provider_part,
}


def _validate_part(part: dict[str, Any]) -> ModelResponsePart | None:
    """Return the part; None if it is invalid, because one invalid block must not stop a conversation."""
    try:
        [message] = ModelMessagesTypeAdapter.validate_python(
            [{"kind": "response", "parts": [part]}]
        )
    except ValidationError:
        return None
    return message.parts[0]  # type: ignore[return-value]


def takes_points(
    provider: str, messages: Sequence[ChatMessage], settings: Mapping[str, Any]
) -> bool:
    """Return whether a request gets points: the provider accepts them, and the author has set none."""
    if provider not in EXPLICIT or any(name.startswith(_OF_AUTHORS) for name in settings):
        return False
    return not any(block.type == _POINT.type for message in messages for block in message.content)


def behind_the_summary(messages: Sequence[ChatMessage]) -> list[ChatMessage]:
    """Return the messages with a point after the last summary; unchanged if there is none."""
    marked_messages = [*messages]
    for index in reversed(range(len(marked_messages))):
        if marked_messages[index].role == "user" and is_summary(marked_messages[index]):
            content = [*marked_messages[index].content, _POINT]
            marked_messages[index] = marked_messages[index].model_copy(update={"content": content})
            break
    return marked_messages


def behind_the_last_answer(messages: Sequence[ModelMessage]) -> list[ModelMessage]:
    """Return the messages with a point between the last answer and the new messages.

    A point at the start of a request applies to the message before it. No point is set if the answer ends with
    a part that cannot have a point, such as reasoning.
    """
    marked_messages = [*messages]
    for index in reversed(range(1, len(marked_messages))):
        answer, request = marked_messages[index - 1], marked_messages[index]
        if isinstance(answer, ModelResponse) and isinstance(request, ModelRequest):
            last = answer.parts[-1] if answer.parts else None
            is_text = isinstance(last, TextPart) and bool(last.content.strip())
            if is_text or isinstance(last, ToolCallPart):
                parts = [UserPromptPart([CachePoint()]), *request.parts]
                marked_messages[index] = replace(request, parts=parts)
            break
    return marked_messages
