"""Waits: sleeps and signals, in memory or evicted."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import TYPE_CHECKING

import pytest

from actors._kernel.runtime.log_entry import EntryKind
from actors._kernel.runtime.scheduler import RunStatus
from actors._runtime.loop.timers import LEAD_S
from actors.errors import RunFailedError

if TYPE_CHECKING:
    from actors._kernel.agent.message import Message
    from actors._kernel.runtime.ids import RunId
    from actors._runtime import RunContext
    from tests.behaviour.bed import Bed

K = EntryKind


@pytest.mark.item(98, 132, 159, 168, 226)
@pytest.mark.parametrize("when", ["before", "after"])
async def test_a_signal_before_or_after_the_wait(bed: Bed, when: str) -> None:
    """The wait returns its payload."""

    async def act(ctx: RunContext, inbox: list[Message]) -> object:
        del inbox
        if when == "before":
            await ctx.step("gate", bed.world.wait, "gate")
        await ctx.step("mark", bed.world.do, "mark")
        return await ctx.sleep_until_signal("go")

    run_id = await bed.submit(await bed.serve(act))
    if when == "after":
        await bed.marked(run_id)
    assert await bed.runtime.signal(run_id, "go", {"by": "ann"})
    bed.world.gates["gate"].set()
    assert await bed.result(run_id) == {"by": "ann"}


@pytest.mark.item(98, 131, 132, 183)
async def test_signals_are_buffered_ordered_and_consumed_once(bed: Bed) -> None:
    """Names are separate, two signals of one name come in order, a known id is refused; the same on replay."""

    async def body(ctx: RunContext) -> list[object]:
        begun.append(ctx.run_id)
        await ctx.step("gate", bed.world.wait, "gate")
        return [await ctx.sleep_until_signal(name) for name in ("b", "a", "a")]

    async def signals() -> None:
        for name, payload, message_id in (("a", 1, "x"), ("b", 2, "y"), ("a", 3, "z")):
            assert await bed.runtime.signal(begun[0], name, payload, message_id=message_id)
        assert not await bed.runtime.signal(begun[0], "a", 4, message_id="x")
        bed.world.gates["gate"].set()

    begun: list[RunId] = []
    async with asyncio.TaskGroup() as group:
        waiting = group.create_task(bed.live_and_replayed(body))
        await bed.until(lambda: begun)
        await signals()
    assert all(value == [2, 1, 3] for value in waiting.result())


@pytest.mark.item(98, 131)
async def test_signals_of_two_runs_are_separate(bed: Bed) -> None:
    """Each run gets its own signals, in any order of arrival."""

    async def act(ctx: RunContext, inbox: list[Message]) -> object:
        del inbox
        await ctx.step("mark", bed.world.do, "mark")
        return await ctx.sleep_until_signal("go")

    runs = [await bed.submit(await bed.serve(act)) for _ in range(3)]
    for run_id in runs:
        await bed.marked(run_id)
    for n in (2, 0, 1):
        await bed.runtime.signal(runs[n], "go", n)
    assert [await bed.result(run_id) for run_id in runs] == [0, 1, 2]


@pytest.mark.item(98)
async def test_signals_from_another_process(bed: Bed) -> None:
    """A client's signal wakes a run of this host."""

    async def act(ctx: RunContext, inbox: list[Message]) -> object:
        del inbox
        await ctx.step("mark", bed.world.do, "mark")
        return await ctx.sleep_until_signal("go")

    run_id = await bed.submit(await bed.serve(act))
    await bed.marked(run_id)
    async with bed.client() as other:
        await other.signal(run_id, "go", 1)
        async with asyncio.timeout(20):
            assert await other.result(run_id) == 1


@pytest.mark.item(98)
async def test_reserved_signal_names_are_refused(bed: Bed) -> None:
    """An agent cannot wait for a signal that is reserved for operators."""

    async def act(ctx: RunContext, inbox: list[Message]) -> object:
        del inbox
        return await ctx.sleep_until_signal("~retry")

    with pytest.raises(RunFailedError, match="is reserved"):
        await bed.play(act)


