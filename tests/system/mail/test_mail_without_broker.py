"""NATS is absent or frozen: agents exchange messages through the database, and external clients wait."""

from __future__ import annotations

import asyncio
import os
import signal
from typing import TYPE_CHECKING, Final

import pytest

from tests.system.fleet import LEFT
from tests.system.mail.test_mail_kill_points import (
    AT_LEFT,
    AT_RIGHT,
    LEASE_S,
    ORDER,
    PLACES,
    holds,
    is_over,
    start,
)
from tests.system.mailing import Load
from tests.system.moments import with_moments
from tests.system.waiting import until

if TYPE_CHECKING:
    from actors._runtime import Runtime
    from compose.embedded import NatsServer
    from tests.system.fleet import Rows
    from tests.system.processes import Hosts

STANDS_S: Final = 3.0
POINTS: Final = [("left", 1), ("left", 2), ("left", 4), ("right", 1), ("right", 2)]


@pytest.fixture
def load(nats: NatsServer, postgres_dsn: str, schema: str) -> Load:
    """Nodes on that server."""
    return Load(nats.url, postgres_dsn, schema)


@pytest.mark.costly
async def test_messages_between_hosts_go_on_while_the_broker_is_away(
    load: Load, nats: NatsServer
) -> None:
    """From one second after its loss on.

    When it is back, external clients continue, and nothing comes twice.
    """
    async with load.host() as first, load.host() as other:
        await load.publish("crm", 1)
        await load.pump(first, 3)
        await load.settle(first)
        await asyncio.to_thread(nats.stop)
        for runtime in (first, other, first):
            await load.pump(runtime, 2)
            async with asyncio.timeout(STANDS_S):
                await load.until_handled(sum(load.expected.values()))
        publishing = asyncio.create_task(load.publish("crm", 3))
        await asyncio.to_thread(nats.start)
        await load.pump(first, 3)
        await publishing
        await load.until_connected(first, other)
        await load.settle(first)

    assert await load.problems() == []


@pytest.mark.costly
async def test_a_frozen_broker_delivers_nothing_twice(load: Load, nats: NatsServer) -> None:
    """Messages that it accepted and did not deliver are handed over, and come once more when it thaws."""
    async with load.host() as first, load.host() as other:
        for runtime in (first, other):
            await load.pump(runtime, 4, runs=3, pace_s=0.02)
            await load.until_handled(sum(load.expected.values()) // 4)
            os.kill(nats.pid, signal.SIGSTOP)
            try:
                await load.pump(runtime, 2)
                await load.until_handled(sum(load.expected.values()))
            finally:
                os.kill(nats.pid, signal.SIGCONT)
            await load.publish("crm", 1)
        await load.settle(first)

    assert await load.problems() == []


@pytest.mark.costly
@pytest.mark.parametrize(("side", "nth", "moment"), with_moments(POINTS))
async def test_messages_are_handled_once_and_in_order_after_any_crash_without_a_broker(  # noqa: PLR0917 - fixtures
    fleet: Hosts, nats: NatsServer, client: Runtime, rows: Rows, side: str, nth: int, moment: str
) -> None:
    """Right before or after the hand-over of its messages; a later host continues."""
    fleet.more["nats_url"] = nats.url
    hosts = await start(fleet, {side: f"publish:{nth}:{moment}"})
    await asyncio.to_thread(nats.stop)
    await client.submit(LEFT, ORDER)
    assert await hosts[side].exit_code() == -9
    await asyncio.to_thread(nats.start)
    await fleet.serving(PLACES[side], lease_s=LEASE_S)

    await holds(rows)


async def test_a_conversation_of_two_hosts_needs_no_broker(
    fleet: Hosts, nats: NatsServer, client: Runtime, rows: Rows
) -> None:
    """To its end, without NATS."""
    fleet.more["nats_url"] = nats.url
    await start(fleet, {}, lease_s=30)
    await asyncio.to_thread(nats.stop)
    await client.submit(LEFT, ORDER)
    await until(lambda: is_over(rows), "the end of the conversation")

    assert await rows.seen(LEFT) == AT_LEFT
    assert await rows.count("inbox") == len(AT_LEFT) + len(AT_RIGHT)
    await holds(rows)
