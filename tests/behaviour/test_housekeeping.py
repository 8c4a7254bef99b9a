"""A runtime releases all its resources, and its costs while it runs are bounded."""

from __future__ import annotations

import asyncio
import gc
import socket
from typing import TYPE_CHECKING, Any

import pytest

from actors._kernel.runtime.log_entry import EntryKind
from actors._kernel.runtime.scheduler import RunStatus
from actors._runtime import Runtime
from actors._runtime.execution.execution import Execution
from tests.behaviour.agents import Acting

if TYPE_CHECKING:
    from actors._kernel.agent.message import Message
    from actors._runtime import RunContext
    from tests.behaviour.bed import Bed


async def _echo(ctx: RunContext, inbox: list[Message]) -> object:
    return await ctx.step("echo", lambda: inbox[0].payload)


@pytest.mark.item(1, 5, 7, 16)
async def test_a_runtime_without_arguments_opens_no_socket(
    bed: Bed, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`Runtime()` runs an agent to its end with nothing but Python."""

    def refuse(*args: object, **kwargs: object) -> None:
        raise AssertionError("a socket was opened")

    agent = Acting(bed.name(), _echo)
    with monkeypatch.context() as patch:
        patch.setattr(socket, "socket", refuse)
        async with Runtime() as runtime:
            await runtime.register(agent)
            async with asyncio.timeout(20):
                assert await runtime.result(await runtime.submit(agent.id, "hi")) == "hi"


async def test_a_run_that_has_ended_is_free_without_the_garbage_collector(bed: Bed) -> None:
    """Else the garbage collector would take half the time of a busy host."""
    agent = await bed.serve(_echo)
    await bed.result(await bed.submit(agent, "first"))

    def executions() -> int:
        return sum(isinstance(each, Execution) for each in gc.get_objects())

    gc.collect()
    before = executions()
    gc.disable()
    try:
        for n in range(5):
            await bed.result(await bed.submit(agent, n))
        await bed.until(lambda: executions() <= before)
    finally:
        gc.enable()


@pytest.mark.item(29, 31, 52)
async def test_no_task_is_left_after_stop(bed: Bed) -> None:
    """Whether its runs execute, wait or back off."""
    before = asyncio.all_tasks()
    await bed.stop()
    other_tasks = asyncio.all_tasks() - before
    await bed.start()

    async def act(ctx: RunContext, inbox: list[Message]) -> None:
        match inbox[0].payload:
            case "executes":
                await ctx.step("hang", bed.world.hang, "hang")
            case "waits":
                await ctx.step("mark", bed.world.do, "mark")
                await ctx.sleep_until_signal("never")
            case "fails":
                raise ValueError

    runs = [
        await bed.submit(await bed.serve(act), how, max_retries=3)
        for how in ("executes", "waits", "fails")
    ]
    async with asyncio.timeout(20):
        await bed.world.entered.wait()
    await bed.marked(runs[1])
    await bed.seen(runs[2], EntryKind.RUN_ATTEMPT_FAILED)
    runtime = bed.runtime
    await runtime.stop()
    await bed.stop()
    assert asyncio.all_tasks() - before == other_tasks
    assert not runtime._host.worker._executing
    await bed.start()


@pytest.mark.item(31)
async def test_leaving_the_block_stops_the_runtime_also_on_an_error(bed: Bed) -> None:
    """The error is raised, the shards are released, and a second stop changes nothing."""
    store = bed.runtime.store
    await bed.runtime.stop()
    agent = Acting(bed.name(), _echo)
    runtime = Runtime(store=store, clock=bed.clock, owner=bed.runtime.owner)

    async def breaks() -> None:
        async with runtime:
            await runtime.register(agent)
            raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        await breaks()
    await runtime.stop()
    assert not [t for t in asyncio.all_tasks() if t.get_name() in ("scan", "heartbeat")]


@pytest.mark.item(28)
async def test_starting_twice_does_nothing(bed: Bed) -> None:
    """There is one scan and one set of shards."""
    agent = await bed.serve(_echo)
    shards = bed.runtime._host.worker.held.leases
    await bed.runtime.start()
    assert bed.runtime._host.worker.held.leases == shards
    assert len([t for t in asyncio.all_tasks() if t.get_name() == "scan"]) == 1
    assert await bed.result(await bed.submit(agent, 1)) == 1


@pytest.mark.item(23, 64)
async def test_the_workers_maps_are_empty_after_many_runs(bed: Bed) -> None:
    """Completed, failed, cancelled, suspended and resumed ones, with waiters and joins."""
    n = 1000 if bed.backend == "memory" else 150

    async def act(ctx: RunContext, inbox: list[Message]) -> object:
        match int(str(inbox[0].payload)) % 5:
            case 1:
                raise ValueError
            case 2:
                return await ctx.sleep_until_signal("go")
            case 3:
                await ctx.sleep(0.01)
        return await ctx.step("echo", lambda: 1)

    agents = [await bed.serve(act) for _ in range(20)]
    runs = [await bed.submit(agents[i % 20], i, max_retries=0) for i in range(n)]
    for i, run_id in enumerate(runs):
        if i % 5 == 2:
            await bed.runtime.signal(run_id, "go")
        if i % 5 == 4:
            await bed.runtime.cancel(run_id)
    for i, run_id in enumerate(runs):
        row = await bed.ended(run_id)
        expected_status = {1: RunStatus.FAILED, 4: RunStatus.CANCELLED}.get(
            i % 5, RunStatus.COMPLETED
        )
        assert row.status in (expected_status, RunStatus.COMPLETED)
    worker = bed.runtime._host.worker
    await bed.until(
        lambda: (
            not (worker.dispatcher.load or worker.dispatcher.backlog or worker.completions._waiters)
        )
    )
    await bed.until(lambda: not len(worker._mailboxes))  # scans and cancels hold one for a moment
    assert worker._executing == {}
    assert worker._state.fresh == {}
    assert worker._state.refusals == {}


@pytest.mark.item(2, 40)
async def test_ten_agents_that_sleep_do_so_together(bed: Bed) -> None:
    """Ten concurrent sleeps take less than two in sequence; on busy servers less than ten."""
    seconds, most = (1.0, 2.0) if bed.backend == "memory" else (1.5, 15.0)

    async def act(ctx: RunContext, inbox: list[Message]) -> None:
        if inbox[0].payload == "ctx":
            await ctx.sleep(seconds)
        else:
            await ctx.step("sleep", asyncio.sleep, seconds)

    begun = asyncio.get_running_loop().time()
    how = ("ctx", "step")
    runs = [await bed.submit(await bed.serve(act), how[i % 2]) for i in range(10)]
    for run_id in runs:
        await bed.result(run_id)
    assert seconds <= asyncio.get_running_loop().time() - begun < most


@pytest.mark.item(39)
async def test_no_more_runs_execute_than_the_capacity(bed: Bed) -> None:
    """The others start when a slot is free."""
    await bed.restart(capacity=3)
    now, most = [0], [0]
    full = asyncio.Event()

    async def work() -> Any:
        now[0] += 1
        most[0] = max(most[0], now[0])
        if now[0] == 3:
            full.set()
        await full.wait()
        await asyncio.sleep(0.01)
        now[0] -= 1

    async def act(ctx: RunContext, inbox: list[Message]) -> None:
        del inbox
        await ctx.step("work", work)

    runs = [await bed.submit(await bed.serve(act)) for _ in range(12)]
    for run_id in runs:
        await bed.result(run_id)
    assert most[0] == 3


@pytest.mark.item(38, 151)
async def test_a_queued_run_starts_at_once(bed: Bed) -> None:
    """The submit itself starts it, not a poll."""
    agent = await bed.serve(_echo)
    await bed.result(await bed.submit(agent, 0))  # the database's first plans take their time
    begun = asyncio.get_running_loop().time()
    await bed.result(await bed.submit(agent, 1))
    assert asyncio.get_running_loop().time() - begun < 0.1 + bed.slack_s


@pytest.mark.item(170, 171)
async def test_every_row_follows_from_its_log(bed: Bed) -> None:
    """Runs in every status: the rows of the store can be derived from the log."""

    async def act(ctx: RunContext, inbox: list[Message]) -> object:
        match inbox[0].payload:
            case "fails":
                await ctx.step("fail", bed.world.fail, "fail")
            case "fails at once":
                raise ValueError
            case "waits":
                await ctx.step("mark", bed.world.do, "mark")
                await ctx.sleep_until_signal("never")
            case "continues":
                await ctx.continue_as_new("completes")
        await ctx.state.set("n", 1)
        await ctx.sleep(0.01)
        return {"b": 1, "a": -0.0}

    runs = []
    for how in ("completes", "fails", "fails at once", "waits", "continues", "cancelled"):
        agent = await bed.serve(act)
        runs.append(await bed.submit(agent, how if how != "cancelled" else "waits"))
    for run_id in (runs[3], runs[5]):
        await bed.marked(run_id)
    await bed.runtime.cancel(runs[5])
    for n in (0, 1, 2, 4, 5):
        await bed.ended(runs[n])
    for run_id in runs:
        row = await bed.row(run_id)
        assert await bed.runtime.store.operators.refold(run_id) == row
        assert repr((await bed.runtime.store.operators.refold(run_id)).result) == repr(row.result)


@pytest.mark.item(114, 175)
async def test_a_tail_sees_every_entry_once_and_ends(bed: Bed) -> None:
    """The tail starts before the run, over suspensions and attempts, from any seq."""

    async def act(ctx: RunContext, inbox: list[Message]) -> object:
        del inbox
        await ctx.step("one", bed.world.do, "one")
        if ctx.meta.attempt == 1:
            await ctx.step("fail", bed.world.fail, "fail")
        await ctx.sleep(0.02)
        return 1

    async def tail(from_seq: int) -> list[int]:
        return [e.seq async for e in bed.runtime.tail(run_id, from_seq=from_seq)]

    run_id = await bed.submit(await bed.serve(act), max_retries=0)
    async with asyncio.timeout(20), asyncio.TaskGroup() as group:
        tails = [group.create_task(tail(n)) for n in (0, 0, 2)]
    last = (await bed.row(run_id)).last_seq
    assert [task.result() for task in tails] == [
        [*range(last + 1)],
        [*range(last + 1)],
        [*range(2, last + 1)],
    ]


@pytest.mark.item(29)
async def test_nothing_is_started_any_more_once_stop_was_called(bed: Bed) -> None:
    """Runs that wait to be loaded at that moment stay rows; the stop does not wait for them."""

    async def act(ctx: RunContext, inbox: list[Message]) -> None:
        del inbox
        await ctx.step("mark", bed.world.do, "mark")
        await ctx.sleep_until_signal("go")
        await ctx.step("late", bed.world.do, "late")

    runs = [await bed.submit(await bed.serve(act)) for _ in range(5)]
    for run_id in runs:
        await bed.marked(run_id)
    await bed.restart()
    for run_id in runs:
        await bed.runtime.signal(run_id, "go")
    begun = asyncio.get_running_loop().time()
    await bed.stop()
    assert asyncio.get_running_loop().time() - begun < 1 + bed.slack_s
    done = bed.world.count["late"]
    await asyncio.sleep(0.05)
    assert bed.world.count["late"] == done
    await bed.start()
    for run_id in runs:
        await bed.result(run_id)
