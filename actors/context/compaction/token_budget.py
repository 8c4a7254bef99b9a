"""The strategy with a token budget."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Self

from actors.context.compaction.steps import Assembled, assembled
from actors.context.model_sizes import DEFAULT_CONTEXT_SIZE, ContextSizes, context_size_of
from actors.context.preparation import WindowMode, current_mode, in_mode
from actors.context.reserve import limited
from actors.context.tokens import Tally, TokenCounter
from actors.context.turns import is_summary
from actors.errors import ContractError
from actors.kernel.agent.context import CompactionStrategy
from actors.kernel.agent.message import ChatMessage

_log = logging.getLogger("callboard.context")


class TokenBudgetComposedStrategy:
    """Strategy that applies other strategies in order until the window fits its token budget.

    A window that fits stays as it is, unless a summary was written ahead for it; see `SummarizationCompaction`.
    A window that does not fit after the last strategy is returned as it is then, and a warning is logged.

    Args:
        strategies: The strategies, cheap ones first.
        token_budget: Maximum size of the window, in tokens. Inside `ctx.generate` the sizes of instructions,
            tool schemas and the answer's `max_tokens` are subtracted from it.
        target_tokens: When the window is over its budget, strategies run until it has at most so many tokens.
            None: until it fits. A window far below its budget stays as it is for many turns, so a provider's
            cache stays valid.
        counter: The counter of tokens.

    Raises:
        ContractError: The budget is below 1, or the target is not from 1 to the budget.
    """

    def __init__(
        self,
        strategies: Sequence[CompactionStrategy],
        token_budget: int,
        *,
        target_tokens: int | None = None,
        counter: TokenCounter | None = None,
    ) -> None:
        target = token_budget if target_tokens is None else target_tokens
        if not 1 <= target <= token_budget:
            msg = f"a token budget needs 1 <= target <= budget: {target_tokens=}, {token_budget=}"
            raise ContractError(msg)
        self.strategies = tuple(strategies)
        self.token_budget, self.target_tokens = token_budget, target
        self._counter = counter or TokenCounter()
        ratios = [getattr(strategy, "prepare", None) for strategy in self.strategies]
        self._prepare = min((ratio for ratio in ratios if ratio is not None), default=None)
        # The strategies up to the last one that writes summaries ahead.
        count = max((n for n, ratio in enumerate(ratios, 1) if ratio is not None), default=0)
        self._preparing = self.strategies[:count]

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
        if not 0 < trigger_ratio <= 1:
            msg = f"trigger_ratio must be a part of the window, above 0 and at most 1: {trigger_ratio}"
            raise ContractError(msg)
        size = context_sizes(model_name) or DEFAULT_CONTEXT_SIZE
        target = None if target_ratio is None else int(size * target_ratio)
        return cls(strategies, int(size * trigger_ratio), target_tokens=target, counter=counter)

    async def compact(self, raw_history: list[ChatMessage]) -> list[ChatMessage]:
        """See `CompactionStrategy.compact`."""
        return (await self.assemble(raw_history)).window

    async def assemble(self, view: list[ChatMessage], *, tally: Tally | None = None) -> Assembled:
        """Return the window of `compact`, with a receipt of each strategy that ran."""
        tally = tally or Tally(self._counter)
        tokens = tally.total(view)
        budget, target = limited(self.token_budget), limited(self.target_tokens)
        if self._prepare is not None and tokens > int(self._prepare * budget):
            done = await self._prepared(view, tally)
            if done is not None and (done.tokens <= budget or current_mode() is WindowMode.AHEAD):
                return done
        if tokens <= budget:
            return Assembled(window=view, steps=(), tokens=tokens)
        done = await assembled(view, self.strategies, tally, is_enough=lambda size: size <= target)
        if done.tokens > budget:
            facts = {"tokens": done.tokens, "token_budget": budget}
            _log.warning(
                "a window is over its token budget after all strategies: raise the budget, shorten"
                " instructions and turns, or put a TruncationStrategy last",
                extra=facts,
            )
        return done

    async def _prepared(self, view: list[ChatMessage], tally: Tally) -> Assembled | None:
        """Return the window with a summary that is ready or, in mode AHEAD, is written now.

        None: there is none.
        """
        mode = WindowMode.AHEAD if current_mode() is WindowMode.AHEAD else WindowMode.READY
        with in_mode(mode):
            done = await assembled(view, self._preparing, tally)
        known = set(map(id, view))
        is_new = any(is_summary(turn) and id(turn) not in known for turn in done.window)
        return done if is_new or mode is WindowMode.AHEAD else None
