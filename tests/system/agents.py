"""The agents of these tests' host processes. Every execution appends a line to a ledger file."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from actors._kernel.runtime.ids import AgentId
from actors.errors import TerminalError
from compose.demo.desk import append_line, lines_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from actors._kernel.agent.agent import Agent
    from actors._kernel.agent.message import Message
    from actors._runtime import RunContext, Runtime
    from actors._runtime.verbs.effects import EffectWord

AT_MOST_ONCE: Final = (2, 5, 8)
STEP_COUNT: Final = 10


class Ten:
    """Executes ten steps, three of them at-most-once; the payload has ledger, pace and perhaps a slow step."""

    def __init__(self, agent_id: AgentId) -> None:
        self.id = agent_id

    async def run(self, ctx: RunContext, inbox: list[Message]) -> list[Any]:
        """Return the ten values."""
        job: Any = inbox[0].payload
        values = []
        for number in range(STEP_COUNT):
            mode: EffectWord = "at_most_once" if number in AT_MOST_ONCE else "idempotent"
            pace_s = job.get("pace_s", 0) if number == job.get("slow", number) else 0
            step = noted(job["ledger"], number, pace_s)
            values.append(await ctx.step(f"step-{number}", step, effect=mode))
        return values


def noted(ledger: str, number: int, pace_s: float) -> Any:
    """Append `number pid` to the ledger, and return `value-number`."""

    async def step() -> str:
        append_line(ledger, f"{number} {os.getpid()}")
        await asyncio.sleep(pace_s)
        return f"value-{number}"

    return step


def executed(ledger: Path) -> list[tuple[int, int]]:
    """Return number and process of every execution so far, in order."""
    return [(int(n), int(pid)) for n, pid in (line.split() for line in lines_of(str(ledger)))]


class Waiter:
    """Waits for the signal `go` and returns its payload."""

    def __init__(self, agent_id: AgentId) -> None:
        self.id = agent_id

    async def run(self, ctx: RunContext, inbox: list[Message]) -> Any:
        """Return the signal's payload."""
        assert inbox
        return await ctx.sleep_until_signal("go")


class Failing:
    """Fails without retry; the payload is the error text."""

    def __init__(self, agent_id: AgentId) -> None:
        self.id = agent_id

    async def run(self, ctx: RunContext, inbox: list[Message]) -> None:
        """Raise a TerminalError."""
        await ctx.now()
        raise TerminalError(str(inbox[0].payload))


class Flaky:
    """Fails until the file named by the payload exists."""

    def __init__(self, agent_id: AgentId) -> None:
        self.id = agent_id

    async def run(self, ctx: RunContext, inbox: list[Message]) -> str:
        """Return the file's content."""
        marker = str(inbox[0].payload)
        return await ctx.step("look", look_at, marker)


def look_at(marker: str) -> str:
    """Return `repaired` once the file exists."""
    if not Path(marker).exists():
        raise FileNotFoundError("not repaired")
    return "repaired"


class Leaving:
    """Ends its process from outside of its own run, in the way that the payload names."""

    def __init__(self, agent_id: AgentId) -> None:
        self.id = agent_id

    async def run(self, ctx: RunContext, inbox: list[Message]) -> str:
        """Return `alive`, if the process survives."""
        loop = asyncio.get_running_loop()
        job: Any = inbox[0].payload
        append_line(job["ledger"], f"0 {os.getpid()}")
        match job["way"]:
            case "task":
                task = loop.create_task(_leave(SystemExit(3)))
            case "interrupted task":
                task = loop.create_task(_leave(KeyboardInterrupt()))
            case "callback":
                loop.call_soon(sys.exit, 3)
            case "stopped loop":
                loop.stop()
        await asyncio.sleep(0.1)
        if job["way"] == "awaited":
            task = loop.create_task(_leave(SystemExit(3)))
            await task
        await ctx.step("alive", bool)
        return "alive"


async def _leave(how: BaseException) -> None:
    raise how


TYPES: Final[dict[str, Callable[[AgentId], Agent]]] = {
    "ten": Ten,
    "waiter": Waiter,
    "failing": Failing,
    "flaky": Flaky,
    "leaving": Leaving,
}
ONE: Final = Ten(AgentId("one", "a"))
NOTHING: Final = 17


async def app(runtime: Runtime) -> None:
    """Register the agents by hand."""
    await runtime.register(Ten(AgentId("by-hand", "a")))
