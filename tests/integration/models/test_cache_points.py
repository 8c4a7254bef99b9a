"""Cache points as they arrive at a provider."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from actors import ChatMessage, GenerationOptions, Runtime, StoreHistory, ToolCall, ToolSpec
from actors._kernel.agent.tools import Tool
from actors.agents import ReActAgent
from actors.context import ContextConfig, SummarizationCompaction, TokenCounter
from actors.testing import ScriptedModel
from tests.integration.models.provider import anthropic, chat, provider
from tests.integration.models.test_provider_model import CALL, CHAT, CLAUDE, RESPONSES, TEXT
from tests.integration.models.test_provider_model import client_of as open_client

BY_TENS = TokenCounter(lambda _: 6)
POINT = {"type": "ephemeral", "ttl": "5m"}


def places(request: dict[str, Any]) -> list[str]:
    """Where a request has points: the tool's name, or role and kind of the content before each."""
    points = [tool["name"] for tool in request.get("tools", ()) if "cache_control" in tool]
    for n, message in enumerate(request["messages"]):
        for block in message["content"]:
            if "cache_control" in block:
                assert block["cache_control"] == POINT
                points.append(f"{n} {message['role']} {block['type']}")
    return points


async def test_a_chat_has_points_behind_tools_summary_and_last_stable_turn() -> None:
    """In each of its requests; new turns and new results are behind the last one."""

    async def book(day: int) -> str:
        return f"booked {day}"

    async with provider(anthropic(TEXT), anthropic(CALL), anthropic(TEXT)) as served:
        writer = ScriptedModel(otherwise="so far")
        agent = ReActAgent(
            "guide",
            model=(client := open_client(served, CLAUDE)),
            tools=[Tool(name, "Book.", book, idempotent=True) for name in ("drop", "book")],
            context=ContextConfig(
                StoreHistory(), SummarizationCompaction(writer, 50, 45, counter=BY_TENS)
            ),
        )
        async with Runtime() as runtime:
            await runtime.register(agent)
            messages = [ChatMessage.of("user", str(n)) for n in range(10)]
            await runtime.history.append_many(agent.id, messages, session_id="main")
            for _ in range(2):
                assert await runtime.result(await runtime.submit(agent.id, "next")) == "Hello"
        await client.aclose()

    first, second, third = served.requests
    assert places(first) == ["book", "0 user text"]
    assert places(second) == ["book", "0 user text", "1 assistant text"]
    assert places(third) == ["book", "0 user text", "3 assistant tool_use"]
    assert [block["type"] for block in third["messages"][4]["content"]] == ["tool_result"]
    assert 'kind="summary"' in third["messages"][0]["content"][0]["text"]


@pytest.mark.parametrize("name", [CHAT, RESPONSES])
async def test_a_provider_without_points_is_sent_none(name: str) -> None:
    """The request is the one that it was."""
    answer = ChatMessage.of("assistant", "hello")
    hi = ChatMessage.of("user", "hi")
    call = ToolCall(id="1", name="book", arguments={})
    options = GenerationOptions(tools=(ToolSpec(name=call.name),))
    async with provider(chat("ok")) as served:
        client = open_client(served, name)
        # The script speaks one protocol; what was asked counts.
        await asyncio.gather(
            client.generate([hi, answer, hi], options=options), return_exceptions=True
        )
        await client.aclose()

    assert "cache" not in str(served.requests[0]).lower()
