"""A schema of the baseline and the functions: what is in it, and what databases of before become."""

from __future__ import annotations

import asyncio
import gzip
import re
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

import asyncpg
import pytest

from actors import RunContext, RunId, agent
from compose import Settings, build_postgres_runtime
from persistence._migrate import catch_up, migrate, stale_functions
from persistence._schema_files import (
    OLDEST,
    REVISION,
    Function,
    Migration,
    known_functions,
    known_migrations,
)
from persistence.errors import MigrationError
from tests.harness.tools import postgres
from tests.integration.persistence.hosts import connected, sql
from tests.integration.persistence.test_migrations_beside_work import back_up

if TYPE_CHECKING:
    from collections.abc import Sequence

    from actors import Message

DATA: Final = Path(__file__).with_name("data")
"""Dumps with rows, made by a run of greeters, editors and readers: see `docs/adr/0012`.

By the code of commit 48a53df, which had 18 migrations, and of c864325, which had 28 and no baseline."""
OLD: Final = ("schema_0018", "schema_0028")
SQL_OPEN: Final = "select run_id from runs where open"
SQL_FAILED: Final = "select run_id, ended_as from runs where status = 'FAILED'"
SQL_FUNCTIONS: Final = "select proname as name from pg_proc where pronamespace = $1::regnamespace"
TWICE: Final = Function("twice", "create function twice(n int) returns int return n * 2;\n")


@pytest.fixture
def schema(new_schema: str) -> str:
    """One that is not there: how it is made is what is tested."""
    return new_schema


async def restore(url: str, schema: str, dump: str) -> None:
    """Make the schema as a release of before has left it."""
    text = gzip.decompress((DATA / f"{dump}.sql.gz").read_bytes()).decode()
    async with connected(url, schema) as connection:
        await connection.execute("set check_function_bodies = off")
        await connection.execute(text.replace("the_schema", schema))


async def bring_up(
    url: str,
    schema: str,
    migrations: Sequence[Migration] | None = None,
    functions: Sequence[Function] | None = None,
) -> list[str]:
    """What was applied by one runner who waits for all of it."""
    async with connected(url, schema) as owner:
        applied_names = await migrate(owner, schema, migrations, functions=functions)
        return applied_names + await catch_up(owner, schema, migrations)


async def rows(url: str, schema: str, statement: str, *args: object) -> list[tuple[object, ...]]:
    """Of one statement, as what they are equal to."""
    return [(*row,) for row in await sql(url, schema, statement, *args)]


def shape_of(url: str, schema: str) -> set[str]:
    """What `pg_dump` says of everything in the schema, without names, order and blanks that differ."""
    dump = postgres("pg_dump", "--schema-only", "--no-owner", "-n", schema, url)
    parts = re.split(r"\n--\n-- Name: ", dump.replace(schema, "SCHEMA"))[1:]
    return {" ".join(part.partition("\n\\unrestrict")[0].split()) for part in parts}


@pytest.mark.parametrize("dump", OLD)
async def test_a_schema_of_before_becomes_like_a_new_one(
    postgres_dsn: str, schema: str, dump: str
) -> None:
    """Tables, indexes, defaults and functions; what it has applied is not applied again."""
    other = f"{schema}_new"
    try:
        await bring_up(postgres_dsn, other)
        await restore(postgres_dsn, schema, dump)
        applied_names = await bring_up(postgres_dsn, schema)

        shape = await asyncio.to_thread(shape_of, postgres_dsn, schema)
        assert shape == await asyncio.to_thread(shape_of, postgres_dsn, other)
        assert len(shape) > 150
    finally:
        await sql(postgres_dsn, "public", f"drop schema {other} cascade")
    names = [step.name for step in known_migrations() if step.name > dump.partition("_")[2] + "~"]
    assert sorted(applied_names) == sorted(
        [*names, *(function.file for function in known_functions())]
    )
    assert await bring_up(postgres_dsn, schema) == []