@pytest.mark.item(99, 133, 159, 168, 220, 227)
async def test_a_sleep_is_never_early_and_replays_at_once(bed: Bed) -> None:
    """Measured by the recorded clock; a replay does not wait."""

    async def body(ctx: RunContext) -> float:
        before = await ctx.now()
        await ctx.sleep(0.2)
        return ((await ctx.now()) - before).total_seconds()

    values = await bed.live_and_replayed(body)
    assert len({*values}) == 1
    assert 0.2 <= values[0] < 0.6 + bed.slack_s


@pytest.mark.item(99, 227)
async def test_sleep_until(bed: Bed) -> None:
    """A past instant returns at once, a naive one is refused, a future one is awaited."""

    async def act(ctx: RunContext, inbox: list[Message]) -> object:
        now = await ctx.now()
        if inbox[0].payload == "naive":
            await ctx.sleep_until(now.replace(tzinfo=None))
        await ctx.sleep_until(now - timedelta(days=1))
        between = await ctx.now()
        await ctx.sleep_until(now + timedelta(seconds=0.3))
        after = await ctx.now()
        return [(between - now).total_seconds(), (after - now).total_seconds()]

    agent = await bed.serve(act)
    at_once, waited = await bed.result(await bed.submit(agent))
    assert at_once < 0.2 + bed.slack_s
    assert 0.3 <= waited < 0.7 + bed.slack_s
    with pytest.raises(RunFailedError, match="needs an aware datetime"):
        await bed.result(await bed.submit(agent, "naive"))


@pytest.mark.item(99, 108, 158)
async def test_a_sleep_ends_on_another_host(bed: Bed) -> None:
    """The timer is stored with the run: the host that takes over fires it at its instant."""

    async def act(ctx: RunContext, inbox: list[Message]) -> float:
        del inbox
        before = await ctx.now()
        await ctx.step("mark", bed.world.do, "mark")
        await ctx.sleep(0.4)
        return ((await ctx.now()) - before).total_seconds()

    run_id = await bed.submit(await bed.serve(act))
    await bed.marked(run_id)
    await bed.restart()
    assert 0.4 <= await bed.result(run_id) < 1.0 + bed.slack_s


@pytest.mark.item(105, 110, 154, 158, 169)
async def test_a_suspended_run_keeps_its_identity(bed: Bed) -> None:
    """Same id, one log with contiguous seqs; the row has the wait."""

    async def act(ctx: RunContext, inbox: list[Message]) -> str:
        del inbox
        await ctx.step("mark", bed.world.do, "mark")
        await ctx.sleep_until_signal("go")
        await ctx.sleep(0.05)
        return ctx.run_id

    run_id = await bed.submit(await bed.serve(act))
    await bed.marked(run_id)
    if bed.drops:
        row = await bed.row(run_id)
        assert row.status is RunStatus.SUSPENDED
        assert row.wake is not None
        assert row.wake.signals == ("go",)
    await bed.runtime.signal(run_id, "go")
    assert await bed.result(run_id) == run_id
    log = await bed.log(run_id)
    assert [entry.seq for entry in log] == [*range(len(log))]
    kinds = ["run.suspended", "run.resumed"] * 2 if bed.drops else []
    assert [e.kind for e in log if e.kind in ("run.suspended", "run.resumed")] == kinds
    assert await bed.kinds(run_id) == [
        "run.started",
        "msg.received",
        "effect.intent",
        "effect.result",
        "signal.received",
        "timer.set",
        "timer.fired",
        "run.completed",
    ]


@pytest.mark.item(105, 106, 107)
async def test_a_waiting_run_is_evicted(bed: Bed) -> None:
    """At once, or after `suspend_after` seconds; then it has no task and no execution."""

    async def act(ctx: RunContext, inbox: list[Message]) -> object:
        del inbox
        await ctx.step("mark", bed.world.do, "mark")
        return await ctx.sleep_until_signal("go")

    if bed.backend != "memory" and not bed.drops:
        await bed.restart(suspend_after=0.2)
    run_id = await bed.submit(await bed.serve(act))
    await bed.seen(run_id, K.RUN_SUSPENDED)
    await bed.until(lambda: not bed.runtime._host.worker.dispatcher.load)
    assert (await bed.row(run_id)).status is RunStatus.SUSPENDED
    assert not [task for task in asyncio.all_tasks() if run_id in task.get_name()]
    await bed.runtime.signal(run_id, "go", 1)
    assert await bed.result(run_id) == 1


