"""Divergence: code that differs from its log is parked before it executes anything.

The error names the position, and a fix lets the run continue.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from actors._kernel.runtime.log_entry import EntryKind
from actors._kernel.runtime.scheduler import RunStatus

if TYPE_CHECKING:
    from actors._kernel.agent.message import Message
    from actors._kernel.runtime.ids import RunId
    from actors._runtime import RunContext
    from tests.behaviour.agents import World
    from tests.behaviour.bed import Bed


async def _other_name(ctx: RunContext, world: World) -> None:
    await ctx.step("another", world.do, "another")


async def _other_args(ctx: RunContext, world: World) -> None:
    await ctx.step("first", world.do, "first", 2)


async def _other_verb(ctx: RunContext, world: World) -> None:
    del world
    await ctx.now()


async def _other_wait(ctx: RunContext, world: World) -> None:
    del world
    await ctx.receive(timeout=1)


async def _nothing(ctx: RunContext, world: World) -> None:
    del ctx, world


CHANGED = {
    "another name": (_other_name, "effect.result first", "step another"),
    "other arguments": (_other_args, "effect.result first", "step first"),
    "another verb": (_other_verb, "effect.result first", "now"),
    "a wait": (_other_wait, "effect.result first", "receive"),
    "nothing": (_nothing, "an entry", "the end of the run"),
}


async def _diverge(bed: Bed, changed: Any) -> tuple[RunId, list[Any]]:
    """Start a run with the old code, and let a host with the changed code take it over."""
    code: list[Any] = []

    async def old(ctx: RunContext, world: World) -> object:
        await ctx.step("first", world.do, "first", 1)
        await ctx.step("mark", world.do, "mark")
        return await ctx.sleep_until_signal("go")

    async def act(ctx: RunContext, inbox: list[Message]) -> object:
        del inbox
        return await code[0](ctx, bed.world)

    code.append(old)
    run_id = await bed.submit(await bed.serve(act))
    await bed.marked(run_id)
    await bed.crash()
    code.insert(0, changed)
    await bed.start()
    await bed.runtime.signal(run_id, "go", "gone on")
    return run_id, code


@pytest.mark.item(68, 69)
@pytest.mark.parametrize("case", CHANGED)
async def test_changed_code_is_parked_and_goes_on_once_it_is_mended(bed: Bed, case: str) -> None:
    """The entry has position, expected and found; after the fix `~retry` lets the run complete."""
    changed, expected, actual = CHANGED[case]
    run_id, code = await _diverge(bed, changed)
    parked = await bed.seen(run_id, EntryKind.RUN_PARKED)
    assert (parked.payload["reason"], parked.payload["at"]) == ("non_determinism", "0")
    detail = str(parked.payload["detail"])
    assert expected in detail
    assert actual in detail
    assert "Nothing was executed" in detail
    assert bed.world.count == {"first": 1, "mark": 1}
    row = await bed.row(run_id)
    assert (row.status, row.parked) == (RunStatus.SUSPENDED, "non_determinism")
    code.pop(0)
    await bed.restart()
    await bed.runtime.resolve(run_id)
    assert await bed.result(run_id) == "gone on"
    assert bed.world.count == {"first": 1, "mark": 1}


@pytest.mark.item(69)
async def test_code_that_catches_everything_is_parked_all_the_same(bed: Bed) -> None:
    """After the divergence each ctx call raises; nothing executes."""

    async def stubborn(ctx: RunContext, world: World) -> str:
        for name in ("x", "y", "z"):
            try:
                await ctx.step(name, world.do, name)
            except Exception:  # noqa: BLE001 - the mistake under test
                continue
        return "as if nothing had happened"

    run_id, _ = await _diverge(bed, stubborn)
    parked = await bed.seen(run_id, EntryKind.RUN_PARKED)
    assert parked.payload["reason"] == "non_determinism"
    assert bed.world.count == {"first": 1, "mark": 1}


@pytest.mark.item(69)
async def test_other_runs_of_the_agent_wait_behind_a_parked_one(bed: Bed) -> None:
    """An agent has one run at a time; when the parked run is given up, the next one starts."""
    run_id, code = await _diverge(bed, _other_name)
    await bed.seen(run_id, EntryKind.RUN_PARKED)
    code[0] = _nothing
    [agent] = bed.agents
    following = await bed.submit(agent)
    assert (await bed.row(following)).status is RunStatus.PENDING
    await bed.runtime.cancel(run_id)
    assert await bed.result(following) is None


@pytest.mark.item(69, 193)
async def test_code_after_the_recorded_part_may_change(bed: Bed) -> None:
    """Code after the last entry of the log may change freely."""

    async def longer(ctx: RunContext, world: World) -> object:
        await ctx.step("first", world.do, "first", 1)
        await ctx.step("mark", world.do, "mark")
        payload = await ctx.sleep_until_signal("go")
        return [payload, await ctx.step("new", world.do, "new", 3)]

    run_id, _ = await _diverge(bed, longer)
    assert await bed.result(run_id) == ["gone on", 3]


@pytest.mark.item(99, 159)
async def test_a_mended_run_that_waits_again_is_not_parked_any_more(bed: Bed) -> None:
    """Its timer is kept with the row, so the next host fires it."""
    is_mended = [False]

    async def act(ctx: RunContext, inbox: list[Message]) -> str:
        del inbox
        as_before = is_mended[0] or not bed.world.count["mark"]
        await ctx.step("first" if as_before else "changed", bed.world.do, "first")
        await ctx.step("mark", bed.world.do, "mark")
        await ctx.sleep(1.0)
        return "rested"

    run_id = await bed.submit(await bed.serve(act))
    await bed.marked(run_id)
    await bed.restart(suspend_after=0)
    parked = "non_determinism"
    # Suspended runs are replayed when something wakes them; this one at the end of its sleep.
    await bed.seen(run_id, EntryKind.RUN_PARKED)
    assert (await bed.row(run_id)).parked == parked
    is_mended[0] = True
    await bed.runtime.resolve(run_id)
    await bed.restart(suspend_after=0)
    assert await bed.result(run_id) == "rested"
    assert (await bed.row(run_id)).parked is None
