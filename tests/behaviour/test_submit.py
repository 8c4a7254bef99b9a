"""Submitting: one message, one run, also with concurrent calls."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from actors._kernel.agent.message import Message
from actors._kernel.runtime.ids import AgentId, RunId
from actors._kernel.runtime.log_entry import EntryKind
from actors._kernel.runtime.scheduler import RunStatus
from actors.errors import ContractError, RunConflictError, UnknownRunError

if TYPE_CHECKING:
    from actors._runtime import RunContext
    from tests.behaviour.bed import Bed


@pytest.mark.item(1, 3, 4, 20, 56, 57, 182, 185, 255)
async def test_a_submitted_message_is_handled_by_one_run(bed: Bed) -> None:
    """The run completes with the agent's return value, and its log has one end entry, the last one."""

    async def act(ctx: RunContext, inbox: list[Message]) -> object:
        return {"got": inbox[0].payload, "n": len(inbox), "run": ctx.run_id}

    agent = await bed.serve(act)
    run_id = await bed.submit(agent, {"text": "hello"})
    assert await bed.result(run_id) == {"got": {"text": "hello"}, "n": 1, "run": run_id}
    kinds = await bed.kinds(run_id)
    assert kinds == ["run.started", "msg.received", "run.completed"]
    assert (await bed.row(run_id)).status is RunStatus.COMPLETED


@pytest.mark.item(20, 25, 152)
async def test_defaults_of_submit(bed: Bed) -> None:
    """Priority 5, the default tenant and three retries."""
    agent = bed.name()
    run_id = await bed.runtime.submit(agent, None)
    row = await bed.row(run_id)
    assert (row.priority, row.agent_id.tenant, row.retry_policy) == (5, "default", None)


@pytest.mark.item(21, 156, 150)
async def test_message_and_run_survive_a_crash_before_the_first_step(bed: Bed) -> None:
    """A submit that returned is executed by the next host."""

    async def act(ctx: RunContext, inbox: list[Message]) -> object:
        del ctx
        return inbox[0].payload

    agent = await bed.serve(act)
    await bed.crash()
    bed.agents, served = {}, bed.agents
    await bed.start()
    run_id = await bed.submit(agent, "kept")
    row = await bed.row(run_id)
    assert (row.status, row.agent_id) == (RunStatus.PENDING, agent)
    bed.agents = served
    await bed.restart()
    assert await bed.result(run_id) == "kept"


@pytest.mark.item(22, 151)
async def test_submit_returns_before_the_body_starts(bed: Bed) -> None:
    """The caller has the run id although the agent is still busy for long."""

    async def act(ctx: RunContext, inbox: list[Message]) -> object:
        del ctx, inbox
        return await bed.world.hang("busy")

    agent = await bed.serve(act)
    await bed.submit(agent)
    begun = asyncio.get_running_loop().time()
    await bed.submit(agent)
    assert asyncio.get_running_loop().time() - begun < 0.1 + bed.slack_s
    assert bed.world.count["busy"] <= 1


@pytest.mark.item(23, 33)
async def test_concurrent_submits_start_one_run_each(bed: Bed) -> None:
    """Concurrently, each message is executed once by a run of its own."""
    n = 300 if bed.backend == "memory" else 60

    async def act(ctx: RunContext, inbox: list[Message]) -> object:
        assert len(inbox) == 1
        return await ctx.step("do", bed.world.do, str(inbox[0].payload))

    agents = [await bed.serve(act) for _ in range(3)]
    async with asyncio.TaskGroup() as group:
        submits = [group.create_task(bed.submit(agents[i % 3], i)) for i in range(n)]
    runs = [task.result() for task in submits]
    assert len(set(runs)) == n
    for run_id in runs:
        await bed.result(run_id)
    assert bed.world.count == {str(i): 1 for i in range(n)}


