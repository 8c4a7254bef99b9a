"""Guards: a check passes, replaces or blocks a value. The result is recorded with the checked effect."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pytest

from actors._kernel.agent.agent import HistoryRetention
from actors._kernel.agent.hooks import Allow, Block, GuardStage, GuardVerdict, Replace
from actors._kernel.agent.message import ChatMessage
from actors._kernel.agent.tools import Tool, ToolCall
from actors._kernel.runtime.log_entry import EntryKind as K
from actors.context import ContextConfig, InMemoryHistoryProvider, StoreHistory
from actors.errors import RunFailedError
from actors.testing import ModelReply, ScriptedModel

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from actors._kernel.agent.message import Message
    from actors._runtime import RunContext
    from tests.behaviour.bed import Bed


@dataclass
class Watch:
    """A guard that calls a function of the test, and records its arguments."""

    decide: Callable[[GuardStage, ChatMessage], GuardVerdict] = lambda *_: Allow()
    asked: list[str] = field(default_factory=list)

    async def check(self, stage: GuardStage, messages: Sequence[ChatMessage]) -> GuardVerdict:
        """See `Guard.check`."""
        self.asked.append(stage)
        return self.decide(stage, messages[-1])


def call(**arguments: Any) -> ModelReply:
    """Return a model's call of the tool."""
    return ModelReply(calls=[ToolCall(id="c", name="look", arguments=arguments)])


async def look(n: int) -> str:
    """Return the tool's result."""
    return f"number {n}"


LOOK = Tool("look", "", look, idempotent=True)


async def test_each_stage_is_checked_once_and_never_on_replay(bed: Bed) -> None:
    """The checks run in the order of the effects."""
    watch = Watch()

    async def body(ctx: RunContext) -> str:
        return (await ctx.chat("go")).text

    model = ScriptedModel(call(n=1), "done")
    values = await bed.live_and_replayed(body, model=model, tools=[LOOK], guards=[watch])

    assert set(values) == {"done"}
    assert watch.asked == ["input", "output", "tool_call", "tool_result", "input", "output"]


async def test_a_replaced_value_is_used_from_then_on(bed: Bed) -> None:
    """In the model's request, the tool's arguments, the log and the conversation."""

    def decide(stage: GuardStage, message: ChatMessage) -> GuardVerdict:
        if stage == "tool_call":
            call = ToolCall(id="c", name="look", arguments={"n": 2})
            return Replace([ChatMessage(role="assistant", content=[call.block()])])
        if stage == "output" and message.text:
            return Replace([ChatMessage.of("assistant", message.text.replace("secret", "…"))])
        return Allow()

    async def act(ctx: RunContext, inbox: list[Message]) -> str:
        del inbox
        return (await ctx.chat("go", session="s")).text

    model = ScriptedModel(call(n=1), "the secret")
    agent = await bed.serve(act, model=model, tools=[LOOK], guards=[Watch(decide)])
    run_id = await bed.submit(agent)

    assert await bed.result(run_id) == "the …"
    results = [
        b.text for m in model.asked[1].messages for b in m.content if b.type == "tool_result"
    ]
    assert results == ["number 2"]
    turns = await bed.runtime.history.get_messages(agent, session_id="s")
    assert turns[-1].text == "the …"
    assert "secret" not in str([entry.payload for entry in await bed.log(run_id, K.LLM_CALL)])


@pytest.mark.parametrize("stage", ["input", "output"])
async def test_a_blocked_question_or_answer_ends_the_run_without_retry(
    bed: Bed, stage: str
) -> None:
    """The run is not retried as a failure; a blocked question is not sent to the model."""
    model = ScriptedModel(otherwise="no")
    guard = Watch(lambda at, _: Block("not that") if at == stage else Allow())

    async def act(ctx: RunContext, inbox: list[Message]) -> str:
        del inbox
        return (await ctx.generate("go")).text

    agent = await bed.serve(act, model=model, guards=[guard])
    with pytest.raises(RunFailedError, match=f"guard Watch blocked {stage}: not that"):
        await bed.result(await bed.submit(agent))
    assert model.calls == (0 if stage == "input" else 1)


