"""Limits on one host: queued runs, released slots, and the definition of a start."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from actors._kernel.runtime.ids import AgentId
from actors._kernel.runtime.scheduler import RunStatus
from actors.errors import ContractError
from tests.behaviour.agents import Acting

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from actors._kernel.agent.message import Message
    from actors._runtime import RunContext
    from tests.behaviour.bed import Bed


class Room:
    """A counter of the agents that execute at once. The first ones wait until there are `least` of them."""

    def __init__(self, least: int = 1) -> None:
        self.inside = self.most = self.begun = 0
        self._least, self._is_full = least, asyncio.Event()

    async def visit(self, ctx: RunContext, inbox: list[Message]) -> None:
        """Count as executing for a moment."""
        del inbox
        self.inside += 1
        self.begun += 1
        self.most = max(self.most, self.inside)
        if self.inside >= self._least:
            self._is_full.set()
        await ctx.step("wait", self._is_full.wait)
        await ctx.step("visit", asyncio.sleep, 0.01)
        self.inside -= 1


async def serve_type(bed: Bed, act: Callable[[RunContext, list[Message]], Awaitable[Any]]) -> str:
    """Return the name of a new type whose agents are this function."""
    type_ = bed.name().type
    await bed.runtime.register_type(type_, lambda agent_id: Acting(agent_id, act))
    return type_


@pytest.mark.item(218)
async def test_no_more_runs_execute_than_the_limit_and_all_complete(bed: Bed) -> None:
    """Twenty agents of a type, three at once; the list shows the used slots and the limit."""
    room = Room(3)
    type_ = await serve_type(bed, room.visit)
    await bed.runtime.limits.set(f"type:{type_}", max_concurrent=3)
    runs = [await bed.submit(AgentId(type_, f"k{n}")) for n in range(20)]
    for run_id in runs:
        await bed.result(run_id)

    assert (room.most, room.begun) == (3, 20)
    [use] = [u for u in await bed.runtime.limits.list() if u.limit.scope.name == type_]
    assert use.limit.max_concurrent == 3
    assert use.held <= 3


@pytest.mark.item(218)
async def test_runs_of_one_flow_share_a_limit(bed: Bed) -> None:
    """Agents ``<app>/<flow>:<id>`` of one flow; another flow of the app is not delayed."""
    room, other = Room(2), Room(3)

    async def act(ctx: RunContext, inbox: list[Message]) -> None:
        await (room if inbox[0].payload == "refund" else other).visit(ctx, inbox)

    type_ = await serve_type(bed, act)
    await bed.runtime.limits.set(f"flow:{type_}/refund", max_concurrent=2)
    ids = [(flow, n) for n in range(8) for flow in ("refund", "report")]
    runs = [await bed.submit(AgentId(type_, f"{flow}:{n}"), flow) for flow, n in ids]
    for run_id in runs:
        await bed.result(run_id)

    assert (room.most, room.begun, other.begun) == (2, 8, 8)
    assert other.most > 2


@pytest.mark.item(218)
async def test_agents_over_a_limit_do_not_delay_others(bed: Bed) -> None:
    """A hundred are queued at a type with limit 0; another type's run ends meanwhile."""
    room, other = Room(), Room()
    stopped, free = await serve_type(bed, room.visit), await serve_type(bed, other.visit)
    await bed.runtime.limits.set(f"type:{stopped}", max_concurrent=0)
    waiting = [await bed.submit(AgentId(stopped, f"k{n}")) for n in range(100)]
    await bed.result(await bed.submit(AgentId(free, "1")))
    assert (room.begun, other.begun) == (0, 1)
    assert (await bed.row(waiting[0])).status is RunStatus.PENDING

    await bed.runtime.limits.delete(f"type:{stopped}")
    for run_id in waiting:
        await bed.result(run_id)
    assert room.begun == 100


