"""Durable actors for AI agents: what an author writes and tests with.

`import actors` needs pydantic and the OpenTelemetry API, and opens nothing. `Runtime()` runs agents
in memory; `compose` has the durable ones, with the same calls.
"""

from __future__ import annotations

from actors.errors import (
    ActorsError,
    BudgetExhaustedError,
    EffectDidNotHappen,
    EffectError,
    EffectInDoubtError,
    RetryAfter,
    RunFailedError,
    SpawnDenied,
    TerminalError,
    WaitCycleError,
)
from actors.kernel.agent.agent import Agent
from actors.kernel.agent.message import ChatMessage, Message
from actors.kernel.agent.supervision import (
    ExecutionBudget,
    HistoryRetention,
    SpawnBudget,
    Supervision,
)
from actors.kernel.agent.tools import InvocationResult, Tool
from actors.kernel.runtime.communication import AskKind, AskOutcome, RunStatusSummary
from actors.kernel.runtime.ids import AgentId, RunId, TopicId
from actors.kernel.runtime.scheduler import RetryPolicy, RunStatus
from actors.kernel.runtime.supervisor import RunHandle, RunResult
from actors.runtime import RunContext, Runtime, Selected, idempotency_key
from actors.runtime.decorator import agent

__all__ = [
    "ActorsError",
    "Agent",
    "AgentId",
    "AskKind",
    "AskOutcome",
    "BudgetExhaustedError",
    "ChatMessage",
    "EffectDidNotHappen",
    "EffectError",
    "EffectInDoubtError",
    "ExecutionBudget",
    "HistoryRetention",
    "InvocationResult",
    "Message",
    "RetryAfter",
    "RetryPolicy",
    "RunContext",
    "RunFailedError",
    "RunHandle",
    "RunId",
    "RunResult",
    "RunStatus",
    "RunStatusSummary",
    "Runtime",
    "Selected",
    "SpawnBudget",
    "SpawnDenied",
    "Supervision",
    "TerminalError",
    "Tool",
    "TopicId",
    "WaitCycleError",
    "agent",
    "idempotency_key",
]
