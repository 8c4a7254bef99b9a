"""Middleware, which may change an agent's run, and hooks, which only observe it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Any, Protocol, TypeAlias, runtime_checkable

from actors.kernel.agent.agent import Agent
from actors.kernel.agent.message import Message
from actors.kernel.json import JsonValue
from actors.kernel.runtime.ids import AgentId, RunId


class HookKind(StrEnum):
    """When a hook is called."""

    RUN_START = "run_start"
    RUN_END = "run_end"
    STEP_START = "step_start"
    STEP_END = "step_end"
    LLM_START = "llm_start"
    LLM_END = "llm_end"
    TOOL_START = "tool_start"
    TOOL_END = "tool_end"
    GUARDRAIL_TRIP = "guardrail_trip"


@dataclass(frozen=True, slots=True, kw_only=True)
class HookEvent:
    """An event of a run, as a hook gets it.

    Attributes:
        kind: The event's kind.
        run_id: The run.
        agent_id: Its agent.
        attempt: 1 for the first.
        at: The instant of the event.
        name: Name of the step, model, tool or guardrail.
        position: The effect's position in the run; empty for the run itself.
        data: Small facts, for example ``status`` and ``error`` at an end. Never message content.
    """

    kind: HookKind
    run_id: RunId
    agent_id: AgentId
    attempt: int
    at: datetime
    name: str = ""
    position: str = ""
    data: Mapping[str, JsonValue] = field(default_factory=dict)


@runtime_checkable
class Hook(Protocol):
    """An observer of runs. It cannot change or break one."""

    async def __call__(self, event: HookEvent) -> None:
        """Look at the event. What it raises is logged and dropped; it has limited time."""


@dataclass(slots=True)
class InvocationContext:
    """A call of an agent's `run`, as middleware sees it. Lives for one attempt.

    Attributes:
        agent: The agent whose `run` is called.
        ctx: The run's context; recorded calls on it are replayed like those of the agent.
        inbox: The messages handed to `run`; middleware may hand on others.
        output: What `run` returned; set behind `call_next`, and what the run's output will be.
        extra: For middleware to leave notes to each other.
    """

    agent: Agent
    ctx: Any
    inbox: list[Message]
    output: Any = None
    extra: dict[str, Any] = field(default_factory=dict)


CallNext: TypeAlias = "Callable[[InvocationContext], Awaitable[None]]"


@runtime_checkable
class Middleware(Protocol):
    """A wrapper of `run`. The first of an agent's list is the outermost."""

    async def process(self, context: InvocationContext, call_next: CallNext) -> None:
        """Do something, `await call_next(context)` at most once, do something more.

        It runs again on every replay, so what it does must be deterministic or go through
        `context.ctx`. Not calling `call_next` ends the run with `context.output`.

        Raises:
            MiddlewareTermination: To stop the run on purpose: its messages count as handled.
        """


@runtime_checkable
class MiddlewarePipeline(Protocol):
    """A ready-made chain, for agents whose `middleware` is one object."""

    async def execute(self, context: InvocationContext, final: CallNext) -> None:
        """Run the chain around `final`."""
