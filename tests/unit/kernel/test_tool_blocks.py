"""Calls and results of tools as a conversation holds them."""

from __future__ import annotations

import pytest

from actors import ChatMessage, InvocationResult, ToolCall, ToolResult

CALL = ToolCall(id="c1", name="look", arguments={"q": "Ada"})


@pytest.mark.parametrize(
    ("outcome", "text", "is_error"),
    [
        (InvocationResult(status="ok", text="found", structured="found"), "found", False),
        (InvocationResult(status="ok", structured={"b": 1, "a": [2]}), '{"a":[2],"b":1}', False),
        (InvocationResult(status="ok", structured=False), "false", False),
        (InvocationResult(status="ok", structured=""), "", False),
        (InvocationResult(status="ok"), "", False),
        (InvocationResult(status="error", text="KeyError: x"), "KeyError: x", True),
        (InvocationResult(status="denied", text="not called"), "not called", True),
    ],
)
def test_what_became_of_a_call_is_what_the_model_reads(
    outcome: InvocationResult, text: str, is_error: bool
) -> None:
    """Its text, else its value as JSON; failures and denials are errors."""
    result = outcome.result(CALL)

    assert (result.id, result.name) == ("c1", "look")
    assert (result.text, result.is_error) == (text, is_error)


def test_a_result_is_a_turn_of_the_role_tool() -> None:
    """Its one block names the call, and survives JSON."""
    message = ToolResult(id="c1", name="look", text="found").message()
    [block] = ChatMessage.model_validate_json(message.model_dump_json()).content

    assert (message.role, message.text) == ("tool", "")
    assert block.model_dump() == {
        "type": "tool_result",
        "text": "found",
        "id": "c1",
        "name": "look",
        "is_error": False,
    }


def test_a_turn_knows_its_id_and_its_parents() -> None:
    """Both are in its metadata; an empty one is none."""
    message = ChatMessage.of("user", "hi")
    child = message.model_copy(update={"metadata": {"turn": "r:2", "parent": "r:1"}})
    empty = message.model_copy(update={"metadata": {"turn": "", "parent": ""}})

    assert (child.turn, child.parent) == ("r:2", "r:1")
    assert (message.turn, message.parent, empty.turn, empty.parent) == (None,) * 4


def test_other_metadata_leaves_the_rest_of_a_message() -> None:
    """It is what pydantic's copy is, and the message that it was made of stays."""
    message = ChatMessage.model_validate(
        {"role": "user", "name": "ann", "content": [{"type": "audio", "data": {"a": 1}}]}
    )
    before = message.model_dump()

    changed_message, copied_message = (
        message.with_metadata({"turn": "r:2"}),
        message.model_copy(update={"metadata": {"turn": "r:2"}}),
    )

    assert changed_message == copied_message
    assert (changed_message.turn, changed_message.name, changed_message.content[0]) == (
        "r:2",
        "ann",
        message.content[0],
    )
    assert changed_message.model_fields_set == copied_message.model_fields_set
    assert changed_message.model_dump_json(exclude_unset=True) == copied_message.model_dump_json(
        exclude_unset=True
    )
    assert changed_message.with_metadata({}) == message
    assert message.model_dump() == before
