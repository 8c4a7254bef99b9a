"""Strategies made of other strategies: a pipeline, and the strategy with a token budget."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final, NamedTuple, Self

from actors._context.calls import WindowMode, current_mode, in_mode
from actors._context.compaction.steps import Assembled, apply_strategies, fitted
from actors._context.tokens import (
    DEFAULT_CONTEXT_SIZE,
    ContextSizes,
    Tally,
    TokenCounter,
    context_size_of,
    context_size_of_client,
    limited,
)
from actors._context.turns import is_summary
from actors._kernel.agent.message import ChatMessage
from actors._kernel.agent.models import CompactionStrategy, LLMClient
from actors.errors import ContractError


class CompactionPipeline:
    """A pipeline that applies strategies in order. The output of one is the input of the next.

    Put cheap strategies that lose little first, and strategies that lose much last. An empty pipeline returns
    the history as it is. A pipeline is itself a strategy.

    Args:
        strategies: The strategies, in order.
        counter: The counter of the sizes in receipts.
    """

    def __init__(
        self, strategies: Sequence[CompactionStrategy], *, counter: TokenCounter | None = None
    ) -> None:
        self.strategies: tuple[CompactionStrategy, ...] = tuple(strategies)
        self.counter: TokenCounter = counter or TokenCounter()

    async def compact(self, raw_history: list[ChatMessage]) -> list[ChatMessage]:
        """Return the window that the last strategy makes."""
        window = raw_history
        for strategy in self.strategies:
            window = await strategy.compact(window)
        return window

    async def assemble(self, view: list[ChatMessage], *, tally: Tally | None = None) -> Assembled:
        """Return the window of `compact` with a receipt of each strategy.

        The receipts cost a count of the tokens.
        """
        return await apply_strategies(view, self.strategies, tally or Tally(self.counter))


CUT: Final = "cut"
"""The name, in receipts, of the cut that makes a window fit after all strategies."""
_log = logging.getLogger("callboard.context")


class BudgetSizes(NamedTuple):
    """The sizes of a budget for one window, in tokens.

    Attributes:
        budget: Maximum size of the window.
        target: Size that a larger window goes down to.
        is_known: True if the size of the model's window is known.
    """

    budget: int
    target: int
    is_known: bool = True


class TokenBudgetComposedStrategy:
    """Strategy that applies other strategies in order until the window fits its token budget.

    A window that fits stays as it is, unless a summary was written ahead for it; see `SummarizationCompaction`.
    A window that does not fit after the last strategy is returned as it is then, and a warning is logged. With
    `always_fits` it is cut.

    Args:
        strategies: The strategies, cheap ones first.
        token_budget: Maximum size of the window, in tokens. Inside `ctx.generate` the sizes of instructions,
            tool schemas and the answer's `max_tokens` are subtracted from it.
        target_tokens: When the window is over its budget, strategies run until it has at most so many tokens.
            None if they run until it fits. A window far below its budget stays as it is for many turns, so a
            provider's cache stays valid.
        always_fits: True if a window that no strategy makes fit is cut to the target: large turns are shortened
            with a mark, and the oldest groups are left out. Pinned turns stay.
        counter: The counter of tokens.
        sizes: Function that returns the sizes for each window, in place of `token_budget` and `target_tokens`.
            See `from_client`.

    Raises:
        ContractError: The budget is below 1, or the target is not from 1 to the budget.
    """

    def __init__(
        self,
        strategies: Sequence[CompactionStrategy],
        token_budget: int,
        *,
        target_tokens: int | None = None,
        always_fits: bool = False,
        counter: TokenCounter | None = None,
        sizes: Callable[[], BudgetSizes] | None = None,
    ) -> None:
        target = token_budget if target_tokens is None else target_tokens
        if not 1 <= target <= token_budget:
            msg = f"a token budget needs 1 <= target <= budget: {target_tokens=}, {token_budget=}"
            raise ContractError(msg)
        self.strategies: tuple[CompactionStrategy, ...] = tuple(strategies)
        self.always_fits = always_fits
        self._sizes = sizes or (lambda: BudgetSizes(token_budget, target))
        self._counter = counter or TokenCounter()
        ratios = [getattr(strategy, "prepare", None) for strategy in self.strategies]
        self._prepare = min((ratio for ratio in ratios if ratio is not None), default=None)
        # The strategies up to the last one that writes summaries ahead.
        count = max((n for n, ratio in enumerate(ratios, 1) if ratio is not None), default=0)
        self._preparing_strategies = self.strategies[:count]

    @classmethod
    def from_model(
        cls,
        model_name: str,
        strategies: Sequence[CompactionStrategy],
        trigger_ratio: float = 0.80,
        *,
        target_ratio: float | None = None,
        context_sizes: ContextSizes = context_size_of,
        counter: TokenCounter | None = None,
    ) -> Self:
        """Return a strategy whose budget is a part of the model's window.

        Args:
            model_name: The name of the model, as in `LLMClient.model`. A model that `context_sizes` does not
                know has `DEFAULT_CONTEXT_SIZE` tokens.
            strategies: See the class.
            trigger_ratio: Budget as a part of the window, above 0 and at most 1.
            target_ratio: Target as a part of the window, at most `trigger_ratio`.
            context_sizes: Function that returns the size of a model's window by name.
            counter: The counter of tokens.

        Raises:
            ContractError: A ratio is out of its range.
        """
        size = context_sizes(model_name) or DEFAULT_CONTEXT_SIZE
        budget, target = _parts_of(size, trigger_ratio, target_ratio)
        return cls(strategies, budget, target_tokens=target, counter=counter)

    @classmethod
    def from_client(
        cls,
        client: LLMClient,
        strategies: Sequence[CompactionStrategy],
        trigger_ratio: float = 0.80,
        *,
        target_ratio: float | None = None,
        always_fits: bool = False,
        counter: TokenCounter | None = None,
    ) -> Self:
        """Return a strategy whose budget is a part of the client's window. The size is read for each window.

        Args:
            client: The client. Its window has `context_window` tokens. If the client does not know it, the size
                is that of the model's name, else `DEFAULT_CONTEXT_SIZE`.
            strategies: See the class.
            trigger_ratio: Budget as a part of the window, above 0 and at most 1.
            target_ratio: Target as a part of the window, at most `trigger_ratio`.
            always_fits: See the class.
            counter: The counter of tokens.

        Raises:
            ContractError: A ratio is out of its range.
        """

        def sizes() -> BudgetSizes:
            size = context_size_of_client(client)
            budget, target = _parts_of(size or DEFAULT_CONTEXT_SIZE, trigger_ratio, target_ratio)
            return BudgetSizes(budget, budget if target is None else target, size is not None)

        budget, target = _parts_of(DEFAULT_CONTEXT_SIZE, trigger_ratio, target_ratio)
        return cls(
            strategies,
            budget,
            target_tokens=target,
            always_fits=always_fits,
            counter=counter,
            sizes=sizes,
        )

    @property
    def token_budget(self) -> int:
        """Maximum size of the window, in tokens."""
        return self._sizes().budget

    @property
    def target_tokens(self) -> int:
        """Size that a window above the budget goes down to, in tokens."""
        return self._sizes().target

    @property
    def settings(self) -> dict[str, float]:
        """The numbers that two strategies with equal windows have in common, by name."""
        sizes = self._sizes()
        numbers = {
            "token_budget": sizes.budget,
            "target_tokens": sizes.target,
            "_prepare": self._prepare,
        }
        return {name: number for name, number in numbers.items() if number is not None}

    async def compact(self, raw_history: list[ChatMessage]) -> list[ChatMessage]:
        """Return a window within the budget. Turns within it are returned as they are."""
        return (await self.assemble(raw_history)).window

    async def assemble(self, view: list[ChatMessage], *, tally: Tally | None = None) -> Assembled:
        """Return the window of `compact`, with a receipt of each strategy that ran."""
        tally = tally or Tally(self._counter)
        tokens = tally.total(view)
        sizes = self._sizes()
        budget, target = limited(sizes.budget), limited(sizes.target)
        if self._prepare is not None and tokens > int(self._prepare * budget):
            output = await self._assemble_prepared(view, tally)
            if output is not None and (
                output.tokens <= budget or current_mode() is WindowMode.AHEAD
            ):
                return replace(output, is_cut=True)
        if tokens <= budget:
            return Assembled(window=view, steps=(), tokens=tokens)
        output = await apply_strategies(
            view, self.strategies, tally, is_enough=lambda size: size <= target
        )
        if output.tokens > budget and self.always_fits and sizes.is_known:
            output = fitted(output, target, tally, name=CUT)
        if output.tokens > budget and self.strategies:
            facts = {"tokens": output.tokens, "token_budget": budget}
            _log.warning(
                "a window is over its token budget after all strategies: raise the budget, shorten"
                " instructions and turns, or give the budget always_fits=True",
                extra=facts,
            )
        return output if output.window is view else replace(output, is_cut=True)

    async def _assemble_prepared(self, view: list[ChatMessage], tally: Tally) -> Assembled | None:
        """Return the window with a summary that is ready or, in mode AHEAD, is written now.

        None if there is none.
        """
        mode = WindowMode.AHEAD if current_mode() is WindowMode.AHEAD else WindowMode.READY
        with in_mode(mode):
            output = await apply_strategies(view, self._preparing_strategies, tally)
        view_ids = set(map(id, view))
        is_new = any(is_summary(turn) and id(turn) not in view_ids for turn in output.window)
        return output if is_new or mode is WindowMode.AHEAD else None


def _parts_of(
    size: int, trigger_ratio: float, target_ratio: float | None
) -> tuple[int, int | None]:
    """Return the budget and the target of a window of this size."""
    if not 0 < trigger_ratio <= 1:
        msg = f"trigger_ratio must be a part of the window, above 0 and at most 1: {trigger_ratio}"
        raise ContractError(msg)
    return int(size * trigger_ratio), None if target_ratio is None else int(size * target_ratio)
