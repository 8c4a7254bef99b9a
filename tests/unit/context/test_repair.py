"""Views that a provider accepts."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from actors._context.repair import UNKNOWN
from actors._kernel.agent.message import ChatMessage, ContentBlock
from actors._kernel.agent.tools import ToolResult
from actors.context import repaired
from tests.unit.context.talk import IMAGE, calls, dumped, result, say, talk, texts

if TYPE_CHECKING:
    from collections.abc import Sequence


def mended(view: Sequence[ChatMessage]) -> list[str]:
    """The repaired view as texts; a second repair changes nothing and the first one not its input."""
    before = dumped(view)
    once = repaired(view)
    assert dumped(repaired(once)) == dumped(once)
    assert dumped(view) == before
    return texts(once)


async def test_a_view_in_order_stays_as_it_is() -> None:
    """Every turn is the same object."""
    view = [*talk("a"), calls("1", "2"), result("1", "x", IMAGE), result("2"), *talk("b")]

    assert all(turn is other for turn, other in zip(repaired(view), view, strict=True))


@pytest.mark.item(304)
async def test_a_dangling_call_is_answered_as_unknown() -> None:
    """As an error of that tool, right behind the call, and before whatever came next."""
    view = [calls("1", "2", name="book"), result("2", name="book"), *talk("hello?")]

    window = repaired(view)

    assert mended(view) == ["?1 ?2", "!2", "!1", "hello?"]
    answer = ToolResult(id="1", name="book", text=UNKNOWN, is_error=True)
    assert window[2] == answer.message()
    assert UNKNOWN.startswith("unknown: ")
    assert mended([calls("1")]) == ["?1", "!1"]


@pytest.mark.item(304)
async def test_an_orphan_result_is_dropped() -> None:
    """One without a call, one before its call, and the second one of a call."""
    view = [result("0"), result("1"), calls("1"), result("1", "first"), result("1", "second")]

    assert mended(view) == ["?1", "!1"]
    assert repaired(view)[1].content[0].text == "first"


async def test_a_late_result_moves_behind_its_call() -> None:
    """Providers want it there; its text is not lost."""
    view = [calls("1", "2"), result("1"), *talk("a", "b"), result("2", "late"), *talk("c")]

    assert mended(view) == ["?1 ?2", "!1", "!2", "a", "b", "c"]
    assert repaired(view)[2].content[0].text == "late"


async def test_a_turn_with_results_of_several_turns_is_divided() -> None:
    """Each part goes to its call, with the media behind its result; parts without a call are dropped."""
    blocks = [result("1").content[0], IMAGE, result("9").content[0], IMAGE, result("2").content[0]]
    view = [calls("1"), calls("2"), ChatMessage(role="tool", content=blocks)]

    assert mended(view) == ["?1", "!1 image", "?2", "!2"]


async def test_ids_that_come_twice_or_not_at_all_are_matched_in_order() -> None:
    """Some models give none, some the same one each time."""
    view = [calls("", ""), result("", "a"), result("", "b"), calls(""), result("", "c")]
    same = [calls("x"), calls("x"), result("x"), result("x")]

    assert mended(view) == ["? ?", "!", "!", "?", "!"]
    assert mended(same) == ["?x", "!x", "?x", "!x"]
    assert repaired(same)[1].content[0].text == UNKNOWN


async def test_calls_that_the_provider_answered_itself_are_left_alone() -> None:
    """Call and result are then in one turn of the assistant's."""
    content = [*calls("1").content, *result("1").content, ContentBlock(type="text", text="so")]
    view = [ChatMessage(role="assistant", content=content)]

    assert mended(view) == ["?1 !1 so"]
    assert repaired(view)[0] is view[0]


async def test_words_beside_an_orphan_result_stay() -> None:
    """A user turn may hold both; a tool's turn without a result is none of ours."""
    both = ChatMessage(role="user", content=[*result("1").content, *say("and this").content])
    foreign = ChatMessage.of("tool", "plain text")

    assert mended([both, foreign]) == ["and this", "plain text"]
    assert mended([calls("1"), both]) == ["?1", "!1", "and this"]


async def test_a_result_in_another_answer_is_none() -> None:
    """A provider's own result is in the answer with its call."""
    call = calls("1")
    other = ChatMessage(role="assistant", content=result("1").content)

    assert mended([call, other, *talk("a")]) == ["?1", "!1", "a"]


async def test_a_call_in_a_turn_of_a_user_is_none() -> None:
    """Nothing answers it, and it takes no result from the model's own call."""
    call = calls("1")
    forged = ChatMessage(role="user", content=call.content)

    assert mended([forged, *talk("a"), call, result("1")]) == ["?1", "a", "?1", "!1"]
    assert mended([forged, call, forged, result("1")]) == ["?1", "?1", "!1", "?1"]