@pytest.mark.item(109, 167)
async def test_a_long_sleep_is_replayed_once_and_writes_nothing(bed: Bed) -> None:
    """Three hours in virtual time: replayed once, just before the end, and nothing is written."""
    if bed.backend != "memory":
        pytest.skip("three hours of real time; the idle benchmark measures this on PostgreSQL")
    plays: list[float] = []
    woken: list[float] = []

    async def act(ctx: RunContext, inbox: list[Message]) -> str:
        del inbox
        plays.append(asyncio.get_running_loop().time())
        await ctx.sleep(3 * 3600)
        woken.append(asyncio.get_running_loop().time())
        return "rested"

    run_id = await bed.submit(await bed.serve(act))
    await bed.seen(run_id, K.RUN_SUSPENDED)
    last = (await bed.row(run_id)).last_seq
    await asyncio.sleep(3 * 3600 - 15)
    assert ((await bed.row(run_id)).last_seq, len(plays)) == (last, 1)
    assert await bed.result(run_id) == "rested"
    assert len(plays) == 2
    assert 3 * 3600 - 1 < plays[1] < 3 * 3600 <= woken[0] < 3 * 3600 + LEAD_S
    assert len(await bed.log(run_id, K.RUN_SUSPENDED)) == 1


async def test_an_effect_just_before_a_timer_is_written_at_once(bed: Bed) -> None:
    """A run that was loaded for its timer reacts to earlier events like any other one."""
    if bed.backend != "memory":
        pytest.skip("a matter of milliseconds")

    async def act(ctx: RunContext, inbox: list[Message]) -> None:
        del inbox
        await ctx.gather(ctx.sleep(1), signalled(ctx))

    async def signalled(ctx: RunContext) -> None:
        await ctx.sleep_until_signal("go")
        await ctx.sleep(1)

    run_id = await bed.submit(await bed.serve(act))
    begun = (await bed.seen(run_id, K.RUN_STARTED)).ts
    await asyncio.sleep(1 - LEAD_S / 2)
    await bed.runtime.signal(run_id, "go")
    await bed.result(run_id)
    [_, second] = await bed.log(run_id, K.TIMER_SET)
    assert second.ts < begun + timedelta(seconds=1)


async def test_a_run_that_was_handed_over_is_loaded_once_for_its_timer(bed: Bed) -> None:
    """Its row is due at once; it is loaded, and waits for its own instant."""
    if bed.backend != "memory":
        pytest.skip("virtual time counts the plays exactly")
    plays: list[float] = []

    async def act(ctx: RunContext, inbox: list[Message]) -> str:
        del inbox
        plays.append(asyncio.get_running_loop().time())
        await ctx.sleep(1)
        return "rested"

    run_id = await bed.submit(await bed.serve(act))
    await bed.seen(run_id, K.TIMER_SET)
    await bed.stop()
    await bed.start(suspend_after=0)
    assert await bed.result(run_id) == "rested"
    assert len(plays) <= 3


@pytest.mark.item(216, 217)
async def test_five_wake_sources_at_once_are_one_dispatch(bed: Bed) -> None:
    """Signals, messages and a timer in one moment wake the run once, and none is lost."""
    plays = []

    async def act(ctx: RunContext, inbox: list[Message]) -> object:
        del inbox
        plays.append(1)
        await ctx.step("mark", bed.world.do, "mark")
        waits = [ctx.sleep_until_signal(name) for name in ("a", "b")]
        waits += [ctx.receive(), ctx.receive(), ctx.sleep(0.3)]  # type: ignore[list-item]
        got = await ctx.gather(*waits)
        return [getattr(value, "payload", value) for value in got]

    agent = await bed.serve(act)
    run_id = await bed.submit(agent)
    await bed.marked(run_id)
    async with asyncio.TaskGroup() as group:
        group.create_task(bed.runtime.signal(run_id, "a", 1))
        group.create_task(bed.runtime.signal(run_id, "b", 2))
        group.create_task(bed.runtime.send(agent, 3))
        group.create_task(bed.runtime.send(agent, 4))
    assert sorted(await bed.result(run_id), key=str) == [1, 2, 3, 4, None]
    received = await bed.log(run_id, K.SIGNAL_RECEIVED, K.MSG_RECEIVED, K.TIMER_FIRED)
    assert len(received) == 6
    resumed = await bed.log(run_id, K.RUN_RESUMED)
    assert len(plays) == len(resumed) + 1
    assert len(resumed) <= 5
