"""Tables of memories: made on first use, with extensions or without, and read by their key."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Final

import pytest

from actors._kernel.runtime.ids import HostIncarnation
from actors._kernel.stores.memory import MemoryQuery, NewMemory
from persistence._postgres.connection.link import Links, ServerOutage
from persistence._postgres.data.memories import (
    SQL_LIST_SCOPE,
    SQL_SEARCH_MEMORIES,
    SQL_SELECT_VERSIONS,
    PostgresLongTermMemories,
)
from persistence.postgres import StoreSettings, open_postgres_history, open_store
from tests.harness.plans import MODES
from tests.integration.persistence.hosts import sql, write

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from actors._kernel.stores.memory import Memory
    from tests.harness.plans import PlanBook
    from tests.integration.persistence.hosts import Counted

COLUMN = """
select t.typname as type from pg_attribute a join pg_type t on t.oid = a.atttypid
  where a.attrelid = 'memories'::regclass and a.attname = 'embedding'
"""


@asynccontextmanager
async def open_memories(url: str, schema: str) -> AsyncIterator[PostgresLongTermMemories]:
    """Memories by connections of their own."""
    settings = StoreSettings(url=url, owner=HostIncarnation("test"), schema=schema)
    links = Links(settings, ServerOutage(settings), 2)
    try:
        yield PostgresLongTermMemories(links)
    finally:
        await links.close()


def new(text: str, about: str = "u") -> NewMemory:
    """A text to be kept."""
    return NewMemory(id=f"id of {text}", about=about, text=text)


def texts(memories: list[Memory]) -> list[str]:
    """What was found."""
    return [memory.text for memory in memories]


async def test_a_database_without_extensions_finds_the_same(plain_database: str) -> None:
    """Meaning by arrays; of spellings only that a word is within another one."""
    schema = "memories_plain"
    async with open_postgres_history(plain_database, schema=schema):
        name = plain_database.rpartition("/")[2]
        await sql(plain_database, schema, f"revoke create on database {name} from {name}")
    try:
        async with open_memories(plain_database, schema) as memories:
            store = memories.of("acme")
            await store.put(new("green teapots"), embedding=(1.0, 0.0))
            await store.put(new("loud rooms"), embedding=(0.0, 2.0))
            near = MemoryQuery(text="", about="u", embedding=(0.1, 1.0), mode="meaning")
            by_meaning = await store.search(near)
            within = await store.search(MemoryQuery(text="teapot", about="u"))
            whole = await store.search(MemoryQuery(text="rooms", about="u"))
    finally:
        await sql(plain_database, schema, f"grant create on database {name} to {name}")

    [[column]] = await sql(plain_database, schema, COLUMN)
    assert column == "_float4"
    assert texts(by_meaning) == ["loud rooms", "green teapots"]
    assert by_meaning[0].score is not None
    assert abs(by_meaning[0].score - 0.995) < 0.001
    assert texts(within) == ["green teapots"]
    assert texts(whole) == ["loud rooms"]


async def test_any_number_of_processes_may_be_first(postgres_dsn: str, schema: str) -> None:
    """At once: the tables are made one time."""
    async with (
        open_postgres_history(postgres_dsn, schema=schema),
        open_memories(postgres_dsn, schema) as first,
        open_memories(postgres_dsn, schema) as other,
    ):
        memories = await asyncio.gather(
            *(store.of("t").put(new("x")) for store in (first, other) * 3)
        )

    assert {memory.id for memory in memories} == {"id of x"}


CROWD: Final = """
insert into memories (tenant, about, slot, version, id, text, source, run_id, turn, metadata, dimensions,
    embedding, created_at, updated_at, valid_until)
  select 't' || n % 40, 'user:' || n / 40 % 25, 's' || n / 1000, v, n || ' ' || v, 'tea ' || n, 'user', '', '',
      '{"n": 1}', 2, array[n, 1]::real[], now(), now(), case v when 1 then now() end
    from generate_series(0, $1::int - 1) n, generate_series(1, 2) v
"""
"""40 tenants with the same 25 scopes; each memory has an earlier version."""


@pytest.mark.parametrize("counted", ["never", "too early", "well"])
async def test_a_scope_is_read_by_the_key(
    postgres_dsn: str, new_schema: str, book: PlanBook, counted: Counted
) -> None:
    """By words, meaning and both, now and as of then, and in lists: no row of another scope or tenant."""
    settings = StoreSettings(url=postgres_dsn, owner=HostIncarnation("h"), schema=new_schema)
    base_query = MemoryQuery(text="tea", about="user:3", embedding=(1.0, 0.0), limit=3)
    queries = [
        replace(base_query, mode=mode, as_of=as_of, filter=sources and {"n": 1}, sources=sources)
        for mode in ("words", "meaning", "hybrid")
        for as_of in (None, datetime.now(UTC) + timedelta(days=1))
        for sources in (None, ("user",))
    ]
    async with open_store(settings) as store:
        await store.data.memories.of("t3").page()
        await write(postgres_dsn, new_schema, {CROWD: (10_000,)}, counted)
        await store.data.memories.of("t3").put(replace(new("key", "user:3"), key="k"))
    for book.mode in MODES:
        async with open_store(settings) as store:
            memories = store.data.memories.of("t3")
            await memories.page(about="no one")
            book.clear()
            pages = [await memories.search(query) for query in queries]
            pages += [await memories.page(about="user:3", limit=3)]
            keyed_pages = [
                await memories.page(about="user:3", keys=["k"]),
                await memories.versions("k", about="user:3"),
                await memories.versions("id of key", about="user:3"),
            ]
        large_reads = [
            f"{rows} rows by {node.get('Index Name')}: {plan.name}"
            for plan in book.plans
            for node in plan.nodes
            if node.get("Relation Name") == "memories" and (rows := plan.read(node)) > 21
        ]
        assert [len(hits) for hits in pages] == [3] * (len(queries) + 1)
        assert [texts(page) for page in keyed_pages] == [["key"]] * 3
        assert {plan.query for plan in book.plans} >= {
            SQL_SEARCH_MEMORIES,
            SQL_LIST_SCOPE,
            SQL_SELECT_VERSIONS,
        }
        assert large_reads == [], book.mode
