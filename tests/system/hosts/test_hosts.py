"""Host processes: shutdown, crash, and take-over."""

from __future__ import annotations

import asyncio
import signal
import time
from typing import TYPE_CHECKING

import pytest

from actors._kernel.runtime.ids import AgentId
from actors._kernel.runtime.log_entry import EntryKind
from actors._kernel.runtime.scheduler import RetryPolicy, RunStatus
from tests.harness.slow import BUSY_S
from tests.system.agents import AT_MOST_ONCE, STEP_COUNT, executed
from tests.system.waiting import until, until_executing, until_run

if TYPE_CHECKING:
    from pathlib import Path

    from actors._kernel.runtime.ids import RunId
    from actors._kernel.runtime.rows import RunRow
    from actors._runtime import Runtime
    from tests.integration.compose.commandline import Cli
    from tests.system.processes import Hosts

TEN = AgentId("ten", "a")
WAITER = AgentId("waiter", "a")
ALL = [f"value-{n}" for n in range(STEP_COUNT)]

pytestmark = pytest.mark.usefixtures("fleet")


async def until_suspended(client: Runtime, run_id: RunId) -> RunRow:
    """Return the run's row once it is suspended."""
    return await until_run(client, run_id, lambda r: r.status is RunStatus.SUSPENDED, "suspended")


@pytest.mark.item(195)
async def test_sigterm_waits_for_executing_code_and_releases_the_agents(
    hosts: Hosts, client: Runtime, tmp_path: Path
) -> None:
    """The executing run ends on the first host, which exits with 0; its lease is released."""
    ledger = tmp_path / "ledger"
    first = await hosts.serving(lease_s=60, suspend_after=0)
    run_id = await client.submit(TEN, {"ledger": str(ledger), "pace_s": 0.1})
    await until_executing(ledger, 2)
    first.send(signal.SIGTERM)
    code = await first.exit_code()
    done = [number for number, pid in executed(ledger) if pid == first.pid]
    await hosts.serving(lease_s=60)
    began = time.monotonic()
    next_run = await client.submit(TEN, {"ledger": str(ledger)})
    await client.result(next_run)

    assert code == 0
    assert done == list(range(STEP_COUNT))
    assert await client.result(run_id) == ALL
    assert time.monotonic() - began < 5 + BUSY_S
    assert [line["event"] for line in first.events() if line["event"].startswith("host.")] == [
        "host.starting",
        "host.serving",
        "host.draining",
        "host.stopped",
    ]


async def test_code_that_does_not_end_is_aborted_after_the_drain(
    hosts: Hosts, client: Runtime, tmp_path: Path
) -> None:
    """The run continues on another host, and recorded steps are not executed again."""
    ledger = tmp_path / "ledger"
    first = await hosts.serving(lease_s=60, drain_s=0.3)
    run_id = await client.submit(TEN, {"ledger": str(ledger), "pace_s": 0.25})
    await until_executing(ledger, 0)
    first.send(signal.SIGINT)
    code = await first.exit_code()
    await hosts.serving(lease_s=60)

    row = await until_run(
        client, run_id, lambda row: row.status.is_terminal or row.parked is not None, "at rest"
    )
    assert code == 0
    assert row.parked == "in_doubt" or row.status is RunStatus.COMPLETED
    assert all([n for n, _ in executed(ledger)].count(n) <= 1 for n in AT_MOST_ONCE)


@pytest.mark.item(172)
async def test_a_killed_host_is_replaced_within_its_lease_and_two_seconds(
    hosts: Hosts, client: Runtime, tmp_path: Path
) -> None:
    """A waiting second host continues with the next step."""
    ledger = tmp_path / "ledger"
    first = await hosts.serving(lease_s=2)
    second = await hosts.serving(lease_s=2)
    run_id = await client.submit(TEN, {"ledger": str(ledger), "pace_s": 2, "slow": 3})
    await until_executing(ledger, 3)
    first.send(signal.SIGKILL)
    killed_at = time.monotonic()
    await until(lambda: second.pid in {pid for _, pid in executed(ledger)}, "taken over")
    after_s = time.monotonic() - killed_at
    kinds = [entry.kind async for entry in client.tail(run_id)]

    assert after_s < 2 + 2 + BUSY_S
    assert await client.result(run_id) == ALL
    assert EntryKind.RUN_RESUMED in kinds


@pytest.mark.item(484)
async def test_a_frozen_host_that_comes_back_can_write_nothing(
    hosts: Hosts, client: Runtime, tmp_path: Path
) -> None:
    """Its shards were taken over; it aborts the run in the middle of a step and serves on."""
    ledger = tmp_path / "ledger"
    first = await hosts.serving()
    run_id = await client.submit(TEN, {"ledger": str(ledger), "pace_s": 3, "slow": 1})
    await until_executing(ledger, 1)
    first.send(signal.SIGSTOP)
    second = await hosts.serving()
    result = await client.result(run_id)
    at_end = [entry async for entry in client.entries(run_id)]
    first.thaw()
    await first.until_lost()
    afterwards = [entry async for entry in client.entries(run_id)]
    executions = executed(ledger)

    assert result == ALL
    assert afterwards == at_end
    assert [n for n, _ in executions] == [0, 1, *range(1, STEP_COUNT)]
    assert [pid for _, pid in executions] == [first.pid] * 2 + [second.pid] * (STEP_COUNT - 1)


