"""Code that kills host processes is found, and its neighbours go on."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from actors._kernel.runtime.ids import AgentId
from actors._runtime.execution.suspects import MAX_DEATHS
from tests.system.deadly import HERE
from tests.system.waiting import until

if TYPE_CHECKING:
    from actors._kernel.runtime.rows import RunRow
    from actors._runtime import Runtime
    from tests.integration.compose.commandline import Cli
    from tests.system.processes import Hosts

pytestmark = pytest.mark.timeout(180)

KILLER = AgentId("killer", "a")


async def _are_parked(client: Runtime) -> bool:
    return bool(await client.store.lists.runs(parked=True))


@pytest.mark.costly
async def test_a_message_that_kills_its_host_is_parked_and_its_neighbours_end(
    hosts: Hosts, client: Runtime, cli: Cli
) -> None:
    """Runs within a step, and one that waits for a person, were in the same processes."""
    host = await hosts.serving(HERE)
    asking = await client.submit(AgentId("asking", "a"), None)
    await until(lambda: client.approvals.open(run_id=asking), "the question")
    slow = [await client.submit(AgentId("slow", str(n)), None) for n in range(3)]
    await client.send(KILLER, "go")
    parked: list[RunRow] = []
    while not parked:
        await until(lambda: not host.is_alive or _are_parked(client), "a death, or the parking")  # noqa: B023
        parked = await client.store.lists.runs(parked=True)
        if not host.is_alive:
            host = hosts.start(HERE)
    [request] = await client.approvals.open(run_id=asking)
    await client.approvals.decide(request.id, approve=True, by="Alex")

    assert [(row.agent_id, row.parked) for row in parked] == [(KILLER, "poison")]
    assert len(hosts.started) == MAX_DEATHS + 1
    assert [await client.result(run_id) for run_id in slow] == ["done"] * 3
    assert await client.result(asking) is True
    run_view = await cli.call("runs", "show", parked[0].run_id)
    assert "5 hosts in a row died while executing this run" in run_view.out
