"""The contract of every `LongTermMemory`: one present text per key, versions, ranks, two tenants."""

from __future__ import annotations

import asyncio
import random
from array import array
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pytest

from actors._inmemory.memories import InMemoryLongTermMemories
from actors._kernel.memory_rules import KEPT_VERSIONS, MAX_MEMORY_BYTES
from actors._kernel.search_rules import cosine, unit_vector
from actors._kernel.stores.memory import (
    LongTermMemories,
    LongTermMemory,
    Memory,
    MemoryConflictError,
    MemoryQuery,
    NewMemory,
)
from actors.errors import ContractError, InvalidTextError, LeaseLostError, NotSerializableError
from persistence._postgres.data.memories import PostgresLongTermMemories
from persistence._postgres.opening import open_search_indexes
from tests.conformance.bed import DESK
from tests.conformance.clock import ManualClock
from tests.conformance.stores.indexed import IndexedMemories, Indexing
from tests.conformance.stores.stored import lent_links, lent_place, links_of

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from tests.conformance.bed import Bed

NAN = float("nan")


@asynccontextmanager
async def in_memory(request: pytest.FixtureRequest) -> AsyncIterator[LongTermMemories]:
    """Return memories of this process, on a clock that advances with each read."""
    del request
    clock = ManualClock()

    def now() -> datetime:
        clock.advance(1)
        return clock.now()

    yield InMemoryLongTermMemories(now, lambda _: False)


@asynccontextmanager
async def in_postgres(request: pytest.FixtureRequest) -> AsyncIterator[LongTermMemories]:
    """Return memories of a schema."""
    async with lent_links(request) as links:
        yield PostgresLongTermMemories(links)


@asynccontextmanager
async def with_indexes(request: pytest.FixtureRequest) -> AsyncIterator[LongTermMemories]:
    """Memories of a schema, whose scopes have an index from the first embedding on."""
    async with lent_place(request) as address, links_of(address) as links:
        url, schema = address
        async with open_search_indexes(url, schema=schema) as indexes:
            yield IndexedMemories(links, Indexing(indexes))


@pytest.fixture(
    params=[
        in_memory,
        pytest.param(in_postgres, marks=pytest.mark.postgres),
        pytest.param(with_indexes, marks=pytest.mark.postgres),
    ]
)
async def memories(request: pytest.FixtureRequest) -> AsyncIterator[LongTermMemories]:
    """Return empty memories on each backend."""
    async with request.param(request) as opened:
        yield opened


@pytest.fixture
def store(memories: LongTermMemories) -> LongTermMemory:
    """Return the memories of one tenant."""
    return memories.of("acme")


def new(text: str, id_: str = "", **parts: Any) -> NewMemory:
    """Return a text about a user that can be kept."""
    return NewMemory(
        **{"id": id_ or f"id of {text[:40]!a}", "about": "user:7", "text": text, **parts}
    )


async def texts(store: LongTermMemory, query: str, **parts: Any) -> list[str]:
    """Return the texts that a search about a user finds."""
    memory_query = MemoryQuery(**{"text": query, "about": "user:7", "mode": "words", **parts})
    return [hit.text for hit in await store.search(memory_query)]


async def test_a_text_of_a_key_has_versions(store: LongTermMemory) -> None:
    """An equal text changes nothing. Another one replaces it, and the earlier one gets its end time."""
    first = await store.put(new("metric", "a", key="units", source="model", turn="3", run_id="r"))
    again = await store.put(new("metric", "b", key="units"))
    second = await store.put(new("imperial", "c", key="units", metadata={"n": [1, 1e22]}))
    present, before = await store.versions("units", about="user:7")

    assert again == first
    assert (first.id, first.version, first.valid_until, first.score) == ("a", 1, None, None)
    assert (first.source, first.turn, first.run_id, first.key) == ("model", "3", "r", "units")
    assert (present.text, present.version, present.metadata) == ("imperial", 2, {"n": [1, 1e22]})
    assert present == second
    assert before == first.model_copy(update={"valid_until": second.updated_at})
    assert present.created_at == first.created_at < present.updated_at
    assert [memory.text for memory in await store.page()] == ["imperial"]


async def test_a_request_is_done_once(store: LongTermMemory) -> None:
    """A repeated request returns what it stored, also if another text has replaced it."""
    first = await store.put(new("metric", "a", key="units"))
    await store.put(new("imperial", "b", key="units"))
    again = await store.put(new("metric", "a", key="units", expected=0))

    assert (again.id, again.text) == (first.id, "metric")
    assert again.valid_until is not None
    assert [memory.text for memory in await store.page(about="user:7")] == ["imperial"]


