"""Migrations while others work, and while somebody reads for long: a back-up, a report."""

from __future__ import annotations

import asyncio
import logging
from contextlib import AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING, Final

import asyncpg
import pytest

from actors._kernel.runtime.ids import HostIncarnation
from compose import Settings, build_postgres_runtime
from persistence import _migrate as module
from persistence._migrate import SQL_LOCK, TABLES, catch_up, migrate
from persistence._postgres.data import first_use
from persistence._postgres.data.first_use import StoreTables
from persistence._postgres.data.vectors import PgVectorStore
from persistence._schema_files import LATER, NO_TRANSACTION, Migration, known_migrations
from persistence.errors import MigrationError
from persistence.postgres import open_postgres_store
from tests.conformance.bed import message
from tests.conformance.stores.places import Place, links_to, make
from tests.integration.persistence.hosts import connected, host, sql
from tests.system.waiting import until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from persistence._postgres.connection.link import Connection

KNOWN: Final = known_migrations()
NEXT: Final = KNOWN[-1].version + 1
MORE: Final = Migration(NEXT, f"{NEXT:04}_more", "alter table inbox add column more int;")
INDEX_NAME: Final = "inbox_by_length"
INDEX: Final = Migration(
    NEXT,
    f"{NEXT:04}_length",
    f"{NO_TRANSACTION}\n-- How long ids are.\n"
    f"create index concurrently if not exists {INDEX_NAME}\n  on inbox (length(message_id));\n",
)
SETTING: Final = Migration(
    NEXT,
    f"{NEXT:04}_setting",
    f"{LATER}\nalter table inbox add constraint has_sender check (sender is not null);\n",
)
SQL_INDEX: Final = "select indexrelid, indisvalid from pg_index where indexrelid = to_regclass($1)"
SQL_RECORD: Final = "select 1 from schema_migrations where version = $1"


@pytest.fixture
def schema(new_schema: str) -> str:
    """One that is not there: these tests make and change it."""
    return new_schema


@asynccontextmanager
async def back_up(url: str, schema: str, table: str = "inbox") -> AsyncIterator[Connection]:
    """Somebody reads the tables as they are now, and does not end: as pg_dump does."""
    async with connected(url, schema, application_name="back-up") as reader:
        await reader.execute("begin isolation level repeatable read")
        await reader.fetch(f"select 'page one of many' from {table}")
        yield reader


async def test_sends_go_on_while_a_migration_waits_for_a_reader(
    postgres_dsn: str, schema: str
) -> None:
    """A lock that a long reader keeps from a migration is asked for a moment only, again and again."""
    async with host(postgres_dsn, schema) as bed, connected(postgres_dsn, schema) as owner:
        async with back_up(postgres_dsn, schema):
            work = asyncio.ensure_future(migrate(owner, schema, [*KNOWN, MORE]))
            await until_it_waits(postgres_dsn, owner)
            async with asyncio.timeout(10):
                for n in range(20):
                    await bed.store.arrivals.deliver([message(id=f"m{n}")])
            assert not work.done()

        assert await work == [MORE.name]


async def until_it_waits(url: str, connection: Connection) -> None:
    """Return once the connection's session waits for a lock."""
    waits = "select wait_event_type = 'Lock' as waits from pg_stat_activity where pid = $1"
    pid = connection.get_server_pid()

    async def does() -> bool:
        return bool((await sql(url, "public", waits, pid))[0]["waits"])

    await until(does, "the migration waits")


