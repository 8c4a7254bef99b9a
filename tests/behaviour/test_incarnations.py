"""A database that may have been rolled back but was not: hosts read it again and continue."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from actors._kernel.runtime.hints import Nudge
from actors._kernel.runtime.log_entry import EntryKind

if TYPE_CHECKING:
    from actors._kernel.agent.message import Message
    from actors._runtime import RunContext
    from tests.behaviour.bed import Bed


def new_incarnation(bed: Bed) -> None:
    """Return the store's error when another server, or another incarnation, answers."""
    bed.runtime._host.notifications.publish(Nudge("incarnation"))


async def test_effects_that_execute_meanwhile_happen_once(bed: Bed) -> None:
    """Also an at-most-once effect, which is not in doubt. Queued runs start after it."""

    async def act(ctx: RunContext, inbox: list[Message]) -> object:
        number = inbox[0].payload

        async def pay() -> object:
            await bed.world.do(f"pay {number}")
            return await bed.world.wait("gate")

        await ctx.step("before", bed.world.do, f"before {number}")
        await ctx.step("pay", pay, effect="at_most_once")
        return await ctx.step("after", bed.world.do, f"after {number}", number)

    agent_id = await bed.serve(act)
    runs = [await bed.submit(agent_id, number) for number in range(3)]
    await bed.until(lambda: bed.world.count["pay 0"])
    for _ in range(3):
        new_incarnation(bed)
        await asyncio.sleep(0.01)
    bed.world.gates["gate"].set()
    new_incarnation(bed)

    assert [await bed.result(run_id) for run_id in runs] == [0, 1, 2]
    assert bed.world.order == [
        f"{what} {n}" for n in range(3) for what in ("before", "pay", "after")
    ]
    assert bed.runtime._host.worker.env.counters.recovered == 0


async def test_waiting_runs_are_woken_in_another_incarnation(bed: Bed) -> None:
    """Asks, joins, sleeps, signals and messages, in memory or as rows, wake their runs."""

    async def answer(ctx: RunContext, inbox: list[Message]) -> None:
        for question in inbox:
            await bed.world.wait("gate")
            await ctx.step("work", bed.world.do, "work")
            await ctx.reply(question, "yes")

    async def child(ctx: RunContext, inbox: list[Message]) -> str:
        del inbox
        await ctx.sleep(0.2)
        return "grown"

    target, kid = await bed.serve(answer), await bed.serve(child)

    async def act(ctx: RunContext, inbox: list[Message]) -> object:
        del inbox

        async def ask() -> object:
            return (await ctx.ask(target, "?", timeout=60)).result

        async def join() -> object:
            return (await ctx.join(await ctx.spawn(kid))).output

        async def hear() -> object:
            return await ctx.sleep_until_signal("go")

        async def take() -> object:
            mail = [await ctx.receive() for _ in range(3)]
            return [message.payload for message in mail if message is not None]

        return await ctx.gather(ask(), join(), hear(), take())

    agent_id = await bed.serve(act)
    run_id = await bed.submit(agent_id)
    await bed.seen(run_id, EntryKind.CHILD_SPAWNED)
    for n in range(3):
        new_incarnation(bed)
        await bed.runtime.send(agent_id, n)
        await asyncio.sleep(0.01)
    new_incarnation(bed)
    await bed.runtime.signal(run_id, "go", "now")
    bed.world.gates["gate"].set()
    new_incarnation(bed)

    assert await bed.result(run_id) == ["yes", "grown", "now", [0, 1, 2]]
    assert bed.world.count == {"work": 1}
