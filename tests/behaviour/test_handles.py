"""A run's id is enough to ask, join, inspect and cancel it from any process."""

from __future__ import annotations

import asyncio
import pickle
from typing import TYPE_CHECKING, Any

import pytest

from actors._kernel.runtime.ids import AgentId, RunId
from actors._kernel.runtime.scheduler import RunStatus
from actors._kernel.runtime.sources import RunHandle
from actors.errors import UnknownRunError

if TYPE_CHECKING:
    from actors._kernel.agent.message import Message
    from actors._runtime import RunContext
    from tests.behaviour.bed import Bed


async def answering(ctx: RunContext, inbox: list[Message]) -> str:
    """Return a run that answers one ask, then waits for its signal."""
    del inbox
    question = await ctx.receive()
    assert question is not None
    await ctx.reply(question, f"answer to {question.payload}")
    return str(await ctx.sleep_until_signal("go"))


async def spawned(bed: Bed) -> RunHandle:
    """Return a child whose parent waits, and whose host has crashed since."""
    child = await bed.serve(answering)

    async def parent(ctx: RunContext, inbox: list[Message]) -> None:
        del inbox
        handle = await ctx.spawn(child, "boot")
        assert pickle.loads(pickle.dumps(handle)) == handle
        await ctx.step("mark", bed.world.do, handle.run_id)
        await ctx.sleep_until_signal("never")

    run_id = await bed.submit(await bed.serve(parent))
    await bed.until(lambda: bed.world.order)
    await bed.restart()
    return RunHandle(RunId(bed.world.order[0]), child, run_id)


@pytest.mark.item(254)
async def test_another_process_has_the_same_handle(bed: Bed) -> None:
    """Rebuilt from the id alone: the run can be inspected, joined and cancelled."""
    handle = await spawned(bed)
    async with bed.client() as client:
        rebuilt = await client.handle(handle.run_id)
        before = await client.status(rebuilt)
        async with asyncio.timeout(20), asyncio.TaskGroup() as tasks:
            joined = tasks.create_task(client.join(rebuilt))
            await client.cancel(rebuilt.run_id, reason="enough")
        after = await client.status(handle.run_id)
        with pytest.raises(UnknownRunError):
            await client.handle(RunId("0" * 32))

    assert rebuilt == handle
    assert not before.status.is_terminal
    assert (joined.result().status, after.status) == (RunStatus.CANCELLED, RunStatus.CANCELLED)
    assert joined.result().error == {"message": "enough"}


@pytest.mark.item(254)
async def test_another_run_uses_a_handle_from_a_message(bed: Bed) -> None:
    """The id comes as text in a message.

    The run asks, inspects and joins; a late cancel changes nothing.
    """
    handle = await spawned(bed)

    async def stranger(ctx: RunContext, inbox: list[Message]) -> object:
        ids: Any = inbox[0].payload
        rebuilt = RunHandle(RunId(ids["run"]), AgentId.parse(ids["agent"]))
        outcome = await ctx.ask(rebuilt, "who", timeout=15)
        status = await ctx.status(ids["run"])
        await ctx.step("tell", bed.runtime.signal, ids["run"], "go", "done")
        joined = await ctx.join(ids["run"])
        await ctx.cancel(rebuilt)
        return [outcome.result, status.status.is_terminal, joined.output]

    ids = {"run": handle.run_id, "agent": str(handle.agent_id)}
    run_id = await bed.submit(await bed.serve(stranger), ids)

    assert await bed.result(run_id) == ["answer to who", False, "done"]
    assert (await bed.row(handle.run_id)).status is RunStatus.COMPLETED