async def test_it_is_said_who_keeps_a_migration_waiting(
    postgres_dsn: str, schema: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Pid, application, age and query of each session, and the name of the migration."""
    await open_once(postgres_dsn, schema)
    async with connected(postgres_dsn, schema) as owner:
        async with back_up(postgres_dsn, schema) as reader:
            work = asyncio.ensure_future(
                migrate(
                    owner, schema, [*KNOWN, MORE], connect=lambda: asyncpg.connect(postgres_dsn)
                )
            )
            await until(lambda: bool(waits_said(caplog)), "it is said")
        await work

    record = vars(waits_said(caplog)[0])
    assert (record["schema"], record["migration"]) == (schema, MORE.name)
    [blocker] = record["blockers"]
    assert blocker.startswith(f"pid {reader.get_server_pid()} (back-up, for 0 s): select 'page one")


async def test_nothing_is_locked_where_nothing_is_to_be_done(
    postgres_dsn: str, schema: str
) -> None:
    """A host starts, also while another session holds the lock of migrations."""
    await open_once(postgres_dsn, schema)
    async with connected(postgres_dsn, schema) as other:
        await other.execute(SQL_LOCK, TABLES)

        async with asyncio.timeout(10):
            await open_once(postgres_dsn, schema)


async def test_indexes_are_built_beside_the_work_of_hosts(postgres_dsn: str, schema: str) -> None:
    """Behind a back-up messages are taken and hosts start; what was cut off is dropped and built again."""
    steps = [*KNOWN, INDEX]
    async with host(postgres_dsn, schema) as bed, connected(postgres_dsn, schema) as owner:
        async with back_up(postgres_dsn, schema):
            assert await migrate(owner, schema, steps) == []
            work = asyncio.ensure_future(catch_up(owner, schema, steps))
            await until_it_waits(postgres_dsn, owner)
            async with asyncio.timeout(10):
                await bed.store.arrivals.deliver([message(id="m")])
                await open_once(postgres_dsn, schema)
            work.cancel()
            await asyncio.wait([work])
        cut_off = await sql(postgres_dsn, schema, SQL_INDEX, INDEX_NAME)
        built_names = await catch_up(owner, schema, steps)
        whole = await sql(postgres_dsn, schema, SQL_INDEX, INDEX_NAME)
        again = await catch_up(owner, schema, steps)

    assert [row["indisvalid"] for row in cut_off] == [False]
    assert built_names == [INDEX.name]
    assert [row["indisvalid"] for row in whole] == [True]
    assert again == []


async def test_an_index_that_was_built_before_a_crash_is_taken_as_it_is(
    postgres_dsn: str, schema: str
) -> None:
    """Between the last statement and its record; the same file is done again, from its beginning."""
    steps = [*KNOWN, INDEX]
    await open_once(postgres_dsn, schema)
    async with connected(postgres_dsn, schema) as owner:
        await catch_up(owner, schema, steps)
        before = await sql(postgres_dsn, schema, SQL_INDEX, INDEX_NAME)
        await owner.execute("delete from schema_migrations where version = $1", NEXT)

        assert await catch_up(owner, schema, steps) == [INDEX.name]
    assert await sql(postgres_dsn, schema, SQL_INDEX, INDEX_NAME) == before


async def test_a_new_schema_has_its_indexes_at_once(postgres_dsn: str, schema: str) -> None:
    """Nobody works in it yet."""
    async with (
        connected(postgres_dsn, schema) as owner,
        back_up(postgres_dsn, "public", "pg_class"),
    ):
        steps = [*KNOWN, INDEX]

        assert await migrate(owner, schema, steps) == [step.name for step in steps]
        assert await catch_up(owner, schema, steps) == []
        assert len(await sql(postgres_dsn, schema, SQL_INDEX, INDEX_NAME)) == 1


@pytest.mark.parametrize("late", [INDEX, SETTING], ids=["an index", "a setting"])
async def test_a_host_starts_with_the_old_schema_where_it_can(
    postgres_dsn: str, schema: str, monkeypatch: pytest.MonkeyPatch, late: Migration
) -> None:
    """Behind a back-up; one of the hosts catches up when it has ended, and nobody has to call anything."""
    await open_once(postgres_dsn, schema)
    monkeypatch.setattr(module, "known_migrations", lambda: [*KNOWN, late])
    settings = Settings(db_schema=schema)
    async with AsyncExitStack() as stack:
        async with back_up(postgres_dsn, schema):
            runtime = build_postgres_runtime(postgres_dsn, settings=settings)
            async with asyncio.timeout(10):
                await stack.enter_async_context(runtime)
            assert await sql(postgres_dsn, schema, SQL_RECORD, NEXT) == []

        async def is_applied() -> bool:
            return bool(await sql(postgres_dsn, schema, SQL_RECORD, NEXT))

        await until(is_applied, "the host has caught up")


MEMORIES_1: Final = (
    "drop index memories_by_id; create unique index memories_ids on memories (tenant, id);"
    "update store_tables set version = 1 where name = 'memories'"
)
VECTORS_1: Final = (
    "alter table vector_collections drop column embedder;"
    "update store_tables set version = 1 where name = 'vectors'"
)
SQL_VERSION: Final = "select version from store_tables where name = $1"


async def test_a_store_uses_tables_of_before_while_another_session_reads_them(
    postgres_dsn: str, schema: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody waits behind it, and they are brought up to date when the reader has ended."""
    monkeypatch.setattr(first_use, "AGAIN_S", 0.0)
    database = Place(postgres_dsn, schema)
    await open_once(postgres_dsn, schema)
    async with links_to(database) as links, connected(postgres_dsn, schema) as other:
        await StoreTables(links, "memories").make()
        await other.execute(MEMORIES_1)
        tables = StoreTables(links, "memories")
        async with back_up(postgres_dsn, schema, "memories"), asyncio.timeout(10):
            reads = asyncio.ensure_future(tables.fetch("reading", "select from memories"))
            for _ in range(20):
                await other.execute("delete from memories")
            assert await reads == []
            assert await other.fetchval(SQL_VERSION, "memories") == 1
        await tables.fetch("reading", "select from memories")

        assert await other.fetchval(SQL_VERSION, "memories") == 2


async def test_a_store_that_needs_newer_tables_waits_and_nobody_behind_it(
    postgres_dsn: str, schema: str, caplog: pytest.LogCaptureFixture
) -> None:
    """It is said who reads them; the call goes on when that has ended."""
    database = Place(postgres_dsn, schema)
    await make(database)
    async with links_to(database) as links, connected(postgres_dsn, schema) as other:
        await other.execute(VECTORS_1)
        store = PgVectorStore(StoreTables(links, "vectors"), tenant="acme")
        async with back_up(postgres_dsn, schema, "vector_collections") as reader:
            search = asyncio.ensure_future(store.search([1, 2]))
            await until(lambda: bool(waits_said(caplog)), "it is said")
            async with asyncio.timeout(10):
                for _ in range(20):
                    await other.execute("delete from vector_collections")
            assert not search.done()
        async with asyncio.timeout(20):
            assert await search == []

    record = vars(waits_said(caplog)[0])
    assert record["migration"] == "tables of vectors"
    [blocker] = record["blockers"]
    assert blocker.startswith(f"pid {reader.get_server_pid()} (back-up, for ")


@pytest.mark.parametrize(
    "statement", ["create index a on inbox (agent)", "update runs set x = 1", "drop index a"]
)
def test_without_a_transaction_only_indexes_can_be_made(statement: str) -> None:
    """Each statement has to be one that may be executed twice."""
    with pytest.raises(MigrationError, match=r"0099_odd.*only indexes"):
        _ = Migration(99, "0099_odd", f"{NO_TRANSACTION}\n-- why; not\n{statement};\n").indexes


async def open_once(url: str, schema: str) -> None:
    """Open a store as a host does, and close it."""
    async with open_postgres_store(url, schema=schema, owner=HostIncarnation("once")):
        pass


def waits_said(caplog: pytest.LogCaptureFixture) -> list[logging.LogRecord]:
    """The log lines that say who blocks."""
    return [r for r in caplog.records if r.message == "a migration waits for other sessions"]
