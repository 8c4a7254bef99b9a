"""SQL functions: which of a schema's are not what the files of this release say, and their replacement."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, LiteralString

import asyncpg

from persistence.blockers import Connection
from persistence.schema_files import REVISION, Function

SQL_HAS_FUNCTIONS: Final[LiteralString] = "select to_regclass('schema_functions') is not null"
SQL_CREATE_FUNCTIONS: Final[LiteralString] = """
create table if not exists schema_functions (
  name text primary key, checksum text not null, revision int not null,
  applied_at timestamptz not null default clock_timestamp())
"""
SQL_SELECT_FUNCTIONS: Final[LiteralString] = "select name, checksum, revision from schema_functions"
SQL_KEEP_FUNCTIONS: Final[LiteralString] = """
insert into schema_functions as f (name, checksum, revision)
  select n.name, n.checksum, $3 from unnest($1::text[], $2::text[]) n(name, checksum)
  on conflict (name) do update set checksum = excluded.checksum, revision = excluded.revision,
    applied_at = clock_timestamp()
"""
SQL_SIGNATURES: Final[LiteralString] = """
select p.proname as name, p.oid::regprocedure::text as signature from pg_proc p
  where p.pronamespace = current_schema()::regnamespace and p.proname = any($1)
"""


async def stale_functions(
    connection: Connection, functions: Sequence[Function]
) -> Sequence[Function]:
    """Return those that the schema does not have as they are here; none if a newer release was there."""
    if not functions or not await connection.fetchval(SQL_HAS_FUNCTIONS):
        return functions
    rows = await connection.fetch(SQL_SELECT_FUNCTIONS)
    if any(row["revision"] > REVISION for row in rows):
        return []
    known = {row["name"]: row["checksum"] for row in rows}
    return [one for one in functions if known.get(one.name) != one.checksum]


async def replace_functions(connection: Connection, functions: Sequence[Function]) -> None:
    """Make the functions what they are here, in the transaction that is open.

    One whose parameters or columns changed replaces the old one. Bodies are not looked at: they
    may be about tables that come later in the transaction.
    """
    await connection.execute("set local check_function_bodies = off")
    names = [one.name for one in functions]
    if await connection.fetch(SQL_SIGNATURES, names):
        for one in functions:
            await _replace(connection, one)
    else:
        await connection.execute("\n".join(one.sql for one in functions))
    await connection.execute(SQL_CREATE_FUNCTIONS)
    await connection.execute(
        SQL_KEEP_FUNCTIONS, names, [one.checksum for one in functions], REVISION
    )


async def _replace(connection: Connection, function: Function) -> None:
    before = await _signatures(connection, function.name)
    try:
        async with connection.transaction():
            await connection.execute(function.sql)
    except asyncpg.InvalidFunctionDefinitionError:  # it returns something else
        await _drop(connection, before)
        await connection.execute(function.sql)
    else:
        if await _signatures(connection, function.name) != before:
            await _drop(connection, before)


async def _signatures(connection: Connection, name: str) -> set[str]:
    return {row["signature"] for row in await connection.fetch(SQL_SIGNATURES, [name])}


async def _drop(connection: Connection, signatures: set[str]) -> None:
    for signature in signatures:
        await connection.execute(f"drop function {signature}")
