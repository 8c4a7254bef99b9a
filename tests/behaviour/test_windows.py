"""`Runtime.window`: the window of the next model call, without making the call."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from actors._kernel.agent.agent import HistoryRetention
from actors._kernel.agent.message import ChatMessage
from actors._kernel.agent.tools import Tool, ToolCall
from actors._kernel.runtime.ids import AgentId
from actors.agents import ReActAgent
from actors.context import (
    CompactionPipeline,
    ContextConfig,
    InMemoryHistoryProvider,
    SlidingWindowCompaction,
    StoreHistory,
    SummarizationCompaction,
    TokenBudgetComposedStrategy,
    TokenCounter,
)
from actors.errors import ContractError
from actors.testing import ModelReply, ScriptedModel

if TYPE_CHECKING:
    from actors._kernel.agent.message import Message
    from actors._kernel.agent.models import CompactionStrategy
    from actors._runtime import RunContext
    from tests.behaviour.bed import Bed

BY_TENS = TokenCounter(lambda _: 6)
"""Each turn of one block has ten tokens."""


async def double(n: int) -> int:
    """Return twice the number."""
    return 2 * n


async def answer_message(ctx: RunContext, inbox: list[Message]) -> str:
    """Answer each run's message by the model."""
    return (await ctx.generate(str(inbox[0].payload))).text


async def test_the_report_has_the_window_of_the_next_call(bed: Bed) -> None:
    """Turn by turn, before the new message; with the sizes of all parts, and without a model call."""
    call = ToolCall(id="1", name="double", arguments={"n": 2})
    model = ScriptedModel(ModelReply(calls=[call]), *"abcdef")
    pipeline = CompactionPipeline([SlidingWindowCompaction(4, slack=2)], counter=BY_TENS)
    agent = ReActAgent(
        bed.name(),
        model=model,
        instructions="Be brief.",
        tools=[Tool("double", "Twice as much.", double, idempotent=True)],
        context=ContextConfig(StoreHistory(), pipeline),
    )
    await bed.runtime.register(agent)
    reports = []
    for n in range(4):
        reports.append(await bed.runtime.window(agent.id))
        calls_before = model.calls
        await bed.result(await bed.submit(agent.id, f"question {n}"))

        assert reports[-1].messages == tuple(model.asked[calls_before].messages[:-1])

    report = reports[-1]
    [step] = report.steps
    assert [(part.name, part.count, part.tokens) for part in report.parts] == [
        ("instructions", 1, 6),
        ("history", len(report.messages), step.tokens_after),
        ("tools", 1, 6),
    ]
    assert (step.name, step.kept + step.dropped) == ("SlidingWindowCompaction", 8)
    assert step.kept == len(report.messages) < 8
    assert (report.turns, report.read, report.session, report.cut) == (8, 8, "main", None)
    assert (report.model, report.budget, report.history) == (model.model, None, "StoreHistory")
    assert report.tokens == 12 + step.tokens_after


async def test_the_report_names_a_strategy_that_would_call_a_model(bed: Bed) -> None:
    """Nothing is bought and nothing written; a summary that a call has bought is a part."""
    model, writer = ScriptedModel(otherwise="yes"), ScriptedModel(otherwise="so far")
    strategies: list[CompactionStrategy] = [
        SummarizationCompaction(writer, 20, 30, counter=BY_TENS),
        SlidingWindowCompaction(max_messages=4),
    ]
    budget = TokenBudgetComposedStrategy(strategies, 70, target_tokens=40, counter=BY_TENS)
    context = ContextConfig(StoreHistory(), CompactionPipeline([budget], counter=BY_TENS))
    agent = await bed.serve(answer_message, model=model, context=context, session="s")
    early = [ChatMessage.of("user", str(n)) for n in range(8)]
    await bed.runtime.history.append_many(agent, early, session_id="s")

    before = await bed.runtime.window(agent)
    calls = writer.calls
    await bed.result(await bed.submit(agent, "next"))
    after = await bed.runtime.window(agent)

    summary, window = before.steps
    assert (summary.name, summary.would_ask) == ("SummarizationCompaction", writer.model)
    assert (summary.kept, summary.dropped, summary.added) == (8, 0, 0)
    assert (window.would_ask, window.kept, window.dropped) == (None, 4, 4)
    assert before.budget is not None
    assert (before.budget.tokens, before.budget.target) == (70, 40)
    assert (before.cut, calls) == (None, 0)
    assert after.cut is not None
    assert (after.cut.strategy, after.steps) == ("SummarizationCompaction", ())
    assert [(part.name, part.count) for part in after.parts] == [("summary", 1), ("history", 4)]
    assert (after.turns, after.read, writer.calls) == (10, 4, 1)


async def test_a_window_of_an_external_provider_or_of_no_turns(bed: Bed) -> None:
    """A provider of the author is read; with retention NONE there is no turn before a run."""
    history = InMemoryHistoryProvider()
    outside = await bed.serve(
        answer_message, model=ScriptedModel("a"), context=ContextConfig(history)
    )
    await bed.result(await bed.submit(outside, "q", session_id="s"))
    unkept = ContextConfig(StoreHistory(), retention=HistoryRetention.NONE)
    forgetful = await bed.serve(answer_message, model=ScriptedModel("a"), context=unkept)
    await bed.result(await bed.submit(forgetful, "q", session_id="s"))

    report = await bed.runtime.window(outside, "s")
    assert [message.text for message in report.messages] == ["q", "a"]
    assert (report.history, report.turns, report.read) == ("InMemoryHistoryProvider", 2, 2)
    assert (await bed.runtime.window(forgetful, "s")).messages == ()
    with pytest.raises(ContractError, match=r"has no session of its own: name one"):
        await bed.runtime.window(outside)
    with pytest.raises(ContractError, match="nobody/1 is not registered in this process"):
        await bed.runtime.window(AgentId("nobody", "1"), "s")
