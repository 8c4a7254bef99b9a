"""Cancelling a run: from every status, from this process and from another."""

from __future__ import annotations

import asyncio
import functools
from typing import TYPE_CHECKING

import pytest

from actors._kernel.runtime.log_entry import EntryKind
from actors._kernel.runtime.scheduler import RetryPolicy, RunStatus
from actors.errors import CancellationError, RunFailedError
from tests.behaviour.agents import World
from tests.harness.faulty_store import Faults, Manner

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from contextlib import AbstractAsyncContextManager

    from actors._kernel.agent.message import Message
    from actors._kernel.runtime.ids import RunId
    from actors._runtime import RunContext, Runtime
    from tests.behaviour.bed import Bed


def by_host_and_by_client(
    scenario: Callable[[Bed, str], Awaitable[None]],
) -> Callable[[Bed], Awaitable[None]]:
    """Run a scenario twice on one bed: cancelled by this process, and by another one."""

    @functools.wraps(scenario)
    async def both(bed: Bed) -> None:
        for asker in ("host", "client"):
            bed.world = World()
            await scenario(bed, asker)

    # Else pytest would request the scenario's arguments as fixtures.
    del both.__wrapped__
    return both


async def _cancel(bed: Bed, asker: str, run_id: RunId, reason: str = "enough") -> None:
    if asker == "host":
        await bed.runtime.cancel(run_id, reason=reason)
        return
    client: AbstractAsyncContextManager[Runtime] = bed.client()
    async with client as other:
        await other.cancel(run_id, reason=reason)


async def _is_cancelled(bed: Bed, run_id: RunId, reason: str = "enough") -> None:
    """Assert that the run is cancelled in its row, its log and for its waiters."""
    with pytest.raises(RunFailedError, match=reason) as caught:
        await bed.result(run_id)
    assert caught.value.status == RunStatus.CANCELLED
    log = await bed.log(run_id)
    assert log[-1].kind == EntryKind.RUN_CANCELLED
    assert log[-1].payload["reason"] == reason
    assert (await bed.row(run_id)).status is RunStatus.CANCELLED


@pytest.mark.item(30, 66, 162)
@by_host_and_by_client
async def test_a_queued_run_is_cancelled_without_executing(bed: Bed, asker: str) -> None:
    """It ends at once and never executes; the run that occupies the agent is not affected."""

    async def act(ctx: RunContext, inbox: list[Message]) -> object:
        await ctx.step("mark", bed.world.do, "mark")
        await ctx.sleep_until_signal("go")
        return inbox[0].payload

    agent = await bed.serve(act)
    first = await bed.submit(agent, 1)
    await bed.marked(first)
    queued = await bed.submit(agent, 2)
    last = await bed.submit(agent, 3)
    await _cancel(bed, asker, queued)
    await _is_cancelled(bed, queued)
    assert await bed.kinds(queued) == ["run.cancelled"]
    for run_id in (first, last):
        await bed.runtime.signal(run_id, "go")
    assert [await bed.result(first), await bed.result(last)] == [1, 3]
    assert bed.world.count["mark"] == 2


@pytest.mark.item(30, 60, 65)
@by_host_and_by_client
async def test_a_step_is_interrupted_by_a_cancel(bed: Bed, asker: str) -> None:
    """The step is interrupted, and the agent is free again."""

    async def act(ctx: RunContext, inbox: list[Message]) -> object:
        if inbox[0].payload == "hang":
            await ctx.step("hang", bed.world.hang, "hang")
        return "free"

    agent = await bed.serve(act)
    run_id = await bed.submit(agent, "hang")
    await bed.world.entered.wait()
    await _cancel(bed, asker, run_id)
    await _is_cancelled(bed, run_id)
    assert await bed.result(await bed.submit(agent, "next")) == "free"


@pytest.mark.item(30, 60, 66)
@by_host_and_by_client
async def test_a_waiting_run_is_cancelled(bed: Bed, asker: str) -> None:
    """In memory or suspended, the run ends, and the agent's next run starts."""

    async def act(ctx: RunContext, inbox: list[Message]) -> object:
        if inbox[0].payload == "wait":
            await ctx.step("mark", bed.world.do, "mark")
            await ctx.sleep_until_signal("never")
        return "free"

    agent = await bed.serve(act)
    run_id = await bed.submit(agent, "wait")
    await bed.marked(run_id)
    following = await bed.submit(agent, "next")
    await _cancel(bed, asker, run_id)
    await _is_cancelled(bed, run_id)
    assert await bed.result(following) == "free"


async def _has_timer(bed: Bed, run_id: RunId) -> bool:
    """Return whether the store wakes the run within a minute."""
    shards = [lease.shard for lease in bed.runtime._host.worker.held.leases]
    return run_id in [t.run_id for t in await bed.runtime.store.backlog.due(shards, within_s=60)]


@pytest.mark.item(66, 227)
@by_host_and_by_client
async def test_a_cancelled_sleep_is_not_woken_by_its_timer(bed: Bed, asker: str) -> None:
    """The run does not continue when the timer would have fired."""

    async def act(ctx: RunContext, inbox: list[Message]) -> None:
        del inbox
        await ctx.step("mark", bed.world.do, "mark")
        await ctx.sleep(0.3 if bed.backend == "memory" else 30)
        await ctx.step("woke", bed.world.do, "woke")

    run_id = await bed.submit(await bed.serve(act))
    await bed.marked(run_id)
    assert await _has_timer(bed, run_id) == bed.drops
    await _cancel(bed, asker, run_id)
    await _is_cancelled(bed, run_id)
    assert not await _has_timer(bed, run_id)
    before = await bed.log(run_id)
    if bed.backend == "memory":
        await asyncio.sleep(0.5)  # the time at which it must not wake
    assert await bed.log(run_id) == before
    assert bed.world.count["woke"] == 0


