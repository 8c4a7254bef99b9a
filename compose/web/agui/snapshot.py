"""The messages of a session, in the form of the protocol."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

from ag_ui.core import (
    AssistantMessage,
    FunctionCall,
    Message,
    MessagesSnapshotEvent,
    ToolCall,
    ToolMessage,
)
from ag_ui.core import UserMessage as UserInput
from pydantic import TypeAdapter

from actors.kernel.agent.message import ContentBlock
from actors.kernel.agent.transcript import Turn
from actors.kernel.json import canonical_json

MOST: Final = 1_000
"""Maximum number of messages of a snapshot: the last ones."""
_USER: Final = TypeAdapter(UserInput)
_MEDIA: Final = {"image": "image", "audio": "audio", "video": "video", "file": "document"}


def snapshot_of(turns: Sequence[Turn], *, open_run: str | None) -> MessagesSnapshotEvent:
    """Return turns as messages. Of an open run it has only the user's message: events carry the others."""
    shown = [one for one in turns[-MOST:] if one.run_id != open_run or one.message.role == "user"]
    return MessagesSnapshotEvent(messages=[message for turn in shown for message in _of(turn)])


def _of(turn: Turn) -> Iterator[Message]:
    message = turn.message
    if message.role == "assistant":
        calls = [_call(block) for block in message.content if block.type == "tool_call"]
        yield AssistantMessage(
            id=turn.id, content=message.text or None, tool_calls=calls or None, name=message.name
        )
    elif message.role == "user":
        yield _user(turn)
    elif message.role == "tool":
        for n, block in enumerate(one for one in message.content if one.type == "tool_result"):
            call = str((block.model_extra or {}).get("id"))
            yield ToolMessage(id=f"{turn.id}:{n}", tool_call_id=call, content=block.text or "")


def _call(block: ContentBlock) -> ToolCall:
    data: dict[str, Any] = block.model_extra or {}
    arguments = data.get("invalid_arguments", data.get("arguments"))
    text = arguments if isinstance(arguments, str) else canonical_json(arguments or {})
    function = FunctionCall(name=str(data.get("name")), arguments=text)
    return ToolCall(id=str(data.get("id")), function=function)


def _user(turn: Turn) -> UserInput:
    message = turn.message
    if all(one.type == "text" for one in message.content):
        return UserInput(id=turn.id, content=message.text)
    parts = [part for part in map(_part, message.content) if part is not None]
    return _USER.validate_python({"id": turn.id, "content": parts})


def _part(block: ContentBlock) -> dict[str, Any] | None:
    data: dict[str, Any] = block.model_extra or {}
    if block.type == "text":
        return {"type": "text", "text": block.text or ""}
    kind, mime = _MEDIA.get(block.type), data.get("media_type")
    if kind is not None and isinstance(data.get("url"), str):
        return {"type": kind, "source": {"type": "url", "value": data["url"], "mime_type": mime}}
    if kind is not None and isinstance(data.get("data"), str) and isinstance(mime, str):
        return {"type": kind, "source": {"type": "data", "value": data["data"], "mime_type": mime}}
    return None
