"""Conversations after a call of the model that failed: the next call gets a window that works."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from actors.agents import ReActAgent
from actors.context import ContextConfig, SlidingWindowCompaction, StoreHistory
from actors.errors import ModelError, RunFailedError
from actors.kernel.agent.message import ChatMessage
from actors.kernel.agent.tools import Tool, ToolCall
from actors.kernel.runtime.scheduler import RetryPolicy, RunStatus
from actors.testing import FunctionModel, ModelReply

if TYPE_CHECKING:
    from collections.abc import Sequence

    from actors.errors import ModelErrorKind
    from actors.kernel.agent.llm import GenerationOptions
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
