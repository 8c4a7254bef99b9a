"""Sessions for tests: agents with scripted models, on the current host."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from actors._kernel.agent.agent import Agent
from actors.agents import ReActAgent
from actors.sessions import AgentRuntime, SessionEvent, SessionRun
from actors.testing import FunctionModel, ModelReply
from tests.behaviour.bed import LIMIT_S

if TYPE_CHECKING:
    from actors._kernel.agent.message import ChatMessage, Message
    from actors._kernel.agent.models import GenerationOptions
    from actors._kernel.runtime.ids import AgentId
    from actors._runtime import RunContext
    from tests.behaviour.bed import Bed


@dataclass
class Echo:
    """A model that repeats its message, adds the conversation's length, and waits at gates of a test.

    Attributes: asked: The windows that it was sent. gates: By the last user text: the event awaited
    before the first piece.
    """

    name: str = "echo"
    asked: list[list[str]] = field(default_factory=list)
    gates: dict[str, asyncio.Event] = field(default_factory=dict)
    between: Callable[[], Awaitable[Any]] | None = None

    def __call__(self, messages: Sequence[ChatMessage], options: GenerationOptions) -> ModelReply:
        """Return the answer, and record the request."""
        texts = [message.text for message in messages]
        self.asked.append(texts)
        gate = self.gates.get(texts[-1])
        return ModelReply(
            text=f"{self.name}: {texts[-1]}",
            before=None if gate is None else gate.wait,
            between=self.between,
        )

    def hold(self, text: str) -> asyncio.Event:
        """Block the answer to a text until the event is set."""
        return self.gates.setdefault(text, asyncio.Event())

    def agent(self, **options: Any) -> ReActAgent:
        """Return an agent that uses this model."""
        return ReActAgent(self.name, model=FunctionModel(self), **options)


class Parent:
    """An agent that delegates a task to a child, and returns the child's answer."""

    def __init__(self, child: AgentId, task: str) -> None:
        self.id, self._child, self._task = child, child, task

    async def run(self, ctx: RunContext, inbox: list[Message]) -> Any:
        """Wait for the child."""
        return (await ctx.join(await ctx.spawn(self._child, self._task))).output


async def parent_on(bed: Bed, model: Echo, task: str = "look into it") -> Parent:
    """Register a new agent that uses this model; return one that spawns it as a child."""
    child = model.agent()
    child.id = bed.name("c")
    bed.agents[child.id] = child
    await bed.runtime.register(child)
    return Parent(child.id, task)


def failing() -> ReActAgent:
    """Return an agent that answers ok, and fails in the middle of its answer to `bad`."""

    def reply(messages: Any, options: Any = None) -> ModelReply:
        if messages[-1].text == "bad":
            return ModelReply(text="half", error=ValueError("no"))
        return ModelReply(text="ok")

    return ReActAgent("fails", model=FunctionModel(reply))


@asynccontextmanager
async def sessions_on(
    bed: Bed, agents: Mapping[str, Agent] | Agent | None, *, app: str, **options: Any
) -> AsyncIterator[AgentRuntime]:
    """Yield sessions on the current host."""
    async with AgentRuntime(agents=agents, runtime=bed.runtime, app=app, **options) as talks:
        yield talks


async def all_of(run: SessionRun) -> list[SessionEvent]:
    """Return the events of a run, up to its last one."""
    async with asyncio.timeout(LIMIT_S):
        return [event async for event in run.events()]


async def past_of(
    talks: AgentRuntime, session: str, cursor: str | None = None
) -> list[SessionEvent]:
    """Return the stored events of a session."""
    return [event async for event in talks.replay_session(session, cursor=cursor)]


def types_of(events: list[SessionEvent]) -> list[str]:
    """Return the types of events, without the pieces of answers."""
    return [event.type for event in events if not event.type.endswith(("_delta", "_snapshot"))]


def payload_of(event: SessionEvent) -> dict[str, Any]:
    """Return the payload of an event."""
    return {**event.payload}


async def path_texts(talks: AgentRuntime, session: str) -> list[str]:
    """Return the texts of the active path."""
    return [node.message.text for node in await talks.path(session)]
