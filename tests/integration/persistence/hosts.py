"""Hosts on a real PostgreSQL, as the tests of the store need them."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import asyncpg

from actors._kernel.runtime.ids import HostIncarnation
from actors._runtime.loop.clock import SystemClock
from persistence._postgres.connection.link import TypedConnection
from persistence.postgres import StoreSettings, open_store
from tests.conformance.bed import Bed

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping, Sequence
    from contextlib import AbstractAsyncContextManager
    from datetime import timedelta

    from actors._kernel.stores.run_store import RunStore
    from persistence._postgres.connection.link import Connection
    from persistence.postgres import PostgresStore
    from tests.conformance.bed import Turns


Counted: TypeAlias = Literal["never", "too early", "well"]
"""What a planner knows of rows: nothing, that there are none, or the truth."""


@asynccontextmanager
async def host(url: str, schema: str, owner: str = "h1", **settings: Any) -> AsyncIterator[Bed]:
    """A host that owns every free shard of the usual types."""
    base = StoreSettings(
        # Nothing beats here.
        url=url,
        schema=schema,
        owner=HostIncarnation(owner),
        **{"lease_s": 60.0, **settings},
    )

    def open_host(owner: HostIncarnation) -> AbstractAsyncContextManager[RunStore]:
        return open_store(replace(base, owner=owner))

    async def lapse() -> None:
        await sql(url, schema, "update hosts set expires_at = clock_timestamp() - interval '1 s'")

    async with open_store(base) as store:
        bed = Bed("postgres", store, base.owner, open_host, SystemClock(), lapse)
        await bed.claim()
        yield bed


def store_of(bed: Bed) -> PostgresStore:
    """The bed's store as what it is."""
    store: Any = bed.store
    postgres: PostgresStore = store
    return postgres


@asynccontextmanager
async def connected(url: str, schema: str, **settings: str) -> AsyncIterator[Connection]:
    """A connection to the schema, with these settings; in a lasting loop one that was used before."""
    server_settings = {"search_path": f'"{schema}"', "application_name": "test", **settings}
    connection = await asyncpg.connect(
        url, server_settings=server_settings, connection_class=TypedConnection
    )
    try:
        yield connection
    finally:
        await connection.close()


async def sql(url: str, schema: str, statement: str, *args: object) -> list[asyncpg.Record]:
    """The rows of one statement on a connection of its own."""
    async with connected(url, schema) as connection:
        return await connection.fetch(statement, *args)


async def step_clock(url: str, schema: str, ahead: timedelta) -> None:
    """Let the database's clock be so far ahead of its machine's."""
    await sql(
        url,
        schema,
        "create or replace function present() returns timestamptz language sql volatile"
        f" as $$ select clock_timestamp() + interval '{ahead.total_seconds()} s' $$",
    )


async def write(
    url: str, schema: str, changes: Mapping[str, Sequence[object]], counted: Counted
) -> None:
    """Make these changes, in one commit; the tables are analysed before it, behind it, or not at all."""
    tables = await sql(url, schema, "select tablename from pg_tables where schemaname = $1", schema)
    analyse = f"analyze {', '.join([row['tablename'] for row in tables])}"
    async with connected(url, schema) as connection:
        async with connection.transaction():
            for statement, args in changes.items():
                await connection.execute(statement, *args)
            if counted == "too early":
                await sql(url, schema, analyse)
        if counted == "well":
            await connection.execute(analyse)


async def kinds(turns: Turns) -> list[str]:
    """Position and kind of every entry of the run's log, in order of seq, which has no gap."""
    entries = [entry async for entry in turns.bed.store.reads.entries(turns.run_id)]
    assert [entry.seq for entry in entries] == list(range(len(entries)))
    return [f"{entry.position} {entry.kind}".strip() for entry in entries]


async def waiting_for(
    connection: asyncpg.Connection[asyncpg.Record], besides: frozenset[int] = frozenset()
) -> frozenset[int]:
    """The server processes, none of them in `besides`, that wait for a lock of this session."""
    async with asyncio.timeout(10):
        while True:
            rows = await connection.fetch(
                "select distinct pid from pg_locks"
                " where not granted and pg_backend_pid() = any(pg_blocking_pids(pid))"
            )
            pids = frozenset(row["pid"] for row in rows)
            if pids and not pids & besides:
                return pids
            await asyncio.sleep(0.01)
