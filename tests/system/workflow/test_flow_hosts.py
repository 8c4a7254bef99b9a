"""Flows on host processes that are killed, or frozen past their lease."""

from __future__ import annotations

import asyncio
import signal
from collections import Counter
from typing import TYPE_CHECKING

import pytest

from actors.workflow import FlowRuns, verify_ledger_chain
from tests.harness.slow import IS_SLOW
from tests.system.agents import executed
from tests.system.blockers import began, let_go
from tests.system.waiting import until, until_executing
from tests.system.workflow.hosted_flows import APP, ONCE, STEPS

if TYPE_CHECKING:
    from pathlib import Path

    from actors.kernel.runtime.ids import RunId
    from actors.runtime import Runtime
    from tests.system.processes import Hosts

SERVE = "tests.system.workflow.hosted_flows:serve"
OUTPUT = {str(n): n * 10 for n in range(STEPS)}
POINTS = [
    f"{point}:{nth}:{moment}"
    for point, most in (("append", 7), ("commit", 2))
    for nth in range(1, most + 1)
    for moment in ("before", "after")
]


async def check(runs: FlowRuns, run_id: RunId) -> None:
    """Check that the ledger has each step once, and that its chain is complete."""
    records = await runs.ledger(run_id)
    assert verify_ledger_chain(records)["ok"]
    told = [(one["status"], one["effect"]["payload"]["n"]) for one in records[1:-2]]
    assert told == [(status, n) for n in range(STEPS) for status in ("started", "completed")]


@pytest.mark.slow
@pytest.mark.item(391, 393, 398, 441)
@pytest.mark.parametrize("how", ["killed", "frozen"])
async def test_another_host_continues_a_flow(
    hosts: Hosts, client: Runtime, tmp_path: Path, how: str
) -> None:
    """Recorded effects are not repeated. The step of a host frozen past its lease counts nowhere."""
    ledger = tmp_path / "ledger"
    first = await hosts.serving(SERVE)
    runs = FlowRuns(client, APP)
    run_id = await runs.start("six", vars={"ledger": str(ledger), "slow": 2})
    await until_executing(ledger, 2)
    first.send(signal.SIGKILL if how == "killed" else signal.SIGSTOP)
    second = await hosts.serving(SERVE)

    assert await client.result(run_id) == OUTPUT
    await check(runs, run_id)
    at_end = [entry async for entry in client.entries(run_id)]
    if how == "frozen":
        first.thaw()
        await first.until_lost()
        assert [entry async for entry in client.entries(run_id)] == at_end
    done = executed(ledger)
    assert [n for n, _ in done] == [0, 1, *range(2, 3), *range(2, STEPS)]
    assert [pid for _, pid in done] == [first.pid] * 3 + [second.pid] * (STEPS - 2)


@pytest.mark.item(391, 398, 404, 415, 441)
async def test_a_blocking_handler_runs_in_a_thread(
    hosts: Hosts, client: Runtime, tmp_path: Path
) -> None:
    """The only host executes another run.

    Killed meanwhile, the handler is started once more, or not at all.
    """
    again, once, other = (tmp_path / name for name in ("again", "once", "other"))
    runs = FlowRuns(client, APP)
    first = await hosts.serving(SERVE)
    held = {
        path: await runs.start("held", vars={"ledger": str(path), "once": path == once})
        for path in (again, once)
    }
    await until(lambda: bool(began(again) and began(once)), "begun")
    six = await runs.start("six", vars={"ledger": str(other)})
    assert await client.result(six) == OUTPUT
    first.send(signal.SIGKILL)
    second = await hosts.serving(SERVE)

    async def is_parked() -> bool:
        row = await client.store.reads.run(held[once])
        return row is not None and row.parked == "in_doubt"

    await until(is_parked, "parked")
    await until(lambda: len(began(again)) == 2, "begun again")
    let_go(again, second.pid)

    assert await client.result(held[again]) == second.pid
    assert began(again) == [first.pid, second.pid]
    assert began(once) == [first.pid]
    records = await runs.ledger(held[again])
    assert [one["status"] for one in records[1:-2]] == ["started", "completed"]


@pytest.mark.slow
@pytest.mark.item(391, 398, 404, 415, 441)
@pytest.mark.timeout(300)
async def test_a_flow_survives_kills_at_its_writes(
    hosts: Hosts, client: Runtime, tmp_path: Path
) -> None:
    """No record is lost or doubled, at most one step is repeated, and an at-most-once step never."""
    runs = FlowRuns(client, APP)
    died = 0
    for number, point in enumerate(POINTS if IS_SLOW else POINTS[5::6]):
        ledger = tmp_path / f"ledger-{number}"
        host = await hosts.serving(SERVE, fault=point)
        run_id = await runs.start("six", vars={"ledger": str(ledger)})
        ended = asyncio.ensure_future(client.wait(run_id))
        await until(lambda: ended.done() or not host.is_alive, f"a death at {point}")  # noqa: B023
        died += not host.is_alive
        if host.is_alive:
            host.send(signal.SIGKILL)
        after = await hosts.serving(SERVE)

        async def decided(run_id: RunId = run_id) -> bool:
            row = await client.store.reads.run(run_id)
            assert row is not None
            if row.parked == "in_doubt":
                found = [one async for one in client.entries(run_id) if one.kind == "run.parked"]
                place = str(found[-1].payload["at"])
                await client.resolve(run_id, place, action="value", value=ONCE * 10)
            return row.status.is_terminal

        await until(decided, f"the end behind {point}")
        assert await client.result(run_id) == OUTPUT, point
        await check(runs, run_id)
        again = Counter(n for n, _ in executed(ledger)) - Counter(range(STEPS))
        assert again.total() <= 1, point
        assert again[ONCE] == 0, point
        after.send(signal.SIGKILL)
        await after.exit_code()
        ended.cancel()
    assert died >= (12 if IS_SLOW else 2)
