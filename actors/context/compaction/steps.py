"""Strategies applied one after the other, and what each of them did."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from actors.context.paid_calls import ModelNotAskedError
from actors.context.tokens import Tally
from actors.context.turns import is_derived
from actors.kernel.agent.context import CompactionStrategy
from actors.kernel.agent.message import ChatMessage


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactionStep:
    """The work of one strategy on one view.

    Attributes:
        name: The strategy's class.
        kept: Number of turns that it was given and that are in its window.
        dropped: Number of turns that are not in its window.
        changed: Number of turns that are in it with other content.
        added: Number of summaries and recalled texts that it made.
        tokens_before: Size of what it was given.
        tokens_after: Size of its window.
        would_ask: The model that it needs where none may be asked (`RefusedCalls`): its window is what it
            was given. None: it was free to ask.
    """

    name: str
    kept: int
    dropped: int
    changed: int
    added: int
    tokens_before: int
    tokens_after: int
    would_ask: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Assembled:
    """A window with its receipts.

    Attributes:
        window: The turns that a model is to see.
        steps: One for each strategy that ran, in order.
        tokens: Size of the window.
    """

    window: list[ChatMessage]
    steps: tuple[CompactionStep, ...]
    tokens: int


@runtime_checkable
class Composed(Protocol):
    """A strategy made of others, which reports the effect of each."""

    async def assemble(self, view: list[ChatMessage], *, tally: Tally | None = None) -> Assembled:
        """Return the window of `compact`, and the steps to it.

        Args:
            view: See `CompactionStrategy.compact`.
            tally: Sizes that are counted already.
        """


def _never(tokens: int) -> bool:
    del tokens
    return False


async def assembled(
    view: list[ChatMessage],
    strategies: Sequence[CompactionStrategy],
    tally: Tally,
    *,
    is_enough: Callable[[int], bool] = _never,
) -> Assembled:
    """Return what strategies make of a view, the output of one going into the next.

    Args:
        view: What the first one is given.
        strategies: In their order.
        tally: Counts sizes.
        is_enough: Called with the window's size behind each strategy; True: those that follow do not run.
    """
    window, steps = view, list[CompactionStep]()
    tokens = tally.total(view)
    for strategy in strategies:
        if isinstance(strategy, Composed):
            done = await strategy.assemble(window, tally=tally)
            steps += done.steps
        else:
            done = await _applied(strategy, window, tokens, tally)
            steps += done.steps
        window, tokens = done.window, done.tokens
        if is_enough(tokens):
            break
    return Assembled(window=window, steps=tuple(steps), tokens=tokens)


async def _applied(
    strategy: CompactionStrategy, view: list[ChatMessage], tokens: int, tally: Tally
) -> Assembled:
    would_ask = None
    try:
        window = await strategy.compact(view)
    except ModelNotAskedError as refused:
        window, would_ask = view, refused.model
    made: list[ChatMessage] = []
    if window is not view:
        same = {id(message) for message in view}
        made = [message for message in window if id(message) not in same]
    added = sum(map(is_derived, made))
    changed, unchanged = len(made) - added, len(window) - len(made)
    step = CompactionStep(
        name=type(strategy).__name__,
        kept=unchanged + changed,
        dropped=len(view) - unchanged - changed,
        changed=changed,
        added=added,
        tokens_before=tokens,
        tokens_after=tokens if window is view else tally.total(window),
        would_ask=would_ask,
    )
    return Assembled(window=window, steps=(step,), tokens=step.tokens_after)