@pytest.mark.item(24, 199)
async def test_a_repeated_message_id_returns_the_first_run(bed: Bed) -> None:
    """Before, during and after the run, also after another host took over."""

    async def act(ctx: RunContext, inbox: list[Message]) -> object:
        return await ctx.step("do", bed.world.do, "do", inbox[0].payload)

    agent = await bed.serve(act)
    message = Message.of(agent, "first", id="m-1")
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(bed.submit(agent, message)) for _ in range(5)]
    runs = {task.result() for task in tasks}
    assert len(runs) == 1
    run_id = runs.pop()
    assert await bed.result(run_id) == "first"
    assert await bed.submit(agent, Message.of(agent, "other", id="m-1")) == run_id
    await bed.restart()
    assert await bed.submit(agent, message) == run_id
    assert bed.world.count["do"] == 1


@pytest.mark.item(24)
async def test_submit_and_send_of_one_id_are_two_messages_of_two_senders(bed: Bed) -> None:
    """A message is identified by agent, sender and id together; none is executed twice."""
    payloads: list[object] = []

    async def act(ctx: RunContext, inbox: list[Message]) -> object:
        payloads.extend(m.payload for m in inbox)
        return await ctx.step("do", bed.world.do, "do")

    agent = await bed.serve(act)
    async with asyncio.TaskGroup() as group:
        submitted = group.create_task(bed.submit(agent, Message.of(agent, "submitted", id="x")))
        group.create_task(bed.runtime.send(agent, Message.of(agent, "sent", id="x")))
    await bed.result(submitted.result())
    last = await bed.submit(agent, "last")
    await bed.result(last)
    assert sorted(map(str, payloads)) == ["last", "sent", "submitted"]


@pytest.mark.item(20)
async def test_on_conflict_rejects_joins_or_queues_at_a_busy_agent(bed: Bed) -> None:
    """Reject raises and names the run, join returns the open run, queue waits behind it."""

    async def act(ctx: RunContext, inbox: list[Message]) -> object:
        if inbox[0].payload != "joins":
            await ctx.step("mark", bed.world.do, "mark")
            await ctx.sleep_until_signal("go")
        return inbox[0].payload

    agent = await bed.serve(act)
    first = await bed.submit(agent, 1)
    await bed.marked(first)
    with pytest.raises(RunConflictError) as caught:
        await bed.submit(agent, 2, on_conflict="reject")
    assert caught.value.run_id == first
    assert await bed.submit(agent, "joins", on_conflict="join") == first
    queued = await bed.submit(agent, 4, on_conflict="queue")
    assert (await bed.row(queued)).status is RunStatus.PENDING
    await bed.runtime.signal(first, "go")
    assert await bed.result(first) == 1
    await bed.runtime.signal(queued, "go")
    assert await bed.result(queued) == 4


@pytest.mark.item(20)
async def test_a_message_that_joined_a_busy_run_is_not_lost(bed: Bed) -> None:
    """If the run does not receive it, the agent's next run gets it."""

    async def act(ctx: RunContext, inbox: list[Message]) -> object:
        await ctx.step(f"see {inbox[0].payload}", bed.world.do, str(inbox[0].payload))
        if inbox[0].payload == "first":
            await ctx.step("mark", bed.world.do, "mark")
            await ctx.sleep_until_signal("go")
        return None

    agent = await bed.serve(act)
    first = await bed.submit(agent, "first")
    await bed.marked(first)
    assert await bed.submit(agent, "joined", on_conflict="join") == first
    await bed.runtime.signal(first, "go")
    await bed.result(first)
    await bed.result(await bed.submit(agent, "last"))
    assert bed.world.order == ["first", "mark", "joined", "last"]


