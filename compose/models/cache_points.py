"""Cache points: positions in a request up to which a provider caches the prompt.

A later request with the same prefix costs less. Points are set after the tools, after the last summary, and
after the last answer, because everything after that answer is new. A request therefore has at most three
points; providers accept four. If an author sets points, no others are added.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from pydantic_ai.messages import (
    CachePoint,
    ModelMessage,
    ModelRequest,
    ModelResponse,
    TextPart,
    ToolCallPart,
    UserPromptPart,
)

from actors.context.turns import is_summary
from actors.kernel.agent.message import ChatMessage, ContentBlock

EXPLICIT: Final = frozenset(("anthropic",))
"""Providers whose requests name cache points. Others find common prefixes themselves, or have no cache."""
TOOLS: Final = {"anthropic_cache_tool_definitions": True}

_OF_AUTHORS: Final = ("anthropic_cache", "cache")
_POINT: Final = ContentBlock(type="cache_point")


def takes_points(
    provider: str, messages: Sequence[ChatMessage], settings: Mapping[str, Any]
) -> bool:
    """Return whether a request gets points: the provider accepts them, and the author has set none."""
    if provider not in EXPLICIT or any(name.startswith(_OF_AUTHORS) for name in settings):
        return False
    return not any(block.type == _POINT.type for one in messages for block in one.content)


def behind_the_summary(messages: Sequence[ChatMessage]) -> list[ChatMessage]:
    """Return the messages with a point after the last summary; unchanged if there is none."""
    found = [*messages]
    for index in reversed(range(len(found))):
        if found[index].role == "user" and is_summary(found[index]):
            content = [*found[index].content, _POINT]
            found[index] = found[index].model_copy(update={"content": content})
            break
    return found


def behind_the_last_answer(messages: Sequence[ModelMessage]) -> list[ModelMessage]:
    """Return the messages with a point between the last answer and the new messages.

    A point at the start of a request applies to the message before it. No point is set if the answer ends with
    a part that cannot have a point, such as reasoning.
    """
    found = [*messages]
    for index in reversed(range(1, len(found))):
        answer, new = found[index - 1], found[index]
        if isinstance(answer, ModelResponse) and isinstance(new, ModelRequest):
            if _ends_with_text_or_call(answer):
                parts = [UserPromptPart([CachePoint()]), *new.parts]
                found[index] = replace(new, parts=parts)
            break
    return found


def _ends_with_text_or_call(answer: ModelResponse) -> bool:
    last = answer.parts[-1] if answer.parts else None
    return isinstance(last, ToolCallPart) or (
        isinstance(last, TextPart) and bool(last.content.strip())
    )
