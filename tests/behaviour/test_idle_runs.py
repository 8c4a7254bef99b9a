"""Idle runs hold no slot of their host, and only a limited number of them stays in memory."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from actors._kernel.runtime.ids import AgentId
from actors._kernel.runtime.log_entry import EntryKind
from tests.behaviour.agents import Acting

if TYPE_CHECKING:
    import pytest

    from actors._kernel.agent.message import Message
    from actors._runtime import RunContext
    from tests.behaviour.bed import Bed

LONG_S = 600.0
"""No run is evicted because it waited too long in memory."""


async def test_a_chain_of_asks_needs_no_more_slots_than_there_are(bed: Bed) -> None:
    """Fifty agents, each of which asks the next one, all get their answer on a host of eight slots."""
    await bed.restart(capacity=8, suspend_after=LONG_S)
    type_ = bed.name().type

    async def act(ctx: RunContext, inbox: list[Message]) -> Any:
        n = int(ctx.agent_id.key)
        if n == 50:
            return 1
        answer = await ctx.ask(AgentId(type_, str(n + 1)), n, timeout=15.0)
        assert answer.kind == "replied", (n, answer)
        assert isinstance(answer.result, int)
        return answer.result + 1

    await bed.runtime.register_type(type_, lambda agent_id: Acting(agent_id, act))

    assert await bed.result(await bed.submit(AgentId(type_, "1"))) == 50


async def test_an_idle_run_holds_no_slot(bed: Bed) -> None:
    """Beside two idle runs a host of one slot executes a third; they continue beside a fourth."""
    await bed.restart(capacity=1, suspend_after=LONG_S)
    waiting = [await bed.submit(await bed.serve(_wait)) for _ in range(2)]
    await bed.until(lambda: bed.runtime._host.worker.env.idle.count == 2)

    async def hold(ctx: RunContext, inbox: list[Message]) -> None:
        del inbox
        await ctx.step("hold", bed.world.wait, "open")

    assert await bed.play(_echo) == "done"
    holding = await bed.submit(await bed.serve(hold))
    await bed.until(lambda: bed.runtime._host.worker.dispatcher.load == 3)
    late = await bed.submit(await bed.serve(_echo))
    for run_id in waiting:
        await bed.runtime.signal(run_id, "go")
        assert await bed.result(run_id) == "went"
    assert bed.runtime._host.worker.dispatcher.backlog == 1, "the place is taken"
    bed.world.gates["open"].set()
    await bed.result(holding)

    assert await bed.result(late) == "done"
    assert bed.runtime._host.worker.env.idle.count == 0


async def test_a_run_above_the_limit_of_idle_runs_is_evicted_at_once(bed: Bed) -> None:
    """Of five idle runs a host of one slot keeps two in memory; all of them can be woken."""
    await bed.restart(capacity=1, suspend_after=LONG_S)
    runs = [await bed.submit(await bed.serve(_wait)) for _ in range(5)]
    await bed.until(
        lambda: (
            bed.runtime._host.worker.env.idle.count == bed.runtime._host.worker.dispatcher.load == 2
        )
    )
    suspended_runs = [run_id for run_id in runs if await bed.log(run_id, EntryKind.RUN_SUSPENDED)]

    assert len(suspended_runs) == 3
    for run_id in runs:
        await bed.runtime.signal(run_id, "go")
        assert await bed.result(run_id) == "went"


async def test_a_run_in_a_long_sleep_is_evicted_soon(bed: Bed) -> None:
    """A long sleep gains nothing in memory. A sleep within the idle time stays."""
    await bed.restart(suspend_after=LONG_S)

    async def act(ctx: RunContext, inbox: list[Message]) -> None:
        await ctx.sleep(float(str(inbox[0].payload)))

    agents = [await bed.serve(act) for _ in range(2)]
    short = await bed.submit(agents[0], LONG_S / 2)
    long = await bed.submit(agents[1], LONG_S * 2)
    await bed.seen(long, EntryKind.RUN_SUSPENDED)

    assert bed.runtime._host.worker.env.idle.count == 1
    assert not await bed.log(short, EntryKind.RUN_SUSPENDED)


async def test_fewer_runs_may_idle_for_a_signal_than_for_an_answer(
    bed: Bed, monkeypatch: pytest.MonkeyPatch
) -> None:
    """People answer late.

    Three runs wait for them with a limit of one: two are evicted, a run that asks stays.
    """
    monkeypatch.setattr("actors._runtime.loop.timers.MAX_IDLE_FOR_SIGNALS", 1)
    await bed.restart(suspend_after=LONG_S)

    runs = [await bed.submit(await bed.serve(_wait)) for _ in range(3)]
    for run_id in runs:
        await bed.seen(run_id, EntryKind.RUN_STARTED)
    await bed.until(lambda: bed.runtime._host.worker.dispatcher.load == 1)

    async def hold(ctx: RunContext, inbox: list[Message]) -> None:
        bed.world.count["holds"] += 1
        await ctx.step("hold", bed.world.wait, "open")

    target = await bed.serve(hold)

    async def ask(ctx: RunContext, inbox: list[Message]) -> None:
        await ctx.ask(target, None, timeout=LONG_S)

    asker = await bed.submit(await bed.serve(ask))
    await bed.until(lambda: bed.world.count["holds"])
    await bed.until(lambda: bed.runtime._host.worker.env.idle.count == 2)
    evicted_runs = [run_id for run_id in runs if await bed.log(run_id, EntryKind.RUN_SUSPENDED)]
    bed.world.gates["open"].set()

    assert len(evicted_runs) == 2
    assert not await bed.log(asker, EntryKind.RUN_SUSPENDED)


async def _wait(ctx: RunContext, inbox: list[Message]) -> str:
    del inbox
    await ctx.sleep_until_signal("go")
    return "went"


async def _echo(ctx: RunContext, inbox: list[Message]) -> str:
    del ctx, inbox
    return "done"