@pytest.mark.item(66, 163)
@by_host_and_by_client
async def test_a_run_in_back_off_is_cancelled_at_once(bed: Bed, asker: str) -> None:
    """The run ends at once, not when its next attempt is due."""

    async def act(ctx: RunContext, inbox: list[Message]) -> None:
        del ctx, inbox
        await bed.world.fail("attempt")

    policy = RetryPolicy(max_retries=3, backoff_s=200)
    run_id = await bed.submit(await bed.serve(act), retry_policy=policy)
    await bed.seen(run_id, EntryKind.RUN_ATTEMPT_FAILED)
    await _cancel(bed, asker, run_id)
    await _is_cancelled(bed, run_id)
    assert bed.world.count["attempt"] == 1


@pytest.mark.item(30, 66)
@by_host_and_by_client
async def test_a_parked_run_can_be_cancelled(bed: Bed, asker: str) -> None:
    """An operator can cancel it instead of resolving it."""

    async def act(ctx: RunContext, inbox: list[Message]) -> None:
        del ctx, inbox
        raise ValueError

    policy = RetryPolicy(max_retries=0, on_exhausted="pause")
    run_id = await bed.submit(await bed.serve(act), retry_policy=policy)
    await bed.seen(run_id, EntryKind.RUN_PARKED)
    await _cancel(bed, asker, run_id)
    await _is_cancelled(bed, run_id)


@pytest.mark.item(65, 104)
@by_host_and_by_client
async def test_a_loop_stops_at_check(bed: Bed, asker: str) -> None:
    """`ctx.check()` raises CancellationError once the run is cancelled."""
    looping = asyncio.Event()

    async def act(ctx: RunContext, inbox: list[Message]) -> None:
        del inbox
        while True:
            try:
                await asyncio.sleep(0.001)
            except asyncio.CancelledError:
                bed.world.order.append("interrupted")
            looping.set()
            try:
                ctx.check()
            except CancellationError as exc:
                bed.world.order.append(exc.reason)
                raise

    run_id = await bed.submit(await bed.serve(act))
    await looping.wait()
    await _cancel(bed, asker, run_id)
    await _is_cancelled(bed, run_id)
    assert bed.world.order[-1] == "enough"


@pytest.mark.item(60, 162)
@by_host_and_by_client
async def test_cleanup_code_executes_no_effect(bed: Bed, asker: str) -> None:
    """`finally` blocks run, but ctx calls in them raise again, and no effect happens."""

    async def act(ctx: RunContext, inbox: list[Message]) -> None:
        del inbox
        try:
            await ctx.step("hang", bed.world.hang, "hang")
        finally:
            bed.world.order.append("finally")
            await ctx.step("undo", bed.world.do, "undo")

    run_id = await bed.submit(await bed.serve(act))
    await bed.world.entered.wait()
    await _cancel(bed, asker, run_id)
    await _is_cancelled(bed, run_id)
    assert bed.world.order == ["finally"]


@pytest.mark.item(162, 160)
@by_host_and_by_client
async def test_an_ended_run_stays_as_it_ended(bed: Bed, asker: str) -> None:
    """Cancelling it changes nothing and sends nothing."""

    async def act(ctx: RunContext, inbox: list[Message]) -> str:
        del ctx, inbox
        return "done"

    run_id = await bed.submit(await bed.serve(act))
    await bed.result(run_id)
    await _cancel(bed, asker, run_id)
    assert (await bed.row(run_id)).status is RunStatus.COMPLETED
    assert (await bed.kinds(run_id))[-1] == "run.completed"
    assert not await bed.runtime.signal(run_id, "late")


@pytest.mark.item(66)
async def test_a_cancel_survives_a_crash(bed: Bed) -> None:
    """The cancel was requested while no host was alive; the next host executes it."""

    async def act(ctx: RunContext, inbox: list[Message]) -> None:
        del inbox
        await ctx.step("hang", bed.world.hang, "hang", None)

    run_id = await bed.submit(await bed.serve(act))
    await bed.world.entered.wait()
    await bed.crash()
    async with bed.client() as other:
        await other.cancel(run_id, reason="enough")
    await bed.start()
    await _is_cancelled(bed, run_id)
    assert bed.world.count["hang"] == 1


@pytest.mark.item(66)
async def test_a_cancel_that_the_store_could_not_write_is_tried_again(
    bed: Bed, caplog: pytest.LogCaptureFixture
) -> None:
    """The host says so in a warning: it is no error of the host, and needs no operator."""

    async def act(ctx: RunContext, inbox: list[Message]) -> None:
        await ctx.sleep_until_signal("go")

    faults = Faults(method="commit", manner=Manner.ERROR_BEFORE)
    bed.go_wrong(faults)
    await bed.restart()
    run_id = await bed.submit(await bed.serve(act))
    await bed.seen(run_id, EntryKind.RUN_SUSPENDED)
    faults.nth = len(faults.calls)
    await bed.runtime.cancel(run_id, reason="enough")
    await _is_cancelled(bed, run_id)
    assert faults.struck
    worker_records = [record for record in caplog.records if record.name == "callboard.worker"]
    assert [record.levelname for record in worker_records if "cancel" in record.message] == [
        "WARNING"
    ]
    assert not [record for record in caplog.records if record.levelname == "ERROR"]
