"""Tables of memories: made on first use, with extensions or without, and read by their key."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from actors.kernel.runtime.ids import HostIncarnation
from actors.kernel.storage.memory import MemoryQuery, NewMemory
from persistence.postgres import StoreSettings, open_postgres_history
from persistence.postgres.connection.link import Links
from persistence.postgres.connection.outage import ServerOutage
from persistence.postgres.stores.memories import SQL_SEARCH_MEMORIES, PostgresLongTermMemories
from tests.integration.persistence.hosts import connected, sql

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from actors.kernel.storage.memory import Memory

COLUMN = """
select t.typname as type from pg_attribute a join pg_type t on t.oid = a.atttypid
  where a.attrelid = 'memories'::regclass and a.attname = 'embedding'
"""


@asynccontextmanager
async def opened(url: str, schema: str) -> AsyncIterator[PostgresLongTermMemories]:
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


def texts(found: list[Memory]) -> list[str]:
    """What was found."""
    return [one.text for one in found]


async def test_a_database_without_extensions_finds_the_same(plain_database: str) -> None:
    """Meaning by arrays; of spellings only that a word is within another one."""
    schema = "memories_plain"
    async with open_postgres_history(plain_database, schema=schema):
        name = plain_database.rpartition("/")[2]
        await sql(plain_database, schema, f"revoke create on database {name} from {name}")
    try:
        async with opened(plain_database, schema) as memories:
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
        opened(postgres_dsn, schema) as one,
        opened(postgres_dsn, schema) as other,
    ):
        kept = await asyncio.gather(*(store.of("t").put(new("x")) for store in (one, other) * 3))

    assert {memory.id for memory in kept} == {"id of x"}


async def test_a_search_reads_its_scope_by_the_key(postgres_dsn: str, schema: str) -> None:
    """Whatever other scopes and tenants hold."""
    async with (
        open_postgres_history(postgres_dsn, schema=schema),
        opened(postgres_dsn, schema) as memories,
    ):
        await memories.of("acme").put(new("tea"), embedding=(1.0, 0.0))
        async with connected(postgres_dsn, schema) as connection:
            await connection.execute(
                "insert into memories (tenant, about, slot, version, id, text, source, run_id, turn,"
                " metadata, dimensions, embedding, created_at, updated_at)"
                " select 't' || n % 10, 'a' || n % 500, 's' || n, 1, 'i' || n, 'tea ' || n, 'user', '', '',"
                " '{}', 2, array[n, 1]::real[], now(), now() from generate_series(1, 5000) n"
            )
            await connection.execute("analyze memories")
            statement = await connection.prepare(SQL_SEARCH_MEMORIES)
            args = ([1.0, 0.0], ["tea"], 4, None, None, None, 20, 0.6)
            plan = str(await statement.explain("t3", "a3", *args))
            rows = await statement.fetch("t3", "a3", *args)

    assert len(rows) == 10
    assert "Seq Scan" not in plan
