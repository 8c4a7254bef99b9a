"""Start and shutdown of a host if something that it needs fails."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, cast

import pytest

from actors._kernel.runtime.ids import HostIncarnation
from actors._runtime import Runtime
from actors.errors import PersistenceError
from tests.behaviour.bed import LIMIT_S
from tests.harness.faulty_store import Faults, FaultyStore

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from actors._kernel.agent.message import Message
    from actors._kernel.stores.limits import LimitStore
    from actors._kernel.stores.shards import ShardStore
    from actors._runtime import RunContext
    from tests.behaviour.bed import Bed


async def repeats(ctx: RunContext, inbox: list[Message]) -> object:
    """Return an agent that repeats its message."""
    del ctx
    return inbox[0].payload


async def test_a_host_that_could_not_start_is_started_again(bed: Bed) -> None:
    """It is not a started host that does nothing."""
    agent_id = await bed.serve(repeats)
    await bed.runtime.stop()
    owner = HostIncarnation(f"{agent_id.type}-again")
    async with bed.open_store(owner) as rows:
        store = FaultyStore.wrap(rows, Faults(method="claim", nth=0), lambda: None)
        host = Runtime(store=store, clock=bed.clock, entropy=bed.entropy, owner=owner)
        await host.register(bed.agents[agent_id])
        with pytest.raises(PersistenceError, match="refused"):
            await host.start()
        async with host, asyncio.timeout(LIMIT_S):
            assert await host.result(await host.submit(agent_id, "served")) == "served"


class Slow:
    """A store that executes one method late, even if no caller waits for its answer any more."""

    def __init__(self, store: object, method: str) -> None:
        self._store, self._method = store, method
        self.is_slow = False
        self.at_work: list[asyncio.Future[object]] = []

    def __getattr__(self, name: str) -> Any:
        member = getattr(self._store, name)
        return partial(self._later, member) if name == self._method else member

    async def _later(self, member: Any, *args: Any, **kwargs: Any) -> object:
        delay_s = 0.1 if self.is_slow else 0.0

        async def execute() -> object:
            await asyncio.sleep(delay_s)
            return await member(*args, **kwargs)

        self.at_work.append(asyncio.ensure_future(execute()))
        return await asyncio.shield(self.at_work[-1])

    @asynccontextmanager
    async def under_way(self, bed: Bed) -> AsyncIterator[None]:
        """After the block a call that the block caused is in flight; later ones are not slow."""
        self.is_slow, count_before = True, len(self.at_work)
        yield
        await bed.until(lambda: len(self.at_work) > count_before)
        self.is_slow = False


async def test_a_claim_in_flight_leaves_a_stopped_host_no_shards(bed: Bed) -> None:
    """Else no host would serve their agents until its lease has expired."""
    agent_id = await bed.serve(repeats)
    await bed.runtime.stop()
    owner = HostIncarnation(f"{agent_id.type}-slow")
    async with bed.open_store(owner) as rows:
        store = Slow(rows.shards, "claim")
        rows.shards = cast("ShardStore", store)
        host = Runtime(store=rows, clock=bed.clock, entropy=bed.entropy, owner=owner)
        await host.register(bed.agents[agent_id])
        await host.start()
        async with store.under_way(bed):
            host._host._tasks.start(host._host.claim(), name="a claim")
        await host.stop()
        await asyncio.gather(*store.at_work)
    await bed.start()
    assert await bed.result(await bed.submit(agent_id, "served")) == "served"


async def test_a_host_that_stops_holds_no_slots_of_a_limit(bed: Bed) -> None:
    """An exchange in flight is not executed after its shutdown."""
    if bed.backend == "nats":
        pytest.skip("limits are rows of the store")

    async def act(ctx: RunContext, inbox: list[Message]) -> object:
        return await ctx.step("work", bed.world.wait, "gate")

    agent_id = await bed.serve(act)
    scope = f"agent:{agent_id.type}/{agent_id.key}"
    await bed.runtime.limits.set(scope, max_concurrent=1)
    limiting = bed.runtime._host.limiting
    store = Slow(limiting._store, "exchange")
    limiting._store = cast("LimitStore", store)
    async with store.under_way(bed):
        await bed.submit(agent_id)
    await bed.runtime.stop()
    await asyncio.gather(*store.at_work)
    [use] = [use for use in await bed.runtime.limits.list() if str(use.limit.scope) == scope]
    await bed.runtime.limits.delete(scope)
    assert (use.held, use.wanting) == (0, 0)


async def test_no_share_is_reserved_for_a_stopped_host(bed: Bed) -> None:
    """Also if it had no share yet: other hosts do not wait for its lease."""
    if bed.backend == "memory":
        pytest.skip("who owns all agents is the only host")
    await bed.serve(repeats)
    async with bed.rival() as rival:
        for agent in bed.agents.values():
            await rival.register(agent)
        living = {host.owner: host.serves for host in await bed.runtime.store.insight.hosts()}
    serves_by_host = {host.owner: host.serves for host in await bed.runtime.store.insight.hosts()}
    assert living[rival.owner]
    assert not serves_by_host.get(rival.owner)


class Jammed:
    """A gateway whose close fails."""

    async def run(self) -> None:
        """Serve no request."""
        await asyncio.Event().wait()

    async def leave(self) -> None:
        """Fail."""
        raise ConnectionError("the line is lost")

    shut = leave


async def test_a_failing_gateway_does_not_block_the_shutdown(bed: Bed) -> None:
    """Its shards are released at once, and its runs continue on other hosts."""

    async def act(ctx: RunContext, inbox: list[Message]) -> object:
        return await ctx.sleep_until_signal("go")

    run_id = await bed.submit(await bed.serve(act))
    bed.runtime._host.attach(listeners=[Jammed()])
    await bed.runtime.stop()
    assert not bed.runtime._host._tasks
    await bed.start()
    await bed.runtime.signal(run_id, "go", "elsewhere")
    assert await bed.result(run_id) == "elsewhere"
