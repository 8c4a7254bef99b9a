"""Shards move between hosts: released in order, and taken over while messages arrive."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pytest

from actors._kernel.agent.message import Message
from actors._kernel.runtime.log_entry import EntryKind
from actors._kernel.runtime.rows import HostReport, Surplus
from actors._runtime.execution.suspects import MAX_DEATHS
from actors._runtime.sharding.ownership import SCAN_S
from actors.errors import PersistenceError
from tests.behaviour.bed import LIMIT_S
from tests.harness.faulty_store import Faults, Manner

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from actors._kernel.agent.agent import Agent
    from actors._kernel.runtime.ids import AgentId
    from actors._runtime import RunContext, Runtime
    from tests.behaviour.bed import Bed

K = EntryKind


def give_back(runtime: Runtime, agent: AgentId, *, drain_s: float = 30) -> None:
    """Notify a host as a heartbeat would: another host waits for the agent's shard."""
    runtime._host.ownership._rebalancer._drain_s = drain_s
    lease = runtime._host.worker.lease_of(agent)
    assert lease is not None
    surplus = Surplus((lease.shard,), 1)
    runtime._host.ownership.on_report(HostReport((), (), datetime.now(UTC), (surplus,)))


@asynccontextmanager
async def waiting_host(
    bed: Bed, agent: AgentId, code: Agent | None = None
) -> AsyncIterator[Runtime]:
    """Yield a second host that serves the agent, and claims the shard once it is free.

    It has code of its own if given. The first host has more than its share from then on: it claims
    nothing.
    """

    async def claims_nothing() -> None:
        return

    async with bed.rival() as rival:
        await rival.register(code or bed.agents[agent])
        assert rival._host.worker.lease_of(agent) is None
        bed.runtime._host.ownership.claim = claims_nothing  # type: ignore[method-assign]
        yield rival


@pytest.mark.item(157)
async def test_an_idle_shard_is_released_at_once(bed: Bed) -> None:
    """Its suspended run continues at the other host; waiters on this host get its end."""

    async def act(ctx: RunContext, inbox: list[Message]) -> object:
        del inbox
        await ctx.step("mark", bed.world.do, "mark")
        return await ctx.sleep_until_signal("go")

    changes: list[int] = []
    agent = await bed.serve(act)
    old = bed.runtime
    run_id = await bed.submit(agent)
    await bed.marked(run_id)
    result = asyncio.ensure_future(bed.result(run_id))
    await bed.until(lambda: not old._host.worker.dispatcher.load)
    old._host.notifications.subscribe(
        lambda _: changes.append(len(old._host.worker.held.loaded)), "held"
    )
    async with waiting_host(bed, agent) as rival:
        shards = len(old._host.worker.held.leases)
        give_back(old, agent)
        await bed.until(lambda: rival._host.worker.lease_of(agent) is not None)
        assert changes[0] == shards - 1
        assert await rival.signal(run_id, "go", "there")
        assert await result == "there"
        assert bed.world.count["mark"] == 1


@pytest.mark.item(157)
async def test_a_busy_shard_is_released_when_its_executions_have_ended(bed: Bed) -> None:
    """No new run starts in it meanwhile; queued runs start at the other host."""

    async def act(ctx: RunContext, inbox: list[Message]) -> object:
        host = "old" if bed.runtime._host.worker.lease_of(ctx.agent_id) else "new"
        if inbox[0].payload == 1:
            await ctx.step("gate", bed.world.wait, "gate")
        return await ctx.step("where", lambda: host)

    agent = await bed.serve(act)
    first, second = [await bed.submit(agent, n) for n in (1, 2)]
    await bed.seen(first, K.RUN_STARTED)
    async with waiting_host(bed, agent) as rival:
        give_back(bed.runtime, agent)
        give_back(bed.runtime, agent)  # notified again before it is done
        assert bed.runtime._host.worker.lease_of(agent) is not None
        bed.world.gates["gate"].set()
        assert await bed.result(first) == "old"
        assert await bed.result(second) == "new"
        assert rival._host.worker.lease_of(agent) is not None


