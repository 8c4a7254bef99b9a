"""Agents of a host with a wrong clock, which they set while it runs."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final

from actors._kernel.runtime.ids import AgentId
from actors._runtime.loop.clock import SystemClock

if TYPE_CHECKING:
    from collections.abc import Callable

    from actors._kernel.agent.agent import Agent
    from actors._kernel.agent.message import Message
    from actors._runtime import RunContext, Runtime

HERE: Final = "tests.system.stepped:app"
_AHEAD: Final = {"s": 0.0}


def _wrong(_: SystemClock) -> datetime:
    return datetime.now(UTC) + timedelta(seconds=_AHEAD["s"])


class Stepper:
    """Sets its host's clock this many seconds before the right time."""

    def __init__(self, agent_id: AgentId) -> None:
        self.id = agent_id

    async def run(self, ctx: RunContext, inbox: list[Message]) -> None:
        """Set the clock ahead by the payload, in seconds."""
        ahead_s: Any = inbox[0].payload
        await ctx.step("set", lambda: _AHEAD.update(s=ahead_s))


class Sleeper:
    """Sleeps for as long as the payload says."""

    def __init__(self, agent_id: AgentId) -> None:
        self.id = agent_id

    async def run(self, ctx: RunContext, inbox: list[Message]) -> str:
        """Return the instant at which it woke up."""
        pause_s: Any = inbox[0].payload
        await ctx.sleep(pause_s)
        return (await ctx.now()).isoformat()


class Asker:
    """Asks an agent that never answers."""

    def __init__(self, agent_id: AgentId) -> None:
        self.id = agent_id

    async def run(self, ctx: RunContext, inbox: list[Message]) -> str:
        """Return the outcome."""
        limit_s: Any = inbox[0].payload
        outcome = await ctx.ask(AgentId("silent", self.id.key), None, timeout=limit_s)
        return outcome.kind.value


class Receiver:
    """Waits for a message that never comes."""

    def __init__(self, agent_id: AgentId) -> None:
        self.id = agent_id

    async def run(self, ctx: RunContext, inbox: list[Message]) -> bool:
        """Return whether one came."""
        limit_s: Any = inbox[0].payload
        return await ctx.receive(timeout=limit_s) is not None


class Silent:
    """Never answers."""

    def __init__(self, agent_id: AgentId) -> None:
        self.id = agent_id

    async def run(self, ctx: RunContext, inbox: list[Message]) -> None:
        """Wait for a signal that never comes."""
        assert inbox
        await ctx.sleep_until_signal("never")


TYPES: Final[dict[str, Callable[[AgentId], Agent]]] = {
    "stepper": Stepper,
    "sleeper": Sleeper,
    "asker": Asker,
    "receiver": Receiver,
    "silent": Silent,
}


async def app(runtime: Runtime) -> None:
    """Serve them on a machine whose clock `Stepper` sets."""
    setattr(SystemClock, "now", _wrong)  # noqa: B010 - this is what it is about
    for type_, factory in TYPES.items():
        await runtime.register_type(type_, factory)
