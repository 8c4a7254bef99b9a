"""The configuration of an agent's history, compaction and retention."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Self

from actors.context.compaction.pipeline import CompactionPipeline
from actors.context.compaction.sliding_window import SlidingWindowCompaction
from actors.context.compaction.token_budget import TokenBudgetComposedStrategy
from actors.context.history import InMemoryHistoryProvider
from actors.context.store_history import StoreHistory
from actors.errors import ContractError
from actors.kernel.agent.agent import HistoryRetention
from actors.kernel.agent.models import CompactionStrategy
from actors.kernel.stores.conversations import HistoryProvider


class ContextConfig:
    """The configuration of an agent's context: history, window and retention of its turns.

    Args:
        history: The store of all turns.
        pipeline: The pipeline that makes the window, or a single strategy. Default: one
            `SlidingWindowCompaction`.
        retention: The rule that decides if a run's turns stay when it ends.

    Raises:
        ContractError: The history is a `StoreHistory` with a store, although a runtime uses its own store. Or a
            strategy has `prepare` without a token budget around it.
    """

    def __init__(
        self,
        history: HistoryProvider,
        pipeline: CompactionPipeline | CompactionStrategy | None = None,
        *,
        retention: HistoryRetention = HistoryRetention.PERMANENT,
    ) -> None:
        if isinstance(history, StoreHistory) and history.has_store:
            msg = (
                "a context takes StoreHistory() without a store: the runtime that serves the agent uses"
                " its own. For turns elsewhere give it another provider, such as PostgresHistoryProvider"
            )
            raise ContractError(msg)
        if pipeline is None:
            pipeline = SlidingWindowCompaction()
        if not isinstance(pipeline, CompactionPipeline):
            pipeline = CompactionPipeline([pipeline])
        _check_budgets(pipeline)
        self.history = history
        self.pipeline = pipeline
        self.retention = retention

    @classmethod
    def default(cls) -> Self:
        """Return a config with a history in this process and a sliding window."""
        return cls(InMemoryHistoryProvider())


def _check_budgets(strategy: object) -> None:
    """Raise ContractError if a strategy has `prepare` but is not directly in a strategy with a token budget."""
    inner: Iterable[Any] = getattr(strategy, "strategies", ())
    for one in inner:
        is_budgeted = isinstance(strategy, TokenBudgetComposedStrategy)
        if getattr(one, "prepare", None) is not None and not is_budgeted:
            msg = (
                f"{type(one).__name__}(prepare={one.prepare}) needs a budget: put it directly into a "
                "TokenBudgetComposedStrategy"
            )
            raise ContractError(msg)
        _check_budgets(one)
