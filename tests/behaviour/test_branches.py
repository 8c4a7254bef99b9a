"""gather, select and scope: branches of one run."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from actors._kernel.runtime.log_entry import EntryKind
from actors.errors import CancellationError

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from actors._kernel.agent.message import Message
    from actors._runtime import RunContext
    from tests.behaviour.bed import Bed

K = EntryKind


def _slow(bed: Bed, rounds: int) -> Callable[[str], Coroutine[Any, Any, Any]]:
    """Return a step function that yields to other tasks this many times."""

    async def run(name: str) -> Any:
        for _ in range(rounds):
            await asyncio.sleep(0.01)
        return await bed.world.do(name, name)

    return run


@pytest.mark.item(2, 68, 74)
async def test_gather_runs_at_the_same_time_and_keeps_the_order(bed: Bed) -> None:
    """Results have the order of the branches, whichever ends first; the same on replay."""

    async def body(ctx: RunContext) -> object:
        order: list[str] = []

        async def branch(name: str, rounds: int) -> str:
            value: str = await ctx.step(name, _slow(bed, rounds), name)
            order.append(value)
            return value

        values = await ctx.gather(branch("a", 20), branch("b", 10), branch("c", 1))
        return [values, order, await ctx.gather()]

    values = await bed.live_and_replayed(body)
    assert values[0] == [["a", "b", "c"], ["c", "b", "a"], []]
    assert all(value == values[0] for value in values)


@pytest.mark.item(68, 74)
async def test_nested_gathers_with_a_failing_inner_one(bed: Bed) -> None:
    """Its branch catches the inner failure; the outer gather goes on, live and on replay."""

    async def body(ctx: RunContext) -> object:
        async def inner(fails: bool) -> object:
            try:
                return await ctx.gather(
                    ctx.step("ok", bed.world.do, "ok", 1),
                    ctx.step("maybe", bed.world.fail, "bad")
                    if fails
                    else ctx.step("maybe", bed.world.do, "good", 2),
                )
            except ValueError as exc:
                return str(exc)

        return await ctx.gather(inner(fails=True), inner(fails=False))

    for value in await bed.live_and_replayed(body):
        assert value == ["bad is broken", [1, 2]]


@pytest.mark.item(71, 74)
async def test_a_failing_gather_closes_the_others(bed: Bed) -> None:
    """Their cleanup runs, their started effects are abandoned, and the first failure is raised."""

    async def body(ctx: RunContext) -> object:
        async def loser() -> None:
            try:
                await ctx.step("loser", bed.world.hang, "loser", None)
            finally:
                bed.world.order.append("cleanup")

        async def fail() -> None:
            await bed.world.entered.wait()
            await bed.world.fail("fail")

        try:
            await ctx.gather(loser(), ctx.step("fail", fail))
        except ValueError as exc:
            return str(exc)
        return "no error"

    values = await bed.live_and_replayed(body)
    assert {*values} == {"fail is broken"}
    assert bed.world.order.count("cleanup") == len(values)
    assert bed.world.count["loser"] == 1


async def test_a_branch_of_an_outer_scope_is_awaited_inside_an_inner_one(bed: Bed) -> None:
    """`await` returns the outer branch's result once it has ended, whatever the inner scope waits for."""

    async def body(ctx: RunContext) -> object:
        async with ctx.scope() as outer:
            slow = outer.start(ctx.step("slow", _slow(bed, 20), "slow"))
            async with ctx.scope() as inner:
                first = await slow
                second = await inner.start(ctx.step("second", _slow(bed, 1), "second"))
        return [first, second]

    for value in await bed.live_and_replayed(body):
        assert value == ["slow", "second"]


@pytest.mark.item(74)
async def test_select_closes_the_losers(bed: Bed) -> None:
    """The winner's index and value are the same on replay.

    The losers' effects are abandoned, late results dropped.
    """

    async def body(ctx: RunContext) -> object:
        async def loser() -> None:
            await ctx.step("first", bed.world.do, "first")
            await ctx.step("never ends", bed.world.hang, "loser")

        async def winner() -> str:
            await ctx.step("w1", bed.world.do, "w1")
            return str(await ctx.step("w2", _slow(bed, 3), "w2"))

        return await ctx.select(loser(), winner())

    values = await bed.live_and_replayed(body)
    assert all(tuple(value) == (1, "w2") for value in values)
    assert bed.world.count["loser"] == 1
    [row] = await bed.runtime.store.lists.runs(agent=[*bed.agents][-1])
    [won] = await bed.log(row.run_id, K.SELECT_WON)
    assert won.payload == {"index": 1}
    [abandoned] = await bed.log(row.run_id, K.EFFECT_ABANDONED)
    assert abandoned.position == "0.0.1"


@pytest.mark.item(74, 98, 133)
async def test_select_of_a_signal_and_a_sleep_works_as_a_timeout(bed: Bed) -> None:
    """The first of the two wins; the other one leaves nothing behind."""

    async def body(ctx: RunContext) -> list[object]:
        timed_out = await ctx.select(ctx.sleep_until_signal("go"), ctx.sleep(0.05))
        await bed.runtime.signal(ctx.run_id, "go", "now", message_id="once")
        in_time = await ctx.select(ctx.sleep_until_signal("go"), ctx.sleep(100))
        return [tuple(timed_out), tuple(in_time)]

    for value in await bed.live_and_replayed(body):
        assert value == [(1, None), (0, "now")]


