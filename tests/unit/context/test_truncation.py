"""A hard ceiling."""

from __future__ import annotations

import pytest

from actors import TruncationStrategy
from actors._context.tokens import characters
from actors._context.turns import SUMMARY
from actors.errors import ContractError
from tests.unit.context.talk import IMAGE, calls, result, say, talk, texts


@pytest.mark.item(301)
async def test_the_oldest_are_dropped_until_the_rest_is_under_the_ceilings() -> None:
    """Of turns, of characters, or of both."""
    view = talk("aaaa", "bbb", "cc", "d")

    assert texts(await TruncationStrategy(max_messages=2).compact(view)) == ["cc", "d"]
    assert texts(await TruncationStrategy(max_chars=6).compact(view)) == ["bbb", "cc", "d"]
    assert texts(await TruncationStrategy(max_chars=5).compact(view)) == ["cc", "d"]
    assert texts(await TruncationStrategy(max_messages=3, max_chars=3).compact(view)) == ["cc", "d"]
    assert texts(await TruncationStrategy(max_messages=1, max_chars=99).compact(view)) == ["d"]
    assert await TruncationStrategy(max_messages=4, max_chars=10).compact(view) is view


@pytest.mark.item(301)
async def test_the_ceiling_holds_even_for_the_newest_turn() -> None:
    """A window that is too large is refused by the provider; an empty one is noticed before."""
    assert await TruncationStrategy(max_chars=3).compact(talk("a", "bbbb")) == []
    assert await TruncationStrategy(max_messages=1).compact([calls("1"), result("1")]) == []


@pytest.mark.item(301)
@pytest.mark.parametrize("limits", [(), (None, None), (0,), (None, 0), (5, -1)])
def test_at_least_one_ceiling_is_required(limits: tuple[int | None, ...]) -> None:
    """Each from one."""
    with pytest.raises(ContractError, match="max_messages or max_chars"):
        TruncationStrategy(*limits)


@pytest.mark.item(301, 304)
async def test_groups_go_as_a_whole() -> None:
    """Calls count with their arguments, results with their text, media not at all."""
    group = [calls("1", "2"), result("1", "x" * 50, IMAGE), result("2", "y" * 50)]
    view = [*talk("a"), *group, *talk("b")]
    size = sum(map(characters, view))

    assert size == 1 + 2 * len('look {"q": "1"}') + 100 + 1
    assert texts(await TruncationStrategy(max_chars=size - 1).compact(view)) == texts(view[1:])
    assert texts(await TruncationStrategy(max_chars=size - 2).compact(view)) == ["b"]
    assert texts(await TruncationStrategy(max_chars=1).compact(view)) == ["b"]


async def test_pinned_turns_stay_above_the_ceiling_and_summaries_go_last() -> None:
    """What stands for a whole past is worth more than any one turn of it."""
    summary = say("so far", **{SUMMARY: "1"})
    view = [say("rule", pinned="1"), summary, *talk("a", "b", "c")]

    assert texts(await TruncationStrategy(max_messages=3).compact(view)) == ["rule", "so far", "c"]
    assert texts(await TruncationStrategy(max_messages=2).compact(view)) == ["rule", "so far"]
    assert texts(await TruncationStrategy(max_messages=1).compact(view)) == ["rule"]
    assert texts(await TruncationStrategy(max_chars=1).compact(view)) == ["rule"]
