"""Token counts without a tokenizer, for clients that have none."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from pydantic_core import to_json

from actors.kernel.agent.message import ChatMessage, ContentBlock

CHARACTERS_A_TOKEN: Final = 3
"""English prose has about 4 characters a token, code and JSON about 3. The estimate errs upwards."""


def estimated_tokens(messages: Sequence[ChatMessage]) -> int:
    """Return the number of characters in all blocks divided by 3, rounded up for each message."""
    return sum(_message(message) for message in messages)


def texts_of(message: ChatMessage) -> list[str]:
    """Return all text of a message that a model reads: of its blocks, and other data of these as JSON."""
    return [text for block in message.content for text in _texts(block) if text]


def _texts(block: ContentBlock) -> tuple[str, str]:
    extra = block.model_extra
    # Lone surrogates have no JSON text; `repr` has one of about the same length.
    other = to_json(extra, fallback=repr, inf_nan_mode="constants").decode() if extra else ""
    return block.text or "", other


def _message(message: ChatMessage) -> int:
    return -(-sum(map(len, texts_of(message))) // CHARACTERS_A_TOKEN)
