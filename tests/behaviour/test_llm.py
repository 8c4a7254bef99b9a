"""Model calls: streamed live, recorded once, never billed twice."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from actors._kernel.agent.message import ChatMessage
from actors._kernel.agent.models import GenerationOptions
from actors._kernel.runtime.log_entry import EntryKind
from actors.errors import ModelError, RunFailedError
from actors.testing import ScriptedModel
from tests.behaviour.agents import greeter

if TYPE_CHECKING:
    from actors._kernel.agent.message import Message
    from actors._kernel.agent.models import LLMResponse
    from actors._runtime import RunContext
    from tests.behaviour.bed import Bed


@pytest.mark.item(43, 74, 75, 78)
async def test_an_answer_is_billed_once_also_after_a_crash(bed: Bed) -> None:
    """Content, usage and model are the same after a crash, and the model is not called again."""
    model = greeter()

    async def body(ctx: RunContext) -> LLMResponse:
        options = GenerationOptions(temperature=0.5)
        return await ctx.llm([ChatMessage.of("user", "greet")], options=options)

    values = await bed.live_and_replayed(body, model=model)
    assert all(value == values[0] for value in values)
    answer = values[0]
    assert (answer.text, answer.usage.input, answer.usage.output) == ("Hello there", 7, 3)
    assert (answer.model, answer.stop_reason) == ("scripted-1", "stop")
    assert [request.text for request in model.asked] == ["greet"]


@pytest.mark.item(77, 485)
async def test_the_log_of_a_call(bed: Bed) -> None:
    """It has an intent, and one llm.call with model and token usage; no deltas."""

    async def act(ctx: RunContext, inbox: list[Message]) -> str:
        return (await ctx.llm(str(inbox[0].payload))).text

    agent = await bed.serve(act, model=greeter())
    run_id = await bed.submit(agent, "hi")
    assert await bed.result(run_id) == "Hello there"
    kinds = await bed.kinds(run_id)
    assert kinds[2:] == ["effect.intent", "llm.call", "run.completed"]
    [call] = await bed.log(run_id, EntryKind.LLM_CALL)
    assert call.payload["model"] == "scripted-1"
    assert call.payload["usage"] == {
        "input": 7,
        "cached": 0,
        "output": 3,
        "reasoning": 0,
        "cost_usd": None,
    }


class Pause:
    """A model hook that blocks an answer after each piece until the test releases it."""

    def __init__(self) -> None:
        self.paused = asyncio.Event()
        self.go = asyncio.Event()

    async def __call__(self) -> None:
        """Return when the answer may continue."""
        self.paused.set()
        await self.go.wait()


@pytest.mark.item(76)
async def test_deltas_are_live_events_in_order(bed: Bed) -> None:
    """A reader gets them while the call executes; joined they are the answer."""
    pause = Pause()
    model = greeter(between=pause)

    async def act(ctx: RunContext, inbox: list[Message]) -> str:
        del inbox
        await ctx.step("mark", bed.world.do, "mark")
        await ctx.sleep_until_signal("go")
        return (await ctx.llm("hi")).text

    run_id = await bed.submit(await bed.serve(act, model=model))
    texts: list[object] = []

    async def listen() -> None:
        async for entry in bed.runtime.tail(run_id, live=True):
            listening.set()
            if entry.kind == EntryKind.TEXT_DELTA:
                texts.append(entry.payload["text"])

    listening = asyncio.Event()
    async with asyncio.timeout(20), asyncio.TaskGroup() as group:
        group.create_task(listen())
        await listening.wait()
        await bed.runtime.signal(run_id, "go")
        await pause.paused.wait()
        assert (await bed.kinds(run_id))[-1] != EntryKind.LLM_CALL
        pause.go.set()
    assert texts == ["Hel", "lo ", "there"]
    assert await bed.result(run_id) == "Hello there"


@pytest.mark.item(78)
async def test_a_call_cut_off_by_a_crash_is_made_again(bed: Bed) -> None:
    """Its result was not recorded, so the model is called again; an earlier recorded call is not repeated."""
    pause = Pause()
    model = greeter(between=pause)

    async def act(ctx: RunContext, inbox: list[Message]) -> str:
        del inbox
        await ctx.step("before", bed.world.do, "before")
        return (await ctx.llm("hi")).text

    run_id = await bed.submit(await bed.serve(act, model=model))
    async with asyncio.timeout(20):
        await pause.paused.wait()
    await bed.crash()
    pause.go.set()
    await bed.start()
    assert await bed.result(run_id) == "Hello there"
    assert (model.calls, bed.world.count["before"]) == (2, 1)


@pytest.mark.item(43)
async def test_an_agent_without_a_model_fails_only_at_a_model_call(bed: Bed) -> None:
    """The error names the attribute to set on the agent."""

    async def act(ctx: RunContext, inbox: list[Message]) -> object:
        if inbox[0].payload == "quiet":
            return "fine"
        return (await ctx.llm("hi")).text

    agent = await bed.serve(act)
    assert await bed.result(await bed.submit(agent, "quiet")) == "fine"
    with pytest.raises(RunFailedError, match="has no `model`"):
        await bed.result(await bed.submit(agent, "ask", max_retries=0))


@pytest.mark.item(71, 73)
async def test_an_error_of_the_model_is_recorded_and_the_next_attempt_calls_again(bed: Bed) -> None:
    """The error is recorded as for any other effect."""
    model = ScriptedModel(ConnectionError("overloaded"), "Hello there")

    async def act(ctx: RunContext, inbox: list[Message]) -> str:
        del inbox
        return (await ctx.llm("hi")).text

    run_id = await bed.submit(await bed.serve(act, model=model))
    assert await bed.result(run_id) == "Hello there"
    calls = await bed.log(run_id, EntryKind.LLM_CALL)
    assert [call.payload["status"] for call in calls] == ["error", "ok"]


@pytest.mark.item(71)
async def test_an_error_of_a_model_keeps_its_facts(bed: Bed) -> None:
    """Kind and wait are the same live and on replay, and the model is not called again."""
    model = ScriptedModel(ModelError("context_too_long", 1.5, "big-1"))

    async def body(ctx: RunContext) -> list[object]:
        try:
            return [(await ctx.llm("hi")).text]
        except ModelError as exc:
            return [exc.kind, exc.retry_after, exc.retryable, str(exc)]

    values = await bed.live_and_replayed(body, model=model)
    assert all(value == values[0] for value in values)
    assert values[0][:3] == ["context_too_long", 1.5, False]
    assert model.calls == 1
