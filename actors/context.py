"""Context: an agent's turns, which are stored in full, and the window of them that a model sees.

`AgentContext` gets a `ContextConfig`. It reads a session from the config's `HistoryProvider`, gives it to a
`CompactionPipeline`, and returns a list of turns. A runtime records the model calls of strategies with
`recorded_by`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from actors._exports import lazy_exports

if TYPE_CHECKING:
    from actors._context.calls import ask, recorded_by
    from actors._context.compaction.composed import CompactionPipeline, TokenBudgetComposedStrategy
    from actors._context.compaction.dropping import (
        SelectiveToolCallCompactionStrategy,
        SlidingWindowCompaction,
        ToolResultCompactionStrategy,
        TruncationStrategy,
    )
    from actors._context.compaction.recall import RecallStrategy
    from actors._context.compaction.steps import Assembled, CompactionStep
    from actors._context.compaction.summarization import SummarizationCompaction
    from actors._context.config import AgentContext, ContextConfig
    from actors._context.history import InMemoryHistoryProvider, StoreHistory
    from actors._context.repair import repaired
    from actors._context.tokens import (
        DEFAULT_CONTEXT_SIZE,
        TokenCounter,
        context_size_of,
        estimated_tokens,
    )
    from actors._context.turns import data_of, recalled_turn, turn_of
else:
    __getattr__ = lazy_exports(
        __name__,
        {
            "actors._context.config": ("AgentContext", "ContextConfig"),
            "actors._context.compaction.composed": (
                "CompactionPipeline",
                "TokenBudgetComposedStrategy",
            ),
            "actors._context.compaction.recall": ("RecallStrategy",),
            "actors._context.compaction.dropping": (
                "SlidingWindowCompaction",
                "SelectiveToolCallCompactionStrategy",
                "ToolResultCompactionStrategy",
                "TruncationStrategy",
            ),
            "actors._context.compaction.steps": ("Assembled", "CompactionStep"),
            "actors._context.compaction.summarization": ("SummarizationCompaction",),
            "actors._context.history": ("InMemoryHistoryProvider", "StoreHistory"),
            "actors._context.tokens": (
                "DEFAULT_CONTEXT_SIZE",
                "context_size_of",
                "TokenCounter",
                "estimated_tokens",
            ),
            "actors._context.calls": ("ask", "recorded_by"),
            "actors._context.repair": ("repaired",),
            "actors._context.turns": ("data_of", "recalled_turn", "turn_of"),
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
    "data_of",
    "estimated_tokens",
    "recalled_turn",
    "recorded_by",
    "repaired",
    "turn_of",
]