async def test_the_baseline_makes_the_tables_that_the_migrations_made(
    postgres_dsn: str, schema: str
) -> None:
    """Compared with a database that went by all of them, and by nothing else."""
    other = f"{schema}_old"
    history = [step for step in known_migrations() if step.recorded]
    try:
        await restore(postgres_dsn, other, "schema_0028")
        await bring_up(postgres_dsn, schema, history)
        new, old = [
            {
                part
                for part in await asyncio.to_thread(shape_of, postgres_dsn, schema_name)
                if "Type: FUNCTION" not in part and not part.startswith("schema_functions")
            }
            for schema_name in (schema, other)
        ]
        recorded_rows = [
            await rows(
                postgres_dsn, schema_name, "select version, name, checksum from schema_migrations"
            )
            for schema_name in (schema, other)
        ]
    finally:
        await sql(postgres_dsn, "public", f"drop schema {other} cascade")

    assert new == old
    assert len(new) > 100
    assert set(recorded_rows[0]) == set(recorded_rows[1])


@agent("greeter")
async def greeter(ctx: RunContext, inbox: list[Message]) -> object:
    """What it was when the dumps were made."""
    name = inbox[0].payload["name"]  # type: ignore[call-overload,index]
    text = await ctx.step("look up", look_up, name)
    return {"greeted": name, "text": text, "ok": await ctx.sleep_until_signal("ok")}


async def look_up(name: str) -> str:
    """Called for no run of a dump: they have its result."""
    return f"anew: {name}"


@pytest.mark.parametrize("dump", OLD)
async def test_work_goes_on_in_a_schema_of_before(
    postgres_dsn: str, schema: str, dump: str
) -> None:
    """Open runs end, new ones begin, and what is known of ended ones is complete."""
    await restore(postgres_dsn, schema, dump)
    runtime = build_postgres_runtime(postgres_dsn, settings=Settings(db_schema=schema))
    async with runtime as rt, asyncio.timeout(30):
        await rt.register(greeter)
        [(run,)] = await sql(postgres_dsn, schema, SQL_OPEN)
        await rt.signal(RunId(run), "ok", 1)
        old = await rt.result(RunId(run))
        fresh = await rt.submit(greeter.id, {"name": "Eve"})
        await rt.signal(fresh, "ok", 2)
        new = await rt.result(fresh)

    assert old == {"greeted": "Bob", "text": "Dear Bob,", "ok": 1}
    assert new == {"greeted": "Eve", "text": "anew: Eve", "ok": 2}
    assert {row["ended_as"] for row in await sql(postgres_dsn, schema, SQL_FAILED)} == {"FAILED"}


async def test_a_schema_of_before_the_first_that_is_known_is_refused(
    postgres_dsn: str, schema: str
) -> None:
    """Nothing of it is changed, and the error says the way out."""
    await restore(postgres_dsn, schema, "schema_0018")
    await sql(postgres_dsn, schema, "delete from schema_migrations where version = 18")

    with pytest.raises(
        MigrationError, match=rf"0018.* upgrades schemas from migration {OLDEST:04}"
    ):
        await bring_up(postgres_dsn, schema)


async def test_each_function_has_one_file_of_its_name(postgres_dsn: str, schema: str) -> None:
    """Whoever looks for a function finds it; none has two lists of parameters."""
    await bring_up(postgres_dsn, schema)

    rows = await sql(postgres_dsn, schema, SQL_FUNCTIONS, schema)
    assert sorted(row["name"] for row in rows) == [function.name for function in known_functions()]
    for function in known_functions():
        assert re.findall(r"^create.* function (\w+)\(", function.sql, re.MULTILINE) == [
            function.name
        ]


async def test_bodies_of_functions_are_well_formed(postgres_dsn: str, schema: str) -> None:
    """Looked at when the tables are there; where functions are applied they are not yet."""
    await bring_up(postgres_dsn, schema)
    async with connected(postgres_dsn, schema) as owner:
        await owner.execute("set check_function_bodies = on")
        for function in known_functions():
            await owner.execute(function.sql)


