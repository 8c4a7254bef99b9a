"""The contract of every `VectorStore`: documents by collection, searched by direction and by metadata."""

from __future__ import annotations

import asyncio
import math
import random
import secrets
from collections.abc import Callable
from contextlib import asynccontextmanager
from decimal import Decimal
from typing import TYPE_CHECKING, Any, TypeAlias

import pytest

from actors._inmemory.knowledge import InMemoryVectorStore
from actors._kernel.search_rules import MAX_CONTENT_BYTES, MAX_DIMENSIONS, MAX_DOCUMENTS, MAX_HITS
from actors._kernel.stores.data import SearchResult, VectorDocument, VectorStore
from actors.errors import ContractError, InvalidTextError, NotSerializableError
from persistence._postgres.data.first_use import StoreTables
from persistence._postgres.data.vectors import PgVectorStore
from persistence._postgres.opening import open_search_indexes
from tests.conformance.stores.indexed import IndexedVectors, Indexing
from tests.conformance.stores.places import Place, links_to

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence
    from contextlib import AbstractAsyncContextManager

    from actors._kernel.json import JsonValue
    from actors._kernel.stores.data import EmbeddingClient

Tenants: TypeAlias = "Callable[[str, EmbeddingClient | None], VectorStore]"
"""Makes the store of a tenant, by any name."""
NAN, INF = math.nan, math.inf


@asynccontextmanager
async def in_memory() -> AsyncIterator[Tenants]:
    """A store of this process for each tenant."""
    stores: dict[str, InMemoryVectorStore] = {}
    yield lambda name, embedder: stores.setdefault(name, InMemoryVectorStore(embedder=embedder))


@asynccontextmanager
async def in_postgres(database: Place) -> AsyncIterator[Tenants]:
    """Return tenants of one schema that no other test uses."""
    async with links_to(database) as links:
        tables, ours = StoreTables(links, "vectors"), secrets.token_hex(6)
        yield lambda name, embedder: PgVectorStore(
            tables, tenant=f"{name}-{ours}", embedder=embedder
        )


@asynccontextmanager
async def with_indexes(database: Place) -> AsyncIterator[Tenants]:
    """The same, with an index of each collection from its first documents on."""
    async with (
        links_to(database) as links,
        open_search_indexes(database.url, schema=database.schema) as indexes,
    ):
        indexing, ours = Indexing(indexes), secrets.token_hex(6)
        yield lambda name, embedder: IndexedVectors(
            links, indexing, tenant=f"{name}-{ours}", embedder=embedder
        )


@pytest.fixture(
    params=[
        "memory",
        pytest.param("pgvector", marks=pytest.mark.postgres),
        pytest.param("indexed", marks=pytest.mark.postgres),
        pytest.param("arrays", marks=pytest.mark.postgres),
    ]
)
def backend(request: pytest.FixtureRequest) -> Callable[[], AbstractAsyncContextManager[Tenants]]:
    """Each backend, not yet opened."""
    if request.param == "memory":
        return in_memory
    if request.param == "indexed":
        indexed: Place = request.getfixturevalue("pgvector_place")
        return lambda: with_indexes(indexed)
    database: Place = request.getfixturevalue(f"{request.param}_place")
    return lambda: in_postgres(database)


@pytest.fixture
async def tenants(
    backend: Callable[[], AbstractAsyncContextManager[Tenants]],
) -> AsyncIterator[Tenants]:
    """Return the tenants of each backend, without documents."""
    async with backend() as opened:
        yield opened


@pytest.fixture
def store(tenants: Tenants) -> VectorStore:
    """Return the empty store of one tenant, without an embedder."""
    return tenants("acme", None)


