"""Runs of many branches: what one of them costs, and how long they keep the event loop."""

from __future__ import annotations

import asyncio
import sys
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import pytest

from actors._inmemory.runs.store import MemoryStore
from actors._kernel.runtime.ids import AgentId
from actors._runtime import Runtime
from actors._runtime.replay.branch_scheduler import MOVES
from tests.harness.simloop import SimClock, SimEntropy, SimLoop, simulate
from tests.harness.wide import Ticker, Wide, suspended

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from actors._runtime import RunContext

AGENT = AgentId("wide", "one")
MANY, FEW = 160, 40


async def _step(ctx: RunContext, n: int) -> Any:
    return await ctx.step(f"step {n}", lambda: n)


async def _steps(ctx: RunContext, count: int) -> None:
    await ctx.gather(*(_step(ctx, n) for n in range(count)))


async def _sleeps(ctx: RunContext, count: int) -> None:
    await ctx.gather(*(ctx.sleep(1 + n / 1000) for n in range(count)))


async def _losers(ctx: RunContext, count: int) -> None:
    await ctx.select(_step(ctx, 0), *(ctx.sleep(1 + n / 1000) for n in range(count)))


async def _failure(ctx: RunContext, count: int) -> None:
    def fail() -> None:
        raise ValueError

    with suppress(ValueError):
        await ctx.gather(*(ctx.sleep(1 + n / 1000) for n in range(count)), ctx.step("fail", fail))


async def _nested(ctx: RunContext, count: int) -> None:
    async def pair(n: int) -> None:
        await ctx.gather(_step(ctx, n), ctx.sleep(1 + n / 1000))

    await ctx.gather(*(pair(n) for n in range(count)))


async def _scope(ctx: RunContext, count: int) -> None:
    async with ctx.scope() as scope:
        branches = [scope.start(_step(ctx, n)) for n in range(count)]
        for branch in branches:
            await branch


async def _suspended(ctx: RunContext, count: int) -> None:
    """All are given up when the run leaves memory, and begin again."""
    await ctx.gather(*(ctx.sleep(20) for _ in range(count)))


def _calls(work: Callable[[RunContext, int], Awaitable[None]], count: int) -> int:
    """Return how many calls of functions a run with so many branches takes, from start to end."""
    calls = 0

    class Agent:
        id = AGENT

        async def run(self, ctx: RunContext, inbox: object) -> str:
            del inbox
            await work(ctx, count)
            return "done"

    async def main(loop: SimLoop) -> int:
        clock = SimClock(loop)
        store = MemoryStore(clock=clock)
        async with Runtime(store=store, clock=clock, entropy=SimEntropy(0)) as runtime:
            await runtime.register(Agent())
            before = calls
            run = await runtime.submit(AGENT, None)
            assert await runtime.result(run) == "done"
            return calls - before

    def count_call(_frame: object, event: str, _arg: object) -> None:
        nonlocal calls
        calls += event == "call"

    sys.setprofile(count_call)
    try:
        return simulate(main, seed=0)[0]
    finally:
        sys.setprofile(None)


@pytest.mark.parametrize("work", [_steps, _sleeps, _losers, _failure, _nested, _scope, _suspended])
def test_a_branch_costs_the_same_among_many(
    work: Callable[[RunContext, int], Awaitable[None]],
) -> None:
    """Four times as many branches take four times as many calls of functions, and a logarithm."""
    assert _calls(work, MANY) < 5 * _calls(work, FEW)


@pytest.mark.parametrize("together", [True, False], ids=["gather", "one by one"])
async def test_many_moves_let_others_go_between(together: bool) -> None:
    """No more than a hundred go on between two turns of the event loop, live and on replay."""
    agent = Wide(AGENT, 1000, together=together)
    async with Runtime(suspend_after=0.0) as runtime:
        await runtime.register(agent)
        async with Ticker(lambda: agent.moves) as live:
            run = await runtime.submit(AGENT, None)
            await suspended(runtime, run)
        async with Ticker(lambda: agent.moves) as replay:
            await runtime.signal(run, "go")
            await runtime.result(run)

    assert agent.replays > 1
    assert 0 < live.most <= MOVES
    assert 0 < replay.most <= MOVES


async def test_effects_that_end_together_let_others_go_between() -> None:
    """A thousand effects wait for one event: a hundred of them record what they gave, then others go."""
    all_begun, begin_count, end_count = asyncio.Event(), 0, 0

    class Agent:
        id = AGENT

        async def run(self, ctx: RunContext, inbox: object) -> str:
            del inbox
            await ctx.gather(*(self.branch(ctx) for _ in range(1000)))
            return "done"

        async def branch(self, ctx: RunContext) -> None:
            nonlocal end_count
            await ctx.step("wait", self.wait)
            end_count += 1

        async def wait(self) -> None:
            nonlocal begin_count
            begin_count += 1
            if begin_count == 1000:
                all_begun.set()
            await all_begun.wait()

    async with Runtime() as runtime:
        await runtime.register(Agent())
        async with Ticker(lambda: begin_count) as starts, Ticker(lambda: end_count) as ends:
            await runtime.result(await runtime.submit(AGENT, None))

    assert 0 < starts.most <= MOVES
    assert 0 < ends.most <= MOVES
