"""Agents that append a line to a ledger at start and end, so that a test can count executions."""

from __future__ import annotations

import asyncio
import os
from collections import Counter
from typing import TYPE_CHECKING, Any, Final

from compose.demo.desk import append_line, lines_of

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from actors._kernel.agent.agent import Agent
    from actors._kernel.agent.message import Message
    from actors._kernel.runtime.ids import AgentId
    from actors._runtime import RunContext


class Counted:
    """Executes for as many seconds as the payload says, the first time."""

    def __init__(self, agent_id: AgentId) -> None:
        self.id = agent_id

    async def run(self, ctx: RunContext, inbox: list[Message]) -> None:
        """The payload names ledger and pace."""
        job: Any = inbox[0].payload
        append_line(job["ledger"], f"+ {self.id.key} {os.getpid()}")
        try:
            await ctx.step("inside", asyncio.sleep, job["pace_s"])
        finally:
            append_line(job["ledger"], f"- {self.id.key} {os.getpid()}")


def most_inside(ledger: str, *, first: int = 0, dead: Collection[int] = ()) -> int:
    """Return the maximum of concurrent executions, from a line on; those of dead processes do not count."""
    inside: Counter[str] = Counter()
    most = 0
    for number, line in enumerate(lines_of(ledger)):
        sign, key, pid = line.split()
        if int(pid) not in dead:
            inside[key] += 1 if sign == "+" else -1
        if number >= first:
            most = max(most, inside.total())
    return most


def processes(ledger: str) -> Counter[int]:
    """Return how many started in each process."""
    return Counter(int(line.split()[2]) for line in lines_of(ledger) if line[0] == "+")


COUNTED: Final[dict[str, Callable[[AgentId], Agent]]] = {"counted": Counted}
