"""Limits over two host processes: executions counted from outside, with changes and kill -9."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING, Final

import pytest

from actors._kernel.runtime.ids import AgentId
from compose.demo.desk import lines_of
from tests.system.limited import most_inside, processes
from tests.system.waiting import until

if TYPE_CHECKING:
    from pathlib import Path

    from actors._kernel.runtime.ids import RunId
    from actors._runtime import Runtime
    from tests.integration.compose.commandline import Cli
    from tests.system.fleet import Rows
    from tests.system.processes import Hosts

COUNTED: Final = "tests.system.limited:COUNTED"
SCOPE: Final = "type:counted"
LONG: Final[dict[str, float]] = {"lease_s": 10, "heartbeat_s": 0.25}
"""Without crashes: a stalled host keeps its runs."""


async def submit(client: Runtime, ledger: Path, count: int, pace_s: float) -> list[RunId]:
    """Submit one run for each of this many agents."""
    job = {"ledger": str(ledger), "pace_s": pace_s}
    return [await client.submit(AgentId("counted", f"k{n}"), job) for n in range(count)]


async def begun(ledger: Path, count: int) -> int:
    """Return the number of lines once this many executions have started."""
    await until(lambda: sum(processes(str(ledger)).values()) >= count, f"{count} have begun")
    return len(lines_of(str(ledger)))


@pytest.mark.costly
@pytest.mark.item(218)
async def test_two_hundred_runs_on_two_hosts_never_exceed_the_limit(
    hosts: Hosts, client: Runtime, rows: Rows, tmp_path: Path
) -> None:
    """The ledger counts at most five at once; both hosts take part, and all runs complete."""
    ledger = tmp_path / "ledger"
    ledger.touch()
    pair = [await hosts.serving(COUNTED, **LONG) for _ in range(2)]
    await rows.until_owned("p:counted:", {host.name: 8 for host in pair})
    await client.limits.set(SCOPE, max_concurrent=5)
    runs = await submit(client, ledger, 200, 0.02)
    for run_id in runs:
        await client.result(run_id)

    assert most_inside(str(ledger)) == 5
    counts = processes(str(ledger))
    assert set(counts) == {host.pid for host in pair}
    assert min(counts.values()) >= 200 * 0.25, "neither host kept the other waiting"


@pytest.mark.costly
@pytest.mark.item(218)
async def test_a_limit_is_changed_while_hosts_run(
    hosts: Hosts, client: Runtime, cli: Cli, tmp_path: Path
) -> None:
    """Eight, then two, then none, then unlimited: by the command line, without a restart."""
    ledger = tmp_path / "ledger"
    ledger.touch()
    for _ in range(2):
        await hosts.serving(COUNTED, **LONG)
    assert (await cli.call("limits", "set", SCOPE, "--max-concurrent", "8")).code == 0
    runs = await submit(client, ledger, 250, 0.15)
    await begun(ledger, 40)
    assert most_inside(str(ledger)) <= 8
    assert (await cli.call("limits", "set", SCOPE, "--max-concurrent", "2")).code == 0
    settled = await begun(ledger, len(lines_of(str(ledger))) // 2 + 12)
    await begun(ledger, settled // 2 + 10)
    assert most_inside(str(ledger), first=settled) <= 2
    assert (await cli.call("limits", "set", SCOPE, "--max-concurrent", "0")).code == 0

    async def is_still() -> bool:
        return bool((await cli.call("limits", "list", "--json")).data[0]["held"] == 0)

    await until(is_still, "nothing executes")
    limits = (await cli.call("limits", "list", "--json")).data
    assert limits[0]["scope"] == SCOPE
    assert limits[0]["waiting"] > 0
    assert (await cli.call("limits", "delete", SCOPE)).code == 0
    for run_id in runs:
        await client.result(run_id)


@pytest.mark.costly
@pytest.mark.item(218)
async def test_slots_of_a_killed_host_are_free_when_its_lease_ends(
    hosts: Hosts, client: Runtime, rows: Rows, tmp_path: Path
) -> None:
    """One host crashes with slots that its runs hold; the other one then gets all of them."""
    ledger = tmp_path / "ledger"
    ledger.touch()
    first, second = [await hosts.serving(COUNTED, lease_s=3, heartbeat_s=0.25) for _ in range(2)]
    await rows.until_owned("p:counted:", {first.name: 8, second.name: 8})
    await client.limits.set(SCOPE, max_concurrent=4)
    runs = await submit(client, ledger, 60, 0.1)
    await begun(ledger, 12)
    await until(lambda: processes(str(ledger))[first.pid] > 0, "the first host takes part")
    first.send(signal.SIGKILL)
    await first.exit_code()
    for run_id in runs:
        await client.result(run_id)

    dead = first.pid
    assert most_inside(str(ledger), dead={dead}) == 4
    assert processes(str(ledger))[dead] > 0
