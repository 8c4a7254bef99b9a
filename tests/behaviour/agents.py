"""Agents and their surroundings that several tests share."""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from actors.kernel.agent.llm import Completion, LLMResponse, TextDelta, Usage
from actors.kernel.agent.message import ContentBlock

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Sequence

    from actors.kernel.agent.llm import GenerationOptions, StreamEvent
    from actors.kernel.agent.message import ChatMessage, Message
    from actors.kernel.runtime.ids import AgentId
    from actors.runtime import RunContext


class Acting:
    """An agent that is one function; keywords become its optional attributes."""

    def __init__(
        self,
        id: AgentId,  # noqa: A002
        act: Callable[[RunContext, list[Message]], Awaitable[Any]],
        **attributes: Any,
    ) -> None:
        self.id = id
        self._act = act
        for name, value in attributes.items():
            setattr(self, name, value)

    async def run(self, ctx: RunContext, inbox: list[Message]) -> Any:
        """See `Agent.run`."""
        return await self._act(ctx, inbox)


class World:
    """What effects do to the outside: counted, and held up where a test says so."""

    def __init__(self) -> None:
        self.count: Counter[str] = Counter()
        self.order: list[str] = []
        self.entered = asyncio.Event()
        self.gates: defaultdict[str, asyncio.Event] = defaultdict(asyncio.Event)

    async def do(self, name: str, value: Any = None) -> Any:
        """Happen once more, and return `value`."""
        self.count[name] += 1
        self.order.append(name)
        return value

    async def wait(self, gate: str) -> Any:
        """Return True when the test opens the gate."""
        return await self.gates[gate].wait()

    async def fail(self, name: str, error: type[Exception] = ValueError) -> Any:
        """Happen once more, and raise."""
        self.count[name] += 1
        raise error(f"{name} is broken")

    async def hang(self, name: str, value: Any = None, *, times: int = 1) -> Any:
        """Happen once more; the first `times` calls never return."""
        self.count[name] += 1
        if self.count[name] <= times:
            self.entered.set()
            await asyncio.Event().wait()
        return value


@dataclass
class ScriptedModel:
    """A model that says the same pieces every time and counts how often it was asked."""

    pieces: tuple[str, ...] = ("Hel", "lo ", "there")
    model: str = "scripted-1"
    cost_usd: float | None = None
    calls: int = 0
    asked: list[str] = field(default_factory=list)

    async def generate(
        self, messages: Sequence[ChatMessage], *, options: GenerationOptions | None = None
    ) -> LLMResponse:
        """See `LLMClient.generate`."""
        async for event in self.generate_stream(messages, options=options):
            if isinstance(event, Completion):
                return event.response
        raise AssertionError

    async def generate_stream(
        self, messages: Sequence[ChatMessage], *, options: GenerationOptions | None = None
    ) -> AsyncIterator[StreamEvent]:
        """See `LLMClient.generate_stream`."""
        del options
        self.calls += 1
        self.asked.append(messages[-1].text)
        for piece in self.pieces:
            await asyncio.sleep(0)
            yield TextDelta(text=piece)
        text = "".join(self.pieces)
        yield Completion(
            response=LLMResponse(
                content=[ContentBlock(type="text", text=text)],
                usage=Usage(input=7, output=len(self.pieces), cost_usd=self.cost_usd),
                model=self.model,
                stop_reason="stop",
            )
        )

    async def count_tokens(self, messages: Sequence[ChatMessage]) -> int:
        """See `LLMClient.count_tokens`."""
        return len(messages)
