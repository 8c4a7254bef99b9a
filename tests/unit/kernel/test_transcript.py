"""Turns of conversations: what may be kept."""

from __future__ import annotations

import pytest
from pydantic_core import to_json

from actors._kernel.agent.message import ChatMessage
from actors._kernel.agent.transcript import MAX_TURN_BYTES, message_json, new_turn
from actors.errors import MessageTooLargeError


def said(text: str) -> ChatMessage:
    """A turn of several blocks and kinds of values."""
    image = {"type": "image", "data": [{"é\n": "\x00" * 1000}, -1.5e300, None, True]}
    return ChatMessage.model_validate(
        {"role": "user", "content": [{"type": "text", "text": text}, image]}
    )


@pytest.mark.item(285)
def test_a_turn_that_no_provider_takes_is_refused() -> None:
    """All of its JSON counts; as much as the limit passes, in characters of any kind."""
    left = MAX_TURN_BYTES - len(to_json(message_json(said(""))))

    for text in ("x" * left, "é" * (left // 2), "\x00" * (left // 6)):
        assert new_turn(said(text), "s").message.text == text
        with pytest.raises(MessageTooLargeError, match="bytes as JSON, 33554432 are the limit"):
            new_turn(said(text + "\x00"), "s")
