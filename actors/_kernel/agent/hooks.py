"""Code around an agent's run: middleware, which may change it, hooks, which observe it, and guards.

A guard checks what goes into a model and comes out of it, and calls of tools.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Any, Literal, Protocol, TypeAlias, runtime_checkable

from actors._kernel.agent.agent import Agent
from actors._kernel.agent.message import ChatMessage, Message
from actors._kernel.json import JsonValue
from actors._kernel.runtime.ids import AgentId, RunId
from actors.errors import ContractError, MiddlewareTermination


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


GuardStage: TypeAlias = Literal["input", "output", "tool_call", "tool_result"]


@dataclass(frozen=True, slots=True)
class Allow:
    """Verdict: nothing is wrong."""


@dataclass(frozen=True, slots=True)
class Replace:
    """The guard replaces the messages that it checked.

    For ``output``, ``tool_call`` and ``tool_result`` it is exactly one message.
    """

    messages: Sequence[ChatMessage]


@dataclass(frozen=True, slots=True)
class Block:
    """Verdict: it must not go on. The run gets `reason`; if it is about a tool's call, the model does."""

    reason: str


GuardVerdict: TypeAlias = Allow | Replace | Block


@runtime_checkable
class Guard(Protocol):
    """A check. An agent's optional attribute `guards` is a list of them, asked in order.

    A guard is asked inside the effect that it is about, so its verdict is recorded with that effect's
    result, and a replay does not ask again. It may ask a model by `actors.context.ask`.
    """

    async def check(self, stage: GuardStage, messages: Sequence[ChatMessage]) -> GuardVerdict:
        """Return what is to become of the messages.

        Args:
            stage: ``input``: the turns that are new in a conversation, or the messages of `ctx.llm`, before the
                model is asked. ``output``: its answer. ``tool_call``: a message with one `tool_call` block.
                ``tool_result``: a message with one `tool_result`.
            messages: See `stage`. They are copies: only `Replace` changes anything.
        """


class InputBlockedError(MiddlewareTermination):
    """A guard blocked new turns of a conversation. They are in no later window of it."""


async def checked(
    guards: Sequence[Guard], stage: GuardStage, messages: Sequence[ChatMessage]
) -> list[ChatMessage]:
    """Return the messages as the guards let them pass, one guard after the other.

    Raises:
        InputBlockedError: A guard blocked an input.
        MiddlewareTermination: A guard blocked something else.
        ContractError: A guard returned no verdict, or not one message where there has to be one.
    """
    current = list(messages)
    for guard in guards:
        # Copies: a guard that changes what it gets must not change the conversation. Only `Replace` does.
        verdict = await guard.check(stage, [message.copied() for message in current])
        if isinstance(verdict, Block):
            error = InputBlockedError if stage == "input" else MiddlewareTermination
            raise error(f"guard {_name(guard)} blocked {stage}: {verdict.reason}")
        if isinstance(verdict, Replace):
            # Copies: the guard may keep its messages and change them later.
            current = [message.copied() for message in verdict.messages]
        elif not isinstance(verdict, Allow):
            msg = (
                f"guard {_name(guard)} returned {verdict!r}: return Allow(), Replace(…) or Block(…)"
            )
            raise ContractError(msg)
        if stage != "input" and len(current) != 1:
            msg = f"guard {_name(guard)} replaced {stage} by {len(current)} messages: it is one"
            raise ContractError(msg)
    return current


def _name(guard: Guard) -> str:
    return type(guard).__name__
