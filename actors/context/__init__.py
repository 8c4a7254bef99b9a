"""Context: an agent's turns, which are stored in full, and the window of them that a model sees.

`AgentContext` gets a `ContextConfig`. It reads a session from the config's `HistoryProvider`, gives it to a
`CompactionPipeline`, and returns a list of turns. No code here writes to a history or knows a run. A runtime
records the model calls of strategies with `recorded_by`.

Modules, from the top down: `agent_context`, `config`, `compaction` (the strategies), `preparation`, `attempts`,
`history`, `model_sizes`, `paid_calls`, `repair`, `tokens`, `groups`, `turns`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from actors.exports import lazy_exports

if TYPE_CHECKING:
    from actors.context.agent_context import AgentContext
    from actors.context.compaction.pipeline import CompactionPipeline
    from actors.context.compaction.recall import RecallStrategy
    from actors.context.compaction.sliding_window import SlidingWindowCompaction
    from actors.context.compaction.steps import Assembled, CompactionStep
    from actors.context.compaction.summarization import SummarizationCompaction
    from actors.context.compaction.token_budget import TokenBudgetComposedStrategy
    from actors.context.compaction.tool_groups import SelectiveToolCallCompactionStrategy
    from actors.context.compaction.tool_results import ToolResultCompactionStrategy
    from actors.context.compaction.truncation import TruncationStrategy
    from actors.context.config import ContextConfig
    from actors.context.history import InMemoryHistoryProvider
    from actors.context.model_sizes import DEFAULT_CONTEXT_SIZE, context_size_of
    from actors.context.paid_calls import ask, recorded_by
    from actors.context.repair import repaired
    from actors.context.store_history import StoreHistory
    from actors.context.tokens import TokenCounter, estimated_tokens
else:
    __getattr__ = lazy_exports(
        __name__,
        {
            "actors.context.agent_context": ("AgentContext",),
            "actors.context.compaction.pipeline": ("CompactionPipeline",),
            "actors.context.compaction.recall": ("RecallStrategy",),
            "actors.context.compaction.sliding_window": ("SlidingWindowCompaction",),
            "actors.context.compaction.steps": ("Assembled", "CompactionStep"),
            "actors.context.compaction.summarization": ("SummarizationCompaction",),
            "actors.context.compaction.token_budget": ("TokenBudgetComposedStrategy",),
            "actors.context.compaction.tool_groups": ("SelectiveToolCallCompactionStrategy",),
            "actors.context.compaction.tool_results": ("ToolResultCompactionStrategy",),
            "actors.context.compaction.truncation": ("TruncationStrategy",),
            "actors.context.config": ("ContextConfig",),
            "actors.context.history": ("InMemoryHistoryProvider",),
            "actors.context.model_sizes": ("DEFAULT_CONTEXT_SIZE", "context_size_of"),
            "actors.context.paid_calls": ("ask", "recorded_by"),
            "actors.context.repair": ("repaired",),
            "actors.context.store_history": ("StoreHistory",),
            "actors.context.tokens": ("TokenCounter", "estimated_tokens"),
        },
    )

__all__ = [
    "DEFAULT_CONTEXT_SIZE",
    "AgentContext",
    "Assembled",
    "CompactionPipeline",
    "CompactionStep",
    "ContextConfig",
    "InMemoryHistoryProvider",
    "RecallStrategy",
    "SelectiveToolCallCompactionStrategy",
    "SlidingWindowCompaction",
    "StoreHistory",
    "SummarizationCompaction",
    "TokenBudgetComposedStrategy",
    "TokenCounter",
    "ToolResultCompactionStrategy",
    "TruncationStrategy",
    "ask",
    "context_size_of",
    "estimated_tokens",
    "recorded_by",
    "repaired",
]
