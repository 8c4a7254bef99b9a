"""An asker and its target on a host that crashes at each commit in turn: one ask, one answer."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING, Any, TypeAlias

import pytest

from actors._kernel.runtime.log_entry import EntryKind as K
from actors._kernel.runtime.scheduler import RunStatus
from tests.harness.faulty_store import Faults, Manner
from tests.harness.slow import IS_SLOW

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Sequence

    from actors._kernel.agent.message import Message
    from actors._kernel.runtime.ids import AgentId
    from actors._runtime import RunContext
    from tests.behaviour.bed import Bed

Act: TypeAlias = "Callable[[RunContext, list[Message]], Awaitable[Any]]"


@asynccontextmanager
async def dying_at(bed: Bed, faults: Faults, died: asyncio.Event) -> AsyncIterator[None]:
    """Within the block this bed's hosts have stores that crash at `faults`."""
    before = bed.open_store
    bed.go_wrong(faults, died.set)
    try:
        yield
    finally:
        bed.open_store = before


async def ended_or_dead(bed: Bed, agents: Sequence[AgentId], died: asyncio.Event) -> bool:
    """Return True once each of these agents has an ended run, or False if the host crashed before."""
    async with asyncio.timeout(20):
        while not died.is_set():
            with suppress(TimeoutError):
                async with asyncio.timeout(2):  # a call at which the host crashes never returns
                    runs = [await bed.runtime.store.lists.runs(agent=agent) for agent in agents]
                if all(rows and rows[0].status.is_terminal for rows in runs):
                    return died.is_set()  # perhaps at the last commit of all
            await asyncio.sleep(0.01)
    return True


def asking(bed: Bed, target: AgentId) -> Act:
    """Ask the target."""

    async def act(ctx: RunContext, inbox: list[Message]) -> object:
        del inbox
        await ctx.step("mark", bed.world.do, f"mark {ctx.run_id}")
        outcome = await ctx.ask(target, 21, timeout=60)
        await ctx.sleep(0.01)
        return [outcome.kind.value, outcome.result]

    return act


@pytest.mark.item(32, 85, 87, 88, 89, 92, 244, 248)
@pytest.mark.parametrize("manner", [Manner.DIE_BEFORE, Manner.DIE_AFTER], ids=["before", "after"])
@pytest.mark.timeout(120)
async def test_an_ask_is_answered_after_a_crash_at_any_commit(bed: Bed, manner: Manner) -> None:
    """The outcome is the reply, the ask was sent once, the target's effect happened once."""
    if bed.backend == "nats" or (bed.backend == "postgres" and not IS_SLOW):
        pytest.skip("two host processes die at every commit in tests/system")

    async def answer(ctx: RunContext, inbox: list[Message]) -> str:
        doubled = await ctx.step("double", bed.world.do, f"double {ctx.run_id}", 42)
        await ctx.reply(inbox[0], doubled)
        await ctx.sleep(0.01)
        return "done"

    struck = 0
    for nth in range(40):
        target = await bed.serve(answer)
        asker = await bed.serve(asking(bed, target))
        faults, died = Faults(nth=nth, manner=manner, method="commit"), asyncio.Event()
        async with dying_at(bed, faults, died):
            await bed.restart()
            run_id = await bed.submit(asker)
            has_died = await ended_or_dead(bed, (asker, target), died)
            struck += has_died
        if has_died:
            await bed.restart()
        assert await bed.result(run_id) == ["replied", 42], f"commit {nth}"
        assert len(await bed.log(run_id, K.ASK_SENT)) == 1
        assert len(await bed.log(run_id, K.ASK_REPLIED)) == 1
        [target_run] = await bed.runtime.store.lists.runs(agent=target)
        assert (await bed.ended(target_run.run_id)).status is RunStatus.COMPLETED
        recorded = await bed.log(target_run.run_id, K.EFFECT_RESULT)
        assert [entry.payload["effect"] for entry in recorded] == ["step", "reply"]
        for name in (f"double {target_run.run_id}", f"mark {run_id}"):
            assert bed.world.count[name] <= 2  # again only in the one window, before its record
        if not has_died:
            break
    assert struck >= 6
