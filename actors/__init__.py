"""Durable actors for AI agents: what an author writes and tests with.

`import actors` needs pydantic and the OpenTelemetry API, and opens nothing. `Runtime()` runs agents
in memory; `compose` has the durable ones, with the same calls.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from actors._exports import lazy_exports, understand_moved_paths

if TYPE_CHECKING:
    from actors._kernel.agent.agent import (
        Agent,
        ExecutionBudget,
        HistoryRetention,
        SpawnBudget,
        Supervision,
    )
    from actors._kernel.agent.message import ChatMessage, ContentBlock, Message
    from actors._kernel.agent.models import (
        CompactionStrategy,
        Completion,
        GenerationOptions,
        LLMClient,
        LLMResponse,
        ModelFacts,
        ModelRegistry,
        ReasoningDelta,
        Restart,
        StreamEvent,
        TextDelta,
        Usage,
    )
    from actors._kernel.agent.tools import (
        ApprovalPolicy,
        InvocationResult,
        Risk,
        Tool,
        ToolCall,
        ToolResult,
        ToolSpec,
    )
    from actors._kernel.basics import Clock
    from actors._kernel.runtime.communication import AskKind, AskOutcome, RunStatusSummary
    from actors._kernel.runtime.ids import AgentId, RunId, TopicId, run_id_of_mail
    from actors._kernel.runtime.log_entry import EntryKind, RunLogEntry
    from actors._kernel.runtime.scheduler import RetryPolicy, RunStatus
    from actors._kernel.runtime.sources import RunHandle, RunResult
    from actors._kernel.secrets import Secret
    from actors._kernel.stores.conversations import HistoryProvider
    from actors._runtime import RunContext, Runtime, Selected, artifact_store, idempotency_key
    from actors._runtime.decorator import agent
    from actors._runtime.loop.clock import SystemClock
    from actors._runtime.tracing import Tracing
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
    "Clock",
    "CompactionPipeline",
    "CompactionStrategy",
    "Completion",
    "ContentBlock",
    "ContextConfig",
    "EffectDidNotHappen",
    "EffectError",
    "EffectInDoubtError",
    "EntryKind",
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
    "ModelFacts",
    "ModelRegistry",
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
    "RunLogEntry",
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
    "SystemClock",
    "TerminalError",
    "TextDelta",
    "TokenBudgetComposedStrategy",
    "Tool",
    "ToolCall",
    "ToolResult",
    "ToolResultCompactionStrategy",
    "ToolSpec",
    "TopicId",
    "Tracing",
    "TruncationStrategy",
    "Usage",
    "WaitCycleError",
    "agent",
    "artifact_store",
    "idempotency_key",
    "run_id_of_mail",
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
    "actors._kernel.agent.agent": (
        "Agent",
        "ExecutionBudget",
        "HistoryRetention",
        "SpawnBudget",
        "Supervision",
    ),
    "actors._kernel.agent.models": (
        "CompactionStrategy",
        "Completion",
        "GenerationOptions",
        "LLMClient",
        "LLMResponse",
        "ModelFacts",
        "ModelRegistry",
        "ReasoningDelta",
        "Restart",
        "StreamEvent",
        "TextDelta",
        "Usage",
    ),
    "actors._kernel.agent.message": ("ChatMessage", "ContentBlock", "Message"),
    "actors._kernel.agent.tools": (
        "ApprovalPolicy",
        "InvocationResult",
        "Risk",
        "Tool",
        "ToolCall",
        "ToolResult",
        "ToolSpec",
    ),
    "actors._kernel.runtime.communication": ("AskKind", "AskOutcome", "RunStatusSummary"),
    "actors._kernel.runtime.ids": ("AgentId", "RunId", "TopicId", "run_id_of_mail"),
    "actors._kernel.runtime.scheduler": ("RetryPolicy", "RunStatus"),
    "actors._kernel.runtime.sources": ("RunHandle", "RunResult"),
    "actors._kernel.secrets": ("Secret",),
    "actors._kernel.stores.conversations": ("HistoryProvider",),
    "actors._runtime": ("RunContext", "Runtime", "Selected", "artifact_store", "idempotency_key"),
    "actors._runtime.decorator": ("agent",),
    "actors._runtime.tracing": ("Tracing",),
    "actors._kernel.runtime.log_entry": ("EntryKind", "RunLogEntry"),
    "actors._kernel.basics": ("Clock",),
    "actors._runtime.loop.clock": ("SystemClock",),
}

if not TYPE_CHECKING:
    __getattr__ = lazy_exports(__name__, _HOMES)