async def test_a_text_without_a_key_is_kept_once_in_a_scope(store: LongTermMemory) -> None:
    """For all writers; another scope has its own."""
    ids = [(await store.put(new("likes tea", f"{n}"))).id for n in range(3)]
    ids.append((await store.put(new("likes tea", "x", about="user:8"))).id)

    assert ids == ["0", "0", "0", "x"]
    assert {memory.about for memory in await store.page()} == {"user:7", "user:8"}


async def test_of_equal_writers_at_once_one_is_kept(store: LongTermMemory) -> None:
    """Of a hundred, with and without a key. Of a hundred that expect one version one succeeds."""
    await asyncio.gather(*(store.put(new("tea", f"t{n}")) for n in range(100)))
    await asyncio.gather(*(store.put(new("tea", f"k{n}", key="k")) for n in range(100)))
    done = await asyncio.gather(
        *(store.put(new(f"{n}", f"c{n}", key="k", expected=1)) for n in range(100)),
        return_exceptions=True,
    )

    memories = [outcome for outcome in done if isinstance(outcome, Memory)]
    assert len(memories) == 1
    assert all(isinstance(outcome, Memory | MemoryConflictError) for outcome in done)
    assert len(await store.page(limit=1000)) == 2
    assert [memory.text for memory in await store.versions("k", about="user:7")] == [
        memories[0].text,
        "tea",
    ]


async def test_a_writer_who_expects_another_version_is_told_the_text(store: LongTermMemory) -> None:
    """Nothing changes. Version 0 means that there is no text."""
    await store.put(new("one", key="k", expected=0))
    await store.put(new("two", key="k", expected=1))

    for expected in (0, 1, 3):
        with pytest.raises(MemoryConflictError, match="version 2, not") as caught:
            await store.put(new("three", key="k", expected=expected))
        assert (caught.value.present, caught.value.version) == ("two", 2)
    with pytest.raises(MemoryConflictError, match="version 0, not 4") as caught:
        await store.put(new("x", key="other", expected=4))
    assert caught.value.present is None
    assert [memory.version for memory in await store.versions("k", about="user:7")] == [2, 1]
    assert [memory.text for memory in await store.page()] == ["two"]


async def test_a_forgotten_memory_is_gone_with_its_versions(store: LongTermMemory) -> None:
    """By its key, or by the id of any version, but not in another scope. It may be created again."""
    for n in range(3):
        await store.put(new(f"{n}", f"id{n}", key="k"))
    await store.put(new("other", "o", key="k", about="user:8"))
    removed = [await store.forget(name, about="user:7") for name in ("o", "k", "k")]
    await store.put(new("a", "a1", key="j"))
    await store.put(new("b", "b1", key="j"))

    assert removed == [0, 3, 0]
    assert await store.forget("a1", about="user:7") == 2
    assert await store.versions("b1", about="user:7") == []
    assert [memory.text for memory in await store.page()] == ["other"]
    assert (await store.put(new("0", "id0", key="k"))).version == 1


async def test_the_newest_earlier_versions_stay(store: LongTermMemory) -> None:
    """As many as the limit, and the present one."""
    for n in range(KEPT_VERSIONS + 3):
        await store.put(new(f"{n}", key="k"))

    versions = [memory.version for memory in await store.versions("k", about="user:7")]
    assert versions == [*range(KEPT_VERSIONS + 3, 2, -1)]


async def test_tenants_and_scopes_do_not_see_each_other(memories: LongTermMemories) -> None:
    """The same id, key and text of two tenants are two memories."""
    acme, bolt = memories.of("acme"), memories.of("bolt")
    await acme.put(new("tea", "a", key="k"), embedding=(1.0, 0.0))
    await bolt.put(new("tea", "a", key="k"))
    await bolt.put(new("milk", "b", key="k"))
    await acme.put(new("tea", "c", about="user:8"))

    assert await texts(acme, "tea milk") == ["tea"]
    assert await texts(bolt, "tea milk") == ["milk"]
    assert await bolt.forget("k", about="user:7") == 2
    assert len(await acme.page()) == 2
    assert await bolt.page() == []


async def test_words_find_texts(store: LongTermMemory) -> None:
    """More matching words first, then newer texts.

    A misspelled word finds its neighbour; no word finds nothing.
    """
    for text in ("likes green tea", "Tea at five", "hates coffee, loud rooms", "ÄRGER über Größe"):
        await store.put(new(text))

    assert await texts(store, "green tea?") == ["likes green tea", "Tea at five"]
    assert await texts(store, "TEA") == ["Tea at five", "likes green tea"]
    assert await texts(store, "coffe") == ["hates coffee, loud rooms"]
    assert await texts(store, "größe") == ["ÄRGER über Größe"]
    for nothing in ("", "?!", "xylophone", "' & | :*"):
        assert await texts(store, nothing) == [], nothing
    assert await texts(store, "tea", limit=1) == ["Tea at five"]
    assert await texts(store, "tea", limit=0) == []