@pytest.mark.costly
@pytest.mark.item(189, 485)
async def test_an_effect_in_doubt_is_reported_and_decided_by_the_operator(
    hosts: Hosts, client: Runtime, cli: Cli, tmp_path: Path
) -> None:
    """`runs list`, `runs show` and `doctor` name it; after `runs resolve` the run continues."""
    ledger = tmp_path / "ledger"
    first = await hosts.serving()
    run_id = await client.submit(TEN, {"ledger": str(ledger), "pace_s": 10, "slow": 2})
    await until_executing(ledger, AT_MOST_ONCE[0])
    first.send(signal.SIGKILL)
    await first.exit_code()
    await hosts.serving()
    await until_suspended(client, run_id)
    run_list = await cli.call("runs", "list", "--parked")
    run_view = await cli.call("runs", "show", run_id)
    doubtful = (await cli.call("runs", "show", run_id, "--json")).data["in_doubt"]
    doctor = await cli.call("doctor", "--json")
    parked = next(check for check in doctor.data["checks"] if check["check"] == "parked")
    output = await cli.call(
        "runs", "resolve", run_id, doubtful[0]["position"], "--value", '"by hand"'
    )

    assert "PARKED (in_doubt)" in run_list.out
    assert f"callboard runs resolve {run_id} {doubtful[0]['position']}" in run_view.out
    assert [effect["name"] for effect in doubtful] == ["step-2"]
    assert doctor.code == 1
    assert parked["parked"] == {"in_doubt": 1}
    assert output.code == 0
    assert await client.result(run_id) == [*ALL[:2], "by hand", *ALL[3:]]
    assert [number for number, _ in executed(ledger)].count(2) == 1


@pytest.mark.item(158, 226)
async def test_a_signal_sent_while_no_host_is_up_is_delivered_by_the_next(
    hosts: Hosts, client: Runtime, cli: Cli
) -> None:
    """The signal is a row; no host is needed when it is written."""
    first = await hosts.serving(suspend_after=0)
    run_id = await client.submit(WAITER, None)
    await until_suspended(client, run_id)
    first.send(signal.SIGTERM)
    await first.exit_code()
    output = await cli.call("runs", "signal", run_id, "go", '{"now": true}')
    await hosts.serving()

    assert output.code == 0
    async with asyncio.timeout(30):
        assert await client.result(run_id) == {"now": True}


@pytest.mark.costly
async def test_a_decision_made_while_no_host_is_up_is_delivered_by_the_next(
    hosts: Hosts, client: Runtime, cli: Cli, tmp_path: Path
) -> None:
    """An operator may decide first and start the host afterwards."""
    ledger = tmp_path / "ledger"
    first = await hosts.serving()
    run_id = await client.submit(TEN, {"ledger": str(ledger), "pace_s": 10, "slow": 2})
    await until_executing(ledger, AT_MOST_ONCE[0])
    first.send(signal.SIGKILL)
    await first.exit_code()
    second = await hosts.serving()
    await until_suspended(client, run_id)
    second.send(signal.SIGTERM)
    await second.exit_code()
    row = (await cli.call("runs", "show", run_id, "--json")).data
    output = await cli.call("runs", "resolve", run_id, row["in_doubt"][0]["position"], "--fail")
    await hosts.serving()

    assert output.code == 0
    async with asyncio.timeout(30):
        ended = await client.wait(run_id)
    assert ended.status is RunStatus.FAILED
    assert "failed by operator" in str(ended.error)


async def test_a_run_parked_without_doubt_is_started_anew_by_the_operator(
    hosts: Hosts, client: Runtime, cli: Cli, tmp_path: Path
) -> None:
    """`-` stands for the run as a whole; a position, or a value, is refused."""
    marker = tmp_path / "repaired"
    await hosts.serving()
    policy = RetryPolicy(max_retries=0, on_exhausted="pause")
    run_id = await client.submit(AgentId("flaky", "a"), str(marker), retry_policy=policy)
    await until_suspended(client, run_id)
    run_view = await cli.call("runs", "show", run_id)
    wrong_place = await cli.call("runs", "resolve", run_id, "0", "--retry")
    wrong_word = await cli.call("runs", "resolve", run_id, "-", "--fail")
    marker.touch()
    output = await cli.call("runs", "resolve", run_id, "-", "--retry")

    assert "PARKED (retries)" in run_view.out
    assert "not repaired" in run_view.out
    assert "nothing is in doubt at position '0'" in wrong_place.err
    assert "give --retry" in wrong_word.err
    assert output.code == 0
    async with asyncio.timeout(30):
        assert await client.result(run_id) == "repaired"


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ("nowhere", "MODULE:ATTR"),
        ("no_such_module:app", "no module 'no_such_module'"),
        ("tests.system.agents:nothing", "has no 'nothing'. It has:"),
        ("tests.system.agents:NOTHING", "it is a int. It has to be an agent"),
        ("tests.system.agents:Ten", "class Ten needs arguments"),
    ],
)
async def test_the_error_of_an_unusable_application_is_one_sentence(
    hosts: Hosts, spec: str, words: str
) -> None:
    """The given name, the problem, and the remedy."""
    host = hosts.start(spec)
    code = await host.exit_code()
    lines = host.log.read_text().splitlines()

    assert code == 2
    assert words in lines[-1]
    assert f"cannot serve {spec!r}" in lines[-1]
    assert "Traceback" not in host.log.read_text()


async def test_a_host_serves_objects_and_functions(
    hosts: Hosts, client: Runtime, tmp_path: Path
) -> None:
    """An agent object, and a function that registers agents."""
    await hosts.serving("tests.system.agents:ONE", "tests.system.agents:app")
    job = {"ledger": str(tmp_path / "ledger")}
    runs = [await client.submit(AgentId(type_, "a"), job) for type_ in ("one", "by-hand")]

    assert [await client.result(run) for run in runs] == [ALL, ALL]
