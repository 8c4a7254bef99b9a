"""Agents that wait for each other, on two hosts whose database is rolled back."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from actors._kernel.runtime.ids import AgentId
from compose.demo.desk import append_line, lines_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from actors._kernel.agent.agent import Agent
    from actors._kernel.agent.message import Message
    from actors._runtime import RunContext

HERE: Final = "tests.system.failing_over"
CHIEF: Final = AgentId("chief", "a")
CLERK: Final = AgentId("clerk", "a")
PACE_S: Final = 0.05


class Chief:
    """Asks a clerk, spawns and joins a helper, and sleeps, in each round."""

    def __init__(self, agent_id: AgentId) -> None:
        self.id = agent_id

    async def run(self, ctx: RunContext, inbox: list[Message]) -> list[Any]:
        """The payload names the ledger and the number of rounds."""
        job: Any = inbox[0].payload
        outcomes: list[Any] = []
        for n in range(job["rounds"]):
            outcome = await ctx.ask(CLERK, n, timeout=60)
            helper = await ctx.spawn("helper", n)
            joined = await ctx.join(helper)
            await ctx.sleep(PACE_S)
            await ctx.step(f"round-{n}", append_line, job["ledger"], str(n))
            outcomes.append(
                [outcome.kind.value, outcome.result, joined.status.value, joined.output]
            )
        return outcomes


class Clerk:
    """Replies with ten times the number."""

    def __init__(self, agent_id: AgentId) -> None:
        self.id = agent_id

    async def run(self, ctx: RunContext, inbox: list[Message]) -> None:
        """Reply to each message."""
        for message in inbox:
            n: Any = message.payload
            await ctx.reply(message, n * 10)


class Helper:
    """Returns a hundred times the number, after a moment."""

    def __init__(self, agent_id: AgentId) -> None:
        self.id = agent_id

    async def run(self, ctx: RunContext, inbox: list[Message]) -> int:
        """Return the product."""
        n: Any = inbox[0].payload
        await ctx.sleep(PACE_S)
        return int(n) * 100


LEFT: Final[dict[str, Callable[[AgentId], Agent]]] = {"chief": Chief}
RIGHT: Final[dict[str, Callable[[AgentId], Agent]]] = {"clerk": Clerk, "helper": Helper}


def expected(rounds: int) -> list[Any]:
    """Return the chief's expected output."""
    return [["replied", n * 10, "COMPLETED", n * 100] for n in range(rounds)]


def rounds_of(ledger: object) -> list[int]:
    """Return the completed rounds, in order; rounds of lost commits come twice."""
    return [int(line) for line in lines_of(str(ledger))]
