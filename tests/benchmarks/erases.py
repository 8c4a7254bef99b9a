"""The erase of one user among a million memories, against the bare SQL of the same batches.

Beside it a writer locks rows of that user, one after the other, and measures how long it waits for each.
"""

from __future__ import annotations

import asyncio
import random
import statistics
import time
from typing import TYPE_CHECKING, Final

import asyncpg

from actors._kernel.stores.administration import ERASE_BATCH, EraseRequest
from tests.benchmarks.bench import open_store, report

if TYPE_CHECKING:
    from actors._kernel.stores.administration import Erasable
    from persistence.postgres import PostgresStore

COUNT: Final = 1_000_000
OF_ONE: Final = 20_000
DIMENSIONS: Final = 8
MISSED_IN_A_ROW: Final = 100
"""After this many missing rows the writer stops: the user is erased."""
TENANT: Final = "acme"
SQL_FILL: Final = """
insert into {schema}.memories (tenant, about, slot, version, id, key, text, source, run_id, turn, metadata,
    dimensions, embedding, created_at, updated_at)
  select $1, case when $2 then 'user:' || n % 2 else 'other:' || n % 1000 end, 'k' || n || $2, 1,
      md5(n || $2::text), 'k' || n, 'a text of some words, number ' || n, 'user', '', '', '{{}}', $3::int,
      {schema}.memory_meaning(array(select random()::real from generate_series(1, $3::int) where n > 0)),
      now(), now()
    from generate_series(1, $4::int) n
"""
SQL_FLOOR: Final = """
delete from {schema}.memories where ctid = any(array(
  select ctid from {schema}.memories where tenant = $1 and about = $2 limit $3 for update))
"""


async def run(url: str, *, scale: float = 1.0) -> None:
    """Print a line: statements, how long the longest of them took, and how long the writer waited at most."""
    count, of_one = max(1_000, int(COUNT * scale)), max(600, int(OF_ONE * scale))
    async with open_store(url) as store:
        await store.data.memories.of(TENANT).page()  # creates the table
        schema = store.settings.schema
        connection = await asyncpg.connect(url)
        try:
            fill = SQL_FILL.format(schema=schema)
            await connection.execute(fill, TENANT, True, DIMENSIONS, 2 * of_one)
            await connection.execute(fill, TENANT, False, DIMENSIONS, count - 2 * of_one)
            await connection.execute(f"vacuum analyze {schema}.memories")
            base = await _bare(connection, schema, "user:1")
            writer = asyncio.create_task(_write(connection, schema, "user:0", of_one))
            ours, erased_rows = await _erase(store, "user:0")
            waits = await writer
        finally:
            await connection.close()
    assert erased_rows == of_one
    report(
        benchmark="erases",
        memories=count,
        of_user=of_one,
        statements=len(ours),
        most_statements=of_one // ERASE_BATCH + 1,
        batch_ms=round(statistics.median(ours) * 1000, 2),
        floor_ms=round(statistics.median(base) * 1000, 2),
        ratio=round(statistics.median(ours) / statistics.median(base), 2),
        longest_ms=round(max(ours) * 1000, 2),
        writer_tries=len(waits),
        writer_ms=round(statistics.median(waits) * 1000, 2),
        writer_longest_ms=round(max(waits) * 1000, 2),
        floor_longest_ms=round(max(base) * 1000, 2),
        limit_ms=100,
    )


async def _bare(
    connection: asyncpg.Connection[asyncpg.Record], schema: str, about: str
) -> list[float]:
    """Return the seconds of each statement."""
    statement, times = SQL_FLOOR.format(schema=schema), []
    while True:
        began = time.perf_counter()
        done = await connection.execute(statement, TENANT, about, ERASE_BATCH)
        times.append(time.perf_counter() - began)
        if int(done.split()[1]) < ERASE_BATCH:
            return times


async def _write(
    connection: asyncpg.Connection[asyncpg.Record], schema: str, about: str, of_one: int
) -> list[float]:
    """Lock rows of the user until none is left; return the seconds of each."""
    text = (
        f"select 1 from {schema}.memories where tenant = $1 and about = $2 and slot = $3 for update"
    )
    statement, chance, times, misses = await connection.prepare(text), random.Random(1), [], 0
    while misses < MISSED_IN_A_ROW:
        slot = f"k{2 * chance.randrange(1, of_one + 1)}true"
        began = time.perf_counter()
        rows = await statement.fetch(TENANT, about, slot)
        times.append(time.perf_counter() - began)
        misses = 0 if rows else misses + 1
    return times


async def _erase(store: PostgresStore, about: str) -> tuple[list[float], int]:
    """Return the seconds of each batch, and the rows removed."""
    [part] = [p for p in store.data.erasure.parts if p.erased_as == "memories"]
    memories: Erasable = part
    times, erased_rows, cursor = [], 0, None
    while True:
        began = time.perf_counter()
        done = await memories.erase(EraseRequest(tenant=TENANT, about=about), cursor=cursor)
        times.append(time.perf_counter() - began)
        erased_rows, cursor = erased_rows + done.rows["versions"], done.cursor
        if cursor is None:
            return times, erased_rows
