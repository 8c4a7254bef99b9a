"""Durable actors for AI agents: what an author writes and tests with.

`import actors` needs pydantic and the OpenTelemetry API, and opens nothing. `Runtime()` runs agents
in memory; `compose` has the durable ones, with the same calls.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from actors.exports import lazy_exports, understand_moved_paths

if TYPE_CHECKING:
    from actors.context import (
        CompactionPipeline,
        ContextConfig,
        InMemoryHistoryProvider,
        RecallStrategy,
        SelectiveToolCallCompactionStrategy,
        SlidingWindowCompaction,
        StoreHistory,
        SummarizationCompaction,
        TokenBudgetComposedStrategy,
        ToolResultCompactionStrategy,
        TruncationStrategy,
    )
    from actors.errors import (
        ActorsError,
        BudgetExhaustedError,
        EffectDidNotHappen,
        EffectError,
        EffectInDoubtError,
        ModelError,
        RecordedError,
        RetryAfter,
        RunFailedError,
        SpawnDenied,
        TerminalError,
        WaitCycleError,
    )
    from actors.kernel.agent.agent import (
        Agent,
        ExecutionBudget,
        HistoryRetention,
        SpawnBudget,
        Supervision,
    )
    from actors.kernel.agent.message import ChatMessage, ContentBlock, Message
    from actors.kernel.agent.models import (
        CompactionStrategy,
        Completion,
        GenerationOptions,
        LLMClient,
        LLMResponse,
        ReasoningDelta,
        Restart,
        StreamEvent,
        TextDelta,
        Usage,
    )
    from actors.kernel.agent.tools import (
        ApprovalPolicy,
        InvocationResult,
        Risk,
        Tool,
        ToolCall,
        ToolResult,
        ToolSpec,
    )
    from actors.kernel.runtime.communication import AskKind, AskOutcome, RunStatusSummary
    from actors.kernel.runtime.ids import AgentId, RunId, TopicId
    from actors.kernel.runtime.scheduler import RetryPolicy, RunStatus
    from actors.kernel.runtime.sources import RunHandle, RunResult
    from actors.kernel.secrets import Secret
    from actors.kernel.stores.conversations import HistoryProvider
    from actors.runtime import RunContext, Runtime, Selected, artifact_store, idempotency_key
    from actors.runtime.decorator import agent

understand_moved_paths()

__all__ = [
    "ActorsError",
    "Agent",
    "AgentId",
    "ApprovalPolicy",
    "AskKind",
    "AskOutcome",
    "BudgetExhaustedError",
    "ChatMessage",
    "CompactionPipeline",
    "CompactionStrategy",
    "Completion",
    "ContentBlock",
    "ContextConfig",
    "EffectDidNotHappen",
    "EffectError",
    "EffectInDoubtError",
    "ExecutionBudget",
    "GenerationOptions",
    "HistoryProvider",
    "HistoryRetention",
    "InMemoryHistoryProvider",
    "InvocationResult",
    "LLMClient",
    "LLMResponse",
    "Message",
    "ModelError",
    "ReasoningDelta",
    "RecallStrategy",
    "RecordedError",
    "Restart",
    "RetryAfter",
    "RetryPolicy",
    "Risk",
    "RunContext",
    "RunFailedError",
    "RunHandle",
    "RunId",
    "RunResult",
    "RunStatus",
    "RunStatusSummary",
    "Runtime",
    "Secret",
    "Selected",
    "SelectiveToolCallCompactionStrategy",
    "SlidingWindowCompaction",
    "SpawnBudget",
    "SpawnDenied",
    "StoreHistory",
    "StreamEvent",
    "SummarizationCompaction",
    "Supervision",
    "TerminalError",
    "TextDelta",
    "TokenBudgetComposedStrategy",
    "Tool",
    "ToolCall",
    "ToolResult",
    "ToolResultCompactionStrategy",
    "ToolSpec",
    "TopicId",
    "TruncationStrategy",
    "Usage",
    "WaitCycleError",
    "agent",
    "artifact_store",
    "idempotency_key",
]

_HOMES = {
    "actors.context": (
        "CompactionPipeline",
        "ContextConfig",
        "InMemoryHistoryProvider",
        "RecallStrategy",
        "SelectiveToolCallCompactionStrategy",
        "SlidingWindowCompaction",
        "StoreHistory",
        "SummarizationCompaction",
        "TokenBudgetComposedStrategy",
        "ToolResultCompactionStrategy",
        "TruncationStrategy",
    ),
    "actors.errors": (
        "ActorsError",
        "BudgetExhaustedError",
        "EffectDidNotHappen",
        "EffectError",
        "EffectInDoubtError",
        "ModelError",
        "RecordedError",
        "RetryAfter",
        "RunFailedError",
        "SpawnDenied",
        "TerminalError",
        "WaitCycleError",
    ),
    "actors.kernel.agent.agent": (
        "Agent",
        "ExecutionBudget",
        "HistoryRetention",
        "SpawnBudget",
        "Supervision",
    ),
    "actors.kernel.agent.models": (
        "CompactionStrategy",
        "Completion",
        "GenerationOptions",
        "LLMClient",
        "LLMResponse",
        "ReasoningDelta",
        "Restart",
        "StreamEvent",
        "TextDelta",
        "Usage",
    ),
    "actors.kernel.agent.message": ("ChatMessage", "ContentBlock", "Message"),
    "actors.kernel.agent.tools": (
        "ApprovalPolicy",
        "InvocationResult",
        "Risk",
        "Tool",
        "ToolCall",
        "ToolResult",
        "ToolSpec",
    ),
    "actors.kernel.runtime.communication": ("AskKind", "AskOutcome", "RunStatusSummary"),
    "actors.kernel.runtime.ids": ("AgentId", "RunId", "TopicId"),
    "actors.kernel.runtime.scheduler": ("RetryPolicy", "RunStatus"),
    "actors.kernel.runtime.sources": ("RunHandle", "RunResult"),
    "actors.kernel.secrets": ("Secret",),
    "actors.kernel.stores.conversations": ("HistoryProvider",),
    "actors.runtime": ("RunContext", "Runtime", "Selected", "artifact_store", "idempotency_key"),
    "actors.runtime.decorator": ("agent",),
}

if not TYPE_CHECKING:
    __getattr__ = lazy_exports(__name__, _HOMES)
