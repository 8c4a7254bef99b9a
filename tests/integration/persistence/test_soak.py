"""Days of a deployment at a constant rate, on a database whose clock is stepped: nothing goes on growing."""

from __future__ import annotations

import asyncio
import re
from datetime import timedelta
from typing import TYPE_CHECKING, Final

import asyncpg
import pytest

from actors._kernel.agent.message import MessageKey
from actors._kernel.runtime.commit import Finish
from actors._kernel.runtime.ids import AgentId
from actors._kernel.runtime.log_entry import EntryKind, NewEntry
from actors._kernel.runtime.scheduler import RunStatus
from actors._runtime.sharding.retention import sweep_all
from tests.conformance.bed import SENDER, message, result, started
from tests.harness.slow import IS_SLOW
from tests.integration.persistence.hosts import connected, host, sql, step_clock

if TYPE_CHECKING:
    from tests.conformance.bed import Bed

DAYS, RETAIN_DAYS, RUNS = (60, 30, 200) if IS_SLOW else (16, 8, 10)
"""How long, what is kept, and how many runs a day."""
PAGES: Final = 3
"""What a small table may differ by; ten per cent of a page is no measure."""
ERROR: Final = {"message": "over"}

SQL_SIZES: Final = """
select c.relname as name, pg_relation_size(c.oid) / 8192 as pages from pg_class c
  where c.relnamespace = $1::regnamespace and c.relkind in ('r', 'i')
"""
REMOVED: Final = re.compile(r"tuples: (\d+) removed|(\d+) dead item identifiers removed")


@pytest.fixture
def schema(new_schema: str) -> str:
    """One that is not there: sizes are counted, and its functions changed."""
    return new_schema


async def stamp_by_present(url: str, schema: str) -> None:
    """Have every instant that rows hold taken from the clock that is stepped."""
    functions = await sql(
        url,
        schema,
        "select pg_get_functiondef(p.oid) as text from pg_proc p where p.pronamespace = $1::regnamespace"
        " and p.proname <> 'present' and strpos(p.prosrc, 'clock_timestamp()') > 0",
        schema,
    )
    columns = await sql(
        url,
        schema,
        "select table_name as t, column_name as c from information_schema.columns"
        " where table_schema = $1 and column_default = 'clock_timestamp()'",
        schema,
    )
    assert len(functions) >= 3
    assert len(columns) >= 5
    for function in functions:
        await sql(url, schema, function["text"].replace("clock_timestamp()", "present()"))
    for column in columns:
        await sql(
            url, schema, f"alter table {column['t']} alter {column['c']} set default present()"
        )


async def vacuum(connection: asyncpg.Connection, schema: str) -> int:
    """Return how many dead tuples the table with the most of them had; the server's statistics come late."""
    log_lines: list[str] = []
    connection.add_log_listener(lambda _, message: log_lines.append(message.message or ""))
    await connection.execute("vacuum (verbose)")
    return max(
        int(n)
        for text in log_lines
        if f".{schema}." in text
        for match in REMOVED.findall(text)
        for n in match
        if n
    )


async def live_a_day(bed: Bed, day: int) -> None:
    """So many runs, submitted and by mail, one of ten given up."""
    places = asyncio.Semaphore(20)

    async def add_run(n: int) -> None:
        async with places:
            agent, name = AgentId("desk", str(n)), f"{day}-{n}"
            if n % 2:
                run = await bed.begin(agent=agent, id=name)
            else:
                await bed.store.arrivals.deliver([message("x" * 300, id=name, to=agent)])
                key = MessageKey(agent, SENDER, name)
                run, new = bed.turns_of_mail(key)
                await run.commit(run.turn(started(agent), create=new, bind=(key,)))
            await run.commit(run.turn(*(result(str(i), "x" * 200) for i in range(5))))
            if n % 10:
                await run.complete("x" * 200)
                return
            entry = NewEntry(EntryKind.RUN_FAILED, "", {"status": "error", "error": ERROR})  # type: ignore[dict-item]
            finish = Finish(RunStatus.FAILED, error=ERROR, dead_letter="explicit")  # type: ignore[arg-type]
            await run.commit(run.turn(entry, then=finish))

    await asyncio.gather(*(add_run(n) for n in range(RUNS)))


@pytest.mark.costly
@pytest.mark.timeout(1800 if IS_SLOW else 120)
async def test_tables_and_indexes_stop_growing(postgres_dsn: str, schema: str) -> None:
    """Once the first runs are old enough to go; with a vacuum a day, as autovacuum does it.

    But for one index: leaves of a B-tree whose keys have no order are split where many come at once and are
    never joined, so that of the log settles a quarter higher, later.
    """
    sizes: list[dict[str, int]] = []
    dead: list[int] = []
    async with host(postgres_dsn, schema) as bed:
        await stamp_by_present(postgres_dsn, schema)
        for day in range(DAYS):
            await step_clock(postgres_dsn, schema, timedelta(days=day))
            await live_a_day(bed, day)
            await sweep_all(bed.store, older_than_s=RETAIN_DAYS * 86_400)
            async with connected(postgres_dsn, schema) as connection:
                dead.append(await vacuum(connection, schema))
                rows = await connection.fetch(SQL_SIZES, schema)
            sizes.append({row["name"]: row["pages"] for row in rows})
        counts = {
            table: (await sql(postgres_dsn, schema, f"select count(*) as n from {table}"))[0]["n"]
            for table in ("runs", "event_log", "inbox", "message_ids", "dead_letters")
        }

    grown = {
        name: (pages, sizes[-1][name])
        for name, pages in sizes[RETAIN_DAYS + 2].items()
        if sizes[-1][name] > pages * (1.25 if name == "event_log_pkey" else 1.1) + PAGES
    }
    assert grown == {}
    assert counts["runs"] <= (RETAIN_DAYS + 1) * RUNS
    assert counts["message_ids"] <= 2 * (RETAIN_DAYS + 2) * RUNS
    assert counts["inbox"] <= 2 * RUNS
    assert 7 * RUNS <= max(dead) <= 2 * 7 * RUNS, "a run has 7 entries"
