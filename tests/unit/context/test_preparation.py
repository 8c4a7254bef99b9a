"""Summaries that are written ahead of the window that needs them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from actors import (
    CompactionPipeline,
    ContextConfig,
    InMemoryHistoryProvider,
    SummarizationCompaction,
    TokenBudgetComposedStrategy,
)
from actors._context.calls import (
    AnsweredCall,
    RefusedCalls,
    WindowMode,
    in_mode,
    preparing,
    recorded_by,
)
from actors._context.turns import data_of, is_summary
from actors._kernel.agent.message import ChatMessage
from actors._kernel.agent.models import GenerationOptions, LLMClient, LLMResponse, Usage
from actors.errors import ContractError
from tests.unit.context.talk import CHARS, Summariser, talk

if TYPE_CHECKING:
    from collections.abc import Sequence

LONG = "a turn that says enough to be worth a summary, since that has a frame of its own; " * 2
TURN = CHARS.total(talk(LONG))


def summaries(model: Summariser, prepare: float | None = 0.5) -> SummarizationCompaction:
    """For turns of `LONG`: two stay, one is enough for a call."""
    return SummarizationCompaction(model, 2 * TURN, TURN, prepare=prepare, counter=CHARS)


def budget_of(model: Summariser, prepare: float | None = 0.5) -> TokenBudgetComposedStrategy:
    """For ten turns of `LONG`."""
    return TokenBudgetComposedStrategy([summaries(model, prepare)], 10 * TURN, counter=CHARS)


def long_talk(count: int) -> list[ChatMessage]:
    """Turns of one size with ids."""
    return talk(*[LONG] * count)


class Records:
    """`PaidCalls` that remember what they were told, and what it cost."""

    def __init__(self) -> None:
        self.tokens: list[int] = []
        self.is_broken = False

    async def ask(
        self,
        llm: LLMClient,
        messages: Sequence[ChatMessage],
        *,
        options: GenerationOptions | None = None,
    ) -> LLMResponse:
        """Record the call."""
        if self.is_broken:
            raise TimeoutError
        response = await llm.generate(messages, options=options)
        self.tokens.append(response.usage.input)
        return response


async def ahead(strategy: TokenBudgetComposedStrategy, view: list[ChatMessage]) -> None:
    """Prepare a view."""
    with in_mode(WindowMode.AHEAD):
        await strategy.compact(view)


async def test_a_view_above_the_ratio_is_prepared_and_a_smaller_one_is_not() -> None:
    """The next window has the summary without a call, with the turns that came since."""
    model = Summariser()
    strategy, view = budget_of(model), long_talk(9)

    await ahead(strategy, view[:5])
    assert model.requests == []
    await ahead(strategy, view[:6])
    await ahead(strategy, view[:6])
    window = await strategy.compact(view)

    assert len(model.requests) == 1
    assert [is_summary(turn) for turn in window] == [True, *[False] * 5]
    assert window[1:] == view[4:]
    assert await strategy.compact(window) is window


async def test_nothing_is_prepared_without_the_ratio() -> None:
    """A window that fits is left alone in any mode."""
    model = Summariser()

    await ahead(budget_of(model, None), view := long_talk(9))

    assert await budget_of(model, None).compact(view) is view
    assert model.requests == []


async def test_a_view_that_fits_waits_for_no_summary_and_one_that_overflows_does() -> None:
    """As little as a look at it does."""
    model = Summariser()
    strategy = budget_of(model)

    assert await strategy.compact(view := long_talk(10)) is view
    assert model.requests == []
    assert len(await strategy.compact(long_talk(11))) == 3
    assert len(model.requests) == 1


async def test_a_prepared_summary_is_enough_for_a_view_that_would_overflow() -> None:
    """It is not extended first, as long as the window fits with it."""
    model = Summariser()
    strategy = budget_of(model)
    await ahead(strategy, long_talk(10))

    window = await strategy.compact(long_talk(15))

    assert len(model.requests) == 1
    assert len(window) == 8
    assert len(await strategy.compact(long_talk(20))) == 3
    assert len(model.requests) == 2


async def test_the_first_call_with_a_prepared_summary_records_it_once() -> None:
    """A look does not, nor a run that could not write it: then the next one does."""
    records = Records()
    model = Summariser()
    strategy, view = budget_of(model), long_talk(8)
    await ahead(strategy, view)
    with recorded_by(RefusedCalls()):
        looked = await strategy.assemble(view)
    with recorded_by(records):
        records.is_broken = True
        with pytest.raises(TimeoutError):
            await strategy.compact(view)
        records.is_broken = False
        window = await strategy.compact(view)
        assert await strategy.compact(view) == window

    assert (len(records.tokens), len(model.requests)) == (1, 1)
    assert looked.window == window
    assert [step.would_ask for step in looked.steps] == [None]


async def test_a_changed_turn_is_not_met_by_what_was_prepared_of_it() -> None:
    """A session that was cleared or changed meanwhile is shown as it is."""
    model = Summariser()
    strategy = budget_of(model)
    await ahead(strategy, long_talk(8))
    changed = talk("other " + LONG, *[LONG] * 7)

    assert await strategy.compact(changed) is changed


async def test_a_prepared_summary_is_extended_ahead_and_both_calls_are_recorded() -> None:
    """The second request has the first summary; a call that comes then has both among its own."""
    answers = iter(["first", "first and second"])
    model, records = Summariser(lambda _: next(answers)), Records()
    strategy = budget_of(model)

    await ahead(strategy, long_talk(6))
    await ahead(strategy, long_talk(12))
    with recorded_by(records):
        window = await strategy.compact(long_talk(12))

    assert data_of(window[0]) == "first and second"
    assert "first" in model.requests[1]
    assert len(records.tokens) == len(model.requests) == 2


def test_a_ratio_needs_a_budget_around_it() -> None:
    """And is a part of it."""
    history = InMemoryHistoryProvider()
    alone = summaries(Summariser())
    for pipeline in (alone, CompactionPipeline([alone])):
        with pytest.raises(
            ContractError, match=r"SummarizationCompaction\(prepare=0.5\) needs a budget"
        ):
            ContextConfig(history, pipeline)
    for ratio in (0.0, -1.0, 1.01):
        with pytest.raises(ContractError, match="a part of the token budget"):
            summaries(Summariser(), ratio)

    budget = budget_of(Summariser())
    assert preparing(ContextConfig(history, budget).pipeline) == budget.strategies
    assert preparing(ContextConfig(history, summaries(Summariser(), None)).pipeline) == ()


async def test_an_answered_call_answers_as_a_model_does() -> None:
    """So that whatever records calls can record it: whole, streamed, counted."""
    response = LLMResponse(usage=Usage(input=7))
    call = AnsweredCall("m", [], None, response)

    assert await call.generate([]) is response
    assert [event.response async for event in call.generate_stream([])] == [response]  # type: ignore[union-attr]
    assert await call.count_tokens([]) == 7