async def test_meaning_finds_texts(store: LongTermMemory) -> None:
    """By direction. Texts with a vector of another length, or none, are found by words only."""
    await store.put(new("near", "n"), embedding=(2.0, 0.1))
    await store.put(new("far", "f"), embedding=(-1.0, 0.0))
    await store.put(new("long tea", "l"), embedding=(1.0, 0.0, 0.0))
    await store.put(new("bare tea", "b"))

    by_meaning = MemoryQuery(text="tea", about="user:7", embedding=(1.0, 0.0), mode="meaning")
    hits = await store.search(by_meaning)
    assert [hit.text for hit in hits] == ["near", "far"]
    assert hits[0].score == pytest.approx(0.9988, abs=1e-4)
    hybrid = await texts(store, "tea near", embedding=(1.0, 0.0), mode="hybrid")
    assert hybrid[0] == "near"
    assert sorted(hybrid) == ["bare tea", "far", "long tea", "near"]
    assert await texts(store, "tea", embedding=None, mode="hybrid") == ["bare tea", "long tea"]


async def test_a_search_is_narrowed(store: LongTermMemory) -> None:
    """By metadata equal as JSON, by sources, and by time. As many hits as match are returned."""
    for n in range(30):
        await store.put(new(f"tea {n}", metadata={"kind": "far"}), embedding=(1.0, n / 100))
    await store.put(new("tea x", metadata={"kind": "near", "n": 1}, source="model"))
    old = await store.put(new("tea y", key="y", metadata={"kind": "near", "n": True}))
    await store.put(new("milk", key="y", metadata={"kind": "near"}))
    defaults: Any = {"text": "tea", "about": "user:7", "mode": "words", "filter": {"kind": "near"}}

    async def search_texts(**parts: Any) -> list[str]:
        return [hit.text for hit in await store.search(MemoryQuery(**{**defaults, **parts}))]

    assert await search_texts() == ["tea x"]
    assert await search_texts(filter={"n": 1.0}) == ["tea x"]
    assert await search_texts(as_of=old.updated_at) == ["tea y", "tea x"]
    assert await search_texts(as_of=old.updated_at, filter={"n": True}) == ["tea y"]
    assert await search_texts(as_of=datetime(1990, 1, 1, tzinfo=UTC)) == []
    assert await search_texts(sources=("model", "tool"), filter=None) == ["tea x"]
    assert await search_texts(sources=(), filter=None) == []
    assert len(await search_texts(filter=None, limit=31)) == 31


async def test_what_cannot_be_kept_or_asked_is_refused(store: LongTermMemory) -> None:
    """The error has its name and a remedy, and nothing changes."""
    wrong: list[tuple[NewMemory, type[Exception], str]] = [
        (new("x" * (MAX_MEMORY_BYTES + 1)), InvalidTextError, "as an artifact"),
        (new("a\x00"), InvalidTextError, "text of a memory has a NUL at 1"),
        (new("a\ud800", "x"), InvalidTextError, "half a surrogate"),
        (new(" "), InvalidTextError, "use forget"),
        (new("a", key="k\x00"), InvalidTextError, "key of a memory has a NUL"),
        (new("a", key="k" * 1025), InvalidTextError, "1025 bytes"),
        (new("a", key=""), InvalidTextError, "is empty"),
        (new("a", about=""), InvalidTextError, "scope of a memory"),
        (new("a", about="x" * 1301), InvalidTextError, "1301 bytes"),
        (new("a", metadata={"a": NAN}), NotSerializableError, "metadata of a memory"),
        (new("a", source="nobody"), ContractError, "source of a memory"),
        (new("a", expected=-1), ContractError, "expected version"),
        (new("a", expected=True), ContractError, "expected version"),
    ]
    for bad, error, problem in wrong:
        with pytest.raises(error, match=problem):
            await store.put(bad)
    for vector in ((), (0.0, 0.0), (NAN, 1.0)):
        with pytest.raises(ContractError, match="embedding"):
            await store.put(new("a"), embedding=vector)
    query = MemoryQuery(text="a", about="user:7")
    queries: list[tuple[Any, str]] = [
        ({"limit": 101}, "0 to 100: 101"),
        ({"limit": True}, "0 to 100"),
        ({"mode": "best"}, "mode of a search"),
        ({"mode": "meaning"}, "embedder"),
        ({"as_of": datetime(2026, 1, 1)}, "aware"),  # noqa: DTZ001 - what is refused
        ({"sources": ("x",)}, "sources"),
        ({"filter": {"a": NAN}}, "filter of a search"),
        ({"embedding": (0.0,)}, "zero"),
        ({"text": "\x00"}, "query of a memory"),
    ]
    for parts, problem in queries:
        with pytest.raises(ContractError, match=problem):
            await store.search(replace(query, **parts))
    for call in (store.page(limit=1001), store.page(offset=-1), store.forget("a\x00", about="u")):
        with pytest.raises(ContractError):
            await call
    assert await store.page() == []