class Embedder:
    """An embedder of three numbers, computed from the text. Records the texts of each call."""

    def __init__(self, model: str | None = None) -> None:
        self.model = model
        self.calls: list[list[str]] = []
        self.answer: Callable[[Sequence[str]], Any] = lambda texts: [
            (1.0, float(len(text)), 2.0) for text in texts
        ]

    async def embed(self, texts: Sequence[str]) -> list[tuple[float, ...]]:
        """See `EmbeddingClient.embed`."""
        self.calls.append(list(texts))
        vectors: list[tuple[float, ...]] = self.answer(texts)
        return vectors


def doc(id_: str, *numbers: float, content: str = "text", **metadata: JsonValue) -> VectorDocument:
    """A document; without numbers it has no embedding."""
    embedding = numbers or None
    return VectorDocument(id=id_, content=content, embedding=embedding, metadata=metadata)


async def ids(
    store: VectorStore, *query: float, collection: str = "default", **filters: JsonValue
) -> list[str]:
    """Return the ids of all hits, best first."""
    hits = await store.search(query, collection=collection, limit=MAX_HITS, filter=filters)
    return [hit.id for hit in hits]


def true_cosine(left_vector: Sequence[float], right_vector: Sequence[float]) -> float:
    """The cosine by its definition, in 64 bits."""
    dot = math.fsum(a * b for a, b in zip(left_vector, right_vector, strict=True))
    return dot / math.hypot(*left_vector) / math.hypot(*right_vector)


@pytest.mark.item(312, 318)
async def test_collections_and_tenants_do_not_meet(tenants: Tenants) -> None:
    """The same id in two collections, or of two tenants, is two documents. Collections differ in length."""
    acme, bolt = tenants("acme", None), tenants("bolt", None)
    await acme.add([doc("a", 1, 0)])
    await acme.add([doc("a", 1, 0, 0), doc("b", 0, 1, 0)], collection="other")
    await bolt.add([doc("a", 0, 1, 1, 1), doc("c", 1, 1, 1, 1)])

    await acme.delete(["a", "c", "unknown"])

    assert isinstance(acme, VectorStore)
    assert await ids(acme, 1, 0) == []
    assert await ids(acme, 1, 0, 0, collection="other") == ["a", "b"]
    assert await ids(bolt, 0, 1, 1, 1) == ["a", "c"]
    assert await acme.search([1, 2, 3, 4], collection="never") == []


@pytest.mark.item(313, 318)
async def test_hits_are_those_of_brute_force(store: VectorStore) -> None:
    """In the same order, with the same scores; five unless a limit is given."""
    rnd = random.Random(5)
    vectors = {f"{n:03}": [rnd.gauss(0, 1) for _ in range(64)] for n in range(150)}
    await store.add([doc(id_, *vector) for id_, vector in vectors.items()])

    for _ in range(3):
        query = [rnd.gauss(0, 1) for _ in range(64)]
        true = {id_: true_cosine(query, vector) for id_, vector in vectors.items()}
        hits = await store.search(query, limit=200)

        assert [hit.id for hit in hits] == sorted(true, key=lambda id_: -true[id_])
        assert all(abs(hit.score - true[hit.id]) < 1e-6 for hit in hits)
        assert await store.search(query) == hits[:5]
        assert await store.search(query, limit=0) == []


@pytest.mark.item(313)
async def test_equal_scores_are_ordered_by_id(store: VectorStore) -> None:
    """Vectors of one direction and any length have one score. Ids are ordered by code points."""
    factors = {"ä": 1.0, "a": 0.1, "B": 7e30, "\U0001f600": 3e-30, "\uffff": 13.0, "": 1e-9}
    await store.add([doc(id_, k, 3 * k, -k) for id_, k in factors.items()])
    await store.add([doc("best", 1, 2, 0), doc("opposite", -1, -3, 1)])

    hits = await store.search([1, 2, 0], limit=20)

    assert [hit.id for hit in hits] == ["best", *sorted(factors), "opposite"]
    assert len({hit.score for hit in hits[1:-1]}) == 1
    assert hits[0].score == pytest.approx(1, abs=1e-6)
    assert (await store.search([1, 3, -1], limit=20))[-1].score == pytest.approx(-1, abs=1e-6)


