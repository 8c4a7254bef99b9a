"""Cuts that make any window fit."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from actors import SlidingWindowCompaction, TokenBudgetComposedStrategy
from actors._context.compaction.steps import cut_to
from actors._context.repair import repaired
from actors._context.tokens import Tally
from actors._kernel.agent.message import ChatMessage, ContentBlock
from actors._kernel.agent.tools import ToolCall
from actors.testing import ScriptedModel
from tests.unit.context.talk import CHARS, calls, result, say, talk, texts


def cut(view: list[ChatMessage], max_tokens: int) -> list[ChatMessage]:
    """Cut a view to so many tokens."""
    return cut_to(view, max_tokens, Tally(CHARS))


def test_a_window_that_fits_is_returned_as_it_is() -> None:
    """No turn is changed or copied."""
    view = talk("one", "two")

    assert cut(view, CHARS.total(view)) is view


def test_the_oldest_groups_are_left_out_first() -> None:
    """A call and its result go together."""
    view = [say("ask"), calls("1"), result("1"), *talk("a" * 30, "b" * 30)]

    window = cut(view, CHARS.total(view[-2:]))

    assert window == view[-2:]


def test_a_large_turn_is_shortened_before_small_ones_are_left_out() -> None:
    """Its beginning and its end stay, and a mark between them has the number of characters."""
    view = talk("first", "x" * 3_000 + "end", "last")

    window = cut(view, 400)

    assert len(window) == 3
    assert window[1].text.startswith("xxx")
    assert window[1].text.endswith("end")
    assert " chars truncated]" in window[1].text
    assert CHARS.total(window) <= 400


def test_texts_among_the_arguments_of_a_call_are_shortened() -> None:
    """The call stays a call, and its other arguments stay."""
    call = ToolCall(id="1", name="write", arguments={"path": "a.txt", "lines": ["y" * 9_000]})
    view = [
        say("write it"),
        ChatMessage(role="assistant", content=[call.block()]),
        result("1", "z" * 9_000),
        say("thanks"),
    ]

    window = cut(view, 600)

    shorter = ToolCall.of_block(window[1].content[0])
    assert (shorter.id, shorter.name, shorter.arguments["path"]) == ("1", "write", "a.txt")
    assert "chars truncated]" in shorter.arguments["lines"][0]
    assert [turn.role for turn in window] == ["user", "assistant", "tool", "user"]
    assert CHARS.total(window) <= 600


def test_pinned_turns_stay_and_new_results_are_shortened() -> None:
    """A user can shorten what is asked, and nobody can shorten what a tool gave."""
    question = say("q" * 300, pinned="new")
    view = [*talk("old" * 100), question, calls("1"), result("1", "z" * 9_000, pinned="new")]

    window = cut(view, 400)

    assert window[0] is question
    assert [turn.role for turn in window] == ["user", "assistant", "tool"]
    assert "chars truncated]" in str(window[2].content[0].text)
    assert CHARS.total(window) <= 400
    assert cut([question], 20) == [question]


@given(
    st.lists(st.sampled_from(["s", "m", "l", "call"]), min_size=1, max_size=14),
    st.integers(30, 2_000),
)
def test_any_view_without_pinned_turns_fits(kinds: list[str], max_tokens: int) -> None:
    """The window is a part of the view in its order, and calls keep their results."""
    view: list[ChatMessage] = []
    for n, kind in enumerate(kinds):
        if kind == "call":
            view += [calls(str(n)), result(str(n), "r" * 700)]
        else:
            view += [say(kind * {"s": 10, "m": 200, "l": 5_000}[kind], turn=str(n))]

    window = cut(view, max_tokens)

    assert CHARS.total(window) <= max_tokens
    assert repaired(window) == window
    roles = iter(turn.role for turn in view)
    assert all(any(role == turn.role for role in roles) for turn in window)


async def test_a_budget_that_always_fits_is_that_of_its_client() -> None:
    """Its size is read for each window, because a client may not know it before its first call."""
    model = ScriptedModel()
    strategy = TokenBudgetComposedStrategy.from_client(
        model, [SlidingWindowCompaction(500)], target_ratio=0.5, always_fits=True, counter=CHARS
    )
    view = talk(*["word " * 60] * 40)
    huge = talk(*["word " * 60_000] * 2)

    assert await strategy.compact(view) is view
    assert await strategy.compact(huge) is huge, "nobody knows how much the model takes"
    model.context_window = 1_000  # type: ignore[attr-defined]
    window = await strategy.compact(view)

    assert (strategy.token_budget, strategy.target_tokens) == (800, 500)
    assert texts(window) == texts(view)[-len(window) :]
    assert 400 <= CHARS.total(window) <= 500


@pytest.mark.parametrize("block", ["image", "reasoning"])
def test_a_block_that_cannot_be_shortened_is_left_out_with_its_turn(block: str) -> None:
    """Also in the newest turn, unless it is pinned."""
    odd = ContentBlock.model_validate({"type": block, "text": "x" * 9_000})
    view = [say("small"), ChatMessage(role="assistant", content=[odd])]

    assert cut(view, 300) == view[:1]