async def test_the_largest_texts_are_kept(store: LongTermMemory) -> None:
    """With the longest key and scope, and words of any length."""
    text, key, about = "ä" * (MAX_MEMORY_BYTES // 2), "k" * 1024, "u" * 1300
    await store.put(NewMemory(id="a", about=about, text=text, key=key))

    assert [memory.text for memory in await store.versions(key, about=about)] == [text]


async def test_a_host_that_lost_its_lease_writes_no_memory(bed: Bed) -> None:
    """The statement checks the shard's owner and epoch. A refused forget keeps the memory, too."""
    run = await bed.begin()
    old, store = run.lease, bed.store.data.memories.of("acme")
    await store.put(new("before", "a", key="k"), fence=old)
    if bed.backend == "composed":
        lost = replace(old, epoch=old.epoch - 1)
    else:
        async with bed.rival() as rival:
            await bed.lose_to(rival)
            lost, rival_lease = old, rival.lease_of(DESK)
            assert rival_lease is not None
            rival_fence = replace(old, owner=rival_lease.owner, epoch=rival_lease.epoch)
            await rival.store.data.memories.of("acme").put(new("after", key="k"), fence=rival_fence)
    for call in (
        store.put(new("late", key="k"), fence=lost),
        store.put(new("before", "a", key="k"), fence=lost),
        store.forget("k", about="user:7", fence=lost),
    ):
        with pytest.raises(LeaseLostError):
            await call

    [memory] = await store.page()
    assert memory.text == ("before" if bed.backend == "composed" else "after")


@pytest.mark.parametrize("seed", range(2))
async def test_random_operations_do_what_a_small_model_does(
    memories: LongTermMemories, seed: int
) -> None:
    """Two tenants with two scopes each: texts with and without keys, expectations, removals, searches."""
    rnd = random.Random(seed)
    model: dict[tuple[str, str], dict[str, list[tuple[str, array[float]]]]] = {}
    for step in range(120):
        tenant, about = rnd.choice(("acme", "bolt")), rnd.choice(("user:1", "user:2"))
        store, versions_by_slot = memories.of(tenant), model.setdefault((tenant, about), {})
        key, text = rnd.choice(["a", "b", None]), f"{rnd.choice('uvwxyz')} text"
        slot = f"t{text}" if key is None else key
        versions = versions_by_slot.get(slot, [])
        match rnd.choice(("put", "put", "expect", "forget", "search")):
            case "forget":
                forgotten_versions = versions_by_slot.pop("a", [])
                assert await store.forget("a", about=about) == len(forgotten_versions)
            case "search":
                vector = unit_vector([rnd.gauss(0, 1) for _ in range(3)], what="x")
                memory_query = MemoryQuery(
                    text="?", about=about, embedding=tuple(vector), mode="meaning", limit=3
                )
                best = sorted(
                    (
                        (-cosine(vector, unit), name)
                        for own in versions_by_slot.values()
                        for name, unit in own[-1:]
                    )
                )
                hits = [hit.text for hit in await store.search(memory_query)]
                assert hits == [name for _, name in best[:3]]
            case what:
                expected = rnd.randrange(3) if what == "expect" else None
                unit = unit_vector([rnd.gauss(0, 1) for _ in range(3)], what="x")
                new_memory = NewMemory(
                    id=f"{tenant}{step}", about=about, text=text, key=key, expected=expected
                )
                is_same = bool(versions) and versions[-1][0] == text
                if not is_same and expected not in (None, len(versions)):
                    with pytest.raises(MemoryConflictError):
                        await store.put(new_memory, embedding=tuple(unit))
                    continue
                memory = await store.put(new_memory, embedding=tuple(unit))
                if not is_same:
                    versions_by_slot[slot] = [*versions, (text, unit)]
                assert (memory.text, memory.version) == (text, len(versions_by_slot[slot]))
    for (tenant, about), versions_by_slot in model.items():
        present = [m.text for m in await memories.of(tenant).page(about=about, limit=1000)]
        assert sorted(present) == sorted(own[-1][0] for own in versions_by_slot.values())
