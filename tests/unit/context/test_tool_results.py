"""Shorter results of tools."""

from __future__ import annotations

import inspect

import pytest

from actors import ToolResultCompactionStrategy
from actors._kernel.agent.message import ChatMessage
from actors.errors import ContractError
from tests.unit.context.talk import IMAGE, calls, dumped, result, say


async def compacted(max_chars: int, turn: ChatMessage) -> str:
    """The text of a result behind the strategy."""
    [after] = await ToolResultCompactionStrategy(max_chars).compact([turn])
    return after.content[0].text or ""


@pytest.mark.item(294)
async def test_long_results_are_cut_and_say_how_much_is_missing() -> None:
    """At five hundred characters by default; texts of people and models stay."""
    view = [say("u" * 900), calls("1"), result("1", "r" * 1_234), say("a" * 900, "assistant")]

    window = await ToolResultCompactionStrategy().compact(view)

    assert window[2].content[0].text == "r" * 500 + "[734 chars truncated]"
    assert [window[0], window[1], window[3]] == [view[0], view[1], view[3]]
    assert inspect.signature(ToolResultCompactionStrategy).parameters["max_chars"].default == 500


@pytest.mark.item(294)
async def test_short_results_and_errors_are_untouched() -> None:
    """So is the list, if nothing in it changes."""
    view = [result("1", "x" * 500), result("2", "x" * 501, is_error=True), say("x" * 600)]

    assert await ToolResultCompactionStrategy().compact(view) is view


@pytest.mark.item(294)
async def test_media_are_kept() -> None:
    """And every other field of the result; its size is counted anew."""
    turn = result("1", "x" * 600, IMAGE, turn="t", tokens="200")

    [after] = await ToolResultCompactionStrategy().compact([turn])

    assert after.content[1] == IMAGE
    assert (after.content[0].model_extra or {})["id"] == "1"
    assert after.metadata == {"turn": "t"}
    assert dumped([turn]) == dumped([result("1", "x" * 600, IMAGE, turn="t", tokens="200")])


async def test_several_results_in_one_turn_are_each_cut() -> None:
    """Parallel calls may be answered together."""
    both = [*result("1", "a" * 20).content, *result("2", "b" * 5).content]

    [after] = await ToolResultCompactionStrategy(10).compact(
        [ChatMessage(role="tool", content=both)]
    )

    assert [block.text for block in after.content] == ["a" * 10 + "[10 chars truncated]", "b" * 5]


async def test_a_cut_result_is_not_cut_again() -> None:
    """Text and mark are longer than the limit; the next window has the very same."""
    once = await ToolResultCompactionStrategy(500).compact([result("1", "x" * 510)])

    assert await ToolResultCompactionStrategy(500).compact(once) is once
    assert await ToolResultCompactionStrategy(900).compact(once) is once


async def test_a_smaller_limit_counts_what_is_missing_in_all() -> None:
    """As if the whole result had been cut at once."""
    [once] = await ToolResultCompactionStrategy(500).compact([result("1", "x" * 1_000)])

    assert await compacted(200, once) == await compacted(200, result("1", "x" * 1_000))


async def test_a_text_that_only_looks_marked_is_cut() -> None:
    """A tool cannot get round the limit by writing the mark itself."""
    text = await compacted(100, result("1", "x" * 1_000 + "[7 chars truncated]"))

    assert text == "x" * 100 + "[907 chars truncated]"


async def test_a_pinned_result_is_not_cut() -> None:
    """Pinned is word for word."""
    view = [result("1", "x" * 600, pinned="1")]

    assert await ToolResultCompactionStrategy().compact(view) is view


async def test_nothing_may_be_kept_of_a_result() -> None:
    """But not less."""
    assert await compacted(0, result("1", "abc")) == "[3 chars truncated]"
    with pytest.raises(ContractError, match="negative"):
        ToolResultCompactionStrategy(-1)