@pytest.mark.item(314, 315)
async def test_known_ids_stay_or_are_replaced(store: VectorStore) -> None:
    """`add` keeps known ids, `upsert` replaces all fields; of equal ids in a batch the first or last."""
    await store.add([doc("a", 1, 0, content="old", v=1)])
    await store.add([doc("a", 0, 1, content="new", v=2), doc("b", 0, 1), doc("b", 1, 0)])
    assert await ids(store, 1, 0) == ["a", "b"]
    [hit] = await store.search([1, 0], limit=1)
    assert hit == SearchResult(id="a", content="old", score=hit.score, metadata={"v": 1})

    await store.upsert([doc("a", 1, 0), doc("a", 0, 1, content="new", w=3), doc("c", 1, 0)])

    assert await ids(store, 1, 0) == ["c", "a", "b"]
    [hit] = await store.search([0, 1], limit=1)
    assert hit == SearchResult(id="a", content="new", score=hit.score, metadata={"w": 3})
    await store.add([])
    await store.upsert([], collection="new")


@pytest.mark.item(316)
async def test_missing_embeddings_are_computed(tenants: Tenants) -> None:
    """At once for the documents without one, 256 texts a call. Without an embedder they are refused."""
    embedder = Embedder()
    store = tenants("acme", embedder)
    many = [doc(f"{n:03}", content="x" * n) for n in range(300)]
    await store.add([doc("given", 1, 0, 0), *many])
    await store.upsert([doc("a", content="first"), doc("a", content="longer"), doc("b", 0, 0, 1)])

    assert [len(call) for call in embedder.calls] == [256, 44, 1]
    assert embedder.calls[-1] == ["longer"]
    assert (await store.search([1, 17, 2], limit=1))[0].id == "017"
    with pytest.raises(ValueError, match=r"document 'x'.*no embedding.*embedder"):
        await tenants("bolt", None).upsert([doc("y", 1, 2, 3), doc("x")])
    assert await ids(tenants("bolt", None), 1, 2, 3) == []


BROKEN: dict[str, tuple[Any, str]] = {
    "too few": (lambda _: [(1.0, 2.0, 3.0)], "1 vectors for 2 texts"),
    "nothing": (lambda _: [], "0 vectors for 2 texts"),
    "size": (lambda _: [(1.0, 2.0, 3.0), (1.0, 2.0)], "document 'b'.* 2 numbers"),
    "all sizes": (lambda _: [(1.0, 2.0), (1.0, 2.0)], "2 numbers.* 3"),
    "nan": (lambda _: [(1.0, 2.0, 3.0), (1.0, NAN, 2.0)], "number 1 of its embedding is nan"),
    "zero": (lambda _: [(0.0, 0.0, 0.0), (1.0, 0.0, 2.0)], "document 'a'.* zero"),
    "words": (lambda _: [("x", "y", "z"), (1.0, 0.0, 2.0)], "document 'a'.* numbers"),
}


@pytest.mark.item(316)
@pytest.mark.parametrize("kind", BROKEN)
async def test_a_broken_embedder_leaves_nothing(tenants: Tenants, kind: str) -> None:
    """The error names the document, and no document of the batch is stored."""
    embedder, (answer, problem) = Embedder(), BROKEN[kind]
    store = tenants("acme", embedder)
    await store.add([doc("known", 1, 2, 3)])
    embedder.answer = answer

    with pytest.raises(ValueError, match=problem):
        await store.upsert([doc("known", 3, 2, 1), doc("a"), doc("b")])
    assert [hit.score for hit in await store.search([1, 2, 3])] == pytest.approx([1.0])


