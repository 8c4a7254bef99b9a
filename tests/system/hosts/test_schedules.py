"""Schedules while hosts are killed and frozen and the database is unavailable: each tick once, in order."""

from __future__ import annotations

import asyncio
import secrets
import signal
from datetime import timedelta
from typing import TYPE_CHECKING

import pytest

from compose._assembly.runtime import build_postgres_runtime
from compose._assembly.settings import Settings
from tests.system.processes import Hosts
from tests.system.tickers import EVERY_SECOND, HERE, SECOND, gaps, ticker, ticks_of, until_ticks

if TYPE_CHECKING:
    from pathlib import Path

    from actors._runtime import Runtime
    from tests.harness.servers import OwnPostgres

AGENT = ticker("a")


@pytest.mark.parametrize("moment", ["before", "after"])
async def test_a_crash_at_a_firing_loses_and_doubles_no_tick(
    hosts: Hosts, client: Runtime, moment: str
) -> None:
    """Before the commit the next host fires it, after the commit it finds the message."""
    await client.schedules.create("s", AGENT, cron=EVERY_SECOND, catch_up="all")
    first = await hosts.serving(HERE, fault=f"fire:2:{moment}")
    assert await first.exit_code() == -9
    await hosts.serving(HERE)
    ticks = await until_ticks(client, AGENT, 5)

    assert set(gaps(ticks)) == {SECOND}


async def test_a_thawed_host_fires_no_tick_again(hosts: Hosts, client: Runtime) -> None:
    """Twelve schedules on two hosts, one of which is frozen for longer than its lease."""
    agents = [ticker(n) for n in range(12)]
    for agent in agents:
        await client.schedules.create(f"s-{agent.key}", agent, cron=EVERY_SECOND, catch_up="all")
    pair = [await hosts.serving(HERE) for _ in range(2)]
    for agent in agents:
        await until_ticks(client, agent, 1)
    pair[0].send(signal.SIGSTOP)
    so_far = [len(await ticks_of(client, agent)) for agent in agents]
    for agent, count in zip(agents, so_far, strict=True):
        await until_ticks(client, agent, count + 3)
    pair[0].send(signal.SIGCONT)
    await pair[0].until_lost()
    every = [await until_ticks(client, agent, 7) for agent in agents]

    assert {gap for ticks in every for gap in gaps(ticks)} == {SECOND}
    assert all(host.is_alive for host in pair)


@pytest.mark.costly
async def test_after_an_outage_one_message_is_sent_for_all_missed_ticks(
    own_postgres: OwnPostgres, tmp_path: Path
) -> None:
    """It is for the first missed tick, and the plan continues."""
    server = own_postgres(durable=True)
    hosts = Hosts(server.url, f"t_{secrets.token_hex(4)}", tmp_path)
    settings = Settings(postgres_url=server.url, db_schema=hosts.schema)
    try:
        async with build_postgres_runtime(server.url, settings=settings, serve=False) as client:
            await client.schedules.create("s", AGENT, cron=EVERY_SECOND)
            await hosts.serving(HERE, lease_s=5)
            before = await until_ticks(client, AGENT, 2)
            await asyncio.to_thread(server.stop)
            await asyncio.sleep(4)  # the outage itself
            await asyncio.to_thread(server.start)
            ticks = await until_ticks(client, AGENT, len(before) + 4)
    finally:
        hosts.end()

    assert ticks == sorted(set(ticks))
    assert ticks[: len(before)] == before
    assert max(gaps(ticks)) >= timedelta(seconds=2)
    assert gaps(ticks)[gaps(ticks).index(max(gaps(ticks))) - 1] == SECOND
