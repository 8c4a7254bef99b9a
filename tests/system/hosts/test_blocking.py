"""Code that blocks the event loop of its host: detection, other agents, and the run itself."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

import pytest

from actors._kernel.runtime.ids import AgentId
from actors._kernel.runtime.log_entry import EntryKind
from actors._kernel.runtime.scheduler import RunStatus
from tests.system.blockers import HERE, began, let_go
from tests.system.waiting import PATIENCE_S, until, until_run

if TYPE_CHECKING:
    from pathlib import Path

    from actors._runtime import Runtime
    from tests.integration.compose.commandline import Cli
    from tests.system.fleet import Rows
    from tests.system.processes import HostProcess, Hosts

AGENT = AgentId("blocking", "a")
LEASE_S: Final = 5.0
"""On a busy machine a host with a blocked loop renews a lease of one second too late, and loses the run."""


async def answers(client: Runtime) -> set[object]:
    """Return the processes that answer 32 pings to agents of all shards."""
    async with asyncio.timeout(PATIENCE_S):
        run_ids = [await client.submit(AgentId("ping", str(n)), None) for n in range(32)]
        return {await client.result(run_id) for run_id in run_ids}


async def until_begun(ledger: Path, count: int) -> int:
    """Return the process of the last start, once the code started this often."""
    await until(lambda: len(began(ledger)) >= count, f"begun {count} times")
    return began(ledger)[-1]


def of_pid(hosts: Hosts, pid: int) -> HostProcess:
    """Return the host with this process id."""
    return next(host for host in hosts.started if host.pid == pid)


async def test_agents_beside_a_blocking_one_move_and_the_blocking_code_starts_once(
    hosts: Hosts, client: Runtime, rows: Rows, tmp_path: Path
) -> None:
    """The host names the agent, releases the shards of others, and completes the run afterwards."""
    ledger = tmp_path / "ledger"
    both = [await hosts.serving(HERE, lease_s=LEASE_S) for _ in range(2)]
    await until_even(rows, both)
    run_id = await client.submit(AGENT, {"ledger": str(ledger), "where": "step"})
    blocked = of_pid(hosts, await until_begun(ledger, 1))
    [other] = [host for host in both if host is not blocked]
    warning = await blocked.until("the event loop is blocked by")
    await until_owned(rows, other, 31)
    answered_by = await answers(client)
    let_go(ledger, blocked.pid)
    async with asyncio.timeout(PATIENCE_S):
        done_by = await client.result(run_id)
    await until_even(rows, both)

    assert (warning["level"], warning["agent"], warning["run"]) == ("warning", str(AGENT), run_id)
    assert warning["place"].startswith("block (")
    assert "blockers.py:" in warning["place"]
    assert answered_by == {other.pid}
    assert began(ledger) == [done_by] == [blocked.pid]


async def until_owned(rows: Rows, host: HostProcess, count: int) -> None:
    """Return once the host owns this many shards."""

    async def is_so() -> bool:
        return (await rows.owned())[host.name] == count

    await until(is_so, f"{count} shards at {host.log}")


async def until_even(rows: Rows, both: list[HostProcess]) -> None:
    """Return once each host has half of the shards."""
    for host in both:
        await until_owned(rows, host, 16)


@pytest.mark.costly
@pytest.mark.parametrize("where", ["step", "code"])
@pytest.mark.parametrize("way", ["submit", "mail"])
async def test_a_run_that_blocks_two_hosts_for_too_long_is_parked(  # noqa: PLR0917 - fixtures
    hosts: Hosts, client: Runtime, cli: Cli, tmp_path: Path, where: str, way: str
) -> None:
    """It is started at most twice, also if it blocks before its first log entry."""
    ledger = tmp_path / "ledger"
    for _ in range(2):
        await hosts.serving(HERE, blocked_s=4, lease_s=LEASE_S)
    job = {"ledger": str(ledger), "where": where}
    await (client.submit(AGENT, job) if way == "submit" else client.send(AGENT, job))
    first = await until_begun(ledger, 1)
    second = await until_begun(ledger, 2)
    let_go(ledger, first)
    run = await client.store.lists.find_run_for_agent(AGENT)

    async def is_parked() -> bool:
        nonlocal run
        run = await client.store.lists.find_run_for_agent(AGENT)
        return run is not None and run.parked is not None

    await until(is_parked, "parked")
    assert run is not None
    answered_by = await answers(client)
    let_go(ledger, second)
    run_list = await cli.call("runs", "list", "--parked")
    parked = [e async for e in client.entries(run.run_id) if e.kind == EntryKind.RUN_PARKED]
    await cli.call("runs", "resolve", run.run_id, "-", "--retry")
    row = await until_run(client, run.run_id, lambda row: row.status.is_terminal, "ended")

    assert run.parked == "blocked"
    assert "PARKED (blocked)" in run_list.out
    assert "blockers.py" in str(parked[0].payload["detail"])
    assert answered_by == {first}
    assert began(ledger)[:2] == [first, second]
    assert first != second
    assert row.status is RunStatus.COMPLETED
    assert len(began(ledger)) == 3, "once more, as the operator said"


async def test_a_plain_function_in_a_thread_delays_no_other_agent(
    hosts: Hosts, client: Runtime, tmp_path: Path
) -> None:
    """With `thread=True` it may take any time, also on a single host."""
    ledger = tmp_path / "ledger"
    host = await hosts.serving(HERE, blocked_s=1, lease_s=LEASE_S)
    run_id = await client.submit(AGENT, {"ledger": str(ledger), "where": "thread"})
    await until_begun(ledger, 1)
    answered_by = await answers(client)
    let_go(ledger, host.pid)
    async with asyncio.timeout(PATIENCE_S):
        done_by = await client.result(run_id)

    assert answered_by == {host.pid}
    assert began(ledger) == [done_by] == [host.pid]
    assert not [line for line in host.events() if line["event"].startswith("the event loop is")]
