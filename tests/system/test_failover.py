"""A Postgres failover that loses the last commits, below hosts that stay up."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from tests.harness import servers
from tests.system.mailing import Load

if TYPE_CHECKING:
    from compose.embedded import NatsServer, PostgresServer
    from tests.harness.servers import OwnNats, OwnPostgres

pytestmark = pytest.mark.timeout(120)


@pytest.fixture
def postgres(own_postgres: OwnPostgres) -> PostgresServer:
    """A durable server of this test's own."""
    return own_postgres(durable=True)


@pytest.fixture
def nats(own_nats: OwnNats) -> NatsServer:
    """A server of this test's own."""
    return own_nats()


@pytest.fixture
def load(nats: NatsServer, postgres: PostgresServer) -> Load:
    """Nodes on those servers."""
    return Load(nats.url, postgres.url, "failover")


async def test_what_outsiders_published_is_handled_by_hosts_that_stay_up(
    load: Load, postgres: PostgresServer
) -> None:
    """What was acknowledged, read and handled by commits that are lost is read and handled again."""
    async with load.host() as one, load.host() as two:
        await load.until_connected(one, two)
        await load.publish("crm", 2)
        await load.settle(one)
        standby = await servers.copy_of(postgres)
        await load.publish("crm", 10)
        await load.settle(one)
        await asyncio.to_thread(servers.fail_over, postgres, standby)
        await load.settle(one)

    assert await load.problems() == []


async def test_what_agents_of_two_hosts_send_each_other_comes_once_and_in_order(
    load: Load, postgres: PostgresServer
) -> None:
    """Senders that are forgotten send again; receivers that are forgotten get again what was sent."""
    async with load.host() as one, load.host() as two:
        await load.until_connected(one, two)
        await load.pump(one, 5, runs=12, pace_s=0.1)
        await load.until_handled(40)
        standby = await servers.copy_of(postgres)
        handled = await load.handled()
        await load.publish("crm", 3)
        await load.until_handled(handled + 60)
        await asyncio.to_thread(servers.fail_over, postgres, standby)
        back_to = await load.handled()
        await load.settle(one)

    assert back_to < handled + 60
    assert await load.problems() == []