@pytest.mark.item(74)
async def test_select_raises_what_the_winner_raised(bed: Bed) -> None:
    """A branch that fails first is the winner."""

    async def body(ctx: RunContext) -> object:
        try:
            await ctx.select(ctx.sleep(100), ctx.step("fail", bed.world.fail, "fail"))
        except ValueError as exc:
            return str(exc)
        return "no error"

    assert {*await bed.live_and_replayed(body)} == {"fail is broken"}


@pytest.mark.item(74)
async def test_a_scope_joins_and_cancels_its_branches(bed: Bed) -> None:
    """`await branch` returns its result or raises its error, `cancel` closes it.

    The block waits for the rest.
    """

    async def body(ctx: RunContext) -> object:
        done: list[str] = []

        async def work(name: str) -> str:
            done.append(await ctx.step(name, _slow(bed, 2), name))
            return name

        async with ctx.scope() as scope:
            first = scope.start(work("first"))
            hanging = scope.start(ctx.step("hang", bed.world.hang, "hang"))
            failing = scope.start(ctx.step("fail", bed.world.fail, "fail"))
            _ = scope.start(work("rest"))
            got: list[object] = [await first]
            try:
                await failing
            except ValueError as exc:
                got.append(str(exc))
            await hanging.cancel()
            try:
                await hanging
            except CancellationError:
                got.append("cancelled")
        return [got, sorted(done)]

    values = await bed.live_and_replayed(body)
    assert all(
        value == [["first", "fail is broken", "cancelled"], ["first", "rest"]] for value in values
    )
    assert bed.world.count == {"first": 1, "hang": 1, "fail": 1, "rest": 1, "mark": 1}


@pytest.mark.item(74)
async def test_a_scope_raises_the_first_failure_and_closes_the_others(bed: Bed) -> None:
    """It closes them, too, if the block itself raises."""

    async def body(ctx: RunContext) -> object:
        caught = []
        try:
            async with ctx.scope() as scope:
                _ = scope.start(ctx.sleep_until_signal("never"))
                _ = scope.start(ctx.step("fail", bed.world.fail, "fail"))
        except ValueError as exc:
            caught.append(str(exc))
        try:
            async with ctx.scope() as scope:
                _ = scope.start(ctx.sleep_until_signal("never"))
                await ctx.step("ok", bed.world.do, "ok")
                raise KeyError("mine")  # noqa: TRY301 - the block itself fails
        except KeyError as exc:
            caught.append(str(exc))
        return caught

    for value in await bed.live_and_replayed(body):
        assert value == ["fail is broken", "'mine'"]


@pytest.mark.item(105, 158, 159)
async def test_a_run_suspends_only_when_every_branch_waits(bed: Bed) -> None:
    """While one branch executes the other is not evicted; the first event wakes the run."""

    async def act(ctx: RunContext, inbox: list[Message]) -> object:
        del inbox

        async def waits() -> object:
            return await ctx.sleep_until_signal("go")

        async def works() -> object:
            value: object = await ctx.step("work", bed.world.wait, "gate")
            await ctx.step("mark", bed.world.do, "mark")
            return [value, await ctx.sleep_until_signal("end")]

        return await ctx.gather(waits(), works())

    run_id = await bed.submit(await bed.serve(act))
    await bed.seen(run_id, K.MSG_RECEIVED)
    assert not await bed.log(run_id, K.RUN_SUSPENDED)
    bed.world.gates["gate"].set()
    await bed.marked(run_id)
    await bed.runtime.signal(run_id, "end", 2)
    await bed.runtime.signal(run_id, "go", 1)
    assert await bed.result(run_id) == [1, [True, 2]]


@pytest.mark.item(71, 74)
async def test_a_closed_branch_executes_no_effect_in_its_cleanup(bed: Bed) -> None:
    """Each ctx call in the cleanup raises CancelledError at once."""

    async def body(ctx: RunContext) -> object:
        async def loser() -> None:
            try:
                await ctx.sleep_until_signal("never")
            finally:
                await ctx.step("undo", bed.world.do, "undo")

        return (await ctx.select(loser(), ctx.step("w", bed.world.do, "w", 1))).value

    assert {*await bed.live_and_replayed(body)} == {1}
    assert bed.world.count["undo"] == 0


@pytest.mark.item(74, 189)
async def test_an_at_most_once_effect_of_a_loser_is_abandoned_not_in_doubt(bed: Bed) -> None:
    """No branch waits for the effect any more, so no operator has to decide whether it happened."""

    async def entered() -> Any:
        await bed.world.entered.wait()

    async def body(ctx: RunContext) -> object:
        async def winner() -> str:
            await ctx.step("gate", entered)
            return "won"

        pay = ctx.step("pay", bed.world.hang, "pay", effect="at_most_once")
        return (await ctx.select(pay, winner())).value

    assert {*await bed.live_and_replayed(body)} == {"won"}
    assert bed.world.count["pay"] == 1
