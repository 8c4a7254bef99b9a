"""Turns of conversations: what may be kept."""

from __future__ import annotations

import pytest
from pydantic_core import to_json

from actors._kernel.agent.message import ChatMessage
from actors._kernel.agent.transcript import MAX_TURN_BYTES, message_json, new_turn
from actors.errors import MessageTooLargeError


def turn_of(text: str) -> ChatMessage:
    """A turn of several blocks and kinds of values."""
    image = {"type": "image", "data": [{"é\n": "\x00" * 1000}, -1.5e300, None, True]}
    return ChatMessage.model_validate(
        {"role": "user", "content": [{"type": "text", "text": text}, image]}
    )


@pytest.mark.item(285)
def test_a_turn_that_no_provider_takes_is_refused() -> None:
    """All of its JSON counts; as much as the limit passes, in characters of any kind."""
    remaining_bytes = MAX_TURN_BYTES - len(to_json(message_json(turn_of(""))))

    for text in (
        "x" * remaining_bytes,
        "é" * (remaining_bytes // 2),
        "\x00" * (remaining_bytes // 6),
    ):
        assert new_turn(turn_of(text), "s").message.text == text
        with pytest.raises(MessageTooLargeError, match="bytes as JSON, 33554432 are the limit"):
            new_turn(turn_of(text + "\x00"), "s")
