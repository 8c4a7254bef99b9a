"""Strategies in a row, and what each of them did."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest

from actors import (
    CompactionPipeline,
    CompactionStrategy,
    RecallStrategy,
    SlidingWindowCompaction,
    SummarizationCompaction,
    TokenBudgetComposedStrategy,
    ToolResultCompactionStrategy,
)
from actors.context import CompactionStep
from tests.unit.context.talk import CHARS, Summariser, calls, result, say, talk, texts

if TYPE_CHECKING:
    from actors._kernel.agent.message import ChatMessage


@dataclass
class Marking:
    """A strategy of somebody's own, with the one method."""

    letter: str

    async def compact(self, raw_history: list[ChatMessage]) -> list[ChatMessage]:
        """Write a letter behind each turn's text."""
        return [say(turn.text + self.letter) for turn in raw_history]


@pytest.mark.item(287, 289, 292)
async def test_the_output_of_one_strategy_is_the_input_of_the_next() -> None:
    """In the order in which they were given; whatever has the method is a strategy."""
    pipeline = CompactionPipeline([Marking("1"), Marking("2"), SlidingWindowCompaction(1)])

    assert isinstance(Marking("x"), CompactionStrategy)
    assert texts(await pipeline.compact(talk("a", "b"))) == ["b12"]
    assert texts((await pipeline.assemble(talk("a", "b"))).window) == ["b12"]


@pytest.mark.item(289)
async def test_cheap_strategies_first_leave_more_to_the_lossy_ones() -> None:
    """A result that is cut first lets turns stay that a budget would drop beside the whole one."""
    view = [say("a" * 30), calls("1"), result("1", "x" * 600), say("b" * 30)]
    cut, drop = ToolResultCompactionStrategy(30), SlidingWindowCompaction(1)

    lossless_first = TokenBudgetComposedStrategy([cut, drop], 100, counter=CHARS)
    lossy_first = TokenBudgetComposedStrategy([drop, cut], 100, counter=CHARS)

    assert len(await lossless_first.compact(view)) == 4
    assert len(await lossy_first.compact(view)) == 1


@pytest.mark.item(290)
async def test_an_empty_pipeline_changes_nothing() -> None:
    """Not even the list."""
    view = talk("a", "b", "c")
    pipeline = CompactionPipeline([], counter=CHARS)

    assembled = await pipeline.assemble(view)

    assert await pipeline.compact(view) is view
    assert (assembled.window, assembled.steps) == (view, ())
    assert assembled.tokens == CHARS.total(view)
    assert await pipeline.compact([]) == []


async def test_a_receipt_says_what_each_strategy_did() -> None:
    """Turns dropped, changed and added, and sizes before and after; one receipt follows the other."""

    async def recall(query: str) -> list[str]:
        return [f"about {query}"]

    view = [*talk("one", "two", "three"), calls("1"), result("1", "x" * 900), say("and?")]
    summarise = SummarizationCompaction(Summariser(), 400, 1, counter=CHARS)
    pipeline = CompactionPipeline(
        [
            ToolResultCompactionStrategy(60),
            SlidingWindowCompaction(100),
            RecallStrategy(recall),
            SlidingWindowCompaction(5),
            summarise,
        ],
        counter=CHARS,
    )

    assembled = await pipeline.assemble(view)

    cut, slide, recall_step, slid, summed = assembled.steps
    assert [step.name for step in assembled.steps] == [
        "ToolResultCompactionStrategy",
        "SlidingWindowCompaction",
        "RecallStrategy",
        "SlidingWindowCompaction",
        "SummarizationCompaction",
    ]
    assert (cut.dropped, cut.changed, cut.added) == (0, 1, 0)
    assert (slide.dropped, slide.changed, slide.added) == (0, 0, 0)
    assert (recall_step.dropped, recall_step.changed, recall_step.added) == (0, 0, 1)
    assert (slid.dropped, slid.changed, slid.added) == (1, 0, 0)
    assert (summed.dropped, summed.changed, summed.added) == (0, 0, 0)
    assert cut.tokens_before == CHARS.total(view)
    assert summed.tokens_after == assembled.tokens == CHARS.total(assembled.window)
    pairs = zip(assembled.steps, assembled.steps[1:], strict=False)
    assert all(step.tokens_after == next_step.tokens_before for step, next_step in pairs)
    assert slid.tokens_after < slid.tokens_before


async def test_a_summary_counts_as_added_and_its_turns_as_dropped() -> None:
    """The one that it extends is dropped with them."""
    strategy = SummarizationCompaction(Summariser(), 10, 1, counter=CHARS)
    pipeline = CompactionPipeline([strategy], counter=CHARS)
    first = await pipeline.assemble(talk(*("long enough to be worth it " * 5,) * 3, "new"))
    more = [*first.window, *talk("long enough to be worth it " * 5), say("newest")]

    second = await pipeline.assemble(more)

    [first_step], [second_step] = first.steps, second.steps
    assert (first_step.dropped, first_step.changed, first_step.added) == (3, 0, 1)
    assert (second_step.dropped, second_step.changed, second_step.added) == (3, 0, 1)
    assert len(second.window) == 2


async def test_a_composed_strategy_tells_of_its_parts() -> None:
    """One receipt for each that ran, none for itself, and none if the window fits already."""
    view = talk(*("abcdef" * 10,) * 6)
    inner = CompactionPipeline([SlidingWindowCompaction(4), SlidingWindowCompaction(3)])
    budget = TokenBudgetComposedStrategy(
        [inner, SlidingWindowCompaction(2), SlidingWindowCompaction(1)], 50, counter=CHARS
    )
    pipeline = CompactionPipeline([budget, SlidingWindowCompaction(90)], counter=CHARS)

    over, fits = await pipeline.assemble(view), await pipeline.assemble(view[:1])

    step = CompactionStep(
        name="SlidingWindowCompaction",
        kept=1,
        dropped=0,
        changed=0,
        added=0,
        tokens_before=24,
        tokens_after=24,
    )
    assert [s.dropped for s in over.steps] == [2, 1, 1, 0]
    assert over.window == await pipeline.compact(view)
    assert fits.steps == (step,)
