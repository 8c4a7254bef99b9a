"""Waiting for the end of a run that executes in another process."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from actors._kernel.runtime.ids import HostIncarnation
from actors._kernel.runtime.log_entry import EntryKind
from actors._runtime import Runtime
from actors.errors import PersistenceError
from tests.behaviour.bed import LIMIT_S
from tests.harness.faulty_store import Faults, FaultyStore

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable

    from actors._kernel.agent.message import Message
    from actors._kernel.runtime.hints import Delta
    from actors._kernel.runtime.ids import AgentId, RunId
    from actors._runtime import RunContext
    from tests.behaviour.bed import Bed


class Bus:
    """A `DeltaBus` between the runtimes of one process; it drops deltas."""

    is_connected = True

    def __init__(self) -> None:
        self.watches: dict[RunId, list[Callable[[], None]]] = {}

    def publish(self, delta: Delta) -> None:
        """Drop the delta."""

    def answer_by(self, open_answers: object) -> None:
        """Do nothing."""

    async def subscribe(
        self, agent_id: AgentId, run_id: RunId, *, whole: bool = False
    ) -> AsyncGenerator[Delta | None, None]:
        """Yield nothing."""
        await asyncio.Event().wait()
        yield  # type: ignore[misc]

    def announce_end(self, agent_id: AgentId, run_id: RunId) -> None:
        """Notify all subscribers."""
        for callback in tuple(self.watches.get(run_id, ())):
            callback()

    def watch_end(
        self, agent_id: AgentId, run_id: RunId, told: Callable[[], None]
    ) -> Callable[[], None]:
        """Yield until the end is announced."""
        self.watches.setdefault(run_id, []).append(told)

        def forget() -> None:
            self.watches[run_id].remove(told)

        return forget


async def waits(ctx: RunContext, inbox: list[Message]) -> object:
    """An agent that ends with its signal."""
    del inbox
    return await ctx.sleep_until_signal("go")


async def test_a_caller_on_another_host_is_notified_of_the_end(
    bed: Bed, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All waiters, at once and without a poll; a waiter that gave up is not notified."""
    monkeypatch.setattr("actors._runtime.client.client.FIRST_POLL_S", 600.0)
    bus = Bus()
    run_id = await bed.submit(await bed.serve(waits))
    async with bed.client() as client:
        bed.runtime._host.attach(bus=bus)
        client._host.attach(bus=bus)
        waiting = [asyncio.create_task(client.result(run_id)) for _ in range(3)]
        await bed.until(lambda: len(bus.watches.get(run_id, ())) == 3)
        waiting.pop().cancel()
        await bed.until(lambda: len(bus.watches[run_id]) == 2)
        await bed.runtime.signal(run_id, "go", "ended elsewhere")
        async with asyncio.timeout(LIMIT_S):
            assert await asyncio.gather(*waiting) == ["ended elsewhere"] * 2

    assert bus.watches == {run_id: []}


async def test_a_wait_ends_without_a_notification(bed: Bed) -> None:
    """A lost hint costs a moment."""
    run_id = await bed.submit(await bed.serve(waits))
    async with bed.client() as client:
        client._host.attach(bus=Bus())
        waiting = asyncio.create_task(client.result(run_id))
        await bed.runtime.signal(run_id, "go", "seen")
        async with asyncio.timeout(LIMIT_S):
            assert await waiting == "seen"


async def test_a_wait_raises_if_the_store_is_unavailable(bed: Bed) -> None:
    """The error is raised at once."""
    run_id = await bed.submit(await bed.serve(waits))
    owner = HostIncarnation("results-client")
    async with bed.open_store(owner) as rows:
        store = FaultyStore.wrap(rows, Faults(method="run", nth=1), lambda: None)
        async with Runtime(
            store=store, clock=bed.clock, entropy=bed.entropy, owner=owner, serve=False
        ) as client:
            with pytest.raises(PersistenceError, match="refused"):
                async with asyncio.timeout(LIMIT_S):
                    await client.result(run_id)


async def test_a_wait_survives_the_shutdown_of_its_host(bed: Bed) -> None:
    """Runs that execute or are queued at the shutdown end on another host; the waiters get their results."""

    async def act(ctx: RunContext, inbox: list[Message]) -> object:
        await ctx.step("gate", bed.world.wait, "gate")
        return inbox[0].payload

    agent_id, first = await bed.serve(act), bed.runtime
    runs = [await bed.submit(agent_id, n) for n in (1, 2)]
    await bed.seen(runs[0], EntryKind.EFFECT_INTENT)
    waiting = [asyncio.create_task(first.result(run_id)) for run_id in runs]
    await asyncio.sleep(0)
    await first.stop()
    await bed.start()
    bed.world.gates["gate"].set()
    async with asyncio.timeout(LIMIT_S):
        assert await asyncio.gather(*waiting) == [1, 2]