@pytest.mark.item(157, 172)
async def test_a_run_that_does_not_end_in_time_is_handed_over(bed: Bed) -> None:
    """It continues by replay: recorded steps are not executed again; no attempt and no crash is counted."""

    async def act(ctx: RunContext, inbox: list[Message]) -> object:
        del inbox
        await ctx.step("before", bed.world.do, "before")
        return await ctx.step("long", bed.world.hang, "long", "done")

    agent = await bed.serve(act)
    run_id = await bed.submit(agent)
    await bed.world.entered.wait()
    async with waiting_host(bed, agent):
        give_back(bed.runtime, agent, drain_s=10 if bed.backend == "memory" else 0.3)
        assert await bed.result(run_id) == "done"
        assert bed.world.count == {"before": 1, "long": 2}
        assert (await bed.row(run_id)).attempt == 1
        [resumed] = await bed.log(run_id, K.RUN_RESUMED)
        assert resumed.payload == {"reason": "woken"}
        assert not bed.runtime._host.worker.dispatcher.load


@pytest.mark.item(157)
async def test_an_at_most_once_effect_delays_the_release_of_its_shard(bed: Bed) -> None:
    """The effect ends on its host, and is never in doubt; queued runs start there, too."""

    async def act(ctx: RunContext, inbox: list[Message]) -> object:
        if inbox[0].payload == 1:
            bed.world.entered.set()
            return await ctx.step("pay", bed.world.wait, "pay", effect="at_most_once")
        return "next"

    agent = await bed.serve(act)
    first, second = [await bed.submit(agent, n) for n in (1, 2)]
    await bed.seen(first, K.EFFECT_INTENT)
    async with waiting_host(bed, agent):
        give_back(bed.runtime, agent, drain_s=0.2)
        draining = bed.runtime._host.worker.held.draining
        await bed.until(lambda: draining)
        await bed.until(lambda: not draining)
        assert bed.runtime._host.worker.lease_of(agent) is not None
        bed.world.gates["pay"].set()
        assert await bed.result(first) is True
        assert await bed.result(second) == "next"
        assert bed.runtime._host.worker.lease_of(agent) is not None


@pytest.mark.item(157)
async def test_the_drain_of_a_lost_shard_ends(bed: Bed) -> None:
    """The release ends, and a later one works."""

    async def act(ctx: RunContext, inbox: list[Message]) -> object:
        del inbox
        return await ctx.step("long", bed.world.hang, "long", "done")

    agent = await bed.serve(act)
    run_id = await bed.submit(agent)
    await bed.world.entered.wait()
    old = bed.runtime
    lease = old._host.worker.lease_of(agent)
    assert lease is not None
    give_back(old, agent)
    await old.store.shards.release([lease])
    old._host.ownership.on_report(HostReport((), (lease,), datetime.now(UTC)))
    assert await bed.result(run_id) == "done"
    assert not old._host.worker.held.draining
    await bed.until(lambda: not old._host.ownership._rebalancer._releasing)
    async with waiting_host(bed, agent) as rival:
        give_back(old, agent)
        await bed.until(lambda: rival._host.worker.lease_of(agent) is not None)


@pytest.mark.item(172)
async def test_orderly_shutdowns_do_not_count_as_crashes(bed: Bed) -> None:
    """A run that outlives more orderly shutdowns than MAX_DEATHS is not parked."""

    async def hang() -> object:
        return await bed.world.hang("long", "done", times=MAX_DEATHS + 2)

    async def act(ctx: RunContext, inbox: list[Message]) -> object:
        del inbox
        await ctx.step("begin", bed.world.do, "begin")
        return await ctx.step("long", hang)

    run_id = await bed.submit(await bed.serve(act))
    for _ in range(MAX_DEATHS + 2):
        await bed.world.entered.wait()
        bed.world.entered.clear()
        await bed.stop()
        await bed.start()
    assert await bed.result(run_id) == "done"
    assert bed.world.count == {"begin": 1, "long": MAX_DEATHS + 3}
    reasons = {entry.payload["reason"] for entry in await bed.log(run_id, K.RUN_RESUMED)}
    assert reasons == {"woken"}
    assert (await bed.row(run_id)).attempt == 1


