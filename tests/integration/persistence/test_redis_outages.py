"""Runs while Valkey is killed or frozen: they go on as if there were none, and as fast."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import pytest

from actors._inmemory.runs.store import MemoryStore
from actors._runtime.loop.clock import SystemClock, SystemEntropy
from persistence._redis.journal import LOOKUP_LIMIT_S
from persistence.redis import open_redis_journal
from tests.behaviour.agents import greeter
from tests.behaviour.bed import Bed
from tests.harness.slow import BUSY_S

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from actors._kernel.agent.message import Message
    from actors._kernel.runtime.ids import HostIncarnation
    from actors._kernel.stores.run_store import RunStore
    from actors._runtime import RunContext
    from tests.harness.servers import OwnRedis


@pytest.fixture
async def bed() -> AsyncIterator[Bed]:
    """Hosts on rows in memory, in real time; none has started."""
    first = MemoryStore(clock=SystemClock())

    @asynccontextmanager
    async def open_store(owner: HostIncarnation) -> AsyncIterator[RunStore]:
        del owner
        sibling = first.sibling()
        yield sibling
        sibling.set_nudge_hook(None)

    bed = Bed("memory", 5.0, open_store, SystemClock(), SystemEntropy())
    yield bed
    await bed.stop()


async def test_a_server_killed_in_the_middle_of_a_run_delays_no_effect(
    own_redis: OwnRedis, bed: Bed
) -> None:
    """The run ends as it would have; when the server is back, results are kept again."""
    server = own_redis()
    durations_s: list[float] = []

    async def work(n: int) -> int:
        return n

    async def act(ctx: RunContext, inbox: list[Message]) -> list[int]:
        del inbox
        results = []
        for n in range(60):
            if n == 20:
                await ctx.step("kill", lambda: asyncio.to_thread(server.kill))
            if n == 40:
                await ctx.step("start", lambda: asyncio.to_thread(server.start))
            start_s = time.perf_counter()
            results.append(await ctx.step("work", work, n, effect="at_most_once"))
            durations_s.append(time.perf_counter() - start_s)
        return results

    async with open_redis_journal(server.url) as journal:
        await bed.start(results=journal)
        result = await bed.play(act)
        async with asyncio.timeout(20):
            while await journal.find("after") is None:
                journal.keep("after", {"value": 1})

    assert result == list(range(60))
    # Of twenty steps without Redis; a busy machine may take its time for a few.
    assert sum(one_s >= LOOKUP_LIMIT_S for one_s in durations_s) < 5
    assert journal.counters.kept > 20


async def test_a_recovery_waits_a_quarter_second_at_most_for_a_frozen_server(
    own_redis: OwnRedis, bed: Bed
) -> None:
    """Once, however many effects are in doubt at the same time; then it goes on as without Redis."""
    server = own_redis()
    model = greeter()
    hung = asyncio.Event()

    async def pay(n: int) -> int:
        bed.world.count[str(n)] += 1
        if len(bed.world.count) == 20:
            hung.set()
        return int(await bed.world.wait("never"))

    async def reconcile(effect_id: str) -> str:
        return effect_id[:1]

    async def act(ctx: RunContext, inbox: list[Message]) -> Any:
        del inbox
        calls = (
            ctx.step("pay", pay, n, effect="at_most_once", reconcile=reconcile) for n in range(20)
        )
        paid = await ctx.gather(*calls)
        return [len(paid), (await ctx.llm("hi")).text]

    async with open_redis_journal(server.url) as journal:
        await bed.start(results=journal)
        run_id = await bed.submit(await bed.serve(act, model=model))
        async with asyncio.timeout(20):
            await hung.wait()
        os.kill(server.pid, signal.SIGSTOP)
        try:
            start_s = time.perf_counter()
            await bed.restart(results=journal)
            result = await bed.result(run_id)
            waited_s = time.perf_counter() - start_s
        finally:
            os.kill(server.pid, signal.SIGCONT)

    assert result == [20, "Hello there"]
    assert set(bed.world.count.values()) == {1}
    assert LOOKUP_LIMIT_S <= waited_s < LOOKUP_LIMIT_S + BUSY_S
