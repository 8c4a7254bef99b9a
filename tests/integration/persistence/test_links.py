"""Connections that a store shares among its statements."""

from __future__ import annotations

import asyncio

import asyncpg
import pytest

from actors._kernel.runtime.ids import HostIncarnation
from persistence._postgres.connection.link import Links, ServerOutage
from persistence.postgres import StoreSettings

pytestmark = pytest.mark.postgres
WAITERS = "select count(*) from pg_locks where not granted"


async def test_no_statement_waits_behind_one_that_waits_for_a_lock(
    postgres_dsn: str, schema: str
) -> None:
    """While one connection is taken for long, all other statements share the rest, and none is stuck."""
    settings = StoreSettings(url=postgres_dsn, owner=HostIncarnation("h"), schema=schema)
    links = Links(settings, ServerOutage(settings), 2)
    holder = await asyncpg.connect(postgres_dsn, server_settings={"search_path": schema})
    try:
        async with holder.transaction():
            await holder.execute("lock table outbox in access exclusive mode")
            stuck = asyncio.create_task(links.value("counting", "select count(*) from outbox"))
            while not await holder.fetchval(WAITERS):  # noqa: ASYNC110 - of the server
                await asyncio.sleep(0.001)
            numbers = await asyncio.gather(
                *(links.value("asking", "select $1::int", n) for n in range(20))
            )
            is_stuck = not stuck.done()
        assert await stuck == 0
    finally:
        await links.close()
        await holder.close()

    assert numbers == list(range(20))
    assert is_stuck
