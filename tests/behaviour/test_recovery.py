"""Recovery: the next host continues, repeats no at-most-once effect, and reports unknown outcomes."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from actors._inmemory.runs.store import MemoryStore
from actors._kernel.runtime.hints import Nudge
from actors._kernel.runtime.log_entry import EntryKind
from actors._kernel.runtime.scheduler import RunStatus
from actors._runtime import Runtime
from actors._runtime.execution.suspects import MAX_DEATHS
from tests.behaviour.agents import Acting
from tests.harness.faulty_store import Faults, Manner

if TYPE_CHECKING:
    from actors._kernel.agent.message import Message
    from actors._runtime import RunContext
    from tests.behaviour.bed import Bed

K = EntryKind


@pytest.mark.item(47, 172, 182, 186, 490)
async def test_a_running_run_is_taken_over(bed: Bed) -> None:
    """Recorded effects are not executed again, others are; the log has an entry of the recovery."""

    async def act(ctx: RunContext, inbox: list[Message]) -> object:
        values = [await ctx.step(name, bed.world.do, name, name) for name in ("a", "b")]
        values.append(await ctx.step("c", bed.world.hang, "c", "c"))
        return [inbox[0].payload, *values, await ctx.step("d", bed.world.do, "d", "d")]

    run_id = await bed.submit(await bed.serve(act), "boot")
    async with asyncio.timeout(20):
        await bed.world.entered.wait()
    await bed.restart()
    assert await bed.result(run_id) == ["boot", "a", "b", "c", "d"]
    assert bed.world.count == {"a": 1, "b": 1, "c": 2, "d": 1}
    [resumed] = await bed.log(run_id, K.RUN_RESUMED)
    assert resumed.payload == {"reason": "recovered"}
    assert len(await bed.log(run_id, K.RUN_STARTED)) == 1
    assert (await bed.row(run_id)).attempt == 1


@pytest.mark.item(172, 490)
async def test_a_run_survives_a_crash_at_each_of_ten_steps(bed: Bed) -> None:
    """The run completes. Each recorded step executed once, the interrupted one twice."""

    async def act(ctx: RunContext, inbox: list[Message]) -> object:
        del inbox
        return [await ctx.step(f"s{n}", cut, f"s{n}", n) for n in range(10)]

    async def cut(name: str, n: int) -> Any:
        return await bed.world.hang(name, n)

    run_id = await bed.submit(await bed.serve(act))
    for _ in range(10):
        async with asyncio.timeout(20):
            await bed.world.entered.wait()
        bed.world.entered.clear()
        await bed.restart()
    assert await bed.result(run_id) == [*range(10)]
    assert bed.world.count == {f"s{n}": 2 for n in range(10)}


@pytest.mark.item(172)
async def test_a_run_is_parked_after_five_crashes_without_progress(bed: Bed) -> None:
    """Five take-overs without progress in between. An operator can start it again."""

    async def deadly() -> str:
        return str(await bed.world.hang("deadly", "survived", times=died + 1))

    async def act(ctx: RunContext, inbox: list[Message]) -> object:
        del inbox
        await ctx.step("begin", bed.world.do, "begin")
        return await ctx.step("deadly", deadly)

    died = 0
    run_id = await bed.submit(await bed.serve(act))
    async with asyncio.timeout(20):
        while True:
            entered = asyncio.ensure_future(bed.world.entered.wait())
            parked = asyncio.ensure_future(bed.seen(run_id, K.RUN_PARKED))
            await asyncio.wait({entered, parked}, return_when=asyncio.FIRST_COMPLETED)
            entered.cancel()
            if parked.done():
                break
            parked.cancel()
            bed.world.entered.clear()
            died += 1
            await bed.restart()
    assert parked.result().payload["reason"] == "poison"
    assert died == MAX_DEATHS
    died = 0
    await bed.runtime.resolve(run_id)
    assert await bed.result(run_id) == "survived"
    assert bed.world.count["begin"] == 1


@pytest.mark.item(51, 59, 250, 484)
async def test_a_stale_host_writes_nothing(bed: Bed) -> None:
    """Another host took over while it was frozen: its step's result is refused, the new host's counts."""
    gates = [asyncio.Event(), asyncio.Event()]
    turns = iter(gates)

    async def wait() -> int:
        gate = next(turns)
        bed.world.entered.set()
        await gate.wait()
        return gates.index(gate)

    async def act(ctx: RunContext, inbox: list[Message]) -> object:
        del inbox
        return await ctx.step("wait", wait)

    run_id = await bed.submit(await bed.serve(act))
    old = bed.runtime
    async with asyncio.timeout(20):
        await bed.world.entered.wait()
        bed.world.entered.clear()
        old.store.set_nudge_hook(None)
        leases = old._host.worker.held.leases
        await old.store.shards.release(leases)
        await bed.start()
        await bed.world.entered.wait()
    gates[0].set()
    await bed.until(lambda: not old._host.worker.dispatcher.load)
    assert (await bed.row(run_id)).status is not RunStatus.COMPLETED
    gates[1].set()
    assert await bed.result(run_id) == 1
    assert len(await bed.log(run_id, K.EFFECT_RESULT)) == 1
    await old.stop()


@pytest.mark.item(98, 108, 132, 195)
@pytest.mark.parametrize("how", ["signal", "mail"])
async def test_a_signal_or_message_without_a_live_host_wakes_the_run_later(
    bed: Bed, how: str
) -> None:
    """A client's signal or message for a suspended run is found by the host that takes over."""

    async def act(ctx: RunContext, inbox: list[Message]) -> object:
        del inbox
        await ctx.step("mark", bed.world.do, "mark")
        if how == "signal":
            return await ctx.sleep_until_signal("go")
        message = await ctx.receive()
        return message.payload if message is not None else None

    agent = await bed.serve(act)
    run_id = await bed.submit(agent)
    await bed.marked(run_id)
    await bed.crash()
    async with bed.client() as other:
        if how == "signal":
            await other.signal(run_id, "go", "kept")
        else:
            await other.send(agent, "kept")
    await bed.start()
    assert await bed.result(run_id) == "kept"


