"""Clients made of clients: one picked by a function, and one that answers from memory."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pytest

from actors import AgentId, ChatMessage, GenerationOptions, LLMClient, Runtime, Usage
from actors._kernel.agent.models import Completion, TextDelta
from actors._kernel.agent.tools import ToolCall
from actors.testing import ModelReply, ScriptedModel
from compose.models import Router, SemanticCache

if TYPE_CHECKING:
    from collections.abc import Sequence

    from actors import Message, RunContext


@dataclass
class StoppedClock:
    """A clock that a test moves."""

    seconds: float = 0.0

    def now(self) -> datetime:
        """See `Clock.now`."""
        return datetime.fromtimestamp(self.seconds, UTC)

    def monotonic(self) -> float:
        """See `Clock.monotonic`."""
        return self.seconds


def user_messages(*texts: str) -> list[ChatMessage]:
    """User messages of these texts."""
    return [ChatMessage.of("user", text) for text in texts]


async def texts(client: LLMClient, *questions: str, **options: Any) -> list[str]:
    """Answers to these questions, one after the other."""
    generation_options = GenerationOptions(**options)
    return [
        (await client.generate(user_messages(text), options=generation_options)).text
        for text in questions
    ]


@pytest.mark.item(341)
async def test_a_function_picks_the_client() -> None:
    """By messages and options; an `async` one may ask a model first."""
    small, large = ScriptedModel(otherwise="small"), ScriptedModel(otherwise="large")

    def by_options(messages: Sequence[ChatMessage], options: GenerationOptions) -> LLMClient:
        return large if options.tools or len(messages) > 1 else small

    async def by_asking(messages: Sequence[ChatMessage], options: GenerationOptions) -> LLMClient:
        return large if (await small.generate(messages, options=options)).text == "?" else small

    router = Router(by_options)

    assert isinstance(router, LLMClient)
    assert (await router.generate(user_messages("a"))).text == "small"
    assert (await router.generate(user_messages("a", "b"))).text == "large"
    assert await texts(Router(by_asking, model="two"), "a") == ["small"]
    assert await router.count_tokens(user_messages("abc")) == 5
    assert (router.model, Router(by_asking, model="two").model) == ("router", "two")


@pytest.mark.item(341)
async def test_an_equal_request_is_answered_from_memory() -> None:
    """As one piece, without tokens and without a cost; other options are another request."""
    model = ScriptedModel("one two", "three")
    cache = SemanticCache(model, tenant="acme")
    first = await cache.generate(user_messages("hi"))

    events = [event async for event in cache.generate_stream(user_messages("hi"))]

    assert isinstance(cache, LLMClient)
    assert events[0] == TextDelta(text="one two")
    assert isinstance(events[1], Completion)
    assert events[1].response.content == first.content
    assert events[1].response.usage == Usage(cost_usd=0.0)
    assert await texts(cache, "hi", max_tokens=5) == ["three"]
    assert model.calls == 2


async def test_answers_stay_with_their_tenant() -> None:
    """The tenant of the run that asks, unless the author names one."""
    model = ScriptedModel("for a", "for b")
    cache = SemanticCache(model)

    class Asker:
        """Asks once."""

        def __init__(self, agent_id: AgentId) -> None:
            self.id, self.model = agent_id, cache

        async def run(self, ctx: RunContext, inbox: list[Message]) -> str:
            """Return the answer."""
            assert inbox
            return (await ctx.llm("the same question")).text

    answers = []
    async with Runtime() as runtime:
        await runtime.register_type("asker", Asker)
        for tenant in ("a", "b", "a", "b"):
            run_id = await runtime.submit(AgentId("asker", "1", tenant=tenant), "go")
            answers.append(await runtime.result(run_id))

    assert answers == ["for a", "for b", "for a", "for b"]
    assert model.calls == 2


async def test_outside_a_run_nothing_is_kept() -> None:
    """Nobody knows whose answer it is."""
    model = ScriptedModel("one", "two")

    assert await texts(SemanticCache(model), "hi", "hi") == ["one", "two"]


@pytest.mark.item(341)
async def test_a_similar_request_is_answered_from_memory() -> None:
    """By a function of the author, if all but the last message is equal."""

    async def by_length(left: str, right: str) -> float:
        await asyncio.sleep(0)
        return min(len(left), len(right)) / max(len(left), len(right))

    model = ScriptedModel("one", "two", "three")
    cache = SemanticCache(model, tenant="acme", similarity=by_length, threshold=0.9)

    assert await texts(cache, "0123456789", "012345678", "0123") == ["one", "one", "two"]
    assert (await cache.generate(user_messages("before", "0123456789"))).text == "three"
    assert model.calls == 3


async def test_answers_are_not_kept_for_ever() -> None:
    """Neither longer than a time, nor more than a number of them."""
    clock = StoppedClock()
    model = ScriptedModel(*"abcdefgh")
    cache = SemanticCache(model, tenant="acme", keep_s=10, max_entries=2, clock=clock)

    assert await texts(cache, "1", "2", "1") == ["a", "b", "a"]
    assert await texts(cache, "3", "1", "2") == ["c", "a", "d"]
    clock.seconds = 11
    assert await texts(cache, "2") == ["e"]
    await cache.aclose()
    assert await texts(cache, "2") == ["f"]


async def test_an_answer_that_a_limit_cut_off_is_asked_for_again() -> None:
    """Half of an answer is none."""
    half = ModelReply(text="half", stop_reason="max_tokens")
    cache = SemanticCache(ScriptedModel(half, "whole"), tenant="acme")

    assert await texts(cache, "hi", "hi", "hi") == ["half", "whole", "whole"]


async def test_an_answer_with_tool_calls_is_asked_for_again() -> None:
    """The ids of its calls belong to one conversation."""
    call = ToolCall(id="1", name="book")
    model = ScriptedModel(call, call)
    cache = SemanticCache(model, tenant="acme")

    await texts(cache, "hi", "hi")

    assert model.calls == 2
