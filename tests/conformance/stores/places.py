"""Backends of tests of stores of agents' data: a schema each, or this process."""

from __future__ import annotations

from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from actors._kernel.runtime.ids import HostIncarnation
from persistence._postgres.connection.link import Links, ServerOutage
from persistence.postgres import (
    StoreSettings,
    open_age_graph,
    open_postgres_graph,
    open_postgres_vectors,
)
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


FIELD = """
ag_catalog.agtype_access_operator(variadic array[{of}.properties, '"{name}"'::ag_catalog.agtype])::text
"""
END = """(select {field} from {graph}."Entity" e where e.id operator(ag_catalog.=) r.{name})"""


async def copy_faults(links: Links, tenant: str) -> list[str]:
    """Return the differences between AGE's copy of a tenant's graph and its tables."""
    graph = await links.value("asking", "select graph from cypher_graphs where tenant = $1", tenant)
    id_, type_ = (FIELD.format(of="r", name=name) for name in ("id", "type"))
    ends = [
        END.format(field=FIELD.format(of="e", name="id"), graph=graph, name=name)
        for name in ("start_id", "end_id")
    ]
    faults = []
    for selection, label, columns in (
        ("id, type from graph_entities", "Entity", [id_, type_]),
        (
            "id, type, source_id, target_id from graph_relationships",
            "Relationship",
            [id_, type_, *ends],
        ),
    ):
        rows = await links.fetch("reading rows", f"select {selection} where tenant = $1", tenant)
        copied = f'select {", ".join(columns)} from {graph}."{label}" r'
        copies = await links.fetch("reading a copy", copied)
        if (ours := sorted(map(tuple, rows))) != (theirs := sorted(map(tuple, copies))):
            faults.append(f"{label}: rows {ours}, copies {theirs}")
    return faults


async def make(database: Place) -> str:
    """Make the tables of all stores, and return the type of embeddings: `vector`, or `_float4` for `real[]`."""
    async with open_postgres_vectors(database.url, schema=database.schema) as vectors:
        assert await vectors.search([1.0]) == []
    async with open_postgres_graph(database.url, schema=database.schema) as graph:
        assert await graph.get_entity("a") is None
    [[column]] = await sql(database.url, database.schema, COLUMN)
    return str(column)


async def make_age(database: Place) -> None:
    """Make the tables of a graph that AGE has a copy of."""
    async with open_age_graph(database.url, schema=database.schema):
        pass


@asynccontextmanager
async def links_to(database: Place) -> AsyncIterator[Links]:
    """Return connections like those of the opening functions."""
    settings = StoreSettings(
        url=database.url, owner=HostIncarnation("test"), schema=database.schema, outage_s=10.0
    )
    links = Links(settings, ServerOutage(settings), 2, {"enable_seqscan": "off"})
    try:
        yield links
    finally:
        await links.close()
