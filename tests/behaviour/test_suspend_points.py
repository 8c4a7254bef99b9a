"""Waits of a run: how they look from outside, how they are woken, and what they cost meanwhile."""

from __future__ import annotations

import asyncio
import gc
import tracemalloc
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest

from actors._kernel.runtime.ids import AgentId
from actors._kernel.runtime.log_entry import EntryKind as K
from actors._kernel.runtime.scheduler import RunStatus
from tests.behaviour.agents import Acting
from tests.harness.faulty_store import Faults, FaultyStore

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from contextlib import AbstractAsyncContextManager

    from actors._kernel.agent.message import Message
    from actors._kernel.runtime.ids import HostIncarnation, RunId
    from actors._kernel.stores.run_store import RunStore
    from actors._runtime import RunContext
    from tests.behaviour.bed import Bed

HOURS = 3 * 3600.0


async def wait_for_go(ctx: RunContext, inbox: list[Message]) -> Any:
    """Wait for the signal `go`, then reply to the asker."""
    value = await ctx.sleep_until_signal("go")
    await ctx.reply(inbox[0], value)
    return value


async def wait_in(bed: Bed, ctx: RunContext, verb: str, other: AgentId) -> Any:
    """Wait for the other agent's run, its answer, a signal, an instant, or a message."""
    match verb:
        case "join":
            return (await ctx.join(await ctx.spawn(other, "boot"))).output
        case "ask":
            return (await ctx.ask(other, "q", timeout=HOURS)).result
        case "sleep_until_signal":
            return await ctx.sleep_until_signal("go")
        case "sleep_until":
            seconds = 1.5 if bed.backend == "memory" else 3.0  # until then its row is read
            await ctx.sleep_until(await ctx.now() + timedelta(seconds=seconds))
            return 7
        case _:
            message = await ctx.receive()
            return message.payload if message is not None else None


async def wake(bed: Bed, run_id: RunId, verb: str, other: AgentId) -> None:
    """Cause the event that the run waits for."""
    if verb in ("join", "ask"):
        [below] = await bed.runtime.store.lists.runs(agent=other)
        await bed.seen(below.run_id, K.RUN_STARTED)
        await bed.runtime.signal(below.run_id, "go", 7)
    elif verb == "sleep_until_signal":
        await bed.runtime.signal(run_id, "go", 7)
    elif verb == "receive":
        await bed.runtime.send((await bed.row(run_id)).agent_id, 7)


VERBS = ["join", "ask", "sleep_until_signal", "sleep_until", "receive"]


@pytest.mark.item(105, 106, 108, 110, 168, 230)
@pytest.mark.parametrize("dies", [False, True], ids=["lives", "dies"])
@pytest.mark.parametrize("verb", VERBS)
async def test_every_wait_is_a_suspend_point(bed: Bed, verb: str, dies: bool) -> None:
    """In memory it is a waiting task, else rows.

    The same line of code continues, also in another process.
    """
    other = await bed.serve(wait_for_go)
    tries: list[int] = []

    async def act(ctx: RunContext, inbox: list[Message]) -> Any:
        del inbox
        tries.append(ctx.meta.attempt)
        await ctx.step("mark", bed.world.do, "mark")
        return await wait_in(bed, ctx, verb, other)

    run_id = await bed.submit(await bed.serve(act))
    await bed.marked(run_id)
    if bed.drops:
        row = await bed.row(run_id)
        assert row.status is RunStatus.SUSPENDED
        assert row.wake is not None
        assert [
            bool(row.wake.runs),
            bool(row.wake.signals),
            row.wake.message,
            row.wake.at is not None,
        ] == [
            verb in ("join", "ask"),
            verb == "sleep_until_signal",
            verb == "receive",
            verb in ("ask", "sleep_until"),
        ]
    else:
        assert await bed.log(run_id, K.RUN_SUSPENDED) == []
        assert (await bed.row(run_id)).status is RunStatus.RUNNING
    if verb in ("join", "ask"):
        await bed.seen(run_id, K.CHILD_SPAWNED if verb == "join" else K.ASK_SENT)
        async with asyncio.timeout(20):
            while not await bed.runtime.store.lists.runs(agent=other):  # noqa: ASYNC110
                await asyncio.sleep(0.01)
    if dies:
        await bed.restart()
    await wake(bed, run_id, verb, other)
    assert await bed.result(run_id) == 7
    assert bed.world.count["mark"] == 1
    assert set(tries) == {1}


