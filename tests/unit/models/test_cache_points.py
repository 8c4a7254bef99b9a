"""Cache points of a request: where they stand, and where there are none."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic_ai.messages import CachePoint, ModelRequest, TextPart, ThinkingPart, UserPromptPart

from actors import ChatMessage, ContentBlock
from actors._context.compaction.steps import summary_message
from compose._models.messages import (
    behind_the_last_answer,
    behind_the_summary,
    messages_of,
    model_messages,
    takes_points,
)

SUMMARY = summary_message("so far", upto="t1")
HI, ANSWER = ChatMessage.of("user", "hi"), ChatMessage.of("assistant", "hello")


def points(messages: list[Any]) -> list[tuple[int, int]]:
    """The places of points: of which message, behind how many contents of its parts."""
    positions = []
    for n, message in enumerate(messages):
        count = 0
        for part in message.parts:
            for content in part.content if isinstance(part, UserPromptPart) else [part]:
                if isinstance(content, CachePoint):
                    positions.append((n, count))
                else:
                    count += 1
    return positions


def test_a_point_stands_behind_the_summary_and_behind_the_last_answer() -> None:
    """Behind the newest of several, and in front of all that is new."""
    chat = [SUMMARY, SUMMARY, HI, ANSWER, HI, ANSWER, HI, HI]

    sent = behind_the_last_answer(model_messages(behind_the_summary(chat)))

    assert points(sent) == [(0, 2), (4, 0)]
    assert [m.text for m in messages_of(sent)] == [m.text for m in chat]


def test_a_talk_that_begins_has_no_point() -> None:
    """There is no answer to stand behind, and no summary."""
    sent = behind_the_last_answer(model_messages(behind_the_summary([HI, HI])))

    assert points(sent) == []


@pytest.mark.parametrize("last", [ThinkingPart("hm", signature="s"), TextPart("  ")])
def test_no_point_stands_behind_reasoning_or_nothing(last: Any) -> None:
    """Providers refuse that."""
    sent = model_messages([HI, ANSWER, HI])
    sent[1].parts = [last]

    assert points(behind_the_last_answer(sent)) == []


@pytest.mark.parametrize(
    ("provider", "message", "settings", "expects_points"),
    [
        ("anthropic", HI, {"temperature": 1}, True),
        ("openai", HI, {}, False),
        ("anthropic", HI, {"anthropic_cache_messages": True}, False),
        ("anthropic", HI, {"cache": False}, False),
        (
            "anthropic",
            ChatMessage(role="user", content=[ContentBlock(type="cache_point")]),
            {},
            False,
        ),
    ],
)
def test_points_are_for_providers_that_take_them_and_authors_who_set_none(
    provider: str, message: ChatMessage, settings: dict[str, Any], *, expects_points: bool
) -> None:
    """The author's own points and settings go before."""
    assert takes_points(provider, [message], settings) is expects_points


def test_new_tool_results_come_behind_the_point() -> None:
    """In the request as it is made, so that the results are not part of what is kept."""
    result = ContentBlock.model_validate({"type": "tool_result", "id": "1", "name": "t"})
    call = ContentBlock.model_validate({"type": "tool_call", "id": "1", "name": "t"})
    chat = [
        HI,
        ChatMessage(role="assistant", content=[call]),
        ChatMessage(role="tool", content=[result]),
    ]

    *_, last = behind_the_last_answer(model_messages(chat))

    assert isinstance(last, ModelRequest)
    assert [part.part_kind for part in last.parts] == ["user-prompt", "tool-return"]
