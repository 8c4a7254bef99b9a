"""Starting and stopping a host when something it needs fails."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, cast

import pytest

from actors.errors import PersistenceError
from actors.kernel.runtime.ids import HostIncarnation
from actors.runtime import Runtime
from tests.behaviour.bed import LIMIT_S
from tests.harness.faulty_store import Faults, FaultyStore

if TYPE_CHECKING:
    from actors.kernel.agent.message import Message
    from actors.kernel.runtime.store import RunStore
    from actors.runtime import RunContext
    from tests.behaviour.bed import Bed


async def repeats(ctx: RunContext, inbox: list[Message]) -> object:
    """An agent that says what it was told."""
    del ctx
    return inbox[0].payload


async def test_a_host_that_could_not_start_is_started_again(bed: Bed) -> None:
    """It is no host that counts as started and does nothing."""
    agent_id = await bed.serve(repeats)
    await bed.runtime.stop()
    owner = HostIncarnation(f"{agent_id.type}-again")
    async with bed.open_store(owner) as rows:
        store = FaultyStore.wrap(rows, Faults(method="claim_shards", nth=0), lambda: None)
        host = Runtime(store=store, clock=bed.clock, entropy=bed.entropy, owner=owner)
        await host.register(bed.agents[agent_id])
        with pytest.raises(PersistenceError, match="refused"):
            await host.start()
        async with host, asyncio.timeout(LIMIT_S):
            assert await host.result(await host.submit(agent_id, "served")) == "served"


class Slow:
    """A server that executes a claim after a moment, also when nobody waits for its answer any more."""

    def __init__(self, store: RunStore) -> None:
        self._store = store
        self.is_slow = False
        self.at_work: list[asyncio.Future[object]] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def claim_shards(self, **wanted: Any) -> object:
        """Claim, later."""

        async def execute() -> object:
            await asyncio.sleep(0.1 if self.is_slow else 0)
            return await self._store.claim_shards(**wanted)

        self.at_work.append(asyncio.ensure_future(execute()))
        return await asyncio.shield(self.at_work[-1])


async def test_a_claim_that_is_under_way_leaves_a_stopped_host_no_shards(bed: Bed) -> None:
    """Nobody would serve their agents until its lease is over."""
    agent_id = await bed.serve(repeats)
    await bed.runtime.stop()
    owner = HostIncarnation(f"{agent_id.type}-slow")
    async with bed.open_store(owner) as rows:
        store = Slow(rows)
        host = Runtime(
            store=cast("RunStore", store), clock=bed.clock, entropy=bed.entropy, owner=owner
        )
        await host.register(bed.agents[agent_id])
        await host.start()
        store.is_slow, seen = True, len(store.at_work)
        host._tasks.start(host.claim(), name="a claim")
        await bed.until(lambda: len(store.at_work) > seen)
        await host.stop()
        await asyncio.gather(*store.at_work)
    await bed.start()
    assert await bed.result(await bed.submit(agent_id, "served")) == "served"


class Jammed:
    """A door that cannot be closed."""

    async def run(self) -> None:
        """Serve nobody."""
        await asyncio.Event().wait()

    async def leave(self) -> None:
        """Fail."""
        raise ConnectionError("the line is lost")

    shut = leave


async def test_a_door_that_fails_keeps_no_host_from_stopping(bed: Bed) -> None:
    """Its shards are free at once, and what it executed goes on elsewhere."""

    async def act(ctx: RunContext, inbox: list[Message]) -> object:
        return await ctx.sleep_until_signal("go")

    run_id = await bed.submit(await bed.serve(act))
    bed.runtime.attach(doors=[Jammed()])
    await bed.runtime.stop()
    assert not bed.runtime._tasks
    await bed.start()
    await bed.runtime.signal(run_id, "go", "elsewhere")
    assert await bed.result(run_id) == "elsewhere"
