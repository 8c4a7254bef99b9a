"""Conversations after a call of the model that failed: the next call gets a window that works."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from actors._kernel.agent.message import ChatMessage
from actors._kernel.agent.tools import Risk, Tool, ToolCall
from actors._kernel.runtime.log_entry import EntryKind as K
from actors._kernel.runtime.scheduler import RetryPolicy, RunStatus
from actors.agents import ReActAgent
from actors.context import ContextConfig, SlidingWindowCompaction, StoreHistory
from actors.errors import ModelError, RunFailedError
from actors.testing import FunctionModel, ModelReply, ScriptedModel

if TYPE_CHECKING:
    from collections.abc import Sequence

    from actors._kernel.agent.models import GenerationOptions
    from actors.errors import ModelErrorKind
    from tests.behaviour.bed import Bed


async def test_every_conversation_goes_on_after_its_window_is_full(bed: Bed) -> None:
    """Whatever the strategies do: a provider that refuses windows as too long gets smaller ones.

    The error of a single turn that is too long is the run's, and the turn is in no later window.
    """

    def answer(messages: Sequence[ChatMessage], _: GenerationOptions) -> str:
        if sum(len(message.text) for message in messages) > 3_000:
            raise ModelError("context_too_long")
        return "fine"

    for context in (None, ContextConfig(StoreHistory(), SlidingWindowCompaction(500))):
        model = FunctionModel(answer)
        agent = ReActAgent(bed.name(), model=model, context=context)
        await bed.runtime.register(agent)
        early = [ChatMessage.of("user", f"{n} " + "word " * 50) for n in range(40)]
        await bed.runtime.history.append_many(agent.id, early, session_id="main")

        assert await bed.result(await bed.submit(agent.id, "hello")) == "fine"
        with pytest.raises(RunFailedError, match="context_too_long"):
            await bed.result(await bed.submit(agent.id, "x" * 4_000))
        assert await bed.result(await bed.submit(agent.id, "again")) == "fine"
        assert not any("xxx" in message.text for message in model.asked[-1].messages)


@pytest.mark.parametrize("kind", ["refused", "invalid", "overloaded"])
async def test_a_turn_because_of_which_a_call_failed_is_in_no_later_window(
    bed: Bed, kind: ModelErrorKind
) -> None:
    """A turn is kept if the failure was not about it. Of results of tools it is kept that there were some."""

    def answer(messages: Sequence[ChatMessage], _: GenerationOptions) -> ModelReply:
        if "bad" in str(messages[-1].content):
            raise ModelError(kind)
        if "use" in messages[-1].text:
            return ModelReply(calls=[ToolCall(id="c", name="look", arguments={})])
        return ModelReply(text="fine")

    async def look() -> str:
        return "bad"

    model = FunctionModel(answer)
    tool = Tool("look", "", look, idempotent=True)
    agent = ReActAgent(bed.name(), model=model, tools=[tool])
    await bed.runtime.register(agent)
    for question in ("a bad one", "use it"):
        failing = await bed.submit(agent.id, question, retry_policy=RetryPolicy(max_retries=0))
        assert (await bed.ended(failing)).status is RunStatus.FAILED

    assert await bed.result(await bed.submit(agent.id, "next")) == "fine"
    *window, _ = model.asked[-1].messages
    is_kept = kind == "overloaded"
    assert [turn.role for turn in window] == ["user"] * is_kept + ["user", "assistant", "tool"]
    assert ("withheld" in str(window[-1].content)) is not is_kept
    assert ("bad" in str(window[-1].content)) is is_kept


async def test_an_agent_that_uses_up_its_turns_says_so(bed: Bed) -> None:
    """The error has a name and the last answer; no retry follows, and the conversation goes on."""

    def answer(messages: Sequence[ChatMessage], _: GenerationOptions) -> ModelReply:
        if messages[-1].text == "enough":
            return ModelReply(text="fine")
        text = "Let me look." if len(messages) == 1 else ""
        return ModelReply(
            text=text, calls=[ToolCall(id=str(len(messages)), name="look", arguments={})]
        )

    async def look() -> str:
        return "nothing"

    tool = Tool("look", "", look, idempotent=True)
    model = FunctionModel(answer)
    agent = ReActAgent(bed.name(), model=model, tools=[tool], max_turns=3)
    await bed.runtime.register(agent)

    ended = await bed.ended(await bed.submit(agent.id, "look"))

    assert ended.status is RunStatus.FAILED
    assert ended.error is not None
    assert ended.error["status"] == "turns_exhausted"
    assert ended.error["type"] == "actors.agents.errors:TurnsExhaustedError"
    assert "'Let me look.'" in str(ended.error["message"])
    assert model.calls == 3
    assert await bed.result(await bed.submit(agent.id, "enough")) == "fine"
    assert [turn.role for turn in model.asked[-1].messages[-3:]] == ["assistant", "tool", "user"]


async def test_the_next_window_has_what_a_stopped_run_did(bed: Bed) -> None:
    """A finished call has its result. One that had begun is unknown, one that waits for a person is not."""
    done, hold = asyncio.Event(), asyncio.Event()

    async def pay() -> str:
        return "paid"

    async def ship() -> str:
        done.set()
        await hold.wait()
        return "shipped"

    tools = [Tool("pay", "", pay), Tool("ship", "", ship), Tool("refund", "", pay, risk=Risk.HIGH)]
    calls = [ToolCall(id=tool.name, name=tool.name, arguments={}) for tool in tools]
    model = ScriptedModel(ModelReply(calls=calls), "I see")
    agent = ReActAgent(bed.name(), model=model, tools=tools)
    await bed.runtime.register(agent)
    run = await bed.submit(agent.id, "go", retry_policy=RetryPolicy(max_retries=0))
    await done.wait()
    await bed.seen(run, K.TOOL_RESULT)
    await bed.runtime.cancel(run, reason="stop")
    assert (await bed.ended(run)).status is RunStatus.CANCELLED

    assert await bed.result(await bed.submit(agent.id, "and?")) == "I see"
    results = {
        str((block.model_extra or {})["id"]): str(block.text)
        for turn in model.asked[-1].messages
        for block in turn.content
        if block.type == "tool_result"
    }
    assert results["pay"] == "paid"
    assert results["ship"].startswith("unknown")
    assert results["refund"].startswith("not executed")


async def test_results_outlive_a_stop_during_the_next_answer(bed: Bed) -> None:
    """The tool has acted, so the next window says so, although no answer followed."""
    model_called, hold = asyncio.Event(), asyncio.Event()

    async def wait() -> None:
        model_called.set()
        await hold.wait()

    async def pay() -> str:
        return "paid"

    call = ToolCall(id="c", name="pay", arguments={})
    model = ScriptedModel(call, ModelReply(text="done", before=wait), "I see")
    agent = ReActAgent(bed.name(), model=model, tools=[Tool("pay", "", pay)])
    await bed.runtime.register(agent)
    run = await bed.submit(agent.id, "go", retry_policy=RetryPolicy(max_retries=0))
    await model_called.wait()
    await bed.runtime.cancel(run, reason="stop")
    await bed.ended(run)

    assert await bed.result(await bed.submit(agent.id, "and?")) == "I see"
    assert [turn.role for turn in model.asked[-1].messages] == ["user", "assistant", "tool", "user"]
    assert model.asked[-1].messages[2].content[0].text == "paid"
