"""Order among agents that are ready: tenants in rotation, then priority inside a tenant."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from actors._kernel.runtime.ids import AgentId
from tests.behaviour.agents import Acting

if TYPE_CHECKING:
    from actors._kernel.agent.message import Message
    from actors._runtime import RunContext
    from tests.behaviour.bed import Bed


async def one_at_a_time(bed: Bed) -> tuple[str, list[str]]:
    """Yield a host that executes one run at a time and blocks until the gate `open`, and the start order."""
    await bed.stop()
    await bed.start(capacity=1)
    order: list[str] = []

    async def act(ctx: RunContext, inbox: list[Message]) -> Any:
        if inbox[0].payload == "first":
            return await ctx.step("hold", bed.world.wait, "open")
        order.append(str(inbox[0].payload))
        return None

    type_ = bed.name().type
    await bed.runtime.register_type(type_, lambda agent_id: Acting(agent_id, act))
    await bed.submit(AgentId(type_, "first"), "first")
    await bed.until(lambda: bed.runtime._host.worker.dispatcher.load == 1)
    return type_, order


@pytest.mark.item(218)
async def test_a_tenant_with_a_thousand_runs_delays_anothers_by_one(bed: Bed) -> None:
    """A thousand runs of as many agents are queued first; the other tenant's single run starts second."""
    count = 1000 if bed.backend == "memory" else 150
    type_, order = await one_at_a_time(bed)
    for n in range(count):
        await bed.submit(AgentId(type_, f"k{n}", "big"), "big")
    small = await bed.submit(AgentId(type_, "k", "small"), "small")
    bed.world.gates["open"].set()
    await bed.result(small)

    assert order.index("small") <= 1


async def test_a_tenant_of_urgent_runs_delays_anothers_by_one(bed: Bed) -> None:
    """Twenty of priority 0 are queued first; the other tenant's run of priority 9 starts second."""
    type_, order = await one_at_a_time(bed)
    for n in range(20):
        await bed.submit(AgentId(type_, f"k{n}", "big"), "big", priority=0)
    small = await bed.submit(AgentId(type_, "k", "small"), "small", priority=9)
    bed.world.gates["open"].set()
    await bed.result(small)

    assert order.index("small") <= 1


@pytest.mark.item(218)
async def test_at_a_limit_of_the_type_tenants_take_turns_too(bed: Bed) -> None:
    """Three tenants with queues of different length share one slot evenly while all have queued runs."""
    type_, order = await one_at_a_time(bed)
    await bed.runtime.limits.set(f"type:{type_}", max_concurrent=1)
    runs = [
        await bed.submit(AgentId(type_, f"k{n}", tenant), tenant)
        for tenant, count in (("a", 40), ("b", 10), ("c", 10))
        for n in range(count)
    ]
    bed.world.gates["open"].set()
    for run_id in runs:
        await bed.result(run_id)

    assert sorted(order[:30].count(tenant) for tenant in "abc") in ([9, 10, 11], [10, 10, 10])


@pytest.mark.item(218)
async def test_lower_numbers_go_first_but_never_among_runs_of_one_agent(bed: Bed) -> None:
    """Agents are ordered by the priority of their next run; an agent's own runs stay in order."""
    type_, order = await one_at_a_time(bed)
    last = AgentId(type_, "z")
    runs = [
        await bed.submit(AgentId(type_, f"k{priority}"), f"p{priority}", priority=priority)
        for priority in (9, 5, 1)
    ]
    runs.append(await bed.submit(last, "z-first", priority=9))
    runs.append(await bed.submit(last, "z-urgent", priority=0))
    bed.world.gates["open"].set()
    for run_id in runs:
        await bed.result(run_id)

    assert order.index("p1") < order.index("p5") < order.index("p9")
    assert order.index("z-first") < order.index("z-urgent")
