"""Properties of every strategy, every composition of them and every history."""

from __future__ import annotations

import asyncio
import os
import random
import subprocess
import sys
from itertools import pairwise
from typing import TYPE_CHECKING, TypeVar

import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from actors import AgentId, ContextConfig, InMemoryHistoryProvider, SlidingWindowCompaction
from actors._context.tokens import characters
from actors._context.turns import call_ids, groups_of, is_derived, is_pinned, result_ids
from actors.context import AgentContext, repaired
from tests.architecture.test_house_rules import ROOT
from tests.harness.slow import IS_SLOW
from tests.properties.windows import COMPOSED, SINGLE, Plan, digests, histories
from tests.unit.context.talk import CHARS, Summariser, calls, dumped, result, talk

if TYPE_CHECKING:
    from collections.abc import Coroutine, Sequence

    from actors._kernel.agent.message import ChatMessage

T = TypeVar("T")
DESK = AgentId("desk", "1")
MANY = settings(max_examples=2_000 if IS_SLOW else 80)


def run(work: Coroutine[object, object, T]) -> T:
    """Run one example to its end."""
    return asyncio.run(work)


def turns_of(window: Sequence[ChatMessage]) -> list[str]:
    """Return the ids of the history's turns in a window."""
    return [turn.turn for turn in window if turn.turn is not None]


def model_calls(strategy: object) -> int:
    """Return how often a strategy and its parts have called a model."""
    own = getattr(strategy, "_llm", None)
    parts: Sequence[object] = getattr(strategy, "strategies", ())
    count = len(own.requests) if isinstance(own, Summariser) else 0
    return count + sum(map(model_calls, parts))


@pytest.mark.item(258, 292, 304)
@MANY
@given(COMPOSED, histories())
def test_a_window_keeps_order_groups_and_pinned_turns(plan: Plan, view: list[ChatMessage]) -> None:
    """Turns are a part of the history in its order; a call and its result stay or are dropped together."""
    before, same = dumped(view), [*view]
    window = run(plan.build().compact(view))

    window_turns = turns_of(window)
    assert dumped(view) == before
    assert all(message is same_message for message, same_message in zip(view, same, strict=True))
    assert window_turns == [turn.turn for turn in view if turn.turn in set(window_turns)]
    assert all(turn in window for turn in view if is_pinned(turn))
    for group in groups_of(view):
        staying = [view[index].turn in window_turns for index in group.indices]
        assert all(staying) or not any(staying)
    assert all(is_derived(turn) for turn in window if turn.turn is None)
    assert len([turn for turn in window if is_derived(turn)]) <= 1


@pytest.mark.item(304)
@MANY
@given(COMPOSED, histories(is_tidy=True))
def test_no_strategy_leaves_an_orphan(plan: Plan, view: list[ChatMessage]) -> None:
    """For an ordered history every window is ordered: no repair is needed."""
    window = run(plan.build().compact(view))

    assert sorted(id_ for turn in window for id_ in call_ids(turn)) == sorted(
        id_ for turn in window for id_ in result_ids(turn)
    )
    assert dumped(repaired(window)) == dumped(window)


@settings(max_examples=150)
@given(histories())
def test_a_repaired_view_has_one_result_behind_each_call(view: list[ChatMessage]) -> None:
    """For any state after a crash. Other turns keep their order, and a second repair changes nothing."""
    before = dumped(view)
    window = repaired(view)

    waiting: list[str] = []
    for turn in window:
        if turn.role == "tool":
            for id_ in result_ids(turn):
                waiting.remove(id_)
        else:
            assert waiting == []
            waiting = call_ids(turn)
    assert waiting == []
    assert dumped(view) == before
    assert dumped(repaired(window)) == dumped(window)
    talked = [turn for turn in view if turn.role != "tool"]
    assert dumped(turn for turn in window if turn.role != "tool") == dumped(talked)


@MANY
@given(COMPOSED, histories())
@example(
    Plan("pipeline", parts=(Plan("summarization", (0, 1)), Plan("truncation", (1, 0)))), talk("a")
)
def test_a_second_compaction_changes_nothing(plan: Plan, view: list[ChatMessage]) -> None:
    """A second compaction of the window or the history changes nothing and buys no summary.

    A mark or a summary that is written after a ceiling may lift the window above it again.
    """
    assume(plan.has_ceilings_last)
    strategy = plan.build()

    async def twice() -> tuple[list[ChatMessage], list[ChatMessage], list[ChatMessage], int, int]:
        first = await strategy.compact(view)
        paid = model_calls(strategy)
        again, second = await strategy.compact(view), await strategy.compact(first)
        return first, again, second, paid, model_calls(strategy)

    first, again, second, paid, paid_after = run(twice())

    assert dumped(again) == dumped(first)
    if "failing" not in {part.answers for part in plan.walk()}:
        assert paid_after == paid
    assert dumped(second) == dumped(first)


