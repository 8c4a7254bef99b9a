"""The newest turns."""

from __future__ import annotations

import inspect

import pytest

from actors import SlidingWindowCompaction
from actors._context.turns import SUMMARY
from actors.errors import ContractError
from tests.unit.context.talk import calls, result, say, talk, texts


@pytest.mark.item(293)
async def test_the_most_recent_turns_are_kept() -> None:
    """A hundred by default; a shorter history stays as it is."""
    turns = talk(*map(str, range(250)))

    assert texts(await SlidingWindowCompaction().compact(turns)) == texts(turns[-100:])
    assert texts(await SlidingWindowCompaction(max_messages=3).compact(turns)) == texts(turns[-3:])
    assert await SlidingWindowCompaction(250).compact(turns) is turns
    assert inspect.signature(SlidingWindowCompaction).parameters["max_messages"].default == 100


@pytest.mark.item(293, 304)
@pytest.mark.parametrize(
    ("keep", "window"),
    [
        (7, "a b ?1 ?2 !1 !2 c d"),
        (6, "b ?1 ?2 !1 !2 c d"),
        (5, "?1 ?2 !1 !2 c d"),
        (4, "c d"),
        (3, "c d"),
        (2, "c d"),
        (1, "d"),
    ],
)
async def test_calls_and_results_are_not_separated(keep: int, window: str) -> None:
    """Where the cut would go between them, both are dropped."""
    view = [*talk("a", "b"), calls("1", "2"), result("1"), result("2"), *talk("c", "d")]

    assert " ".join(texts(await SlidingWindowCompaction(keep).compact(view))) == window


async def test_the_newest_group_stays_even_if_it_is_larger() -> None:
    """A model that gets no answer to its calls cannot go on."""
    view = [*talk("a"), calls("1", "2", "3"), result("1"), result("2"), result("3")]

    assert texts(await SlidingWindowCompaction(2).compact(view)) == texts(view[1:])


async def test_pinned_turns_and_summaries_stay_beside_the_newest() -> None:
    """They are not counted; a pinned result pins its call."""
    pinned = [say("rule", pinned="1"), calls("1"), result("1", pinned="1")]
    view = [say("so far", **{SUMMARY: "1"}), *talk("a"), *pinned, *talk("b", "c", "d")]

    window = await SlidingWindowCompaction(2).compact(view)

    assert texts(window) == ["so far", "rule", "?1", "!1", "c", "d"]
    assert await SlidingWindowCompaction(2).compact(window) is window


async def test_with_slack_the_cut_moves_in_steps() -> None:
    """It stands still for `slack` turns, and never more than `max_messages` are kept."""
    strategy = SlidingWindowCompaction(10, slack=4)
    turns = talk(*map(str, range(40)))

    windows = [texts(await strategy.compact(turns[:n])) for n in range(1, 41)]

    starts = [int(window[0]) for window in windows]
    assert sorted(set(starts)) == [*range(0, 33, 4)]
    assert starts == sorted(starts)
    assert [starts.count(start) for start in sorted(set(starts))][1:-1] == [4] * 7
    assert all(len(window) <= 10 for window in windows)
    assert all(len(window) >= 7 for window in windows[9:])


@pytest.mark.parametrize(("keep", "slack"), [(0, 0), (-1, 0), (5, 5), (5, -1)])
def test_a_window_without_room_is_refused(keep: int, slack: int) -> None:
    """Steps have to be smaller than the window."""
    with pytest.raises(ContractError, match="slack < max_messages"):
        SlidingWindowCompaction(keep, slack=slack)