@pytest.mark.item(20, 183)
async def test_a_message_that_joins_a_queued_run_is_not_lost(bed: Bed) -> None:
    """That run gets it, or the next one if it came too late; once."""

    async def act(ctx: RunContext, inbox: list[Message]) -> None:
        for message in inbox:
            await ctx.step("see", bed.world.do, str(message.payload))

    agent = await bed.serve(act)
    await bed.crash()
    bed.agents, served = {}, bed.agents
    await bed.start()
    run_id = await bed.submit(agent, "b")
    assert await bed.submit(agent, "c", on_conflict="join") == run_id
    bed.agents = served
    await bed.runtime.register(served[agent])
    await bed.result(run_id)
    await bed.result(await bed.submit(agent, "last"))
    assert bed.world.order == ["b", "c", "last"]


@pytest.mark.item(20, 30)
async def test_interrupt_cancels_the_busy_run_first(bed: Bed) -> None:
    """The open run ends cancelled and the new one gets the agent."""

    async def act(ctx: RunContext, inbox: list[Message]) -> object:
        if inbox[0].payload == "old":
            await ctx.step("mark", bed.world.do, "mark")
            await ctx.sleep_until_signal("never")
        return inbox[0].payload

    agent = await bed.serve(act)
    old = await bed.submit(agent, "old")
    await bed.marked(old)
    new = await bed.submit(agent, "new", on_conflict="interrupt")
    assert await bed.result(new) == "new"
    assert (await bed.ended(old)).status is RunStatus.CANCELLED


@pytest.mark.item(121, 124)
async def test_agents_start_by_priority(bed: Bed) -> None:
    """With one free slot, 1 goes before 5 before 9, and equal priorities in order of arrival."""
    await bed.crash()
    await bed.start(capacity=1)

    async def act(ctx: RunContext, inbox: list[Message]) -> None:
        await ctx.step("do", bed.world.do, str(inbox[0].payload))

    async def block(ctx: RunContext, inbox: list[Message]) -> object:
        del inbox
        return await ctx.step("hold", gate.wait)

    gate = asyncio.Event()
    blocker = await bed.submit(await bed.serve(block))
    runs = []
    for text, priority in (("9", 9), ("5a", 5), ("1", 1), ("5b", 5)):
        runs.append(await bed.submit(await bed.serve(act), text, priority=priority))
    gate.set()
    for run_id in (blocker, *runs):
        await bed.result(run_id)
    assert bed.world.order == ["1", "5a", "5b", "9"]


@pytest.mark.item(20)
async def test_a_foreign_tenant_is_refused(bed: Bed) -> None:
    """The tenant is the agent's; another one is an error, and nothing is written."""
    agent = bed.name()
    with pytest.raises(ContractError, match="belongs to tenant"):
        await bed.runtime.submit(AgentId(agent.type, "1", "acme"), None, tenant="umbrella")


@pytest.mark.item(255)
async def test_the_result_of_an_unknown_run_is_an_error(bed: Bed) -> None:
    """A request for the result of an unknown run does not wait for ever."""
    with pytest.raises(UnknownRunError, match="callboard runs list"):
        await bed.result(RunId("0" * 32))
    with pytest.raises(UnknownRunError):
        await bed.runtime.cancel(RunId("0" * 32))
    with pytest.raises(UnknownRunError):
        await bed.runtime.signal(RunId("0" * 32), "go")


@pytest.mark.item(2)
async def test_runs_of_two_agents_make_progress_together(bed: Bed) -> None:
    """Each waits for a step of the other; both end."""
    first, second = asyncio.Event(), asyncio.Event()

    async def meet(mine: asyncio.Event, other: asyncio.Event) -> None:
        mine.set()
        await other.wait()

    async def act(ctx: RunContext, inbox: list[Message]) -> object:
        mine, other = (first, second) if inbox[0].payload == 0 else (second, first)
        return await ctx.step("meet", lambda: meet(mine, other))

    runs = [await bed.submit(await bed.serve(act), i) for i in range(2)]
    for run_id in runs:
        await bed.result(run_id)
    assert [e.kind for e in await bed.log(runs[0], EntryKind.RUN_COMPLETED)] == ["run.completed"]
