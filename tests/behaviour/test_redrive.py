"""Failed runs: listed, and redriven once."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from actors._kernel.agent.message import Message
from actors._kernel.runtime.ids import RunId
from actors._kernel.runtime.log_entry import EntryKind as K
from actors._kernel.runtime.scheduler import RetryPolicy, RunStatus
from actors.errors import IllegalTransitionError, RunFailedError, TerminalError, UnknownRunError

if TYPE_CHECKING:
    from actors._kernel.runtime.ids import AgentId
    from actors._runtime import RunContext
    from tests.behaviour.bed import Bed

ONCE = RetryPolicy(max_retries=0, backoff_s=0.01, jitter=0)


async def flaky(bed: Bed) -> AgentId:
    """An agent that fails until the world is repaired, and then returns its message."""

    async def act(ctx: RunContext, inbox: list[Message]) -> object:
        del ctx
        if not bed.world.count["repaired"]:
            raise ValueError("broken")
        return [message.payload for message in inbox]

    return await bed.serve(act)


async def dead(bed: Bed, agent: AgentId, payload: object = "work") -> RunId:
    """Return a failed run."""
    run_id = await bed.submit(agent, payload, retry_policy=ONCE)
    assert (await bed.ended(run_id)).status is RunStatus.FAILED
    return run_id


@pytest.mark.item(164, 488)
async def test_a_failed_run_is_listed_and_redriven(bed: Bed) -> None:
    """A new run has the same messages; the failed one keeps its log and its status."""
    agent = await flaky(bed)
    run_id = await dead(bed, agent, {"n": 1})
    before = await bed.log(run_id)
    rows = await bed.runtime.store.lists.runs(status=[RunStatus.FAILED], agent=agent)
    bed.world.count["repaired"] = 1

    new = await bed.runtime.redrive_run(run_id)

    assert [row.run_id for row in rows] == [run_id]
    assert await bed.result(new) == [{"n": 1}]
    assert new != run_id
    assert await bed.log(run_id) == before
    with pytest.raises(RunFailedError):
        await bed.result(run_id)


@pytest.mark.item(488)
async def test_redriving_twice_starts_one_run(bed: Bed) -> None:
    """Also at the same moment, and by another process; afterwards the new run is the one to redrive."""
    agent = await flaky(bed)
    run_id = await dead(bed, agent)
    async with bed.client() as client:
        ids = await asyncio.gather(
            bed.runtime.redrive_run(run_id),
            client.redrive_run(run_id),
            bed.runtime.redrive_run(run_id),
        )
    (second,) = set(ids)
    await bed.ended(second)  # it fails as the first did
    bed.world.count["repaired"] = 1
    third = await bed.runtime.redrive_run(second)

    assert await bed.result(third) == ["work"]
    assert len(await bed.runtime.store.lists.runs(agent=agent)) == 3


@pytest.mark.item(488)
async def test_another_process_redrives(bed: Bed) -> None:
    """The host that serves the agent executes it, also one that starts later."""
    agent = await flaky(bed)
    first, second = await dead(bed, agent), await dead(bed, agent, "more")
    bed.world.count["repaired"] = 1
    async with bed.client() as client:
        new = await client.redrive_run(first)
        assert await bed.result(new) == ["work"]
        await bed.crash()
        later = await client.redrive_run(second)
    await bed.start()

    assert await bed.result(later) == ["more"]


@pytest.mark.item(488)
async def test_dead_letters_of_a_redriven_run_count_as_redriven(bed: Bed) -> None:
    """A redrive of the dead letters does not handle its messages a second time."""
    agent = await flaky(bed)
    run_id = await dead(bed, agent)
    letters = await bed.runtime.store.lists.dead_letters(agent=agent)
    bed.world.count["repaired"] = 1

    await bed.result(await bed.runtime.redrive_run(run_id))

    assert [letter.run_id for letter in letters] == [run_id]
    assert await bed.runtime.store.lists.dead_letters(agent=agent) == []
    assert await bed.runtime.store.operators.redrive([letters[0].id]) == []


@pytest.mark.item(488)
async def test_messages_of_a_failed_run_are_redriven(bed: Bed) -> None:
    """A run that was started by messages is redriven like a submitted one."""
    runs: list[RunId] = []

    async def act(ctx: RunContext, inbox: list[Message]) -> object:
        runs.append(ctx.run_id)
        if not bed.world.count["repaired"]:
            raise TerminalError("broken")
        return [message.payload for message in inbox]

    agent = await bed.serve(act)
    await bed.runtime.send(agent, "by mail")
    await bed.until(lambda: runs)
    assert (await bed.ended(runs[0])).status is RunStatus.FAILED
    bed.world.count["repaired"] = 1

    assert await bed.result(await bed.runtime.redrive_run(runs[0])) == ["by mail"]


@pytest.mark.item(488)
async def test_only_failed_runs_are_redriven(bed: Bed) -> None:
    """Open, completed, cancelled and unknown runs are refused."""

    async def act(ctx: RunContext, inbox: list[Message]) -> str:
        if inbox[0].payload == "wait":
            await ctx.step("mark", bed.world.do, "mark")
            await ctx.sleep_until_signal("go")
        return "done"

    agent = await bed.serve(act)
    done = await bed.submit(agent, "end")
    await bed.ended(done)
    waiting = await bed.submit(agent, "wait")
    await bed.seen(waiting, K.EFFECT_RESULT)
    for run_id in (done, waiting):
        with pytest.raises(IllegalTransitionError):
            await bed.runtime.redrive_run(run_id)
    await bed.runtime.cancel(waiting)
    await bed.ended(waiting)
    with pytest.raises(IllegalTransitionError):
        await bed.runtime.redrive_run(waiting)
    with pytest.raises(UnknownRunError):
        await bed.runtime.redrive_run(RunId("0" * 32))
