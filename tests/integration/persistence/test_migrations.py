"""Migrations: numbered files, applied once, by whoever comes first."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING

import asyncpg
import pytest

from actors._kernel.runtime.ids import HostIncarnation
from persistence._migrate import migrate
from persistence._schema_files import Migration, known_migrations
from persistence.errors import MigrationError
from persistence.postgres import open_postgres_store
from tests.integration.persistence.hosts import connected, sql

if TYPE_CHECKING:
    from collections.abc import Sequence

OWNER = HostIncarnation("h1")


@pytest.fixture
def schema(new_schema: str) -> str:
    """One that is not there: the migrations are what is tested."""
    return new_schema


async def run_once(url: str, schema: str, steps: Sequence[Migration] | None = None) -> list[str]:
    """What one runner applied."""
    async with connected(url, schema) as connection:
        return await migrate(connection, schema, steps, functions=None if steps is None else ())


async def test_four_runners_at_once_apply_each_file_once(postgres_dsn: str, schema: str) -> None:
    """One of them does the work, the others wait and find it done."""
    name_lists = await asyncio.gather(*(run_once(postgres_dsn, schema) for _ in range(4)))

    names = [step.name for step in known_migrations()]
    assert sorted(name_lists, key=len) == [[], [], [], names]
    rows = await sql(postgres_dsn, schema, "select name from schema_migrations order by version")
    assert [row["name"] for row in rows] == names


async def test_stores_that_open_at_once_share_one_schema(postgres_dsn: str, schema: str) -> None:
    """A fleet may start together on an empty database."""

    async def open_one(n: int) -> int:
        owner = HostIncarnation(f"h{n}")
        async with open_postgres_store(postgres_dsn, schema=schema, owner=owner) as store:
            return len(await store.lists.runs())

    assert await asyncio.gather(*(open_one(n) for n in range(4))) == [0] * 4


async def test_a_file_changed_after_it_was_applied_is_refused(
    postgres_dsn: str, schema: str
) -> None:
    """The error names the file and the way out; other line ends are not a change."""
    first = Migration(1, "0001_first", "create table a (x int);\n")
    await run_once(postgres_dsn, schema, [first])

    assert (
        await run_once(postgres_dsn, schema, [replace(first, sql=first.sql.replace("\n", "\r\n"))])
        == []
    )
    with pytest.raises(MigrationError, match=r"0001_first.*was changed after it was applied"):
        await run_once(postgres_dsn, schema, [replace(first, sql=first.sql + "-- more\n")])


async def test_a_file_that_fails_leaves_nothing_of_itself(postgres_dsn: str, schema: str) -> None:
    """What came before it stays, and its next version is applied whole."""
    good = Migration(1, "0001_good", "create table a (x int);")
    bad = Migration(2, "0002_bad", "create table b (x int); select 1 / 0;")

    with pytest.raises(asyncpg.DivisionByZeroError):
        await run_once(postgres_dsn, schema, [good, bad])

    mended_migration = replace(bad, sql="create table b (x int);")
    assert await run_once(postgres_dsn, schema, [good, mended_migration]) == ["0002_bad"]


async def test_a_schema_of_a_newer_release_is_left_alone(postgres_dsn: str, schema: str) -> None:
    """An old host goes on beside a new one."""
    steps = [Migration(1, "0001_a", "select 1"), Migration(2, "0002_b", "select 1")]
    await run_once(postgres_dsn, schema, steps)

    assert await run_once(postgres_dsn, schema, steps[:1]) == []
