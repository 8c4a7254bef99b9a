"""Context: an agent's turns, which are stored in full, and the window of them that a model sees.

`AgentContext` gets a `ContextConfig`. It reads a session from the config's `HistoryProvider`, gives it to a
`CompactionPipeline`, and returns a list of turns. No code here writes to a history or knows a run. A runtime
records the model calls of strategies with `recorded_by`.

Modules, from the top down: `config`, `compaction` (the strategies), `history`, `calls`, `fitting`, `repair`,
`tokens`, `turns`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from actors.exports import lazy_exports

if TYPE_CHECKING:
    from actors.context.calls import ask, recorded_by
    from actors.context.compaction.composed import CompactionPipeline, TokenBudgetComposedStrategy
    from actors.context.compaction.dropping import (
        SelectiveToolCallCompactionStrategy,
        SlidingWindowCompaction,
        ToolResultCompactionStrategy,
        TruncationStrategy,
    )
    from actors.context.compaction.recall import RecallStrategy
    from actors.context.compaction.steps import Assembled, CompactionStep
    from actors.context.compaction.summarization import SummarizationCompaction
    from actors.context.config import AgentContext, ContextConfig
    from actors.context.history import InMemoryHistoryProvider, StoreHistory
    from actors.context.repair import repaired
    from actors.context.tokens import (
        DEFAULT_CONTEXT_SIZE,
        TokenCounter,
        context_size_of,
        estimated_tokens,
    )
else:
    __getattr__ = lazy_exports(
        __name__,
        {
            "actors.context.config": ("AgentContext", "ContextConfig"),
            "actors.context.compaction.composed": (
                "CompactionPipeline",
                "TokenBudgetComposedStrategy",
            ),
            "actors.context.compaction.recall": ("RecallStrategy",),
            "actors.context.compaction.dropping": (
                "SlidingWindowCompaction",
                "SelectiveToolCallCompactionStrategy",
                "ToolResultCompactionStrategy",
                "TruncationStrategy",
            ),
            "actors.context.compaction.steps": ("Assembled", "CompactionStep"),
            "actors.context.compaction.summarization": ("SummarizationCompaction",),
            "actors.context.history": ("InMemoryHistoryProvider", "StoreHistory"),
            "actors.context.tokens": (
                "DEFAULT_CONTEXT_SIZE",
                "context_size_of",
                "TokenCounter",
                "estimated_tokens",
            ),
            "actors.context.calls": ("ask", "recorded_by"),
            "actors.context.repair": ("repaired",),
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
