"""Connections to a schema, for contracts of stores that are bound to no run."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from actors._kernel.runtime.ids import HostIncarnation
from persistence._postgres.connection.link import Links, ServerOutage, StoreSettings
from persistence.postgres import open_postgres_history

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    import pytest

    from tests.harness.servers import Schemas


@asynccontextmanager
async def lent_place(request: pytest.FixtureRequest) -> AsyncIterator[tuple[str, str]]:
    """The URL of the server, and a schema that belongs to this test."""
    url: str = request.getfixturevalue("postgres_server").url
    schemas: Schemas = request.getfixturevalue("schemas")
    async with schemas.lent() as schema, open_postgres_history(url, schema=schema):
        yield url, schema


@asynccontextmanager
async def links_of(address: tuple[str, str], count: int = 2) -> AsyncIterator[Links]:
    """Return connections like those of a runtime's store."""
    url, schema = address
    settings = StoreSettings(url=url, owner=HostIncarnation("test"), schema=schema)
    links = Links(settings, ServerOutage(settings), count)
    try:
        yield links
    finally:
        await links.close()


@asynccontextmanager
async def lent_links(request: pytest.FixtureRequest, count: int = 2) -> AsyncIterator[Links]:
    """Connections to a schema that belongs to this test."""
    async with lent_place(request) as address, links_of(address, count) as links:
        yield links
