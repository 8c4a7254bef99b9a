"""Fewer calls of tools."""

from __future__ import annotations

import inspect

import pytest

from actors import SelectiveToolCallCompactionStrategy
from actors._kernel.agent.message import ChatMessage
from actors.errors import ContractError
from tests.unit.context.talk import calls, result, say, talk, texts


@pytest.mark.item(295)
async def test_all_but_the_newest_groups_are_dropped() -> None:
    """Five stay by default, and every turn that calls nothing."""
    groups = [[say(f"q{n}"), calls(f"{n}"), result(f"{n}")] for n in range(8)]
    view = [turn for group in groups for turn in group]

    window = await SelectiveToolCallCompactionStrategy().compact(view)

    assert texts(window) == ["q0", "q1", "q2", *texts(view[9:])]
    default = inspect.signature(SelectiveToolCallCompactionStrategy).parameters
    assert default["keep_recent_groups"].default == 5


@pytest.mark.item(295, 304)
async def test_a_group_is_never_split() -> None:
    """Parallel calls, results in one turn or in several, and a result behind another turn."""
    view = [
        calls("a", "b"),
        result("a"),
        result("b"),
        calls("c"),
        *talk("meanwhile"),
        result("c"),
        calls("d"),
        result("d"),
    ]

    assert texts(await SelectiveToolCallCompactionStrategy(2).compact(view)) == texts(view[3:])
    assert texts(await SelectiveToolCallCompactionStrategy(1).compact(view)) == [
        "meanwhile",
        "?d",
        "!d",
    ]
    assert texts(await SelectiveToolCallCompactionStrategy(0).compact(view)) == ["meanwhile"]


@pytest.mark.item(304)
async def test_a_turn_with_results_of_several_turns_joins_their_groups() -> None:
    """They are dropped together, or none of them is."""
    both = ChatMessage(role="tool", content=[*result("1").content, *result("2").content])
    view = [calls("1"), calls("2"), both, calls("3"), result("3")]

    assert texts(await SelectiveToolCallCompactionStrategy(1).compact(view)) == ["?3", "!3"]
    assert await SelectiveToolCallCompactionStrategy(2).compact(view) is view


async def test_pinned_groups_stay_and_are_not_counted() -> None:
    """A pinned result keeps its call."""
    view = [calls("1"), result("1", pinned="1"), calls("2"), result("2"), calls("3"), result("3")]

    window = await SelectiveToolCallCompactionStrategy(1).compact(view)

    assert texts(window) == ["?1", "!1", "?3", "!3"]
    assert await SelectiveToolCallCompactionStrategy(1).compact(window) is window


async def test_a_few_groups_stay_as_they_are() -> None:
    """Even those of a run that a crash ended between call and result."""
    view = [*talk("a"), calls("1"), *talk("b"), result("unknown")]

    assert await SelectiveToolCallCompactionStrategy(1).compact(view) is view
    with pytest.raises(ContractError, match="negative"):
        SelectiveToolCallCompactionStrategy(-1)
