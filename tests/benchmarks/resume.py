"""Time until a run continues after a crash, by the length of its log, with and without a new generation."""

from __future__ import annotations

import asyncio
import uuid
from typing import TYPE_CHECKING, Any

from actors._kernel.runtime.ids import HostIncarnation
from actors._runtime import Runtime
from persistence.postgres import open_postgres_store
from tests.benchmarks.bench import PAYLOAD, TYPE, agent_id, report, rests, woken_s

if TYPE_CHECKING:
    from actors._kernel.agent.message import Message
    from actors._kernel.runtime.ids import AgentId

SHORT, LONG = 1_000, 10_000
TIMES = 5
FLUSHED = 250
"""So many values ride with one flush."""


class Longwinded:
    """An agent that records this many values, then waits for a signal, in this generation or the next."""

    def __init__(self, id: AgentId) -> None:  # noqa: A002
        self.id = id

    async def run(self, ctx: Any, inbox: list[Message]) -> Any:
        """Record, continue as new if that is wanted, and wait."""
        order: Any = inbox[0].payload
        for n in range(order["entries"]):
            if n % FLUSHED == 0:
                await ctx.step("flush", lambda: PAYLOAD)
            await ctx.uuid()
        if order["continues"]:
            await ctx.continue_as_new({"entries": 0, "continues": False})
        await ctx.step("mark", lambda: None)
        await ctx.sleep_until_signal("go")
        return "done"


async def resumed_ms(url: str, *, entries: int, continues: bool) -> tuple[float, int]:
    """Return milliseconds from signal to end of an evicted run, and the entries loaded."""
    schema = f"bench_{uuid.uuid4().hex[:12]}"
    owner = HostIncarnation(schema)
    async with (
        open_postgres_store(url, schema=schema, owner=owner) as store,
        Runtime(store=store, owner=owner, suspend_after=0.0) as runtime,
    ):
        await runtime.register_type(TYPE, Longwinded)
        order = {"entries": entries, "continues": continues}
        runs = [await runtime.submit(agent_id(n), order) for n in range(TIMES + 1)]
        await asyncio.gather(*(rests(runtime, run_id) for run_id in runs))
        (loaded,) = await store.reads.load([runs[0]])
        times = [await woken_s(runtime, run_id) for run_id in runs]
    return sorted(times[1:])[TIMES // 2] * 1000, len(loaded.entries)


async def run(url: str, *, scale: float = 1.0) -> None:
    """Print both lengths: their ratio is at most 3 after `continue_as_new`."""
    short, long = int(SHORT * scale), int(LONG * scale)
    for continues in (True, False):
        quick, few = await resumed_ms(url, entries=short, continues=continues)
        slow, many = await resumed_ms(url, entries=long, continues=continues)
        report(
            bench="resume",
            continues_as_new=continues,
            entries=[short, long],
            loaded=[few, many],
            ms=[round(quick, 2), round(slow, 2)],
            ratio=round(slow / quick, 2),
            limit=3 if continues else None,
        )
