"""Artifacts of agents: large bytes stored beside the log, by reference, separate for each agent."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from actors import artifact_store
from actors._kernel.agent.tools import InvocationResult, Tool
from actors._kernel.stores.runs import agent_scope
from actors.errors import ContractError

if TYPE_CHECKING:
    from actors._runtime import RunContext
    from tests.behaviour.bed import Bed

LARGE = bytes(range(256)) * 2_000


async def test_a_tool_keeps_large_bytes_of_its_agent_beside_the_log(bed: Bed) -> None:
    """The log has the reference, and later steps read parts. Clearing the agent deletes them."""

    async def scan() -> InvocationResult:
        ref = await artifact_store().store(LARGE)
        return InvocationResult(status="ok", text="scanned", artifact_ref=ref.id)

    async def part(artifact: str, offset: int) -> list[int]:
        return [*await artifact_store().read(artifact, offset=offset, limit=3)]

    async def body(ctx: RunContext) -> list[Any]:
        scan_result = await ctx.tool("scan")
        assert scan_result.artifact_ref is not None
        read = await ctx.step("part", part, scan_result.artifact_ref, 400_001)
        return [scan_result.text, scan_result.structured, scan_result.artifact_ref, read]

    values = await bed.live_and_replayed(body, tools=[Tool(name="scan", description="", run=scan)])
    [agent] = bed.agents
    store = bed.runtime.store
    own = store.data.artifacts.of(agent.tenant, agent_scope(agent))
    others = store.data.artifacts.of(agent.tenant, agent_scope(bed.name()))
    id_ = values[0][2]

    assert all(value == ["scanned", None, id_, [129, 130, 131]] for value in values)
    assert await others.stat(id_) is None
    assert await own.stat(id_) is not None
    await store.retention.forget_agent(agent)
    assert await own.stat(id_) is None


def test_artifacts_are_unavailable_outside_of_effects() -> None:
    """The contract error names the effects, in which artifacts are available."""
    with pytest.raises(ContractError, match="inside a function called by"):
        artifact_store()
