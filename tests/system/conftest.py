"""Fixtures; their implementation is in `processes.py`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from compose._assembly.runtime import build_postgres_runtime
from compose._assembly.settings import Settings
from tests.harness.rawnats import raw_nats
from tests.integration.compose.commandline import Cli
from tests.system.fleet import Rows
from tests.system.processes import Hosts

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from actors._runtime import Runtime
    from compose.embedded import NatsServer, PostgresServer
    from tests.harness.rawnats import RawNats
    from tests.harness.servers import OwnNats, OwnPostgres, TestNats, TestRedis

HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests of this folder."""
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.system)


@pytest.fixture
def postgres(own_postgres: OwnPostgres) -> PostgresServer:
    """A durable server of this test's own."""
    return own_postgres(durable=True)


@pytest.fixture
def nats(own_nats: OwnNats) -> NatsServer:
    """A durable server of this test's own."""
    return own_nats(durable=True)


@pytest.fixture
def hosts(postgres_dsn: str, schema: str, tmp_path: Path) -> Iterator[Hosts]:
    """Start host processes on the test's schema."""
    started = Hosts(postgres_dsn, schema, tmp_path)
    yield started
    started.end()


@pytest.fixture
def fleet(
    hosts: Hosts, nats_server: TestNats, redis_server: TestRedis, namespace: str
) -> Iterator[Hosts]:
    """Start host processes with a broker; all messages travel through it."""
    hosts.more = {
        "nats_url": nats_server.url,
        "redis_url": redis_server.url,
        "namespace": namespace,
        "local_delivery": False,
    }
    yield hosts
    hosts.end()  # before the namespace is deleted


@pytest.fixture
async def rows(postgres_dsn: str, schema: str) -> AsyncIterator[Rows]:
    """Read the test's tables."""
    async with Rows.of(postgres_dsn, schema) as tables:
        yield tables


@pytest.fixture
async def outsider(nats_server: TestNats) -> AsyncIterator[RawNats]:
    """Yield a connection of an external client, which knows only the broker."""
    async with raw_nats(nats_server.url) as connection:
        yield connection


@pytest.fixture
def cli(postgres_dsn: str, schema: str, capsys: pytest.CaptureFixture[str]) -> Cli:
    """Return the command line on the test's schema."""
    return Cli(postgres_dsn, schema, capsys)


@pytest.fixture
async def client(postgres_dsn: str, schema: str) -> AsyncIterator[Runtime]:
    """A client on the test's schema."""
    settings = Settings(postgres_url=postgres_dsn, db_schema=schema)
    async with build_postgres_runtime(postgres_dsn, settings=settings, serve=False) as runtime:
        yield runtime