@pytest.mark.item(218)
async def test_a_limit_set_by_another_process_is_obeyed_at_once(bed: Bed) -> None:
    """A client stops one agent, and resumes it: without a restart, and without waiting for a scan."""
    room = Room()
    type_ = await serve_type(bed, room.visit)
    agent = AgentId(type_, "1")
    await bed.result(await bed.submit(agent))
    async with bed.client() as client:
        await client.limits.set(f"agent:{agent}", max_concurrent=0)
        await bed.until(lambda: bed.runtime._host.worker.dispatcher.admission.concerns(agent))
        run_id = await bed.submit(agent)
        await bed.result(await bed.submit(AgentId(type_, "2")))
        assert room.begun == 2
        await client.limits.set(f"agent:{agent}", max_concurrent=1)
        await bed.result(run_id)

    assert room.begun == 3


@pytest.mark.item(218)
async def test_an_evicted_run_releases_its_slot(bed: Bed) -> None:
    """One waits for a signal, as rows.

    Another run gets its slot; it continues when a slot is free again.
    """
    if not bed.drops and bed.backend != "memory":
        pytest.skip("a hot wait keeps its place for five seconds, which only virtual time skips")

    async def act(ctx: RunContext, inbox: list[Message]) -> Any:
        if inbox[0].payload == "wait":
            return await ctx.sleep_until_signal("go")
        return "done"

    type_ = await serve_type(bed, act)
    await bed.runtime.limits.set(f"type:{type_}", max_concurrent=1)
    waiting = await bed.submit(AgentId(type_, "1"), "wait")
    assert await bed.result(await bed.submit(AgentId(type_, "2"), "go")) == "done"
    await bed.runtime.signal(waiting, "go", 7)

    assert await bed.result(waiting) == 7


@pytest.mark.item(218)
async def test_starts_keep_the_rate_after_the_burst_and_a_wake_is_no_start(bed: Bed) -> None:
    """Two at once, then 40 a second. A run that is woken repeatedly counts as one start."""
    began: list[float] = []
    loop = asyncio.get_running_loop()

    async def act(ctx: RunContext, inbox: list[Message]) -> None:
        del inbox
        await ctx.step("begin", begin)
        for _ in range(3):
            await ctx.sleep(0.001)

    async def begin() -> None:
        began.append(loop.time())

    type_ = await serve_type(bed, act)
    await bed.runtime.limits.set(f"type:{type_}", rate_per_s=40, burst=2)
    start_time = loop.time()
    runs = [await bed.submit(AgentId(type_, f"k{n}")) for n in range(12)]
    for run_id in runs:
        await bed.result(run_id)

    for index, at in enumerate(began):
        assert at - start_time >= (index + 1 - 2) / 40 - 0.005, (
            "nobody starts before the bucket allows it"
        )
    assert len(began) == 12


@pytest.mark.item(218)
async def test_a_cancelled_run_queued_at_a_limit_ends_at_once(bed: Bed) -> None:
    """Its code was never called, and its agent's next run starts."""
    room = Room()
    type_ = await serve_type(bed, room.visit)
    await bed.runtime.limits.set(f"type:{type_}", max_concurrent=0)
    agent = AgentId(type_, "1")
    first, second = await bed.submit(agent), await bed.submit(agent)
    await bed.runtime.cancel(first, reason="no")
    assert (await bed.ended(first)).status is RunStatus.CANCELLED
    await bed.runtime.limits.set(f"type:{type_}", max_concurrent=1)
    await bed.result(second)

    assert room.begun == 1


async def test_invalid_limits_are_refused(bed: Bed) -> None:
    """Nothing is set."""
    before = await bed.runtime.limits.list()
    for scope, numbers in (
        ("desk", {"max_concurrent": 1}),
        ("flow:desk", {"max_concurrent": 1}),
        ("type:desk", {"burst": 4}),
    ):
        with pytest.raises(ContractError):
            await bed.runtime.limits.set(scope, **numbers)

    assert await bed.runtime.limits.list() == before
