"""Agents that kill their process, and their neighbours."""

from __future__ import annotations

import asyncio
import os
import signal
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Callable

    from actors._kernel.agent.agent import Agent
    from actors._kernel.agent.message import Message
    from actors._kernel.runtime.ids import AgentId
    from actors._runtime import RunContext

HERE: Final = "tests.system.deadly:TYPES"


class Killer:
    """Kills its process before its first call, as SIGKILL of an operator or a lack of memory does."""

    def __init__(self, agent_id: AgentId) -> None:
        self.id = agent_id

    async def run(self, ctx: RunContext, inbox: list[Message]) -> None:
        """End the process."""
        os.kill(os.getpid(), signal.SIGKILL)


class Slow:
    """Executes a step that takes longer than hosts live beside a killer."""

    def __init__(self, agent_id: AgentId) -> None:
        self.id = agent_id

    async def run(self, ctx: RunContext, inbox: list[Message]) -> str:
        """Return the step's value."""

        async def step() -> str:
            await asyncio.sleep(1.0)
            return "done"

        return await ctx.step("slow", step)


class Asking:
    """Asks a person."""

    def __init__(self, agent_id: AgentId) -> None:
        self.id = agent_id

    async def run(self, ctx: RunContext, inbox: list[Message]) -> Any:
        """Return whether the person approved."""
        return (await ctx.approval("may I?")).is_approved


TYPES: Final[dict[str, Callable[[AgentId], Agent]]] = {
    "killer": Killer,
    "slow": Slow,
    "asking": Asking,
}