@pytest.mark.item(316)
async def test_an_embedder_that_dies_midway_leaves_nothing(tenants: Tenants) -> None:
    """Its error is raised, and the batch can be added again."""
    embedder = Embedder()
    store, answer = tenants("acme", embedder), embedder.answer

    def dies(texts: Sequence[str]) -> Any:
        if len(embedder.calls) == 2:
            raise TimeoutError("no answer")
        return answer(texts)

    embedder.answer = dies
    many = [doc(f"{n}") for n in range(300)]
    with pytest.raises(TimeoutError, match="no answer"):
        await store.add(many)
    assert await ids(store, 1, 4, 2) == []
    await store.add(many)

    assert len(await ids(store, 1, 4, 2)) == 300


REFUSED: dict[str, tuple[VectorDocument, type[Exception], str]] = {
    "nan": (doc("x", 1, NAN), ValueError, "number 1 .* nan"),
    "infinite": (doc("x", INF, 1), ValueError, "number 0 .* inf"),
    "zero": (doc("x", 0, -0.0), ValueError, "zero"),
    "empty": (VectorDocument(id="x", content="", embedding=()), ValueError, "0 numbers"),
    "long": (doc("x", *[1.0] * (MAX_DIMENSIONS + 1)), ValueError, "16001 numbers"),
    "size": (doc("x", 1, 2, 3), ValueError, "3 numbers"),
    "id": (doc("x\x00", 1, 2), InvalidTextError, "NUL at 1"),
    "long id": (doc("x" * 1025, 1, 2), InvalidTextError, "1025 bytes"),
    "nul": (doc("x", 1, 2, content="a\x00"), InvalidTextError, "content of document 'x'.*NUL at 1"),
    "half": (doc("x", 1, 2, content="a\ud83d"), InvalidTextError, "surrogate pair at 1"),
    "content": (doc("x", 1, 2, content="é" * 5_242_881), InvalidTextError, "10485762 bytes"),
    "no json": (doc("x", 1, 2, m=[{"a": NAN}]), NotSerializableError, "document 'x'.*NaN"),
    "metadata": (doc("x", 1, 2, m={"a\x00": 1}), NotSerializableError, "NUL"),
    "digits": (doc("x", 1, 2, m=10**4400), NotSerializableError, "metadata of document 'x'"),
    "size of it": (doc("x", 1, 2, m="x" * 70_000), NotSerializableError, "more than 65536"),
}


@pytest.mark.item(316)
@pytest.mark.parametrize("kind", REFUSED)
async def test_what_cannot_be_kept_is_refused_with_its_batch(store: VectorStore, kind: str) -> None:
    """The error has a name and a remedy; nothing is stored."""
    bad, error, problem = REFUSED[kind]
    for keep in (store.add, store.upsert):
        with pytest.raises(error, match=problem) as caught:
            await keep([doc("good", 1, 2), bad, doc("x", 2, 1)])
        assert isinstance(caught.value, ContractError)
    assert await ids(store, 1, 2) == []


@pytest.mark.item(318)
async def test_large_documents_are_kept(store: VectorStore) -> None:
    """A content of 10 MB, the longest vector, and the largest batch; a larger one is refused."""
    long = [1.0, *[0.5] * (MAX_DIMENSIONS - 1)]
    await store.add([doc("x", *long, content="x" * MAX_CONTENT_BYTES)])
    many = [doc(f"{n}", 1, n) for n in range(MAX_DOCUMENTS)]
    await store.upsert(many, collection="many")

    [hit] = await store.search(long)
    assert len(hit.content) == MAX_CONTENT_BYTES
    assert hit.score == pytest.approx(1, abs=1e-6)
    assert len(await ids(store, 1, 0, collection="many")) == MAX_HITS
    huge = [doc(f"{n}", 1, content="x" * MAX_CONTENT_BYTES) for n in range(7)]
    with pytest.raises(ValueError, match=r"73400334 characters in one call.*use several"):
        await store.add(huge, collection="huge")
    for refused in (store.add([*many, doc("y", 1, 2)]), store.delete(["x"] * 2001)):
        with pytest.raises(ValueError, match="2001 in one call, more than 2000: use several"):
            await refused
    await store.delete([f"{n}" for n in range(MAX_DOCUMENTS - 1)], collection="many")
    assert await ids(store, 1, 0, collection="many") == [f"{MAX_DOCUMENTS - 1}"]


