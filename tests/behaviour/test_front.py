"""The client API of a process that serves no agent itself."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from actors._kernel.stores.outside import Caller, Order
from actors.errors import UnservedError
from tests.behaviour.agents import Acting

if TYPE_CHECKING:
    from actors._kernel.agent.message import Message
    from actors._kernel.runtime.ids import AgentId, RunId
    from actors._kernel.stores.outside import Front
    from actors._runtime import RunContext
    from tests.behaviour.bed import Bed

CRM = Caller("default", "crm")


async def repeats(ctx: RunContext, inbox: list[Message]) -> object:
    """Return an agent that repeats its message."""
    del ctx
    return inbox[0].payload


async def ordered(front: Front, agent_id: AgentId, id_: str) -> RunId:
    """Start a run for the external system "CRM"."""
    return await front.submit(
        CRM, Order(agent_id=agent_id, payload=id_, message_id=id_, metadata={})
    )


async def test_the_served_types_are_read_once_for_many_orders(
    bed: Bed, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The answer is kept for a while; a negative one is never kept."""
    monkeypatch.setattr("actors._runtime.client.gateway_api.SERVED_S", 600.0)
    agent_id, late_id = await bed.serve(repeats), bed.name()
    reads: list[int] = []
    async with bed.client() as client:
        insight = type(client.store.insight)
        hosts = insight.hosts

        async def counted(self: Any) -> Any:
            reads.append(1)
            return await hosts(self)

        monkeypatch.setattr(insight, "hosts", counted)
        runs = [await ordered(client.front, agent_id, f"m{n}") for n in range(3)]
        assert len(reads) == 1
        for _ in range(2):
            with pytest.raises(UnservedError):
                await ordered(client.front, late_id, "late")
        assert len(reads) == 3
        bed.agents[late_id] = agent = Acting(late_id, repeats)
        await bed.runtime.register(agent)
        late = await ordered(client.front, late_id, "late")
        ended = [await client.front.result(CRM, run) for run in (*runs, late)]

    assert [row.output for row in ended] == ["m0", "m1", "m2", "late"]


async def test_a_type_without_a_host_is_refused_after_the_cache_expires(
    bed: Bed, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After that while. A repeated order still returns its run."""
    monkeypatch.setattr("actors._runtime.client.gateway_api.SERVED_S", 0.05)
    agent_id = await bed.serve(repeats)
    async with bed.client() as client:
        front = client.front
        run_id = await ordered(front, agent_id, "m1")
        await bed.result(run_id)
        await bed.stop()
        await asyncio.sleep(0.06)
        with pytest.raises(UnservedError):
            await ordered(front, agent_id, "m2")
        assert await ordered(front, agent_id, "m1") == run_id
