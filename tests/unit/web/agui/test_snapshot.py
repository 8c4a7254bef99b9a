"""The messages of a session, as clients of AG-UI have them."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from actors._kernel.agent.message import ChatMessage, ContentBlock
from actors._kernel.agent.transcript import Turn
from compose._web.agui.endpoint import MOST_MESSAGES, snapshot_of

AT = datetime(2026, 1, 1, tzinfo=UTC)


def turn(role: Any, *blocks: dict[str, Any], n: int = 0, run: str = "r") -> Turn:
    """A stored turn."""
    content = [ContentBlock.model_validate(block) for block in blocks]
    message = ChatMessage(role=role, content=content)
    return Turn(n, f"n{n}", run, message, tokens=None, parent=None, at=AT)


def shown_messages(*turns: Turn, open_run: str | None = None) -> list[dict[str, Any]]:
    """The messages of a snapshot."""
    event = snapshot_of(turns, open_run_id=open_run)
    messages: list[dict[str, Any]] = event.model_dump(mode="json", by_alias=True)["messages"]
    return messages


def text(words: str) -> dict[str, Any]:
    """A block of text."""
    return {"type": "text", "text": words}


def test_turns_are_messages_with_the_ids_of_their_nodes() -> None:
    """Calls of tools are in the answer, each result is a message; instructions are not shown."""
    call = {"type": "tool_call", "id": "c", "name": "sky", "arguments": {"at": "Ulm"}}
    result = {"type": "tool_result", "id": "c", "name": "sky", "text": "sunny"}
    messages = shown_messages(
        turn("system", text("be kind")),
        turn("user", text("hi"), n=1),
        turn("assistant", text("look"), call, n=2),
        turn("tool", result, n=3),
        turn("assistant", {**call, "invalid_arguments": "{"}, n=4),
    )

    function = {"name": "sky", "arguments": '{"at":"Ulm"}'}
    assert messages[:3] == [
        {"id": "n1", "role": "user", "content": "hi"},
        {
            "id": "n2",
            "role": "assistant",
            "content": "look",
            "toolCalls": [{"id": "c", "type": "function", "function": function}],
        },
        {"id": "n3:0", "role": "tool", "content": "sunny", "toolCallId": "c"},
    ]
    assert "content" not in messages[3]
    assert messages[3]["toolCalls"][0]["function"]["arguments"] == "{"


def test_media_of_the_user_are_parts() -> None:
    """What the protocol has no part for is left out."""
    [message] = shown_messages(
        turn(
            "user",
            text("see"),
            {"type": "image", "url": "https://x/y.png", "media_type": None},
            {"type": "file", "data": "QQ==", "media_type": "a/b"},
            {"type": "hologram", "depth": 3},
        )
    )

    assert [part["type"] for part in message["content"]] == ["text", "image", "document"]
    assert message["content"][2]["source"] == {"type": "data", "value": "QQ==", "mimeType": "a/b"}


def test_of_an_open_run_only_the_users_messages_are_shown() -> None:
    """Its events tell the others. Of a long conversation the end is shown."""
    turns = turn("user", text("q"), run="open"), turn("assistant", text("a"), n=1, run="open")
    many = [turn("user", text(str(n)), n=n) for n in range(MOST_MESSAGES + 5)]

    assert [message["content"] for message in shown_messages(*turns, open_run="open")] == ["q"]
    assert len(shown_messages(*turns)) == 2
    assert shown_messages(*many)[0]["content"] == "5"
