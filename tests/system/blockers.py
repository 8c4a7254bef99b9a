"""Agents that block the event loop, and agents that run beside them."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from compose.demo.desk import append_line, lines_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from actors._kernel.agent.agent import Agent
    from actors._kernel.agent.message import Message
    from actors._kernel.runtime.ids import AgentId
    from actors._runtime import RunContext

HERE: Final = "tests.system.blockers:TYPES"
LONGEST_S: Final = 120.0


def block(ledger: str) -> int:
    """Record this process, then block until `let_go`."""
    append_line(ledger, str(os.getpid()))
    marker = _marker(ledger, os.getpid())  # not in the loop: the place of the warning is `block`
    begun = time.monotonic()
    while not marker.exists() and time.monotonic() < begun + LONGEST_S:
        time.sleep(0.05)
    return os.getpid()


def let_go(ledger: Path, pid: int) -> None:
    """Release all blocked code of this process, now and later."""
    _marker(str(ledger), pid).touch()


def began(ledger: Path) -> list[int]:
    """Return the processes in which the blocking code started, in order."""
    return [int(line) for line in lines_of(str(ledger))]


def _marker(ledger: str, pid: int) -> Path:
    return Path(f"{ledger}-{pid}")


class Blocking:
    """Blocks in a step, or before its first effect."""

    def __init__(self, agent_id: AgentId) -> None:
        self.id = agent_id

    async def run(self, ctx: RunContext, inbox: list[Message]) -> int:
        """Return the process that executed it."""
        job: Any = inbox[0].payload
        if job["where"] == "code":
            return block(job["ledger"])
        if job["where"] == "thread":
            return await ctx.step("block", block, job["ledger"], thread=True)
        return await ctx.step("block", block, job["ledger"])


class Ping:
    """Answers at once."""

    def __init__(self, agent_id: AgentId) -> None:
        self.id = agent_id

    async def run(self, ctx: RunContext, inbox: list[Message]) -> int:
        """Return the process that executed it."""
        assert inbox
        return await ctx.step("answer", os.getpid)


TYPES: Final[dict[str, Callable[[AgentId], Agent]]] = {"blocking": Blocking, "ping": Ping}