async def test_a_collection_has_one_length_for_good(store: VectorStore) -> None:
    """Also after its documents were deleted. A query of another length is refused."""
    await store.add([doc("a", 1, 2, 3)])
    await store.delete(["a"])

    with pytest.raises(ValueError, match=r"document 'b'.* 2 numbers.*'default' 3.*another"):
        await store.add([doc("b", 1, 2)])
    with pytest.raises(ValueError, match=r"2 numbers.*'default' 3"):
        await store.search([1, 2])
    await store.add([doc("b", 1, 2)], collection="other")
    assert await ids(store, 3, 2, 1) == []


@pytest.mark.item(312, 316, 318)
async def test_a_collection_has_one_embedder_for_good(tenants: Tenants) -> None:
    """Another one of the same length stores and finds nothing, also after the documents were deleted."""
    embedder = Embedder("e5")
    store = tenants("acme", embedder)
    await store.add([doc("a")])
    embedder.model = "minilm"

    for call in (
        *(keep(batch) for keep in (store.add, store.upsert) for batch in ([doc("b")], [doc("a")])),
        store.add([doc("b", 1, 2, 3)]),
        store.search([1, 2, 3]),
    ):
        with pytest.raises(
            ValueError, match=r"'default'.* of 'e5'.* is 'minilm': open .* with 'e5', or .*another"
        ):
            await call
    await store.add([doc("c")], collection="other")

    embedder.model = "e5"
    assert await ids(store, 1, 2, 3) == ["a"]
    await store.delete(["a"])
    embedder.model = "minilm"
    assert await ids(store, 1, 2, 3, collection="other") == ["c"]
    with pytest.raises(ValueError, match="'e5'"):
        await store.add([doc("b")])


@pytest.mark.item(312, 316, 318)
async def test_an_embedder_without_a_name_is_not_compared(tenants: Tenants) -> None:
    """The first named embedder names a collection that was created without one."""
    embedder = Embedder()
    store = tenants("acme", embedder)
    await store.add([doc("a")])
    embedder.model = "e5"
    assert await ids(store, 1, 2, 3) == ["a"]
    await store.add([doc("b")])
    embedder.model = "minilm"

    with pytest.raises(ValueError, match="'e5'"):
        await store.add([doc("c")])
    embedder.model = None
    await store.add([doc("d")])
    assert await ids(store, 1, 4, 2) == ["a", "b", "d"]
    embedder.model = "x\x00"
    with pytest.raises(InvalidTextError, match="model of an embedder"):
        await store.add([doc("e")])


async def test_of_two_first_writers_one_fixes_the_length(store: VectorStore) -> None:
    """The other is refused and stores nothing. Writers of the same length both succeed."""
    for n in range(5):
        two, three = doc("two", 1, 2), doc("three", 1, 2, 3)
        done = await asyncio.gather(
            *(store.add([document], collection=f"{n}") for document in (two, three)),
            return_exceptions=True,
        )
        refused = [outcome for outcome in done if outcome is not None]
        query = (1, 2) if done[0] is None else (1, 2, 3)

        assert [type(error).__name__ for error in refused] == ["InvalidDocumentError"]
        assert len(await ids(store, *query, collection=f"{n}")) == 1
    await asyncio.gather(*(store.add([doc(f"{n}", n, 1)], collection="x") for n in range(9)))
    assert sorted(await ids(store, 1, 1, collection="x")) == [f"{n}" for n in range(9)]


@pytest.mark.item(314, 315)
async def test_writers_at_the_same_time_lose_nothing(store: VectorStore) -> None:
    """Overlapping batches in any order of ids are all stored. Each document is one writer's."""
    batches = [[doc(f"{n}", 1, n, content=f"{w}") for n in range(20)] for w in range(8)]
    for w, batch in enumerate(batches):
        random.Random(w).shuffle(batch)
    await asyncio.gather(*map(store.upsert, batches), store.add(batches[0]))

    hits = await store.search([1, 1], limit=100)
    assert sorted(int(hit.id) for hit in hits) == list(range(20))


