"""Conversion of chat messages into pydantic-ai's messages, and back.

Each message of the model becomes a `ModelResponse`. The messages between two of them become one `ModelRequest`,
because providers require all results of one answer in one message. Data for which pydantic-ai has no field is
kept in `metadata`, which is never sent, so that `messages_of` returns equal messages.
"""

from __future__ import annotations

from base64 import b64decode
from collections.abc import Callable, Iterator, Sequence
from itertools import groupby
from typing import Any, Final

from pydantic_ai.messages import (
    AudioUrl,
    BinaryContent,
    CachePoint,
    DocumentUrl,
    FileUrl,
    ImageUrl,
    ModelMessage,
    ModelRequest,
    ModelRequestPart,
    ModelResponse,
    SystemPromptPart,
    ToolReturnPart,
    UserContent,
    UserPromptPart,
    VideoUrl,
)

from actors.kernel.agent.message import ChatMessage, ContentBlock
from actors.kernel.json import canonical_json
from compose.models.incoming import blocks_of, response_of

KEPT: Final = "callboard"
"""Key of the original messages in a message's metadata."""

_URLS: Final[dict[str, type[FileUrl]]] = {
    "image": ImageUrl,
    "audio": AudioUrl,
    "video": VideoUrl,
    "file": DocumentUrl,
}
_OUTCOMES: Final = {"ok": "success", "error": "failed", "denied": "denied"}


def model_messages(messages: Sequence[ChatMessage]) -> list[ModelMessage]:
    """Return the messages in pydantic-ai's form. Blocks that no provider knows are kept, but not sent."""
    found: list[ModelMessage] = []
    for is_answer, group in groupby(messages, key=lambda message: message.role == "assistant"):
        if is_answer:
            found += [_response(message) for message in group]
        else:
            found.append(_request([*group]))
    return found


def messages_of(messages: Sequence[ModelMessage]) -> list[ChatMessage]:
    """Return the chat messages that `model_messages` converted, or those of another program's messages."""
    return [chat for message in messages for chat in _chats(message)]


def _response(message: ChatMessage) -> ModelResponse:
    response = response_of(message.content)
    response.metadata = {**(response.metadata or {}), KEPT: [_envelope(message)]}
    return response


def _request(messages: Sequence[ChatMessage]) -> ModelRequest:
    parts: list[ModelRequestPart] = []
    envelopes = []
    for message in messages:
        parts += _parts(message)
        content = [block.model_dump() for block in message.content]
        envelopes.append({**_envelope(message), "content": content})
    return ModelRequest(parts=parts, metadata={KEPT: envelopes})


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
        elif content := [sent for block in blocks if (sent := _user_content(block)) is not None]:
            yield UserPromptPart(content)


def _tool_return(block: ContentBlock) -> ToolReturnPart:
    data = block.model_extra or {}
    structured = data.get("structured")
    content = block.text or ("" if structured is None else canonical_json(structured))
    return ToolReturnPart(
        tool_name=str(data.get("name") or ""),
        content=content,
        tool_call_id=str(data.get("id") or ""),
        outcome=_OUTCOMES.get(_status_of(data), "failed"),  # type: ignore[arg-type]
    )


def _status_of(data: dict[str, Any]) -> str:
    """Return the status of a `tool_result` block. Without a status, `is_error` decides."""
    return str(data.get("status") or ("error" if data.get("is_error") else "ok"))


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
    kept = (message.metadata or {}).get(KEPT)
    if isinstance(message, ModelResponse):
        [envelope] = kept or [{"name": None, "metadata": {}}]
        content = blocks_of(message)
        yield ChatMessage(
            role="assistant", content=content, name=envelope["name"], metadata=envelope["metadata"]
        )
        return
    if kept is None:
        yield from (_foreign(part) for part in message.parts)
        return
    for envelope in kept:
        yield ChatMessage(**envelope)


def _foreign(part: ModelRequestPart) -> ChatMessage:
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
            return ChatMessage(role="user", content=[_block(one) for one in part.content])
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
        "image": lambda one: one.is_image,
        "audio": lambda one: one.is_audio,
        "video": lambda one: one.is_video,
    }
    return next((name for name, check in checks.items() if check(content)), "file")
