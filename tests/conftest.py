"""Fixture wiring only; what the fixtures do is in `tests/harness`."""

from __future__ import annotations

import gc
import secrets
from typing import TYPE_CHECKING

import pytest
from hypothesis import settings

from compose.collecting import collect_rarely
from tests.harness import items as item_rows
from tests.harness import servers

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from tests.harness.servers import (
        OwnNats,
        OwnPostgres,
        OwnRedis,
        TestNats,
        TestPostgres,
        TestRedis,
    )

# A busy machine may take long for an example.
settings.register_profile("callboard", deadline=None)
settings.load_profile("callboard")

KINDS = {"postgres": servers.POSTGRES, "nats": servers.NATS, "redis": servers.REDIS}
"""By marker; the fixtures of a kind are `MARKER_server` and `own_MARKER`."""


def pytest_report_header() -> str:
    """Say where the servers come from before the first test runs."""
    return "servers: " + " ".join(f"{name}={kind.choose()}" for name, kind in KINDS.items())


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark every test that asks for a server, so that `-m 'not postgres'` leaves it out.

    The longest come first, so that no worker is left alone with one at the end.
    """
    items.sort(key=lambda item: item.path.stem != "test_crowds")
    for item in items:
        for name in KINDS:
            if {f"{name}_server", f"own_{name}"} & set(getattr(item, "fixturenames", ())):
                item.add_marker(getattr(pytest.mark, name))


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add `--item-rows`, which prints the checklist rows of the collected tests."""
    parser.addoption("--item-rows", action="store_true", help="print `item-row NUMBER TEST` lines")


def pytest_configure(config: pytest.Config) -> None:
    """Print the checklist rows where they were asked for."""
    item_rows.register(config)


def pytest_collection_finish() -> None:
    """Look for garbage as rarely as a host does, and never among the thousands of collected tests."""
    collect_rarely()
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[TestPostgres]:
    """The session's PostgreSQL."""
    with servers.POSTGRES.shared() as server:
        yield server


@pytest.fixture
def postgres_dsn(postgres_server: TestPostgres) -> str:
    """The URL of the session's PostgreSQL."""
    return postgres_server.url


@pytest.fixture
async def schema(postgres_server: TestPostgres) -> AsyncIterator[str]:
    """A schema name that no other test uses; what the test makes of it is dropped afterwards."""
    name = f"t_{secrets.token_hex(6)}"
    yield name
    await servers.drop_schema(postgres_server, name)


@pytest.fixture
def own_postgres() -> Iterator[OwnPostgres]:
    """Starts servers that belong to this test alone, to be killed and restarted."""
    with servers.own_postgres_factory() as start:
        yield start


@pytest.fixture(scope="session")
def nats_server() -> Iterator[TestNats]:
    """The session's NATS, with JetStream."""
    with servers.NATS.shared() as server:
        yield server


@pytest.fixture
async def namespace(nats_server: TestNats) -> AsyncIterator[str]:
    """A namespace that no other test uses; its streams are deleted afterwards."""
    name = f"t-{secrets.token_hex(6)}"
    yield name
    await servers.drop_namespace(nats_server, name)


@pytest.fixture
def own_nats() -> Iterator[OwnNats]:
    """Starts NATS servers that belong to this test alone, to be killed, frozen and wiped."""
    with servers.own_nats_factory() as start:
        yield start


@pytest.fixture(scope="session")
def redis_server() -> Iterator[TestRedis]:
    """The session's Valkey; tests share it, so each takes keys of its own."""
    with servers.REDIS.shared() as server:
        yield server


@pytest.fixture
def own_redis() -> Iterator[OwnRedis]:
    """Starts Valkey servers that belong to this test alone, to be killed, flushed and wiped."""
    with servers.own_redis_factory() as start:
        yield start
