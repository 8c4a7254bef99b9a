"""A pipeline of strategies."""

from __future__ import annotations

from collections.abc import Sequence

from actors.context.compaction.steps import Assembled, assembled
from actors.context.tokens import Tally, TokenCounter
from actors.kernel.agent.message import ChatMessage
from actors.kernel.agent.models import CompactionStrategy


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
        self.strategies = tuple(strategies)
        self.counter = counter or TokenCounter()

    async def compact(self, raw_history: list[ChatMessage]) -> list[ChatMessage]:
        """See `CompactionStrategy.compact`."""
        window = raw_history
        for strategy in self.strategies:
            window = await strategy.compact(window)
        return window

    async def assemble(self, view: list[ChatMessage], *, tally: Tally | None = None) -> Assembled:
        """Return the window of `compact` with a receipt of each strategy.

        The receipts cost a count of the tokens.
        """
        return await assembled(view, self.strategies, tally or Tally(self.counter))
