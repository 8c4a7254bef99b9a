"""Retention: rows of ended runs are deleted after a while; later requests get their status."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from actors._kernel.agent.agent import HistoryRetention
from actors._kernel.agent.message import Message
from actors._kernel.runtime.log_entry import EntryKind as K
from actors._kernel.runtime.scheduler import RetryPolicy, RunStatus
from actors._kernel.stores.outside import Caller
from actors._runtime.loop.tasks import TaskScope
from actors._runtime.sharding.retention import sweep_all, sweep_for_ever
from actors.errors import RunFailedError, RunSweptError, UnknownRunError

if TYPE_CHECKING:
    from actors._kernel.runtime.ids import RunId
    from actors._runtime import RunContext
    from tests.behaviour.bed import Bed

ONCE = RetryPolicy(max_retries=0)


async def shout(ctx: RunContext, inbox: list[Message]) -> object:
    """An agent whose message selects its end."""
    await ctx.step("mark", lambda: inbox[0].payload)
    if inbox[0].payload == "fail":
        raise ValueError("as asked")
    if inbox[0].payload == "wait":
        return await ctx.sleep_until_signal("go")
    return str(inbox[0].payload).upper()


async def sweep(bed: Bed) -> int:
    """Sweep all runs that have ended until now."""
    await asyncio.sleep(0.01)  # the end has to lie in the past
    return await sweep_all(bed.runtime.store, older_than_s=0)


@pytest.mark.item(487)
async def test_the_result_of_a_swept_run_is_an_error(bed: Bed) -> None:
    """A request for its result raises an error; its status and its agent are known."""
    agent = await bed.serve(shout)
    run_id = await bed.submit(agent, "hello")
    assert await bed.result(run_id) == "HELLO"

    assert await sweep(bed) >= 1

    with pytest.raises(RunSweptError) as caught:
        await bed.result(run_id)
    assert (caught.value.run_id, caught.value.status) == (run_id, "COMPLETED")
    asker = Caller(agent.tenant, "crm", sees="tenant")
    with pytest.raises(RunSweptError, match="ended COMPLETED and was swept"):
        await bed.runtime.front.result(asker, run_id)
    joined = await bed.runtime.join(run_id)
    assert (joined.status, joined.output) == (RunStatus.COMPLETED, None)
    status = await bed.runtime.status(run_id)
    assert (status.status, status.last_milestone) == (RunStatus.COMPLETED, None)
    assert (await bed.runtime.handle(run_id)).agent_id == agent
    async with asyncio.timeout(20):
        assert [entry async for entry in bed.runtime.tail(run_id)] == []
    assert await sweep(bed) == 0


@pytest.mark.item(487)
async def test_message_ids_of_swept_runs_stay_known(bed: Bed) -> None:
    """A repeated message id starts nothing: the swept run's id is returned."""
    agent = await bed.serve(shout)
    submitted, sent = Message.of(agent, "one"), Message.of(agent, "two")
    run_id = await bed.submit(agent, submitted)
    assert await bed.runtime.send(agent, sent)
    await bed.result(run_id)
    async with asyncio.timeout(20):
        while await bed.runtime.store.lists.pending_count(agent):  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    assert await sweep(bed) >= 2

    assert await bed.submit(agent, submitted) == run_id
    assert await bed.runtime.send(agent, sent) is False
    assert len(await bed.runtime.store.lists.runs(agent=agent)) == 2


@pytest.mark.item(487)
async def test_a_failed_run_that_was_swept_has_failed(bed: Bed) -> None:
    """Without its reason. It cannot be redriven any more, because its messages are deleted."""
    run_id = await bed.submit(await bed.serve(shout), "fail", retry_policy=ONCE)
    with pytest.raises(RunFailedError):
        await bed.result(run_id)
    await sweep(bed)

    with pytest.raises(RunSweptError):
        await bed.result(run_id)
    assert (await bed.runtime.join(run_id)).status is RunStatus.FAILED
    with pytest.raises(UnknownRunError):
        await bed.runtime.redrive_run(run_id)


@pytest.mark.item(487)
async def test_an_open_run_keeps_its_rows(bed: Bed) -> None:
    """Its log, its signals and the ends of its children, also of swept ones."""
    child = await bed.serve(shout)

    async def act(ctx: RunContext, inbox: list[Message]) -> object:
        del inbox
        handle = await ctx.spawn(child, "hello")
        await ctx.step("mark", bed.world.do, "mark")
        await ctx.sleep_until_signal("go")
        return [(await ctx.join(handle)).output, await ctx.sleep_until_signal("early")]

    run_id = await bed.submit(await bed.serve(act))
    await bed.marked(run_id)
    (handle,) = await bed.runtime.children(run_id)
    await bed.ended(handle.run_id)
    await bed.runtime.signal(run_id, "early", "kept")
    before = await bed.log(run_id)

    assert await sweep(bed) >= 1

    assert (await bed.row(handle.run_id)).swept
    assert await bed.log(run_id) == before
    await bed.restart()
    await bed.runtime.signal(run_id, "go")
    assert await bed.result(run_id) == ["HELLO", "kept"]


@pytest.mark.item(487)
async def test_a_run_with_retention_none_is_deleted_at_once(bed: Bed) -> None:
    """With retention NONE, whatever the host's retention is."""
    agent = await bed.serve(shout)
    kept_id = await bed.submit(agent, "kept")
    deleted_id = await bed.submit(agent, "gone", retention=HistoryRetention.NONE)
    for run_id in (kept_id, deleted_id):
        await bed.ended(run_id)
    await asyncio.sleep(0.01)

    await sweep_all(bed.runtime.store, older_than_s=3600)

    assert (await bed.row(deleted_id)).swept
    assert await bed.result(kept_id) == "KEPT"


@pytest.mark.item(487)
async def test_a_host_sweeps_by_itself(bed: Bed) -> None:
    """Repeatedly: all runs that are old enough by then."""
    agent = await bed.serve(shout)
    run_id = await bed.submit(agent, "hello")
    await bed.result(run_id)
    await asyncio.sleep(0.01)
    async with TaskScope() as tasks:
        tasks.start(sweep_for_ever(bed.runtime.store, older_than_s=0), name="sweep")
        async with asyncio.timeout(20):
            while not (await bed.row(run_id)).swept:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        if bed.backend == "memory":  # a minute is no retention
            later = await bed.submit(agent, "later")
            await bed.ended(later)
            await asyncio.sleep(61)
            assert (await bed.row(later)).swept


@pytest.mark.item(487)
async def test_the_log_is_as_long_as_its_last_generation(bed: Bed) -> None:
    """Entries before `continue_as_new` are not read again, whatever their number."""

    async def act(ctx: RunContext, inbox: list[Message]) -> object:
        order: Any = inbox[0].payload
        if order["left"]:
            for _ in range(order["left"]):
                await ctx.random()
            await ctx.continue_as_new({"left": 0})
        await ctx.step("mark", bed.world.do, "mark")
        await ctx.sleep_until_signal("go")
        return "done"

    agent = await bed.serve(act)
    lengths: dict[int, int] = {}
    runs: dict[int, RunId] = {}
    for n in (1_000, 10_000):
        run_id = runs[n] = await bed.submit(agent, {"left": n})
        await bed.seen(run_id, K.EFFECT_RESULT, name="mark")
        (loaded,) = await bed.runtime.store.reads.load([run_id])
        lengths[n] = len(loaded.entries)
        assert loaded.row.last_seq > n
        await bed.runtime.signal(run_id, "go")
        assert await bed.result(run_id) == "done"
    assert max(lengths.values()) < 10