@pytest.mark.item(118, 201)
async def test_messages_that_come_during_a_take_over_are_handled_once_and_in_order(
    bed: Bed, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Old messages are in the store, new ones are offered before those were read; hosts start and stop."""
    monkeypatch.setattr("actors._runtime.worker.worker.EFFECT_LIMIT_S", 20.0)
    senders, each = 4, 80 if bed.backend == "memory" else 40
    got: list[str] = []

    async def act(ctx: RunContext, inbox: list[Message]) -> None:
        await ctx.step("look", asyncio.sleep, 0.001)
        new = [str(m.payload) for m in inbox]
        await ctx.step("see", lambda: got.extend(new), effect="at_most_once")

    agent = await bed.serve(act)
    in_use = asyncio.Lock()  # the host: a send by one that stops is refused

    async def sends(runtime: Runtime, sender: int) -> None:
        for n in range(each):
            name = f"client:s{sender}"
            if n % 10 == 9:
                async with in_use:
                    await bed.runtime.send(agent, f"{sender}:{n}", sender=name)
            else:
                await runtime.send(agent, f"{sender}:{n}", sender=name)

    async with bed.client() as other:
        async with asyncio.TaskGroup() as group:
            for sender in range(senders):
                group.create_task(sends(other, sender))
            for _ in range(3):
                await bed.until(
                    lambda: bed.runtime._host.worker.dispatcher.load or len(got) >= senders * each
                )
                async with in_use:
                    await bed.stop()
                    await bed.start()
                    bed.runtime._host.worker.mail_capacity.each = 5
        await bed.until(lambda: len(got) >= senders * each)
    for sender in range(senders):
        mine = [p for p in got if p.startswith(f"{sender}:")]
        assert mine == [f"{sender}:{n}" for n in range(each)]


@pytest.mark.item(59)
@pytest.mark.parametrize("method", ["sleepers", "open_runs", "load", "due", "who_has_mail"])
async def test_a_shard_that_could_not_be_read_is_read_again(bed: Bed, method: str) -> None:
    """The store fails in the middle of a take-over: no run starts too early, none is lost."""
    if bed.backend != "memory":
        pytest.skip("in virtual time the next scan comes at once")
    order: list[object] = []

    async def act(ctx: RunContext, inbox: list[Message]) -> object:
        if inbox[0].payload == "holds":
            await ctx.step("mark", bed.world.do, "mark")
            await ctx.sleep_until_signal("go")
        order.append(inbox[0].payload)
        return inbox[0].payload

    agent = await bed.serve(act)
    first, second = [await bed.submit(agent, name) for name in ("holds", "queued")]
    await bed.marked(first)
    await bed.runtime.send(agent, "mail")
    await bed.crash()
    faults = Faults(method=method)
    bed.go_wrong(faults)
    bed.agents, served = {}, bed.agents
    runtime = await bed.start()
    faults.nth = len(faults.calls)
    try:
        await runtime.register(served[agent])
    except PersistenceError:
        assert method != "who_has_mail"
    await runtime.send(agent, "new")
    assert not order
    await asyncio.sleep(SCAN_S)
    await runtime.signal(first, "go")
    assert await bed.result(second) == "queued"
    await bed.until(lambda: len(order) == 4 or order[-1] == "mail")
    assert faults.struck
    assert order[:3] == ["holds", "queued", "mail"]


@pytest.mark.item(37)
async def test_a_delivery_whose_reading_fails_is_read_again(
    bed: Bed, caplog: pytest.LogCaptureFixture
) -> None:
    """The deliver hook returns at once; a later error is logged and the read is retried."""
    faults = Faults(method="pending_mail")
    bed.go_wrong(faults)
    await bed.restart()
    handled: asyncio.Queue[Any] = asyncio.Queue()

    async def act(ctx: RunContext, inbox: list[Message]) -> None:
        handled.put_nowait([message.payload for message in inbox])

    agent = await bed.serve(act)
    faults.nth, faults.manner = len(faults.calls), Manner.ERROR_BEFORE
    message = Message.of(agent, "hi").sent_by("ext:shop")
    await bed.runtime.inbox.deliver(agent, message)

    async with asyncio.timeout(LIMIT_S):
        assert await handled.get() == ["hi"]
    assert faults.struck
    assert any(record.exc_info for record in caplog.records)