@pytest.mark.item(167, 168)
async def test_each_of_four_wakes_one_wait(bed: Bed) -> None:
    """A message, a timer, a signal and a child's end: each alone ends a wait for all of them."""
    other = await bed.serve(wait_for_go)

    async def act(ctx: RunContext, inbox: list[Message]) -> Any:
        handle = await ctx.spawn(other, "boot")
        limit = 1.0 if inbox[0].payload == "timer" else HOURS
        winner = await ctx.select(
            ctx.receive(), ctx.sleep(limit), ctx.sleep_until_signal("go"), ctx.join(handle)
        )
        return winner.index

    agent = await bed.serve(act)
    for index, what in enumerate(("message", "timer", "signal", "child")):
        run_id = await bed.submit(agent, what)
        [child] = await children_of(bed, run_id)
        if what != "timer":  # it may have fired by now
            await bed.seen(child, K.RUN_STARTED)
        if bed.drops and what != "timer":
            await bed.seen(run_id, K.RUN_SUSPENDED)
        if what == "message":
            await bed.runtime.send(agent, "m")
        elif what == "signal":
            await bed.runtime.signal(run_id, "go")
        elif what == "child":
            await bed.runtime.signal(child, "go")
        assert await bed.result(run_id) == index
        await bed.ended(child)


async def children_of(bed: Bed, run_id: RunId) -> list[RunId]:
    """Return the run's children, once there are any."""
    await bed.seen(run_id, K.CHILD_SPAWNED)
    return [handle.run_id for handle in await bed.runtime.children(run_id)]


class Counted:
    """A counter of all store calls of a bed's hosts from now on."""

    def __init__(self, bed: Bed) -> None:
        self.faults = Faults()
        self._before = bed.open_store
        bed.open_store = self.open_store

    def open_store(self, owner: HostIncarnation) -> AbstractAsyncContextManager[RunStore]:
        """Open a store whose calls are counted."""

        @asynccontextmanager
        async def opened() -> AsyncIterator[RunStore]:
            async with self._before(owner) as store:
                yield FaultyStore.wrap(store, self.faults, lambda: None)

        return opened()


@pytest.mark.item(109, 167)
@pytest.mark.parametrize("verb", VERBS)
async def test_three_hours_of_waiting_make_no_store_call(bed: Bed, verb: str) -> None:
    """A host with a suspended run makes the calls of a host without one, and no write."""
    if bed.backend != "memory" or not bed.drops:
        pytest.skip("virtual hours; the idle benchmark counts PostgreSQL's statements")
    counted = Counted(bed)
    other = await bed.serve(wait_for_go)
    plays: list[str] = []

    async def act(ctx: RunContext, inbox: list[Message]) -> Any:
        del inbox
        plays.append(ctx.run_id)
        if verb == "sleep_until":
            await ctx.sleep_until(await ctx.now() + timedelta(seconds=2 * HOURS))
            return 7
        return await wait_in(bed, ctx, verb, other)

    agent = await bed.serve(act)
    await bed.restart()
    await asyncio.sleep(60)
    idle = await calls_of_hours(counted)
    run_id = await bed.submit(agent)
    await bed.seen(run_id, K.RUN_SUSPENDED)
    await asyncio.sleep(60)
    entries, played = await bed.log(run_id), len(plays)
    waiting = await calls_of_hours(counted)
    assert waiting == idle
    assert not {"commit", "append", "load", "signals", "answers"} & set(waiting)
    assert (await bed.log(run_id), len(plays)) == (entries, played)
    await bed.runtime.cancel(run_id)


async def calls_of_hours(counted: Counted) -> dict[str, int]:
    """Return the calls of the hosts in three hours, rounded: scans shift by one."""
    before = len(counted.faults.calls)
    await asyncio.sleep(HOURS - 100)
    calls = counted.faults.calls[before:]
    return {name: round(calls.count(name) / 10) for name in sorted(set(calls))}


@pytest.mark.item(107, 167)
@pytest.mark.timeout(120)
async def test_suspended_runs_are_rows(bed: Bed) -> None:
    """No task, no execution, and less than 5,000 bytes of the host's memory each."""
    if bed.backend != "postgres" or not bed.drops:
        pytest.skip("in the memory assembly the rows themselves are in memory")
    total = 500  # bytes that each run adds; the `suspended` benchmark has 10,000 of them
    type_ = bed.name().type
    await bed.runtime.register_type(type_, lambda agent_id: Acting(agent_id, wait_for_go))
    await suspended(bed, type_, range(200))  # one-time costs of the first runs do not count
    tasks = len(asyncio.all_tasks())
    gc.collect()
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        runs = await suspended(bed, type_, range(200, 200 + total))
        gc.collect()
        each = (tracemalloc.get_traced_memory()[0] - before) / total
    finally:
        tracemalloc.stop()
    assert each < 5_000
    assert len(asyncio.all_tasks()) <= tasks + 5
    assert bed.runtime._host.worker.dispatcher.load == 0
    await bed.runtime.signal(runs[0], "go", 1)
    assert await bed.result(runs[0]) == 1


async def suspended(bed: Bed, type_: str, keys: range) -> list[RunId]:
    """Return suspended runs of new agents."""
    runs: list[RunId] = []
    for start in range(keys.start, keys.stop, 100):
        async with asyncio.TaskGroup() as group:
            tasks = [
                group.create_task(bed.submit(AgentId(type_, str(key))))
                for key in range(start, min(start + 100, keys.stop))
            ]
        runs += [task.result() for task in tasks]
    await bed.until(lambda: not bed.runtime._host.worker.dispatcher.load)
    return runs
