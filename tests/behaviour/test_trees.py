"""Trees of runs: cancelled while they grow, with children of ended parents, and closed to other tenants."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from actors._kernel.agent.agent import HistoryRetention, SpawnBudget, Supervision
from actors._kernel.runtime.ids import AgentId, RunId
from actors._kernel.runtime.log_entry import EntryKind as K
from actors._kernel.runtime.scheduler import RunStatus
from actors._kernel.runtime.sources import RunHandle
from actors.errors import ContractError, OtherTenantError, UnknownRunError
from tests.behaviour.agents import Acting

if TYPE_CHECKING:
    from actors._kernel.agent.message import Message
    from actors._runtime import RunContext
    from tests.behaviour.bed import Bed


async def wait_for_go(ctx: RunContext, inbox: list[Message]) -> Any:
    """A child that waits for the signal `go`."""
    del inbox
    return await ctx.sleep_until_signal("go")


async def tree_of(bed: Bed, root: RunId) -> list[RunId]:
    """Return the run and all runs below it, parents first."""
    tree = [root]
    for run_id in tree:
        tree += [handle.run_id for handle in await bed.runtime.children(run_id)]
    return tree


@pytest.mark.item(84, 239)
async def test_a_child_cancelled_between_spawn_and_flush_never_executes(bed: Bed) -> None:
    """The unwritten child is never executed, and the log agrees with the rows."""
    begun: list[str] = []

    async def never(ctx: RunContext, inbox: list[Message]) -> None:
        del inbox
        begun.append(ctx.run_id)

    child = await bed.serve(never)

    async def act(ctx: RunContext, inbox: list[Message]) -> object:
        del inbox
        handle = await ctx.spawn(child, 1)
        await bed.runtime.cancel(RunId(ctx.run_id), reason="too many")
        return (await ctx.join(handle)).output

    run_id = await bed.submit(await bed.serve(act))
    row = await bed.ended(run_id)
    spawned = [entry.payload["child"] for entry in await bed.log(run_id, K.CHILD_SPAWNED)]
    children = [handle.run_id for handle in await bed.runtime.children(run_id)]
    ended = [await bed.ended(child_run) for child_run in children]
    assert row.status is RunStatus.CANCELLED
    assert spawned == children
    assert all(row.status is RunStatus.CANCELLED for row in ended)
    assert begun == []


@pytest.mark.item(84, 239)
async def test_a_child_cancelled_between_flush_and_start_never_executes(bed: Bed) -> None:
    """A child queued behind another run, and one of an unserved type, end without their code."""
    begun: list[str] = []

    async def busy(ctx: RunContext, inbox: list[Message]) -> Any:
        begun.append(str(inbox[0].payload))
        return await ctx.sleep_until_signal("go")

    child, unserved = await bed.serve(busy), bed.name()
    holder = await bed.submit(child, "holder")
    await bed.seen(holder, K.MSG_RECEIVED)

    async def act(ctx: RunContext, inbox: list[Message]) -> object:
        del inbox
        handles = [await ctx.spawn(child, "queued"), await ctx.spawn(unserved, "unserved")]
        return [(await ctx.join(handle)).output for handle in handles]

    run_id = await bed.submit(await bed.serve(act))
    await bed.seen(run_id, K.CHILD_SPAWNED, times=2)
    await bed.runtime.cancel(run_id, reason="stop")
    queued, lost = await bed.runtime.children(run_id)
    assert (await bed.ended(run_id)).status is RunStatus.CANCELLED
    assert (await bed.ended(queued.run_id)).status is RunStatus.CANCELLED
    agent = Acting(unserved, busy)
    bed.agents[unserved] = agent
    await bed.runtime.register(agent)
    assert (await bed.ended(lost.run_id)).status is RunStatus.CANCELLED
    for handle in (queued, lost):
        [entry] = await bed.log(handle.run_id, K.RUN_CANCELLED)
        assert entry.payload["reason"] == "stop"
    await bed.runtime.signal(holder, "go", 1)
    assert await bed.result(holder) == 1
    assert begun == ["holder"] * len(begun)


@pytest.mark.item(84, 130, 239)
@pytest.mark.parametrize("after", range(1, 9))
async def test_a_growing_tree_is_cancelled_completely(bed: Bed, after: int) -> None:
    """At each moment of the cancel, every run of the tree ends once, and none is left open."""
    type_ = bed.name().type

    async def grow(ctx: RunContext, inbox: list[Message]) -> object:
        depth = int(str(inbox[0].payload))
        handles = []
        for n in range(2 if depth else 0):
            handles.append(await ctx.spawn(type_, depth - 1, key=f"{ctx.agent_id.key}{n}"))
            await ctx.step("grown", bed.world.do, "grown")
        if not handles:
            return await ctx.sleep_until_signal("go")
        return [(await ctx.join(handle)).status.value for handle in handles]

    await bed.runtime.register_type(type_, lambda agent_id: Acting(agent_id, grow))
    root = AgentId(type_, "r")
    run_id = await bed.submit(root, 3, spawn_budget=SpawnBudget(max_runs=20))
    async for entry in bed.runtime.tail(run_id):
        if entry.seq >= after:
            break
    await bed.runtime.cancel(run_id, reason="enough")
    assert (await bed.ended(run_id)).status is RunStatus.CANCELLED
    previous: list[RunId] = []
    while (
        tree := await tree_of(bed, run_id)
    ) != previous:  # the last commit of a run may have spawned
        previous = tree
        for member in tree:
            row = await bed.ended(member)
            assert row.status in {RunStatus.CANCELLED, RunStatus.COMPLETED}
            ends = await bed.log(member, K.RUN_CANCELLED, K.RUN_COMPLETED, K.RUN_FAILED)
            assert len(ends) == 1


@pytest.mark.item(239, 253)
@pytest.mark.parametrize("policy", list(HistoryRetention), ids=lambda policy: policy.value)
async def test_retention_decides_about_a_child_of_an_ended_child(
    bed: Bed, policy: HistoryRetention
) -> None:
    """NONE and RUN end it with its parent; PERMANENT hands it to the root, whose end cancels it."""
    leaf = await bed.serve(wait_for_go)

    async def in_between(ctx: RunContext, inbox: list[Message]) -> object:
        del inbox
        return (await ctx.spawn(leaf)).run_id

    middle = await bed.serve(in_between)

    async def act(ctx: RunContext, inbox: list[Message]) -> object:
        del inbox
        terms = Supervision(run_id="-", root_id="-", retention=policy)
        output = (await ctx.join(await ctx.spawn(middle, 1, supervision=terms))).output
        await ctx.step("left", bed.world.do, "left", output)
        return await ctx.sleep_until_signal("end")

    root = await bed.submit(await bed.serve(act))
    entry = await bed.seen(root, K.EFFECT_RESULT, name="left")
    orphan = RunId(str(entry.payload["value"]))
    goes_on = policy is HistoryRetention.PERMANENT
    if goes_on:
        await bed.seen(orphan, K.RUN_STARTED)
        assert not (await bed.row(orphan)).status.is_terminal
        assert (await bed.row(orphan)).parent == root
        assert orphan in [handle.run_id for handle in await bed.runtime.children(root)]
    else:
        assert (await bed.ended(orphan)).status is RunStatus.CANCELLED
        assert not (await bed.row(root)).status.is_terminal
    await bed.runtime.signal(root, "end", "ended")
    assert await bed.result(root) == "ended"
    assert (await bed.ended(orphan)).status is RunStatus.CANCELLED
    assert len(await bed.log(orphan, K.RUN_CANCELLED)) == 1


@pytest.mark.item(84, 239)
async def test_a_child_that_was_handed_to_the_root_is_cancelled_with_it(bed: Bed) -> None:
    """The cascade includes it."""
    leaf = await bed.serve(wait_for_go)

    async def in_between(ctx: RunContext, inbox: list[Message]) -> object:
        del inbox
        return (await ctx.spawn(leaf)).run_id

    middle = await bed.serve(in_between)

    async def act(ctx: RunContext, inbox: list[Message]) -> object:
        del inbox
        terms = Supervision(run_id="-", root_id="-", retention=HistoryRetention.PERMANENT)
        output = (await ctx.join(await ctx.spawn(middle, 1, supervision=terms))).output
        await ctx.step("left", bed.world.do, "left", output)
        return await ctx.sleep_until_signal("end")

    root = await bed.submit(await bed.serve(act))
    entry = await bed.seen(root, K.EFFECT_RESULT, name="left")
    orphan = RunId(str(entry.payload["value"]))
    await bed.runtime.cancel(root, reason="all of it")
    assert (await bed.ended(root)).status is RunStatus.CANCELLED
    row = await bed.ended(orphan)
    assert row.status is RunStatus.CANCELLED
    [ended] = await bed.log(orphan, K.RUN_CANCELLED)
    assert ended.payload["reason"] == "all of it"


@pytest.mark.item(236)
async def test_a_chain_of_a_hundred_runs_is_joined(bed: Bed) -> None:
    """A hundred generations within the budget, each joined by the one above."""
    type_ = bed.name().type

    async def act(ctx: RunContext, inbox: list[Message]) -> object:
        depth = int(str(inbox[0].payload))
        if depth == 0:
            return ctx.meta.supervision.depth
        handle = await ctx.spawn(type_, depth - 1, key=f"k{depth}")
        return (await ctx.join(handle)).output

    await bed.runtime.register_type(type_, lambda agent_id: Acting(agent_id, act))
    budget = SpawnBudget(max_runs=100)
    root = await bed.submit(AgentId(type_, "root"), 100, spawn_budget=budget)
    assert await bed.result(root) == 100


@pytest.mark.item(254)
async def test_a_run_of_another_tenant_is_an_unknown_run(bed: Bed) -> None:
    """Open or ended, joined, asked, cancelled or inspected: the answer is that of an unknown run."""
    strangers = [AgentId(bed.name().type, "1", "elsewhere") for _ in range(2)]

    async def end(ctx: RunContext, inbox: list[Message]) -> object:
        del ctx, inbox
        return "secret"

    for stranger, code in zip(strangers, (wait_for_go, end), strict=True):
        bed.agents[stranger] = Acting(stranger, code)
        await bed.runtime.register(bed.agents[stranger])
    runs = [await bed.submit(stranger, tenant="elsewhere") for stranger in strangers]
    await bed.ended(runs[1])
    await bed.seen(runs[0], K.RUN_STARTED)

    async def body(ctx: RunContext) -> list[str]:
        problems: list[str] = []
        for run_id, stranger in zip(runs, strangers, strict=True):
            own_name = AgentId(stranger.type, stranger.key, ctx.agent_id.tenant)
            for attempt in (
                lambda run_id=run_id: ctx.join(run_id),
                lambda run_id=run_id, who=stranger: ctx.join(RunHandle(run_id, who)),
                lambda run_id=run_id, who=own_name: ctx.ask(RunHandle(run_id, who), 1, timeout=5),
                lambda run_id=run_id, who=stranger: ctx.ask(RunHandle(run_id, who), 1, timeout=5),
                lambda run_id=run_id: ctx.status(run_id),
                lambda run_id=run_id: ctx.cancel(run_id),
            ):
                try:
                    await attempt()
                except ContractError as exc:
                    problems.append(type(exc).__name__)
                else:
                    problems.append("nothing")
        return problems

    unknown, tenant = UnknownRunError.__name__, OtherTenantError.__name__
    for value in await bed.live_and_replayed(body):
        assert value == [unknown, unknown, unknown, tenant, unknown, unknown] * 2
    assert not (await bed.row(runs[0])).status.is_terminal
    await bed.runtime.cancel(runs[0])
