"""Code that kills its host: it is parked wherever it does that, and its neighbours are not."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

import pytest

from actors._kernel.runtime.log_entry import EntryKind
from actors._kernel.runtime.rows import RunRow
from actors._runtime.execution.suspects import MAX_DEATHS
from actors.errors import RetryAfter

if TYPE_CHECKING:
    from actors._kernel.agent.message import Message
    from actors._kernel.runtime.ids import AgentId
    from actors._runtime import RunContext
    from tests.behaviour.bed import Bed

K = EntryKind
ALIVE_S: Final = 20.0


class Reaper:
    """Kills the host whenever the deadly code of a test executes, until its run is parked."""

    def __init__(self, bed: Bed) -> None:
        self.bed, self.deaths = bed, 0
        self._deadly = asyncio.Event()

    async def die(self) -> None:
        """Have the host killed now; never returns."""
        self._deadly.set()
        await asyncio.get_running_loop().create_future()

    async def until_parked(self, agent: AgentId) -> RunRow:
        """Kill hosts until a run of this agent is parked, and return its row."""
        async with asyncio.timeout(ALIVE_S * 5):
            while True:
                if self._deadly.is_set():
                    self._deadly.clear()
                    self.deaths += 1
                    assert self.deaths <= 2 * MAX_DEATHS, "it is retried for ever"
                    await self.bed.restart()
                rows = await self.bed.runtime.store.lists.runs(agent=agent, limit=10)
                if parked := [row for row in rows if row.parked is not None]:
                    return parked[0]
                await asyncio.sleep(0.05)


async def _first(ctx: RunContext, reaper: Reaper) -> None:
    await reaper.die()


async def _between(ctx: RunContext, reaper: Reaper) -> None:
    await ctx.step("one", reaper.bed.world.do, "one")
    await reaper.die()


async def _effect(ctx: RunContext, reaper: Reaper) -> None:
    await ctx.step("deadly", reaper.die)


async def _timer(ctx: RunContext, reaper: Reaper) -> None:
    await ctx.sleep(0.2)
    await reaper.die()


async def _signal(ctx: RunContext, reaper: Reaper) -> None:
    await ctx.sleep_until_signal("go")
    await reaper.die()


async def _message(ctx: RunContext, reaper: Reaper) -> None:
    await ctx.step("one", reaper.bed.world.do, "one")
    await ctx.receive()
    await reaper.die()


async def _retry(ctx: RunContext, reaper: Reaper) -> None:
    if ctx.meta.attempt == 1:
        raise RetryAfter(0.05)
    await reaper.die()


POSITIONS: Final = {
    "first": _first,
    "between": _between,
    "effect": _effect,
    "timer": _timer,
    "signal": _signal,
    "message": _message,
    "retry": _retry,
}


@pytest.mark.parametrize("position", POSITIONS)
async def test_code_that_kills_its_host_is_parked_wherever_it_does_that(
    bed: Bed, position: str
) -> None:
    """Before its first call, between calls, in an effect, behind each wait, in a later attempt."""
    reaper = Reaper(bed)

    async def act(ctx: RunContext, inbox: list[Message]) -> None:
        await POSITIONS[position](ctx, reaper)

    agent = await bed.serve(act)
    run_id = await bed.submit(agent)
    if position == "signal":
        await bed.runtime.signal(run_id, "go")
    elif position == "message":
        await bed.runtime.send(agent, "more")
    parked = await reaper.until_parked(agent)

    assert (parked.run_id, parked.parked) == (run_id, "poison")
    assert reaper.deaths == MAX_DEATHS
    [entry] = await bed.log(run_id, K.RUN_PARKED)
    assert str(entry.payload["detail"]).startswith(f"{MAX_DEATHS} hosts in a row died")


async def test_the_run_of_a_plain_message_that_kills_its_host_is_parked(bed: Bed) -> None:
    """Nothing of it is written before its code is called for the first time."""
    reaper = Reaper(bed)

    async def act(ctx: RunContext, inbox: list[Message]) -> None:
        await reaper.die()

    agent = await bed.serve(act)
    await bed.runtime.send(agent, "one")
    await bed.runtime.send(agent, "two")
    parked = await reaper.until_parked(agent)

    assert (parked.parked, reaper.deaths) == ("poison", MAX_DEATHS)


async def test_neighbours_of_code_that_kills_hosts_are_not_parked(bed: Bed) -> None:
    """Runs that were within a step for as long as hosts died, or wait for a signal or a person."""
    reaper, gate = Reaper(bed), asyncio.Event()

    async def slow() -> str:
        await gate.wait()
        return "slow"

    async def step(ctx: RunContext, inbox: list[Message]) -> object:
        return await ctx.step("slow", slow)

    async def ask(ctx: RunContext, inbox: list[Message]) -> object:
        return (await ctx.approval("may I?")).is_approved

    async def wait(ctx: RunContext, inbox: list[Message]) -> object:
        return await ctx.sleep_until_signal("go")

    async def kill(ctx: RunContext, inbox: list[Message]) -> None:
        await reaper.die()

    steps = [await bed.submit(await bed.serve(step)) for _ in range(3)]
    waits = [await bed.submit(await bed.serve(wait)) for _ in range(3)]
    asks = [await bed.submit(await bed.serve(ask)) for _ in range(3)]
    for run_id in waits + asks:
        await bed.seen(run_id, K.RUN_STARTED)
    killer = await bed.serve(kill)
    await bed.submit(killer)
    parked = await reaper.until_parked(killer)

    assert (parked.parked, reaper.deaths) == ("poison", MAX_DEATHS)
    gate.set()
    assert [await bed.result(run_id) for run_id in steps] == ["slow"] * 3
    for run_id in waits:
        await bed.runtime.signal(run_id, "go", "on")
    for run_id in asks:
        [request] = await bed.runtime.approvals.open(run_id=run_id)
        await bed.runtime.approvals.decide(request.id, approve=True, by="Alex")
    assert [await bed.result(run_id) for run_id in waits] == ["on"] * 3
    assert [await bed.result(run_id) for run_id in asks] == [True] * 3
