"""The context of an agent: its history, compaction and retention, and the window that a model sees."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Self

from actors._context.compaction.composed import CompactionPipeline, TokenBudgetComposedStrategy
from actors._context.compaction.dropping import SlidingWindowCompaction
from actors._context.history import InMemoryHistoryProvider, StoreHistory
from actors._kernel.agent.agent import HistoryRetention
from actors._kernel.agent.message import ChatMessage
from actors._kernel.agent.models import CompactionStrategy
from actors._kernel.runtime.ids import AgentId
from actors._kernel.stores.conversations import HistoryProvider
from actors.errors import ContractError


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
    members: Iterable[Any] = getattr(strategy, "strategies", ())
    for member in members:
        is_budgeted = isinstance(strategy, TokenBudgetComposedStrategy)
        if getattr(member, "prepare", None) is not None and not is_budgeted:
            msg = (
                f"{type(member).__name__}(prepare={member.prepare}) needs a budget: put it directly into a "
                "TokenBudgetComposedStrategy"
            )
            raise ContractError(msg)
        _check_budgets(member)


class AgentContext:
    """The context of one agent: its id and its config. See `AgentContextProtocol`.

    Args:
        agent_id: The agent whose turns are read.
        config: The history of the turns, and the pipeline that makes the window.
    """

    agent_id: AgentId
    config: ContextConfig

    def __init__(self, agent_id: AgentId, config: ContextConfig) -> None:
        self.agent_id, self.config = agent_id, config

    async def get_prompt_window(self, session_id: str) -> list[ChatMessage]:
        """Read the session's turns and compact them; return the window for the model.

        Before the window is sent to a provider, `repaired` adds results to tool calls that a crash left without
        one.
        """
        raw = await self.config.history.get_messages(self.agent_id, session_id=session_id)
        return await self.config.pipeline.compact(raw)