async def test_four_hosts_apply_a_changed_function_once(postgres_dsn: str, schema: str) -> None:
    """That one and no other, by one of them."""
    await bring_up(postgres_dsn, schema)
    changed_functions = with_another_commit()
    count = "select name, count(*) over () as n from schema_functions where applied_at > $1"
    [(before,)] = await sql(postgres_dsn, schema, "select clock_timestamp()")

    name_lists = await asyncio.gather(
        *(bring_up(postgres_dsn, schema, functions=changed_functions) for _ in range(4))
    )

    assert sorted(name_lists) == [[], [], [], ["functions/commit_runs"]]
    assert await rows(postgres_dsn, schema, count, before) == [("commit_runs", 1)]
    assert await bring_up(postgres_dsn, schema, functions=changed_functions) == []


def with_another_commit() -> list[Function]:
    """The functions of a release that has changed `commit_runs`."""
    return [
        replace(function, sql=f"{function.sql}-- more\n")
        if function.name == "commit_runs"
        else function
        for function in known_functions()
    ]


async def test_functions_wait_for_no_reader(postgres_dsn: str, schema: str) -> None:
    """A back-up holds no lock that their replacement asks for."""
    await bring_up(postgres_dsn, schema)
    async with back_up(postgres_dsn, schema), asyncio.timeout(10):
        applied_names = await bring_up(postgres_dsn, schema, functions=with_another_commit())

    assert applied_names == ["functions/commit_runs"]


@pytest.mark.parametrize(
    ("head", "call"),
    [
        ("twice(n int, times int default 2) returns int return n * times;", 8),
        ("twice(n int) returns text return (n * 2)::text;", "8"),
        ("twice(m int) returns int return m * 2;", 8),
        ("twice(n int) returns int return n + n;", 8),
    ],
    ids=["a parameter more", "another result", "another name", "another body"],
)
async def test_another_form_of_a_function_takes_its_place(
    postgres_dsn: str, schema: str, head: str, call: object
) -> None:
    """No call is ambiguous afterwards."""
    await bring_up(postgres_dsn, schema, functions=[*known_functions(), TWICE])
    changed_function = replace(TWICE, sql=f"create or replace function {head}\n")

    applied_names = await bring_up(
        postgres_dsn, schema, functions=[*known_functions(), changed_function]
    )

    assert applied_names == ["functions/twice"]
    assert await rows(postgres_dsn, schema, "select twice(4)") == [(call,)]


async def test_a_host_leaves_functions_of_a_newer_release_alone(
    postgres_dsn: str, schema: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It starts beside hosts that need them."""
    newer = replace(TWICE, sql="create function twice(n int) returns int return n + n;\n")
    with monkeypatch.context() as release:
        release.setattr("persistence._migrate.REVISION", REVISION + 1)
        await bring_up(postgres_dsn, schema, functions=[*known_functions(), newer])

    assert await bring_up(postgres_dsn, schema, functions=[*known_functions(), TWICE]) == []


async def test_functions_and_migrations_of_a_release_come_at_once(
    postgres_dsn: str, schema: str
) -> None:
    """Or not at all: a function that is new never meets the tables of before, nor the other way round."""
    await bring_up(postgres_dsn, schema)
    number = known_migrations()[-1].version + 1
    bad = Migration(number, f"{number:04}_bad", "alter table runs add x int; select 1 / 0;")
    steps, functions = [*known_migrations(), bad], [*known_functions(), TWICE]

    with pytest.raises(asyncpg.DivisionByZeroError):
        await bring_up(postgres_dsn, schema, steps, functions)
    async with connected(postgres_dsn, schema) as owner:
        assert await stale_functions(owner, functions) == [TWICE]
    good = replace(bad, sql="alter table runs add x int default twice(4);")

    applied_names = await bring_up(postgres_dsn, schema, [*steps[:-1], good], functions)
    assert applied_names == [good.name, "functions/twice"]