@MANY
@given(SINGLE, histories(most=14))
def test_a_strategy_keeps_its_limits(plan: Plan, view: list[ChatMessage]) -> None:
    """Numbers of turns, groups, characters and tokens, as far as pinned turns allow."""
    window = run(plan.build().compact(view))

    groups = groups_of(window)
    plain = [group for group in groups if group.is_plain]
    free = sum(len(group.indices) for group in plain)
    if plan.kind == "sliding":
        assert free <= max(plan.numbers[0], len(plain[-1].indices) if plain else 0)
    elif plan.kind == "groups":
        assert sum(group.has_calls for group in plain) <= plan.numbers[0]
    elif plan.kind == "truncation":
        most, chars = plan.numbers
        is_under = (not most or len(window) <= most) and (
            not chars or sum(map(characters, window)) <= chars
        )
        assert is_under or free == 0
    elif plan.kind == "results":
        for turn in (turn for turn in window if not is_pinned(turn)):
            for block in turn.content:
                if block.type == "tool_result" and not (block.model_extra or {})["is_error"]:
                    assert len(block.text or "") <= plan.numbers[0] + len("[700 chars truncated]")
    elif plan.kind == "summarization" and any(map(is_derived, window)):
        recent = [group for group in plain if group.indices[0] > 0]
        sizes = [CHARS.total(group.turns(window)) for group in recent]
        assert sum(sizes) <= max(plan.numbers[0], sizes[-1] if sizes else 0)
    elif plan.kind == "budget" and CHARS.total(view) <= plan.numbers[0]:
        assert window is view


@MANY
@given(st.integers(20, 900), COMPOSED, histories())
def test_a_budget_that_ends_in_a_ceiling_is_never_exceeded(
    budget: int, plan: Plan, view: list[ChatMessage]
) -> None:
    """After any other strategy: only pinned turns may remain above the budget."""
    # A turn has at most three blocks, each of a third of its characters; media are not characters.
    ceiling = Plan("truncation", (budget // 20, budget))
    strategy = Plan("budget", (budget, budget), (plan, ceiling)).build()

    window = run(strategy.compact(view))

    media = sum(block.type == "image" for turn in window for block in turn.content)
    fits = CHARS.total(window) - 1_000 * media <= budget
    assert fits or not any(group.is_plain for group in groups_of(window))


@settings(max_examples=60)
@given(COMPOSED, histories())
@pytest.mark.item(257, 258)
def test_the_store_is_never_written_to(plan: Plan, view: list[ChatMessage]) -> None:
    """A session is the same, byte for byte, before and after a window."""

    async def around() -> tuple[list[str], list[str]]:
        config = ContextConfig(InMemoryHistoryProvider(), plan.build())
        await config.history.append_many(DESK, view, session_id="s")
        before = dumped(await config.history.get_messages(DESK, session_id="s"))
        await AgentContext(DESK, config).get_prompt_window("s")
        return before, dumped(await config.history.get_messages(DESK, session_id="s"))

    before, after = run(around())

    assert before == after == dumped(view)


@settings(max_examples=60)
@given(st.integers(2, 15), st.data())
def test_with_slack_the_start_changes_only_at_a_cut(keep: int, data: st.DataObject) -> None:
    """Each window of a growing history starts with the previous one, or has dropped `slack` turns."""
    slack = data.draw(st.integers(1, keep - 1), "slack")
    strategy = SlidingWindowCompaction(keep, slack=slack)
    history = talk(*map(str, range(data.draw(st.integers(1, 60), "turns"))))

    async def grow() -> list[list[str]]:
        counts = range(1, len(history) + 1)
        return [turns_of(await strategy.compact(history[:count])) for count in counts]

    windows = run(grow())

    cuts = 0
    for old, new in pairwise(windows):
        if new[: len(old)] != old:
            cuts += 1
            assert new[: len(old) - slack] == old[slack:]
    assert cuts == max(0, -(-(len(history) - keep) // slack))


@settings(max_examples=80)
@given(st.lists(histories(most=2, is_tidy=True), max_size=12), st.integers(100, 600))
def test_with_a_target_the_start_changes_only_above_the_budget(
    parts: list[list[ChatMessage]], budget: int
) -> None:
    """A window with new turns grows only at its end until it exceeds the budget."""
    plan = Plan("budget", (budget, budget // 2), (Plan("truncation", (0, budget)),))
    strategy = plan.build()

    async def feed() -> None:
        window: list[ChatMessage] = []
        for part in parts:
            view = [*window, *part]
            window = await strategy.compact(view)
            assert window is view or CHARS.total(view) > budget

    run(feed())


@pytest.mark.parametrize(
    "plan",
    [
        Plan("sliding", (9, 3)),
        Plan("results", (5,)),
        Plan("groups", (2,)),
        Plan("truncation", (7, 90)),
        Plan("summarization", (60, 10)),
        Plan("budget", (120, 90), (Plan("results", (5,)), Plan("sliding", (9, 0)))),
    ],
    ids=lambda plan: plan.kind,
)
def test_work_grows_with_the_number_of_turns(plan: Plan) -> None:
    """Twice as many turns take twice as many calls of functions, not four times."""
    part = [*talk("ab", "cd"), calls("1", "2"), result("1", "x" * 50), result("2")]
    few, many = calls_of(plan, part * 40), calls_of(plan, part * 80)

    assert few < many < 2.2 * few


def calls_of(plan: Plan, view: list[ChatMessage]) -> int:
    """Return how many functions are called to make one window."""
    count = 0

    def called(frame: object, event: str, arg: object) -> None:
        nonlocal count
        del frame, arg
        count += event in ("call", "c_call")

    async def measured() -> None:
        strategy = plan.build()
        before = sys.getprofile()
        sys.setprofile(called)
        try:
            await strategy.compact(view)
        finally:
            sys.setprofile(before)

    run(measured())
    return count


def test_another_process_makes_the_same_bytes() -> None:
    """Whatever its hashes and its random numbers are."""
    code = "from tests.properties.windows import digests; print(digests())"
    seed = str(random.randrange(1, 2**32))
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=ROOT,
        env={**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.stdout.strip() == digests(), done.stderr
