"""Agents and test doubles that several tests share."""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict
from typing import TYPE_CHECKING, Any

from actors._kernel.agent.models import Usage
from actors.testing import ModelReply, ScriptedModel

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from actors._kernel.agent.message import Message
    from actors._kernel.runtime.ids import AgentId
    from actors._runtime import RunContext


class Acting:
    """An agent whose `run` is the given function; keywords become its optional attributes."""

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
    """A test double of the outside world. It counts effects and blocks them if a test asks for it."""

    def __init__(self) -> None:
        self.count: Counter[str] = Counter()
        self.order: list[str] = []
        self.entered = asyncio.Event()
        self.gates: defaultdict[str, asyncio.Event] = defaultdict(asyncio.Event)

    async def do(self, name: str, value: Any = None) -> Any:
        """Count one more effect, and return `value`."""
        self.count[name] += 1
        self.order.append(name)
        return value

    async def wait(self, gate: str) -> Any:
        """Return True when the test opens the gate."""
        return await self.gates[gate].wait()

    async def fail(self, name: str, error: type[Exception] = ValueError) -> Any:
        """Count one more effect, and raise."""
        self.count[name] += 1
        raise error(f"{name} is broken")

    async def hang(self, name: str, value: Any = None, *, times: int = 1) -> Any:
        """Count one more effect; the first `times` calls never return."""
        self.count[name] += 1
        if self.count[name] <= times:
            self.entered.set()
            await asyncio.Event().wait()
        return value


def greeter(
    *pieces: str, cost_usd: float | None = None, between: Callable[[], Awaitable[Any]] | None = None
) -> ScriptedModel:
    """A model that always streams the same pieces ("Hello there" by default), one token each."""
    pieces = pieces or ("Hel", "lo ", "there")
    usage = Usage(input=7, output=len(pieces), cost_usd=cost_usd)
    reply = ModelReply(text="".join(pieces), pieces=pieces, usage=usage, between=between)
    return ScriptedModel(otherwise=reply, model="scripted-1")
