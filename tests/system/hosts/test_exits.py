"""A host survives agents that end the process; a signal ends it."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING

import pytest

from actors._kernel.runtime.ids import AgentId
from actors.errors import RunFailedError
from tests.system.agents import executed

if TYPE_CHECKING:
    from pathlib import Path

    from actors._runtime import Runtime
    from tests.system.processes import Hosts


@pytest.mark.parametrize("way", ["task", "interrupted task", "callback", "stopped loop"])
async def test_an_agent_that_ends_its_loop_ends_no_host(
    hosts: Hosts, client: Runtime, tmp_path: Path, way: str
) -> None:
    """SystemExit in a task of its code, in a callback, `loop.stop()`: the run completes."""
    ledger = tmp_path / "ledger"
    host = await hosts.serving()
    job = {"ledger": str(ledger), "way": way}
    run_id = await client.submit(AgentId("leaving", "1"), job)

    assert await client.result(run_id) == "alive"
    assert len(executed(ledger)) == 1
    assert host.is_alive
    warnings = [
        line for line in host.events() if line["event"].startswith("agent code tried to end")
    ]
    assert len(warnings) == 1
    host.send(signal.SIGINT)
    assert await host.exit_code() == 0


async def test_a_run_that_awaits_a_task_that_ends_the_process_fails(
    hosts: Hosts, client: Runtime, tmp_path: Path
) -> None:
    """The exit is its error; the host executes the next run and obeys SIGTERM."""
    host = await hosts.serving()
    job = {"ledger": str(tmp_path / "ledger"), "way": "awaited"}
    run_id = await client.submit(AgentId("leaving", "1"), job, max_retries=0)
    with pytest.raises(RunFailedError):
        await client.result(run_id)
    job["way"] = "none"

    assert await client.result(await client.submit(AgentId("leaving", "2"), job)) == "alive"
    host.send(signal.SIGTERM)
    assert await host.exit_code() == 0
