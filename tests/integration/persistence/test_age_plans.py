"""How Apache AGE finds what a store and its queries ask for: by indexes, not by reading a whole graph."""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING

import pytest

from persistence._postgres.data import graphs
from persistence._postgres.data.graphs import SQL_RUN_CYPHER
from persistence.postgres import open_age_graph
from tests.integration.persistence.hosts import connected

if TYPE_CHECKING:
    from persistence._postgres.connection.link import Connection

pytestmark = [pytest.mark.age, pytest.mark.item(323)]
SCHEMA = "callboard"
MANY = 500
FILL = (
    """
    insert into graph_entities (tenant, id, type, properties)
      select $1, 'e' || n, 't', json_build_object('name', 'n' || n) from generate_series(1, $2::int) n
    """,
    """
    insert into graph_relationships (tenant, id, type, source_id, target_id, properties)
      select $1, 'r' || n, 't', 'e' || n, 'e' || n % $2 + 1, '{}' from generate_series(1, $2::int) n
    """,
)
SCANS = """
select relname as label, seq_scan from pg_stat_xact_user_tables
  where schemaname = (select graph from cypher_graphs where tenant = $1)
    and relname in ('Entity', 'Relationship')
  order by relname
"""


async def scans(connection: Connection, tenant: str) -> list[tuple[str, int]]:
    """Scans of a transaction: label, and how often its whole table was read."""
    return [tuple(row) for row in await connection.fetch(SCANS, tenant)]


async def test_copies_are_changed_and_queries_answered_by_indexes(age_database: str) -> None:
    """A change touches what it changes; a query finds an entity by its id, and goes on from there."""
    tenant = f"acme-{secrets.token_hex(6)}"
    async with open_age_graph(age_database, schema=SCHEMA, tenant="other") as other:
        for statement in FILL:
            await other._tables.fetch("filling", statement, tenant, MANY)
    async with open_age_graph(age_database, schema=SCHEMA, tenant=tenant):
        pass

    async with connected(age_database, SCHEMA, enable_seqscan="off") as connection:
        transaction = connection.transaction()
        await transaction.start()
        await connection.fetch(graphs.SQL_KEEP_ENTITY, tenant, "e5", "t", "{}")
        ends = ("e5", "e9")
        await connection.fetch(graphs.SQL_KEEP_RELATIONSHIP, tenant, "r5", "t", *ends, "{}")
        await connection.fetch(graphs.SQL_DELETE_RELATIONSHIP, tenant, "r6")
        await connection.fetch(graphs.SQL_DELETE_ENTITY, tenant, "e9")
        change_scans = await scans(connection, tenant)
        await transaction.rollback()
    assert change_scans == [("Entity", 0), ("Relationship", 0)]

    for query in (
        "MATCH (a:Entity {id: $id})-[r:Relationship]->(b:Entity) RETURN b.id",
        "MATCH (a:Entity)-[r:Relationship]->(b:Entity) WHERE a.id = $id RETURN b.id",
    ):
        async with connected(age_database, SCHEMA, enable_seqscan="off") as connection:
            transaction = connection.transaction()
            await transaction.start()
            args = (tenant, query, '{"id": "e5"}', 1, 10)
            rows = await connection.fetch(SQL_RUN_CYPHER, *args)
            scan_counts = await scans(connection, tenant)
            await transaction.rollback()
        assert [row["columns"] for row in rows] == [['"e6"']]
        assert scan_counts == [("Entity", 0), ("Relationship", 0)]
