"""A budget in tokens."""

from __future__ import annotations

import inspect
import logging
from dataclasses import dataclass, field

import pytest

from actors import CompactionPipeline, SlidingWindowCompaction, TokenBudgetComposedStrategy
from actors._kernel.agent.message import ChatMessage
from actors.context import DEFAULT_CONTEXT_SIZE, context_size_of
from actors.errors import ContractError
from tests.unit.context.talk import CHARS, talk, texts

TURN = CHARS.total(talk("abcdef"))


@dataclass
class Dropping:
    """A strategy that leaves so many turns, and counts how often it ran."""

    keep: int
    runs: list[int] = field(default_factory=list)

    async def compact(self, raw_history: list[ChatMessage]) -> list[ChatMessage]:
        """Keep the newest."""
        self.runs.append(len(raw_history))
        return raw_history[-self.keep :]


def budget_of(
    turns: int, *strategies: Dropping, target: int | None = None
) -> TokenBudgetComposedStrategy:
    """A budget for so many turns of one size."""
    goal = None if target is None else target * TURN
    return TokenBudgetComposedStrategy(strategies, turns * TURN, target_tokens=goal, counter=CHARS)


@pytest.mark.item(302)
async def test_strategies_run_in_order_until_the_window_fits() -> None:
    """Those behind the first that is enough do not run."""
    mild, strong, unused = Dropping(8), Dropping(5), Dropping(1)
    view = talk(*["abcdef"] * 10)

    window = await budget_of(5, mild, strong, unused).compact(view)

    assert len(window) == 5
    assert (mild.runs, strong.runs, unused.runs) == ([10], [8], [])


@pytest.mark.item(302)
async def test_a_window_that_fits_is_left_alone() -> None:
    """No strategy runs, even at the very budget."""
    unused = Dropping(1)
    view = talk(*["abcdef"] * 5)

    assert await budget_of(5, unused).compact(view) is view
    assert unused.runs == []


@pytest.mark.item(302)
async def test_a_window_that_never_fits_is_the_best_there_is(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """With a warning that has the sizes."""
    with caplog.at_level(logging.WARNING, "callboard.context"):
        window = await budget_of(2, Dropping(6), Dropping(4)).compact(talk(*["abcdef"] * 9))

    [record] = caplog.records
    assert len(window) == 4
    assert (record.name, vars(record)["tokens"]) == ("callboard.context", 4 * TURN)
    assert vars(record)["token_budget"] == 2 * TURN


@pytest.mark.item(303)
@pytest.mark.parametrize(
    ("model", "size"),
    [
        ("gpt-4o-mini-2024-07-18", 128_000),
        ("gpt-4-0613", 8_192),
        ("openai:gpt-4.1", 1_047_576),
        ("anthropic/claude-sonnet-4-5", 200_000),
        ("bedrock:eu/claude-haiku", 200_000),
        ("nobody-knows-1", None),
    ],
)
def test_the_budget_is_a_part_of_the_models_window(model: str, size: int | None) -> None:
    """Four fifths by default; a model that nobody knows has the documented size."""
    context_size = size or DEFAULT_CONTEXT_SIZE
    default = TokenBudgetComposedStrategy.from_model(model, [])
    half = TokenBudgetComposedStrategy.from_model(model, [], trigger_ratio=0.5)
    signature = inspect.signature(TokenBudgetComposedStrategy.from_model)

    assert context_size_of(model) == size
    assert default.token_budget == default.target_tokens == int(context_size * 0.8)
    assert half.token_budget == int(context_size * 0.5)
    assert list(signature.parameters)[:3] == ["model_name", "strategies", "trigger_ratio"]
    assert signature.parameters["trigger_ratio"].default == 0.80
    assert DEFAULT_CONTEXT_SIZE == 32_768


@pytest.mark.item(303)
async def test_sizes_of_models_can_be_looked_up_elsewhere() -> None:
    """The budget is counted like any other."""
    strategy = TokenBudgetComposedStrategy.from_model(
        "mine", [Dropping(3)], 0.5, context_sizes={"mine": 8 * TURN}.get, counter=CHARS
    )

    assert strategy.token_budget == 4 * TURN
    assert len(await strategy.compact(talk(*["abcdef"] * 4))) == 4
    assert len(await strategy.compact(talk(*["abcdef"] * 5))) == 3


async def test_with_a_target_a_window_is_cut_far_below_its_budget() -> None:
    """Nothing runs until it is over; then strategies run until the target."""
    first, second, unused = Dropping(7), Dropping(4), Dropping(1)
    strategy = budget_of(8, first, second, unused, target=4)

    at_budget = await strategy.compact(talk(*["abcdef"] * 8))
    assert (len(at_budget), first.runs) == (8, [])
    over = await strategy.compact(talk(*["abcdef"] * 9))

    assert len(over) == 4
    assert (first.runs, second.runs, unused.runs) == ([9], [7], [])


async def test_between_two_cuts_the_window_only_grows() -> None:
    """Fed with its own windows, it drops turns once in a while, and then many."""
    strategy = TokenBudgetComposedStrategy.from_model(
        "mine",
        [SlidingWindowCompaction(10)],
        0.8,
        target_ratio=0.5,
        context_sizes={"mine": 20 * TURN}.get,
        counter=CHARS,
    )
    window: list[ChatMessage] = []
    cuts = 0
    for number in range(100):
        before = texts(window)
        window = await strategy.compact([*window, *talk(f"{number:6}")])
        cuts += texts(window)[: len(before)] != before
        assert CHARS.total(window) <= strategy.token_budget

    assert cuts == 12
    assert strategy.target_tokens == 10 * TURN


async def test_a_target_that_is_missed_is_no_warning(caplog: pytest.LogCaptureFixture) -> None:
    """The window fits all the same."""
    assert len(await budget_of(5, Dropping(4), target=1).compact(talk(*["abcdef"] * 6))) == 4
    assert caplog.records == []


async def test_a_budget_may_hold_a_pipeline() -> None:
    """It runs as one strategy."""
    inner = Dropping(6), Dropping(2)
    strategy = TokenBudgetComposedStrategy([CompactionPipeline(inner)], 4 * TURN, counter=CHARS)

    assert len(await strategy.compact(talk(*["abcdef"] * 9))) == 2


def test_budgets_that_cannot_be_are_refused() -> None:
    """So are ratios."""
    for budget, target in ((0, None), (10, 11), (10, 0)):
        with pytest.raises(ContractError, match="1 <= target <= budget"):
            TokenBudgetComposedStrategy([], budget, target_tokens=target)
    for ratio in (0, -0.5, 1.1):
        with pytest.raises(ContractError, match="trigger_ratio"):
            TokenBudgetComposedStrategy.from_model("gpt-4o", [], ratio)
    with pytest.raises(ContractError, match="target"):
        TokenBudgetComposedStrategy.from_model("gpt-4o", [], 0.5, target_ratio=0.8)
