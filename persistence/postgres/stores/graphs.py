"""Entities and relationships: see `schema/stores/graphs.sql`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, LiteralString

from typing_extensions import override

from actors.kernel.json import decoded_object
from actors.kernel.runtime.ids import check_name
from actors.kernel.search_rules import (
    MAX_RELATIONSHIPS,
    check_entity_id,
    check_relationship_id,
    check_walk,
    entity_properties,
    missing_end,
    relationship_properties,
)
from actors.kernel.stores.data import Entity, GraphStore, Relationship, SubGraph
from actors.kernel.stores.errors import SubGraphTooLargeError
from persistence.postgres.connection.link import Row
from persistence.postgres.stores.first_use import StoreTables

SQL_KEEP_ENTITY: Final[LiteralString] = """
insert into graph_entities as e (tenant, id, type, properties) values ($1, $2, $3, $4::text::json)
  on conflict (tenant, id) do update set type = excluded.type, properties = excluded.properties
"""
SQL_SELECT_ENTITY: Final[LiteralString] = """
select e.id, e.type, e.properties from graph_entities e where e.tenant = $1 and e.id = $2
"""
SQL_DELETE_ENTITY: Final[LiteralString] = (
    "delete from graph_entities e where e.tenant = $1 and e.id = $2"
)
# The ends are locked against their deletion, which takes relationships along that it sees.
SQL_KEEP_RELATIONSHIP: Final[LiteralString] = """
with ends as materialized (
  select e.id from graph_entities e where e.tenant = $1 and e.id in ($4, $5) order by e.id for key share),
missing as materialized (
  select n.id from (values ($4), ($5)) n(id) where n.id not in (select e.id from ends e)),
kept as (
  insert into graph_relationships as r (tenant, id, type, source_id, target_id, properties)
    select $1, $2, $3, $4, $5, $6::text::json where not exists (select from missing)
    on conflict (tenant, id) do update set type = excluded.type, source_id = excluded.source_id,
      target_id = excluded.target_id, properties = excluded.properties)
select m.id from missing m
"""
SQL_SELECT_RELATIONSHIP: Final[LiteralString] = """
select r.id, r.type, r.source_id, r.target_id, r.properties from graph_relationships r
  where r.tenant = $1 and r.id = $2
"""
SQL_DELETE_RELATIONSHIP: Final[LiteralString] = (
    "delete from graph_relationships r where r.tenant = $1 and r.id = $2"
)
SQL_SELECT_NEIGHBORS: Final[LiteralString] = """
select n.distance, n.id, n.type, n.source_id, n.target_id, n.properties
  from graph_neighbors($1, $2, $3, $4, $5) n
"""


class PostgresGraphStore(GraphStore):
    """A `GraphStore` of one tenant on PostgreSQL, in tables. It does not run Cypher.

    Each call is one statement, and what it changed survives any crash that the database survives. A walk sees
    the graph of one moment.

    Args:
        tables: The tables of `graphs`.
        tenant: Owner of all that this store reads and writes.
    """

    def __init__(self, tables: StoreTables, *, tenant: str) -> None:
        self._tables, self._tenant = tables, check_name("tenant", tenant)

    @override
    async def add_entity(self, entity: Entity) -> None:
        properties = entity_properties(entity)
        args = (self._tenant, entity.id, entity.type, properties)
        await self._tables.fetch("keeping an entity", SQL_KEEP_ENTITY, *args)

    @override
    async def get_entity(self, entity_id: str) -> Entity | None:
        check_entity_id(entity_id)
        args = (self._tenant, entity_id)
        rows = await self._tables.fetch("reading an entity", SQL_SELECT_ENTITY, *args)
        return _entity(rows[0]) if rows else None

    @override
    async def delete_entity(self, entity_id: str) -> None:
        check_entity_id(entity_id)
        args = (self._tenant, entity_id)
        await self._tables.fetch("deleting an entity", SQL_DELETE_ENTITY, *args)

    @override
    async def add_relationship(self, relationship: Relationship) -> None:
        properties = relationship_properties(relationship)
        ends = (relationship.source_id, relationship.target_id)
        args = (self._tenant, relationship.id, relationship.type, *ends, properties)
        missing = await self._tables.fetch("keeping a relationship", SQL_KEEP_RELATIONSHIP, *args)
        if missing:
            raise missing_end(relationship, missing[0]["id"])

    @override
    async def get_relationship(self, relationship_id: str) -> Relationship | None:
        check_relationship_id(relationship_id)
        args = (self._tenant, relationship_id)
        rows = await self._tables.fetch("reading a relationship", SQL_SELECT_RELATIONSHIP, *args)
        return _relationship(rows[0]) if rows else None

    @override
    async def delete_relationship(self, relationship_id: str) -> None:
        check_relationship_id(relationship_id)
        args = (self._tenant, relationship_id)
        await self._tables.fetch("deleting a relationship", SQL_DELETE_RELATIONSHIP, *args)

    @override
    async def get_neighbors(
        self, entity_id: str, *, depth: int = 1, relationship_types: Sequence[str] | None = None
    ) -> SubGraph:
        check_entity_id(entity_id)
        check_walk(depth, relationship_types)
        types = None if relationship_types is None else list(relationship_types)
        args = (self._tenant, entity_id, depth, types, MAX_RELATIONSHIPS)
        rows = await self._tables.fetch("walking a graph", SQL_SELECT_NEIGHBORS, *args)
        if rows and rows[0]["distance"] < 0:
            raise SubGraphTooLargeError(entity_id, depth, MAX_RELATIONSHIPS)
        return SubGraph(
            entities=[_entity(row) for row in rows if row["source_id"] is None],
            relationships=[_relationship(row) for row in rows if row["source_id"] is not None],
        )


def _entity(row: Row) -> Entity:
    return Entity(id=row["id"], type=row["type"], properties=decoded_object(row["properties"]))


def _relationship(row: Row) -> Relationship:
    return Relationship(
        id=row["id"],
        type=row["type"],
        source_id=row["source_id"],
        target_id=row["target_id"],
        properties=decoded_object(row["properties"]),
    )
