"""Strategies applied one after the other, with a receipt of each."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeGuard

from actors.context.paid_calls import ModelNotAskedError
from actors.context.tokens import Tally
from actors.context.turns import is_derived
from actors.kernel.agent.message import ChatMessage
from actors.kernel.agent.models import CompactionStrategy


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactionStep:
    """The work of one strategy on one view.

    Attributes:
        name: The strategy's class.
        kept: Number of turns of the view that are in the window, also with other content.
        dropped: Number of turns of the view that are not in the window.
        changed: Number of turns that are in the window with other content.
        added: Number of summaries and recalled texts that the strategy made.
        tokens_before: Size of the view, in tokens.
        tokens_after: Size of the window, in tokens.
        would_ask: The model that the strategy needs, if model calls are refused (`RefusedCalls`). Then the
            window is the view. None: the strategy made its calls or needed none.
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
        window: The turns that a model will see.
        steps: The receipts of the strategies that ran, in order.
        tokens: Size of the window, in tokens.
        is_cut: True if a budget made the window smaller. The same turns would make another window with the
            next turn, so the next windows begin with this one.
    """

    window: list[ChatMessage]
    steps: tuple[CompactionStep, ...]
    tokens: int
    is_cut: bool = False


class Composed(Protocol):
    """A strategy made of other strategies, which returns a receipt of each."""

    async def assemble(self, view: list[ChatMessage], *, tally: Tally | None = None) -> Assembled:
        """Return the window of `compact` with the receipts of its strategies.

        Args:
            view: See `CompactionStrategy.compact`.
            tally: The sizes that were counted before.
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
    """Apply strategies to a view, each to the output of the one before; return the window with receipts.

    Args:
        view: The input of the first strategy.
        strategies: The strategies, in order.
        tally: The counter of sizes.
        is_enough: Function that gets the window's size after each strategy. True: the strategies after it do
            not run.
    """
    window, steps, is_cut = view, list[CompactionStep](), False
    tokens = tally.total(view)
    for strategy in strategies:
        if _is_composed(strategy):
            done = await strategy.assemble(window, tally=tally)
            steps += done.steps
        else:
            done = await _applied(strategy, window, tokens, tally)
            steps += done.steps
        window, tokens, is_cut = done.window, done.tokens, is_cut or done.is_cut
        if is_enough(tokens):
            break
    return Assembled(window=window, steps=tuple(steps), tokens=tokens, is_cut=is_cut)


def _is_composed(strategy: object) -> TypeGuard[Composed]:
    return hasattr(strategy, "assemble")  # `isinstance` takes 20 us


async def _applied(
    strategy: CompactionStrategy, view: list[ChatMessage], tokens: int, tally: Tally
) -> Assembled:
    would_ask = None
    try:
        window = await strategy.compact(view)
    except ModelNotAskedError as refused:
        window, would_ask = view, refused.model
    if window is view:
        return _unchanged(strategy, view, tokens, would_ask)
    step = step_of(type(strategy).__name__, view, window, tokens=tokens, tally=tally)
    return Assembled(window=window, steps=(step,), tokens=step.tokens_after)


def step_of(
    name: str,
    view: Sequence[ChatMessage],
    window: Sequence[ChatMessage],
    *,
    tokens: int,
    tally: Tally,
) -> CompactionStep:
    """Return the receipt of a change of a view.

    Args:
        name: The name of what changed it.
        view: The turns before.
        window: The turns after it.
        tokens: Size of the view, in tokens.
        tally: The counter of sizes.
    """
    kept = {id(message) for message in window}
    gone = [message for message in view if id(message) not in kept]
    made: list[ChatMessage] = []
    if len(window) + len(gone) == len(view):  # nothing is new
        left = tokens - tally.total(gone)
    else:
        same, left = {id(message) for message in view}, tally.total(window)
        made = [message for message in window if id(message) not in same]
    added = sum(map(is_derived, made))
    changed, unchanged = len(made) - added, len(window) - len(made)
    return CompactionStep(
        name=name,
        kept=unchanged + changed,
        dropped=len(view) - unchanged - changed,
        changed=changed,
        added=added,
        tokens_before=tokens,
        tokens_after=left,
    )


def _unchanged(
    strategy: CompactionStrategy, view: list[ChatMessage], tokens: int, would_ask: str | None
) -> Assembled:
    step = CompactionStep(
        name=type(strategy).__name__,
        kept=len(view),
        dropped=0,
        changed=0,
        added=0,
        tokens_before=tokens,
        tokens_after=tokens,
        would_ask=would_ask,
    )
    return Assembled(window=view, steps=(step,), tokens=tokens)
