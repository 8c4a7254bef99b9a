"""SIGKILL before and after each append and commit of a ten-step run: another host completes it."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import pytest

from actors._kernel.runtime.ids import AgentId
from actors._kernel.runtime.log_entry import EntryKind
from tests.system.agents import AT_MOST_ONCE, STEP_COUNT, executed
from tests.system.moments import with_moments
from tests.system.waiting import until_run

if TYPE_CHECKING:
    from pathlib import Path

    from actors._kernel.runtime.ids import RunId
    from actors._runtime import Runtime
    from tests.integration.compose.commandline import Cli
    from tests.system.processes import Hosts

AGENT = AgentId("ten", "a")
APPENDS, COMMITS = 13, 2
POINTS = [("append", n) for n in range(1, APPENDS + 1)]
POINTS += [("commit", n) for n in range(1, COMMITS + 1)]


async def submit(client: Runtime, ledger: Path, pace_s: float = 0.0) -> RunId:
    """Start a ten-step run."""
    return await client.submit(AGENT, {"ledger": str(ledger), "pace_s": pace_s})


async def recorded(client: Runtime, run_id: RunId) -> set[int]:
    """Return the numbers of the steps whose result is in the log."""
    return {
        int(str(entry.payload["name"]).removeprefix("step-"))
        async for entry in client.entries(run_id)
        if entry.kind == EntryKind.EFFECT_RESULT
    }


async def settle(client: Runtime, cli: Cli, run_id: RunId, ledger: Path) -> list[str]:
    """Decide about effects in doubt by the ledger, as an operator would; return the positions decided."""
    decided: list[str] = []
    while True:
        row = await until_run(
            client, run_id, lambda row: row.status.is_terminal or row.parked is not None, "at rest"
        )
        if row.status.is_terminal:
            return decided
        run_view = (await cli.call("runs", "show", run_id, "--json")).data
        (doubtful,) = run_view["in_doubt"]
        decided.append(doubtful["position"])
        number = int(doubtful["name"].removeprefix("step-"))
        happened = number in {done for done, _ in executed(ledger)}
        decision = ["--value", f'"value-{number}"'] if happened else ["--retry"]
        output = await cli.call("runs", "resolve", run_id, doubtful["position"], *decision)
        assert output.code == 0, output
        await until_run(client, run_id, lambda row: row.parked is None, "decided")


@pytest.mark.item(490, 59, 172, 186, 189, 484, 485)
@pytest.mark.parametrize(("point", "nth", "moment"), with_moments(POINTS))
async def test_a_run_whose_host_crashes_at_any_write_completes_on_another(  # noqa: PLR0917 - fixtures
    hosts: Hosts, client: Runtime, cli: Cli, tmp_path: Path, point: str, nth: int, moment: str
) -> None:
    """Steps recorded at the crash are not executed again; at-most-once steps are executed at most once."""
    ledger = tmp_path / "ledger"
    first = await hosts.serving(fault=f"{point}:{nth}:{moment}")
    run_id = await submit(client, ledger)
    assert await first.exit_code() == -9
    before = await recorded(client, run_id)
    done_by_first = Counter(number for number, _ in executed(ledger))
    second = await hosts.serving()
    await settle(client, cli, run_id, ledger)
    done = Counter(number for number, _ in executed(ledger))

    assert await client.result(run_id) == [f"value-{n}" for n in range(STEP_COUNT)]
    assert all(done[n] == done_by_first[n] == 1 for n in before)
    assert all(done[n] == 1 for n in AT_MOST_ONCE)
    assert all(1 <= done[n] <= 2 for n in range(STEP_COUNT))
    assert sum(done.values()) <= STEP_COUNT + 1
    assert second.is_alive


async def test_the_kill_points_are_complete(hosts: Hosts, client: Runtime, tmp_path: Path) -> None:
    """An undisturbed run has exactly as many appends and commits as were tested."""
    ledger = tmp_path / "ledger"
    await hosts.serving(fault=f"append:{APPENDS + 1}:before,commit:{COMMITS + 1}:before")
    run_id = await submit(client, ledger)

    assert await client.result(run_id) == [f"value-{n}" for n in range(STEP_COUNT)]
    assert [number for number, _ in executed(ledger)] == list(range(STEP_COUNT))
