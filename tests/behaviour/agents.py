"""Agents and their surroundings that several tests share."""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict
from typing import TYPE_CHECKING, Any

from actors.kernel.agent.llm import Usage
from actors.testing import ModelReply, ScriptedModel

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from actors.kernel.agent.message import Message
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


def greeter(
    *pieces: str, cost_usd: float | None = None, between: Callable[[], Awaitable[Any]] | None = None
) -> ScriptedModel:
    """A model that says the same pieces every time, "Hello there" unless told otherwise; one token each."""
    pieces = pieces or ("Hel", "lo ", "there")
    usage = Usage(input=7, output=len(pieces), cost_usd=cost_usd)
    reply = ModelReply(text="".join(pieces), pieces=pieces, usage=usage, between=between)
    return ScriptedModel(otherwise=reply, model="scripted-1")
