"""Hosts with a wrong clock: waits take their requested time."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import pytest

from actors._kernel.agent.agent import ExecutionBudget
from actors._kernel.runtime.ids import AgentId
from actors._kernel.runtime.log_entry import EntryKind
from actors._kernel.runtime.scheduler import RunStatus
from actors._runtime.loop.timers import MAX_ARM_S
from tests.harness.slow import BUSY_S
from tests.system.hosts.test_host_http import ANY_PORT, metrics
from tests.system.stepped import HERE
from tests.system.waiting import PATIENCE_S, until, until_run

if TYPE_CHECKING:
    from actors._kernel.json import JsonValue
    from actors._kernel.runtime.ids import RunId
    from actors._runtime import Runtime
    from tests.integration.compose.commandline import Cli
    from tests.system.processes import Hosts

HOUR_S = 3600.0


async def step_clock(client: Runtime, ahead_s: float) -> None:
    """Set the clock of the only host."""
    await ended(client, await client.submit(AgentId("stepper", "a"), ahead_s))


async def ended(client: Runtime, run_id: RunId) -> JsonValue:
    """Return the run's output."""
    async with asyncio.timeout(PATIENCE_S):
        return await client.result(run_id)


async def until_suspended(client: Runtime, *run_ids: RunId) -> None:
    """Return once the runs are suspended."""
    for run_id in run_ids:
        await until_run(client, run_id, lambda r: r.status is RunStatus.SUSPENDED, "suspended")


async def waited_s(
    client: Runtime, run_id: RunId, begin: EntryKind, end: EntryKind
) -> tuple[float, float]:
    """Return the planned length of a wait at its start, and how late its end was.

    By the database's clock, which stamps the entries in their commit.
    """
    entries = {entry.kind: entry async for entry in client.entries(run_id)}
    at = datetime.fromisoformat(str(entries[begin].payload["at"]))
    return (at - entries[begin].ts).total_seconds(), (entries[end].ts - at).total_seconds()


@pytest.mark.parametrize("ahead_s", [HOUR_S, -HOUR_S], ids=["ahead", "behind"])
async def test_a_clock_step_neither_ends_nor_delays_waits(
    hosts: Hosts, client: Runtime, ahead_s: float
) -> None:
    """Sleeps, time limits and deadlines from before the step end at their time, and so do new ones."""
    await hosts.serving(HERE, suspend_after=0.5)
    long = [
        await client.submit(AgentId("sleeper", "long"), 600),
        await client.submit(AgentId("asker", "long"), 600),
        await client.submit(AgentId("receiver", "long"), 600),
        await client.submit(
            AgentId("silent", "long"), 0, execution_budget=ExecutionBudget(deadline_s=600)
        ),
    ]
    short = await client.submit(AgentId("sleeper", "short"), 3)
    await step_clock(client, ahead_s)
    asleep = await client.submit(AgentId("sleeper", "new"), 3)
    asking = await client.submit(AgentId("asker", "new"), 3)
    woken = [await ended(client, run_id) for run_id in (short, asleep)]
    assert await ended(client, asking) == "timed_out"
    await until_suspended(client, *long)
    waited = [
        await waited_s(client, run_id, EntryKind.TIMER_SET, EntryKind.TIMER_FIRED)
        for run_id in (short, asleep)
    ]
    waited.append(await waited_s(client, asking, EntryKind.ASK_SENT, EntryKind.ASK_TIMEOUT))
    kinds = [[entry.kind async for entry in client.entries(run_id)] for run_id in long]

    assert all(3 - BUSY_S < off_s <= 3 for off_s, _ in waited)
    assert all(0 <= late_s < MAX_ARM_S + BUSY_S for _, late_s in waited)
    assert all(
        abs(datetime.fromisoformat(str(at)) - datetime.now(UTC)) < timedelta(seconds=PATIENCE_S)
        for at in woken
    )
    assert all(EntryKind.RUN_RESUMED not in seen for seen in kinds), "nothing woke them"


async def test_a_wrong_clock_is_reported(hosts: Hosts, client: Runtime, cli: Cli) -> None:
    """A metric of the host and `callboard doctor` report the offset."""
    host = await hosts.serving(HERE, http=ANY_PORT)
    await step_clock(client, HOUR_S)
    measured = (await metrics(host))["callboard_host_clock_offset_seconds", ""]

    async def is_reported() -> bool:
        output = await cli.call("doctor", "--json")
        check = next(c for c in output.data["checks"] if c["check"] == "hosts")
        return check["level"] == "wrong" and "clock" in check["remedy"]

    await until(is_reported, "the doctor names the host's clock")
    assert abs(measured - HOUR_S) < BUSY_S