@pytest.mark.item(317)
async def test_a_hit_is_what_was_given(store: VectorStore) -> None:
    """With metadata of all kinds. Changes to given or returned objects change nothing stored."""
    metadata: dict[str, JsonValue] = {
        "z": [1, 1.0, 1e22, 10**22, -0.0, 5e-324, 1e308, True, None, "1"],
        "a": {"ä \u2028 😀": {}, "": [[]]},
    }
    document = VectorDocument(
        id="a", content="Größe \u2028 😀", embedding=(2, 0), metadata=metadata
    )
    await store.add([document])
    expected = repr(metadata)
    metadata["new"] = 1

    [hit] = await store.search([1, 0])
    assert (hit.id, hit.content) == ("a", document.content)
    assert hit.score == pytest.approx(1, abs=1e-6)
    assert repr(hit.metadata) == expected
    hit.metadata.clear()
    assert repr((await store.search([1, 0]))[0].metadata) == expected


@pytest.mark.item(313)
async def test_the_best_that_match_a_filter_are_found(store: VectorStore) -> None:
    """For any number of nearer documents: as many as the limit."""
    await store.add([doc(f"near-{n}", 1, n / 1000, kind="near") for n in range(300)])
    await store.add([doc(f"far-{n}", -1, n, kind="far", n=n) for n in range(8)])

    hits = await store.search([1, 0], limit=5, filter={"kind": "far"})

    assert [hit.id for hit in hits] == [f"far-{n}" for n in range(7, 2, -1)]
    assert await ids(store, 1, 0, kind="far", n=3.0) == ["far-3"]
    assert await ids(store, 1, 0, kind="none") == []
    assert len(await ids(store, 1, 0)) == 308


ATOMS: list[Any] = [
    *(None, True, False, 0, 1, 1.0, -0.0, 2, 1e22, 10**22, 1e23, 10**23, 0.1, "1", "a", "", "A"),
    *([], {}, [1], [True], [[]], [None], ["a"], {"a": 1}, {"a": 1.0, "b": 2}, {"b": 2, "a": True}),
]


def any_json(rnd: random.Random, depth: int = 2) -> JsonValue:
    """Return a value of a few, so that equal ones occur."""
    kind = rnd.random()
    if depth == 0 or kind < 0.5:
        atom: JsonValue = rnd.choice(ATOMS)
        return atom
    if kind < 0.75:
        return [any_json(rnd, depth - 1) for _ in range(rnd.randrange(3))]
    return {rnd.choice("abc"): any_json(rnd, depth - 1) for _ in range(rnd.randrange(3))}


def normal(value: JsonValue) -> object:
    """A value that is equal to another one if both are the same JSON."""
    match value:
        case list():
            return ("list", *map(normal, value))
        case dict():
            return "object", frozenset((key, normal(item)) for key, item in value.items())
        case bool() | str() | None:
            return type(value), value
        case _:
            return "number", Decimal(repr(value))


@pytest.mark.item(313)
async def test_filters_compare_json(store: VectorStore) -> None:
    """Only values that are equal as JSON match: containment is no match, and true is not 1."""
    rnd = random.Random(11)
    documents: dict[str, dict[str, Any]] = {
        f"{n:03}": {key: any_json(rnd) for key in rnd.sample("abc", rnd.randrange(4))}
        for n in range(200)
    }
    documents |= {f"atom-{n:02}": {"a": atom} for n, atom in enumerate(ATOMS)}
    await store.add([doc(id_, 1, 0, **metadata) for id_, metadata in documents.items()])

    values = [*ATOMS, *(any_json(rnd) for _ in range(20))]
    filters: list[dict[str, Any]] = [{"a": value} for value in values]
    filters += [{"a": rnd.choice(ATOMS), "b": rnd.choice(ATOMS)} for _ in range(20)]
    for filter_ in filters:
        expected = [
            id_
            for id_, metadata in documents.items()
            if all(
                key in metadata and normal(metadata[key]) == normal(value)
                for key, value in filter_.items()
            )
        ]
        assert await ids(store, 1, 0, **filter_) == expected, filter_


