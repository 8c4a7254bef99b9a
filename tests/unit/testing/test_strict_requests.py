"""Requests that a scripted model refuses, as real ones do."""

from __future__ import annotations

from typing import Any

import pytest

from actors import ChatMessage, ContentBlock, GenerationOptions, ToolSpec
from actors.errors import ModelError
from actors.testing import FunctionModel, ScriptedModel

HI = ChatMessage.of("user", "hi")


def turn(role: Any, *blocks: dict[str, Any] | str) -> ChatMessage:
    """A message of texts and other blocks."""
    block_fields = [
        {"type": "text", "text": block} if isinstance(block, str) else block for block in blocks
    ]
    return ChatMessage(
        role=role, content=[ContentBlock.model_validate(fields) for fields in block_fields]
    )


def call(id_: str) -> dict[str, Any]:
    """A call of a tool."""
    return {"type": "tool_call", "id": id_, "name": "book", "arguments": {}}


def result(id_: str) -> dict[str, Any]:
    """A result of a tool."""
    return {"type": "tool_result", "id": id_, "name": "book", "text": "ok"}


REFUSED: dict[str, tuple[list[ChatMessage], str]] = {
    "no message": ([], "at least one message"),
    "system only": ([turn("system", "be brief")], "at least one message"),
    "no result": ([HI, turn("assistant", call("1")), HI], "without results"),
    "no result at the end": ([HI, turn("assistant", call("1"))], "without results"),
    "a part of the results": (
        [HI, turn("assistant", call("1"), call("2")), turn("tool", result("1")), HI],
        "without results",
    ),
    "a result of nothing": ([HI, turn("tool", result("1"))], "without its call"),
    "two results": (
        [HI, turn("assistant", call("1")), turn("tool", result("1"), result("1"))],
        "without its call",
    ),
    "one id twice": ([HI, turn("assistant", call("1"), call("1"))], "must be unique"),
    "no id": ([HI, turn("assistant", call(""))], "has no id"),
    "a call of a user": ([turn("user", call("1"))], "has no tool_call"),
}


@pytest.mark.parametrize("name", REFUSED)
async def test_turns_that_no_provider_takes_are_refused(name: str) -> None:
    """With the kind of error that a provider gives; a lax model takes them."""
    messages, problem = REFUSED[name]

    with pytest.raises(ModelError, match=problem) as caught:
        await ScriptedModel("ok").generate(messages)

    assert caught.value.kind == "invalid"
    assert (await ScriptedModel("ok", strict=False).generate(messages)).text == "ok"
    with pytest.raises(ModelError, match=problem):
        await FunctionModel(lambda *_: "ok").generate(messages)


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        (GenerationOptions(tools=(ToolSpec(name="a"), ToolSpec(name="a"))), "must be unique"),
        (GenerationOptions(tools=(ToolSpec(name=""),)), "has no name"),
        (GenerationOptions(tools=(ToolSpec(name="a", parameters={}),)), "of type object"),
        (GenerationOptions(response_format={"type": "array"}), "of type object"),
    ],
)
async def test_options_that_no_provider_takes_are_refused(
    options: GenerationOptions, problem: str
) -> None:
    """Names and schemas."""
    with pytest.raises(ModelError, match=problem):
        await ScriptedModel("ok").generate([HI], options=options)


async def test_a_whole_conversation_is_taken() -> None:
    """With calls that repeat an earlier answer's id, and those that a provider answered itself."""
    round_ = [turn("assistant", "so", call("1"), call("2")), turn("tool", result("1"))]
    messages = [
        turn("system", "be brief"),
        *(HI, *round_, turn("tool", result("2"))),
        *(HI, *round_, turn("tool", result("2"))),
        turn("assistant", call("3"), result("3"), "done"),
        HI,
    ]

    assert (await ScriptedModel("ok").generate(messages)).text == "ok"
