"""Agents on two hosts whose conversation is traced. All their content has a secret."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from actors._kernel.agent.tools import Tool
from actors._kernel.runtime.ids import AgentId
from tests.behaviour.agents import greeter
from tests.system.agents import noted
from tests.system.waiting import until

if TYPE_CHECKING:
    from collections.abc import Callable

    from actors._kernel.agent.agent import Agent
    from actors._kernel.agent.message import Message
    from actors._runtime import RunContext

HERE: Final = "tests.system.traced"
CANARY: Final = "canary-51c9"
LEAD: Final = AgentId("lead", "a")
HELPER: Final = AgentId("helper", "a")


async def look_up(order: str) -> str:
    """A tool."""
    return f"{CANARY} {order}"


class Lead:
    """Calls a model, a tool, a helper and a child; then waits in a step for a file."""

    tools = (Tool("look_up", "Look an order up.", look_up, idempotent=True),)

    def __init__(self, agent_id: AgentId) -> None:
        self.id = agent_id
        self.model = greeter(CANARY)

    async def run(self, ctx: RunContext, inbox: list[Message]) -> str:
        """The payload names a ledger and a gate."""
        job: Any = inbox[0].payload
        await ctx.llm(CANARY)
        await ctx.tool("look_up", order=CANARY)
        await ctx.ask(HELPER, {"question": CANARY}, timeout=60)
        await ctx.join(await ctx.spawn("kid", {"text": CANARY}))

        async def hold() -> None:
            await noted(job["ledger"], 1, 0)()
            gate = Path(job["gate"])
            await until(gate.exists, "the gate", limit_s=60)

        await ctx.step("hold", hold)
        return CANARY


class Helper:
    """Answers; also used as the child."""

    def __init__(self, agent_id: AgentId) -> None:
        self.id = agent_id

    async def run(self, ctx: RunContext, inbox: list[Message]) -> str:
        """Return a secret."""
        return await ctx.step("think", lambda: f"{CANARY} {inbox[0].id}")


LEFT: Final[dict[str, Callable[[AgentId], Agent]]] = {"lead": Lead}
RIGHT: Final[dict[str, Callable[[AgentId], Agent]]] = {"helper": Helper, "kid": Helper}
