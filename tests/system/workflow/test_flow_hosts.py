"""Flows on host processes that are killed, or frozen past their lease."""

from __future__ import annotations

import asyncio
import signal
from collections import Counter
from contextlib import suppress
from typing import TYPE_CHECKING

import pytest

from actors.workflow import FlowRuns, StaleResumeError, verify_ledger_chain
from tests.behaviour.flow_stage import without_doubts
from tests.harness.slow import IS_SLOW
from tests.system.agents import executed
from tests.system.blockers import began, let_go
from tests.system.waiting import until, until_executing
from tests.system.workflow.hosted_flows import APP, ONCE, STEPS

if TYPE_CHECKING:
    from pathlib import Path

    from actors._kernel.runtime.ids import RunId
    from actors._runtime import Runtime
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
    steps = without_doubts(records)[1:-2]
    statuses = [(record["status"], record["effect"]["payload"].get("n", ONCE)) for record in steps]
    assert statuses == [(status, n) for n in range(STEPS) for status in ("started", "completed")]


async def decided(runs: FlowRuns, run_id: RunId, result: int) -> bool:
    """Decide that an effect in doubt happened; return whether one was in doubt."""
    for wait in await runs.waits(run_id):
        with suppress(StaleResumeError):  # it was decided, and the host has not read it yet
            await runs.resume(run_id, str(wait.wait_key), {"result": result})
            return True
    return False


@pytest.mark.slow
@pytest.mark.item(391, 393, 398, 441)
@pytest.mark.parametrize("how", ["killed", "frozen", "frozen in doubt"])
async def test_another_host_continues_a_flow(
    hosts: Hosts, client: Runtime, tmp_path: Path, how: str
) -> None:
    """Recorded effects are not repeated. The step of a host frozen past its lease counts nowhere.

    An at-most-once step is in doubt meanwhile. The decision on it counts.
    """
    ledger = tmp_path / "ledger"
    slow = ONCE if "in doubt" in how else 2
    first = await hosts.serving(SERVE)
    runs = FlowRuns(client, APP)
    run_id = await runs.start("six", vars={"ledger": str(ledger), "slow": slow})
    await until_executing(ledger, slow)
    first.send(signal.SIGKILL if how == "killed" else signal.SIGSTOP)
    second = await hosts.serving(SERVE)
    if slow == ONCE:
        await until(lambda: decided(runs, run_id, ONCE * 10), "a decision")

    assert await client.result(run_id) == OUTPUT
    await check(runs, run_id)
    at_end = [entry async for entry in client.entries(run_id)]
    if how != "killed":
        first.thaw()
        await first.until_lost()
        assert [entry async for entry in client.entries(run_id)] == at_end
    done = executed(ledger)
    again = slow if slow != ONCE else slow + 1
    assert [n for n, _ in done] == [*range(slow + 1), *range(again, STEPS)]
    assert [pid for _, pid in done] == [first.pid] * (slow + 1) + [second.pid] * (STEPS - again)


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
    held_runs = {
        path: await runs.start("held", vars={"ledger": str(path), "once": path == once})
        for path in (again, once)
    }
    await until(lambda: bool(began(again) and began(once)), "begun")
    six = await runs.start("six", vars={"ledger": str(other)})
    assert await client.result(six) == OUTPUT
    first.send(signal.SIGKILL)
    second = await hosts.serving(SERVE)

    await until(lambda: decided(runs, held_runs[once], 7), "a decision")
    assert await client.result(held_runs[once]) == 7
    await until(lambda: len(began(again)) == 2, "begun again")
    let_go(again, second.pid)

    assert await client.result(held_runs[again]) == second.pid
    assert began(again) == [first.pid, second.pid]
    assert began(once) == [first.pid]
    records = await runs.ledger(held_runs[again])
    assert [record["status"] for record in records[1:-2]] == ["started", "completed"]


@pytest.mark.costly
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

        async def is_over(run_id: RunId = run_id) -> bool:
            await decided(runs, run_id, ONCE * 10)
            row = await client.store.reads.run(run_id)
            assert row is not None
            return row.status.is_terminal

        await until(is_over, f"the end behind {point}")
        assert await client.result(run_id) == OUTPUT, point
        await check(runs, run_id)
        again = Counter(n for n, _ in executed(ledger)) - Counter(range(STEPS))
        assert again.total() <= 1, point
        assert again[ONCE] == 0, point
        after.send(signal.SIGKILL)
        await after.exit_code()
        ended.cancel()
    assert died >= (12 if IS_SLOW else 2)