@pytest.mark.item(33, 59, 190)
@pytest.mark.parametrize("manner", [Manner.ERROR_BEFORE, Manner.ERROR_AFTER])
async def test_a_message_whose_run_could_not_be_written_is_not_lost(
    bed: Bed, manner: Manner
) -> None:
    """The store refuses, or does not answer, the commit that was to start the run: it is retried."""
    faults = Faults(method="commit", manner=manner)
    bed.go_wrong(faults)
    await bed.restart()

    async def act(ctx: RunContext, inbox: list[Message]) -> None:
        for message in inbox:
            if message.payload == "first":
                await ctx.step("gate", bed.world.wait, "gate")
            await ctx.step("see", bed.world.do, str(message.payload))

    agent = await bed.serve(act)
    first = await bed.submit(agent, "first")
    await bed.seen(first, K.MSG_RECEIVED)
    await bed.runtime.send(agent, "mail")
    if bed.backend == "memory":
        await asyncio.sleep(60)  # until no scan reads this message again
    last = await bed.submit(agent, "last")
    faults.nth = len(faults.calls) + 1  # the first commit after the end of the first run
    bed.world.gates["gate"].set()
    await bed.result(last)
    assert bed.world.order == ["first", "mail", "last"]


async def test_a_scan_does_not_read_children_queued_on_this_host(bed: Bed) -> None:
    """Children wait for a slot on the host that spawned them; only children unknown to it are read."""
    await bed.restart(capacity=2)

    async def child(ctx: RunContext, inbox: list[Message]) -> object:
        return await ctx.step("gate", bed.world.wait, str(inbox[0].payload))

    agents = [await bed.serve(child) for _ in range(9)]

    async def act(ctx: RunContext, inbox: list[Message]) -> object:
        return len(
            await ctx.gather(*[await ctx.spawn(agent, inbox[0].payload) for agent in agents])
        )

    run_id = await bed.submit(await bed.serve(act), "gate")
    host, nudges = bed.runtime._host, list[Nudge]()
    await bed.until(lambda: len(host.worker._state.fresh) == 7)
    host.notifications.subscribe(nudges.append, "run")
    shards = [lease.shard for lease in host.worker.held.leases]

    await host.ownership._recovery.scan(shards)
    nudges_before = {*nudges}
    host.worker._state.fresh.clear()
    await host.ownership._recovery.scan(shards)
    bed.world.gates["gate"].set()

    assert (len(nudges_before), len({*nudges})) == (0, 7)
    assert await bed.result(run_id) == 9


@pytest.mark.item(28, 123, 157, 214, 484)
async def test_a_lease_that_is_not_renewed_runs_out(bed: Bed) -> None:
    """A dead host's work continues when its lease has expired; a living host keeps it by heartbeats."""
    if bed.backend != "memory":
        pytest.skip("the system tests kill real hosts and wait for their leases")
    store = MemoryStore(clock=bed.clock, lease_s=10)

    async def act(ctx: RunContext, inbox: list[Message]) -> str:
        del inbox
        return str(await ctx.step("hang", bed.world.hang, "hang", "done"))

    agent = Acting(bed.name(), act)
    dead = Runtime(store=store, clock=bed.clock, heartbeat_s=3, suspend_after=bed.suspend_after)
    heir = Runtime(store=store.sibling(), clock=bed.clock, heartbeat_s=3)
    await dead.register(agent)
    await dead.start()
    await heir.register(agent)
    await heir.start()
    run_id = await dead.submit(agent.id, None)
    await bed.world.entered.wait()
    await asyncio.sleep(60)  # twenty heartbeats: no shard is taken over
    assert (dead._host.worker.held.leases, heir._host.worker.held.leases) != ((), ())
    assert not heir._host.worker.held.leases
    dead._host.crash()
    began = asyncio.get_running_loop().time()
    async with asyncio.timeout(60):
        assert await heir.result(run_id) == "done"
    assert 5 < asyncio.get_running_loop().time() - began < 10 + 2 * 5
    assert bed.world.count["hang"] == 2
    await heir.stop()


async def test_a_submitted_run_that_could_not_be_read_is_read_with_the_next_scan(bed: Bed) -> None:
    """Its hint came while the store did not answer, and is not repeated."""
    faults = Faults(method="load", manner=Manner.ERROR_BEFORE)
    bed.go_wrong(faults)
    await bed.restart()

    async def act(ctx: RunContext, inbox: list[Message]) -> object:
        del ctx
        return inbox[0].payload

    agent = await bed.serve(act)
    faults.calls.clear()
    faults.nth = 0
    async with bed.client() as other:
        run_id = await other.submit(agent, "hello")
        await bed.until(lambda: faults.struck)

        async with asyncio.timeout(20):
            assert await other.result(run_id) == "hello"