@pytest.mark.item(313)
async def test_a_slip_of_the_caller_is_refused(store: VectorStore) -> None:
    """Invalid queries, limits, filters, names and ids, also on an empty store."""
    bad_limits: list[Any] = [-1, 1001, True, "5"]
    slips: list[tuple[Any, type[Exception], str]] = [
        *((store.search([1.0], limit=n), ContractError, "0 to 1000") for n in bad_limits),
        (store.search([0.0, 0.0]), ValueError, "query embedding.*zero"),
        (store.search([1.0, NAN]), ValueError, "query embedding.*nan"),
        (store.search([]), ValueError, "query embedding.*0 numbers"),
        (store.search(["a"]), ValueError, "numbers"),  # type: ignore[list-item]
        (store.search([1.0], filter={"a": NAN}), NotSerializableError, "filter of a search"),
        (store.search([1.0], filter={"a": "\x00"}), NotSerializableError, "filter of a search"),
        (store.search([1.0], filter=["a"]), NotSerializableError, "object"),  # type: ignore[arg-type]
        (store.search([1.0], collection="\ud800"), InvalidTextError, "name of a collection"),
        (store.add([doc("a", 1)], collection="x" * 1025), InvalidTextError, "name of a collection"),
        (store.delete(["a\x00"]), InvalidTextError, "id of a document"),
        (store.delete("abc"), ValueError, "list"),
    ]
    for call, error, problem in slips:
        with pytest.raises(error, match=problem):
            await call


@pytest.mark.item(312, 313, 314, 315, 318)
@pytest.mark.parametrize("seed", range(2))
async def test_random_operations_do_what_a_small_model_does(tenants: Tenants, seed: int) -> None:
    """Two tenants with two collections each: additions, replacements, deletions and searches."""
    rnd = random.Random(seed)
    model: dict[tuple[str, str], dict[str, tuple[tuple[float, ...], int]]] = {}
    for step in range(80):
        tenant, collection = rnd.choice(("acme", "bolt")), rnd.choice("xy")
        store, expected_documents = (
            tenants(tenant, None),
            model.setdefault((tenant, collection), {}),
        )
        ids_written = [rnd.choice("abcdefgh") for _ in range(rnd.randrange(4))]
        vectors = [tuple(rnd.gauss(0, 1) for _ in range(4)) for _ in ids_written]
        batch = [
            doc(id_, *numbers, n=step % 3)
            for id_, numbers in zip(ids_written, vectors, strict=True)
        ]
        match rnd.choice(("add", "upsert", "delete", "search")):
            case "add":
                await store.add(batch, collection=collection)
                for id_, numbers in zip(ids_written, vectors, strict=True):
                    expected_documents.setdefault(id_, (numbers, step % 3))
            case "upsert":
                await store.upsert(batch, collection=collection)
                expected_documents |= {
                    id_: (numbers, step % 3)
                    for id_, numbers in zip(ids_written, vectors, strict=True)
                }
            case "delete":
                await store.delete(ids_written[:2], collection=collection)
                for id_ in ids_written[:2]:
                    expected_documents.pop(id_, None)
            case _:
                query = [rnd.gauss(0, 1) for _ in range(4)]
                scores = {
                    id_: true_cosine(query, numbers)
                    for id_, (numbers, n) in expected_documents.items()
                    if n == step % 3
                }
                best = sorted(scores, key=lambda id_: -scores[id_])
                hits = await store.search(
                    query, collection=collection, limit=3, filter={"n": step % 3}
                )
                assert [hit.id for hit in hits] == best[:3]
