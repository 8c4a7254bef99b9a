"""The fault proxy between asyncpg and a real PostgreSQL."""

from __future__ import annotations

import asyncio
import time

import asyncpg
import pytest

from tests.harness.proxy import FaultProxy


async def connect(dsn: str) -> asyncpg.Connection:
    """A connection without statement caching, so that every request carries its text."""
    return await asyncpg.connect(dsn, statement_cache_size=0)


async def count(dsn: str, schema: str) -> int:
    """How many rows the test's table has, asked of the server directly."""
    connection = await connect(dsn)
    try:
        row_count: int = await connection.fetchval(f"select count(*) from {schema}.t")
        return row_count
    finally:
        await connection.close()


@pytest.fixture
async def table(postgres_dsn: str, new_schema: str) -> str:
    """A schema with an empty table `t`."""
    connection = await connect(postgres_dsn)
    await connection.execute(f"create schema {new_schema}; create table {new_schema}.t (n int)")
    await connection.close()
    return new_schema


async def test_a_lost_response_leaves_the_write_applied(postgres_dsn: str, table: str) -> None:
    """The client sees its connection die, and the row is there."""
    async with FaultProxy.to(postgres_dsn) as proxy:
        client = await connect(proxy.through(postgres_dsn))
        loss = proxy.lose_response(request_has=b"insert")
        with pytest.raises((asyncpg.PostgresConnectionError, OSError)):
            await client.execute(f"insert into {table}.t values (1)")

        assert loss.happened.is_set()
        assert await count(postgres_dsn, table) == 1


async def test_a_lost_request_leaves_nothing(postgres_dsn: str, table: str) -> None:
    """The client sees the same as after a lost response, and the row is not there."""
    async with FaultProxy.to(postgres_dsn) as proxy:
        client = await connect(proxy.through(postgres_dsn))
        loss = proxy.lose_request(request_has=b"insert")
        with pytest.raises((asyncpg.PostgresConnectionError, OSError)):
            await client.execute(f"insert into {table}.t values (1)")

        assert loss.happened.is_set()
        assert await count(postgres_dsn, table) == 0


async def test_a_lost_commit_of_an_explicit_transaction_is_applied(
    postgres_dsn: str, table: str
) -> None:
    """COMMIT reaches the server, its answer does not reach the client."""
    async with FaultProxy.to(postgres_dsn) as proxy:
        client = await connect(proxy.through(postgres_dsn))
        transaction = client.transaction()
        await transaction.start()
        await client.execute(f"insert into {table}.t values (1)")
        proxy.lose_response(request_has=b"COMMIT")
        with pytest.raises((asyncpg.PostgresConnectionError, OSError)):
            await transaction.commit()

        assert await count(postgres_dsn, table) == 1


async def test_a_cut_line_holds_bytes_back_until_it_heals(postgres_dsn: str) -> None:
    """A query over a cut line waits, and is answered after the line heals."""
    async with FaultProxy.to(postgres_dsn) as proxy:
        client = await connect(proxy.through(postgres_dsn))
        proxy.cut()
        waiting = asyncio.ensure_future(client.fetchval("select 7"))
        done_tasks, _ = await asyncio.wait([waiting], timeout=0.1)
        proxy.heal()

        assert not done_tasks
        assert await waiting == 7
        await client.close()


async def test_a_reset_line_ends_the_connection_and_lets_new_ones_in(postgres_dsn: str) -> None:
    """After a reset the old connection is dead and a new one works."""
    async with FaultProxy.to(postgres_dsn) as proxy:
        old = await connect(proxy.through(postgres_dsn))
        proxy.reset()
        with pytest.raises((asyncpg.PostgresConnectionError, asyncpg.InterfaceError, OSError)):
            await old.fetchval("select 1")
        new = await connect(proxy.through(postgres_dsn))

        assert await new.fetchval("select 1") == 1
        assert proxy.accepted_count == 2
        await new.close()


async def test_a_delay_is_paid_in_both_directions(postgres_dsn: str) -> None:
    """A round trip takes at least twice the delay."""
    async with FaultProxy.to(postgres_dsn) as proxy:
        client = await connect(proxy.through(postgres_dsn))
        proxy.delay_s = 0.05
        started = time.monotonic()
        await client.execute("select 1")

        assert time.monotonic() - started >= 0.1
        await client.close()
