"""How PostgreSQL finds what a store asks for: by a key, whether its tables are young or large."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final

import pytest

from actors._kernel.stores.data import Entity, Relationship, VectorDocument
from persistence._postgres.data import graphs, vectors
from persistence.postgres import open_postgres_graph, open_postgres_vectors
from tests.conformance.stores.places import Place, make
from tests.harness.plans import MODES, faults
from tests.integration.persistence.hosts import sql, write

if TYPE_CHECKING:
    from tests.harness.plans import Plan, PlanBook
    from tests.integration.persistence.hosts import Counted

FEW, LARGE = 5_000, 200_000
ROWS: Final = (
    # A tenth of each is of our tenant, in many collections or around many entities.
    """
    insert into vector_collections (tenant, collection, dimensions)
      select case n % 10 when 0 then 'acme' else 'other' end, 'c' || n, 3
        from generate_series(1, $1::int / 100) n
    """,
    """
    insert into vector_documents (tenant, collection, id, content, metadata, embedding)
      select case n % 10 when 0 then 'acme' else 'other' end, 'c' || n % ($1::int / 100), 'd' || n, 'text',
          json_build_object('n', n), array[sin(n), cos(n), 1]::real[] from generate_series(1, $1::int) n
    """,
    """
    insert into graph_entities (tenant, id, type, properties)
      select case n % 10 when 0 then 'acme' else 'other' end, 'e' || n, 't' || n % 3, '{}'
        from generate_series(1, $1::int) n
    """,
    # One entity of our tenant has half of all relationships.
    """
    insert into graph_relationships (tenant, id, type, source_id, target_id, properties)
      select 'acme', 'r' || n, case n % 1000 when 0 then 'rare' else 'usual' end,
          case n % 2 when 0 then 'e10' else 'e' || n / 10 * 10 end, 'e' || greatest(1, n / 10) * 10, '{}'
        from generate_series(10, $1::int) n
    """,
)
STATEMENTS: Final = frozenset(
    text
    for module in (graphs, vectors)
    for name, text in vars(module).items()
    if name.startswith("SQL_") and "CYPHER" not in name
)


async def work(database: Place) -> None:
    """Each statement of the stores, on a collection and around an entity that have few rows."""
    async with (
        open_postgres_vectors(database.url, schema=database.schema, tenant="acme") as store,
        open_postgres_graph(database.url, schema=database.schema, tenant="acme") as graph,
    ):
        new = [VectorDocument(id=f"n{n}", content="", embedding=(1, n, 0)) for n in range(20)]
        for collection in ("c10", "new"):
            await store.add(new, collection=collection)
            await store.upsert(new[:10], collection=collection)
            assert await store.search([1, 2, 3], collection=collection)
            await store.search([1, 2, 3], collection=collection, filter={"n": 10})
            await store.delete(["n1", "n2"], collection=collection)
        for entity_id in ("a", "b"):
            await graph.add_entity(Entity(id=entity_id, type="t"))
            assert await graph.get_entity(entity_id)
        await graph.add_relationship(Relationship(id="x", type="t", source_id="a", target_id="b"))
        await graph.add_relationship(Relationship(id="y", type="t", source_id="b", target_id="e10"))
        assert await graph.get_relationship("x")
        await graph.get_neighbors("a", depth=2)
        assert len((await graph.get_neighbors("e1000", depth=1)).entities) > 1
        await graph.get_neighbors("e10", depth=2, relationship_types=["rare", "t"])
        await graph.delete_relationship("y")
        await graph.delete_entity("a")


def list_faults(book: PlanBook) -> list[str]:
    """The statements that read in vain, each with what."""
    return sorted({f"{plan.name}: {fault}" for plan in book.plans for fault in faults_of(plan)})


def faults_of(plan: Plan) -> list[str]:
    """See `faults`. A walk may read what it answers with."""
    walks = plan.function in {"graph_neighbors", "graph_edges_at"}
    return [fault for fault in faults(plan) if not (walks and " rows of " in fault)]


@pytest.mark.parametrize("counted", ["never", "well"])
async def test_stores_find_their_rows_by_keys(
    postgres_dsn: str, new_schema: str, book: PlanBook, counted: Counted
) -> None:
    """Among others that nobody counted, and among those that are known."""
    database = Place(postgres_dsn, new_schema)
    await make(database)
    await write(database.url, database.schema, dict.fromkeys(ROWS, (FEW,)), counted)
    book.clear()
    await work(database)

    assert list_faults(book) == []
    assert {plan.query for plan in book.plans} >= STATEMENTS


@pytest.mark.slow
@pytest.mark.skipif(not os.environ.get("CALLBOARD_TEST_SLOW"), reason="fills tables for a minute")
@pytest.mark.timeout(600)
async def test_stores_find_their_rows_in_large_tables(
    postgres_dsn: str, new_schema: str, book: PlanBook
) -> None:
    """Whether plans are kept or made each time. 100,000 relationships of one entity are not read.

    They go with it when it is deleted.
    """
    database = Place(postgres_dsn, new_schema)
    await make(database)
    await write(database.url, database.schema, dict.fromkeys(ROWS, (LARGE,)), "well")
    for book.mode in (*MODES, "auto"):
        book.clear()
        await work(database)
        assert list_faults(book) == [], book.mode
        async with open_postgres_graph(
            database.url, schema=database.schema, tenant="acme"
        ) as graph:
            book.clear()
            with pytest.raises(ValueError, match="10000 relationships"):
                await graph.get_neighbors("e10")
            most_read = max(plan.read(node) for plan in book.plans for node in plan.nodes)
            assert most_read < 50_000, book.mode
    rows = await sql(
        database.url,
        database.schema,
        "select count(*) as n from graph_relationships where source_id = 'e10'",
    )
    assert rows[0]["n"] > 90_000
    async with open_postgres_graph(database.url, schema=database.schema, tenant="acme") as graph:
        await graph.delete_entity("e10")
        assert await graph.get_relationship("r100000") is None
