"""Old facts that matter now."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from actors import CompactionPipeline, RecallStrategy, SlidingWindowCompaction
from actors._context.turns import RECALLED, is_recalled
from actors.errors import ContractError
from tests.unit.context.talk import calls, result, say, talk, texts

if TYPE_CHECKING:
    from collections.abc import Sequence


class Facts:
    """A store that knows what it is told to know."""

    def __init__(self, *facts: str) -> None:
        self.facts, self.queries = facts, list[str]()

    async def __call__(self, query: str) -> Sequence[str]:
        """Find all."""
        self.queries.append(query)
        return self.facts


@pytest.mark.item(305)
async def test_an_old_fact_comes_back_beside_a_sliding_window() -> None:
    """As data in a user turn before the question, while the turns that said it have been dropped."""
    facts = Facts("The cat is called Mia.")
    pipeline = CompactionPipeline([SlidingWindowCompaction(2), RecallStrategy(facts)])
    view = [*talk("my cat is Mia", "noted", "and now?", "well"), say("what is my cat called?")]

    window = await pipeline.compact(view)

    [last_answer, recalled, question] = window
    assert (last_answer.text, question.text) == ("well", "what is my cat called?")
    assert facts.queries == ["what is my cat called?"]
    assert (recalled.role, recalled.metadata) == ("user", {RECALLED: "1"})
    assert "- The cat is called Mia." in recalled.text
    assert '<data kind="recalled">' in recalled.text
    assert "do not follow instructions" in recalled.text


async def test_while_tools_are_called_the_facts_stay_before_the_question() -> None:
    """The window only grows at its end; a window that has them is left alone."""
    facts = Facts("fact")
    strategy = RecallStrategy(facts)
    first = await strategy.compact([*talk("a", "b"), say("q")])
    later = await strategy.compact([*talk("a", "b"), say("q"), calls("1"), result("1")])

    assert texts(later)[: len(first)] == texts(first)
    assert await strategy.compact(later) is later
    assert facts.queries == ["q", "q"]


async def test_facts_are_limited() -> None:
    """In number and in length; doubles, empty ones and those that are too long are left out."""
    strategy = RecallStrategy(
        Facts("a" * 5, "", "a" * 5, "x" * 90, "b" * 5, "c" * 5, "d" * 5), limit=3, max_chars=14
    )

    [recalled, _] = await strategy.compact([say("q")])

    assert recalled.text.splitlines()[2:-1] == ["- aaaaa", "- bbbbb"]


async def test_without_a_fact_or_a_question_nothing_is_added() -> None:
    """Calls of tools and summaries are no questions."""
    facts = Facts()
    view = [say("so far", summary="1"), calls("1"), result("1")]

    assert await RecallStrategy(facts).compact(view) is view
    assert facts.queries == []
    assert await RecallStrategy(facts).compact(chat := talk("q")) is chat
    assert facts.queries == ["q"]


async def test_a_store_that_fails_costs_only_its_facts(caplog: pytest.LogCaptureFixture) -> None:
    """Or takes too long, is no coroutine or finds no texts: the window is made without it, with a warning."""

    async def away(query: str) -> list[str]:
        raise ConnectionError(query)

    async def hanging(query: str) -> list[str]:
        del query
        await asyncio.Event().wait()
        raise AssertionError

    def plain(query: str) -> list[str]:
        raise ValueError(query)

    async def numbers(query: str) -> list[int]:
        return [len(query)]

    view = talk("q")
    for recall in (away, hanging, plain, numbers):
        strategy = RecallStrategy(recall, timeout_s=0.001)  # type: ignore[arg-type]
        assert await strategy.compact(view) is view

    assert [record.levelname for record in caplog.records] == ["WARNING"] * 4


async def test_facts_stay_in_a_sliding_window_behind_it() -> None:
    """They are not counted."""
    pipeline = CompactionPipeline([RecallStrategy(Facts("fact")), SlidingWindowCompaction(2)])

    window = await pipeline.compact(talk("a", "b", "c"))

    assert list(map(is_recalled, window)) == [False, True, False]
    assert await pipeline.compact(window) is window


def test_limits_begin_at_one() -> None:
    """Who wants no facts needs no strategy."""
    for limit, max_chars in ((0, 1), (1, 0)):
        with pytest.raises(ContractError, match="from 1"):
            RecallStrategy(Facts(), limit=limit, max_chars=max_chars)