@pytest.mark.parametrize("stage", ["tool_call", "tool_result"])
async def test_a_blocked_call_is_a_result_that_the_model_reads(bed: Bed, stage: str) -> None:
    """A blocked call does not reach the tool."""
    used: list[int] = []

    async def note(n: int) -> str:
        used.append(n)
        return "fine"

    guard = Watch(lambda at, _: Block("not that") if at == stage else Allow())
    model = ScriptedModel(call(n=1), "I see")
    tool = Tool("look", "", note, idempotent=True)

    async def act(ctx: RunContext, inbox: list[Message]) -> str:
        del inbox
        return (await ctx.chat("go")).text

    agent = await bed.serve(act, model=model, tools=[tool], guards=[guard])

    assert await bed.result(await bed.submit(agent)) == "I see"
    [result] = [b for m in model.asked[1].messages for b in m.content if b.type == "tool_result"]
    assert f"blocked {stage}: not that" in str(result.text)
    assert used == ([] if stage == "tool_call" else [1])


async def test_a_blocked_turn_is_in_no_later_window(bed: Bed) -> None:
    """A guard of inputs gets what is new, once. The conversation goes on after a turn that it blocked."""
    windows: list[list[str]] = []

    @dataclass
    class Words:
        async def check(self, stage: GuardStage, messages: Sequence[ChatMessage]) -> GuardVerdict:
            if stage != "input":
                return Allow()
            windows.append([message.text for message in messages])
            is_bad = any("bad" in message.text for message in messages)
            return Block("not that") if is_bad else Allow()

    async def act(ctx: RunContext, inbox: list[Message]) -> str:
        return (await ctx.generate(str(inbox[0].payload), session="s")).text

    model = ScriptedModel("one", "two")
    agent = await bed.serve(act, model=model, guards=[Words()])
    assert await bed.result(await bed.submit(agent, "first")) == "one"
    with pytest.raises(RunFailedError, match="guard Words blocked input: not that"):
        await bed.result(await bed.submit(agent, "bad"))
    assert await bed.result(await bed.submit(agent, "last")) == "two"

    assert windows == [["first"], ["bad"], ["last"]]
    assert [message.text for message in model.asked[-1].messages] == ["first", "one", "last"]


@pytest.mark.parametrize("storage", ["store", "outside", "run"])
async def test_a_replaced_input_is_in_later_windows_as_it_was_replaced(
    bed: Bed, storage: str
) -> None:
    """Guards do not see it again, also if another provider or only the run's log has it."""

    def decide(stage: GuardStage, message: ChatMessage) -> GuardVerdict:
        if stage == "input" and "4711" in message.text:
            return Replace([ChatMessage.of("user", "a note"), ChatMessage.of("user", "pin ****")])
        return Allow()

    async def body(ctx: RunContext) -> str:
        await ctx.generate("pin 4711", session="s")
        return (await ctx.generate("and?", session="s")).text

    history = InMemoryHistoryProvider() if storage == "outside" else StoreHistory()
    retention = HistoryRetention.NONE if storage == "run" else HistoryRetention.PERMANENT
    model = ScriptedModel("one", "two")
    context = ContextConfig(history, retention=retention)
    await bed.live_and_replayed(body, model=model, guards=[Watch(decide)], context=context)

    assert [[turn.text for turn in request.messages] for request in model.asked] == [
        ["a note", "pin ****"],
        ["a note", "pin ****", "one", "and?"],
    ]
    [agent] = bed.agents
    if storage == "store":
        turns = await bed.runtime.history.get_messages(agent, session_id="s")
        texts = [turn.text for turn in turns]
        assert texts == ["a note", "pin ****", "one", "and?", "two"]
