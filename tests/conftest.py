"""Fixture wiring only; what the fixtures do is in `tests/harness`."""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING

import pytest

from tests.harness import items as item_rows
from tests.harness import servers

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from tests.harness.servers import OwnPostgres, TestPostgres


def pytest_report_header() -> str:
    """Say where the servers come from before the first test runs."""
    return f"servers: postgres={servers.choose_postgres()}"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark every test that asks for a PostgreSQL, so that `-m 'not postgres'` leaves it out."""
    for item in items:
        if {"postgres_server", "own_postgres"} & set(getattr(item, "fixturenames", ())):
            item.add_marker(pytest.mark.postgres)


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add `--item-rows`, which prints the checklist rows of the collected tests."""
    parser.addoption("--item-rows", action="store_true", help="print `item-row NUMBER TEST` lines")


def pytest_configure(config: pytest.Config) -> None:
    """Print the checklist rows where they were asked for."""
    item_rows.register(config)


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[TestPostgres]:
    """The session's PostgreSQL."""
    with servers.shared_postgres() as server:
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
