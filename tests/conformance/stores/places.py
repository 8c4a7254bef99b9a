"""Places where stores of agents' data are tested: a schema each, or this process."""

from __future__ import annotations

from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from actors.kernel.runtime.ids import HostIncarnation
from persistence.postgres import StoreSettings, open_postgres_graph, open_postgres_vectors
from persistence.postgres.connection.link import Links
from persistence.postgres.connection.outage import ServerOutage
from tests.integration.persistence.hosts import sql

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

COLUMN = """
select t.typname as type from pg_attribute a join pg_type t on t.oid = a.atttypid
  where a.attrelid = 'vector_documents'::regclass and a.attname = 'embedding'
"""


@dataclass(frozen=True, slots=True)
class Place:
    """A schema of a database."""

    url: str
    schema: str


async def make(place: Place) -> str:
    """Make the tables of all stores, and return the type of embeddings: `vector`, or `_float4` for `real[]`."""
    async with open_postgres_vectors(place.url, schema=place.schema) as vectors:
        assert await vectors.search([1.0]) == []
    async with open_postgres_graph(place.url, schema=place.schema) as graph:
        assert await graph.get_entity("a") is None
    [[column]] = await sql(place.url, place.schema, COLUMN)
    return str(column)


@asynccontextmanager
async def links_to(place: Place) -> AsyncIterator[Links]:
    """Connections as the opening functions make them."""
    settings = StoreSettings(
        url=place.url, owner=HostIncarnation("test"), schema=place.schema, outage_s=10.0
    )
    links = Links(settings, ServerOutage(settings), 2, {"enable_seqscan": "off"})
    try:
        yield links
    finally:
        await links.close()
