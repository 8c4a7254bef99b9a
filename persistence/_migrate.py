"""Migration of a schema to what the files of this release say, once each, by the first process that comes.

`persistence._schema_files` has the files. Functions of a schema that differ from the files are replaced. While
the migration waits for a lock, log lines name the session that blocks it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from typing import Final, LiteralString, TypeAlias

import asyncpg

from actors._kernel.basics import Backoff
from persistence._background import background
from persistence._schema_files import (
    OLDEST,
    REVISION,
    Function,
    Migration,
    known_functions,
    known_migrations,
    on_an_empty_schema,
)
from persistence.errors import DRIVER_ERRORS, MigrationError

Connection: TypeAlias = "asyncpg.Connection[asyncpg.Record]"
Connect: TypeAlias = Callable[[], Awaitable[Connection]]

_log = logging.getLogger("callboard.postgres")

POLL_S: Final = 0.1
SAY_EVERY_S: Final = 10.0

# Of another role's session a role sees who it is; what it does, only with pg_read_all_stats.
SQL_BLOCKERS: Final[LiteralString] = """
select a.pid, a.application_name as name, a.query,
    round(extract(epoch from clock_timestamp() - a.xact_start))::int as age_s
  from unnest(pg_blocking_pids($1)) b(pid) join pg_stat_activity a on a.pid = b.pid
  order by a.xact_start
"""
# Sessions that have had a lock of a table of this schema for longer than a migration waits.
SQL_READERS: Final[LiteralString] = """
select a.pid, a.application_name as name, a.query,
    round(extract(epoch from clock_timestamp() - a.xact_start))::int as age_s
  from pg_stat_activity a
  where a.pid <> pg_backend_pid() and a.xact_start < clock_timestamp() - interval '0.5 s' and exists (
    select from pg_locks l join pg_class c on c.oid = l.relation
      where l.pid = a.pid and l.granted and c.relnamespace = current_schema()::regnamespace)
  order by a.xact_start limit 10
"""


@dataclass(slots=True)
class Waiting:
    """A session whose statement may have to wait for a lock.

    Attributes:
        pid: Process id of its server process.
        doing: What it is at now, for the log.
    """

    pid: int
    doing: str = ""


@asynccontextmanager
async def blockers_named(
    session: Waiting, connect: Connect | None, **facts: object
) -> AsyncIterator[None]:
    """Log who blocks the session, at once and every ten seconds, while the block lasts.

    Args:
        session: The session.
        connect: Makes the connection that polls, or None for no polling.
        facts: More for the log line.
    """
    if connect is None:
        yield
        return

    async def poll() -> None:
        await asyncio.sleep(POLL_S)  # most are done by then
        try:
            connection = await connect()
        except DRIVER_ERRORS:
            return
        try:
            await _poll(connection, session, facts)
        except DRIVER_ERRORS:
            pass  # the session that waits will say what is wrong with the server
        finally:
            connection.terminate()

    async with background([poll], [], stop=lambda: None):
        yield


async def _poll(connection: Connection, session: Waiting, facts: dict[str, object]) -> None:
    loop = asyncio.get_running_loop()
    started_at = loop.time()
    logged_at = started_at - SAY_EVERY_S
    while True:
        rows = await connection.fetch(SQL_BLOCKERS, session.pid)
        if rows and loop.time() >= logged_at + SAY_EVERY_S:
            logged_at = loop.time()
            say_blockers(
                rows, **facts, migration=session.doing, waited_s=round(logged_at - started_at)
            )
        await asyncio.sleep(POLL_S)


def say_blockers(rows: Sequence[asyncpg.Record], **facts: object) -> None:
    """Log who keeps a migration waiting, rows of `SQL_BLOCKERS` or `SQL_READERS`, with these facts."""
    blockers = [
        f"pid {row['pid']} ({row['name']}, for {row['age_s']} s): {row['query'][:200]}"
        for row in rows
    ]
    _log.warning("a migration waits for other sessions", extra={**facts, "blockers": blockers})


LOCK_WAIT_S: Final = 0.5
"""Seconds that a migration asks for a lock: sessions that need the same rows wait as long, and no longer."""

TABLES: Final = "callboard migrations"
REST: Final = "callboard indexes"
"""Names of advisory locks. Building waits for all older snapshots, of hosts that wait to migrate, too:
so the builder holds no lock that they wait for."""
SQL_LOCK: Final[LiteralString] = (
    "select pg_advisory_lock(hashtext($1), hashtext(current_setting('search_path')))"
)
SQL_UNLOCK: Final[LiteralString] = (
    "select pg_advisory_unlock(hashtext($1), hashtext(current_setting('search_path')))"
)
SQL_LIMIT_WAITS: Final[LiteralString] = "select set_config('lock_timeout', $1, false)"
SQL_HAS_SCHEMA: Final[LiteralString] = (
    "select exists (select 1 from pg_namespace where nspname = $1)"
)
SQL_CREATE_TABLE: Final[LiteralString] = """
create table if not exists schema_migrations (
  version int primary key, name text not null, checksum text not null,
  applied_at timestamptz not null default clock_timestamp())
"""
SQL_HAS_TABLE: Final[LiteralString] = "select to_regclass('schema_migrations') is not null"
SQL_SELECT_APPLIED: Final[LiteralString] = "select version, name, checksum from schema_migrations"
SQL_INSERT_APPLIED: Final[LiteralString] = (
    "insert into schema_migrations (version, name, checksum)"
    " select * from unnest($1::int[], $2::text[], $3::text[])"
)
SQL_IS_INVALID: Final[LiteralString] = (
    "select exists (select 1 from pg_index where indexrelid = to_regclass($1) and not indisvalid)"
)


@dataclass(frozen=True, slots=True)
class _MissingFiles:
    """Files that are applied together: their names, and the function that applies them."""

    names: Sequence[str]
    execute: Callable[[], Awaitable[None]]


async def migrate(
    connection: Connection,
    schema: str,
    migrations: Sequence[Migration] | None = None,
    *,
    functions: Sequence[Function] | None = None,
    connect: Connect | None = None,
) -> list[str]:
    """Bring tables and functions up to date and return the names of what was applied now.

    Safe with any number of runners at once (an advisory lock). Each migration is one transaction,
    so a crash leaves whole files; where functions change, all is one, so that they fit the tables at
    every instant. What is of a newer release is left alone. Nothing is locked where
    nothing is to be done. A lock that another session has, a back-up for example, is asked for
    for half a second at a time, so that hosts go on meanwhile; this waits, and says for whom.

    All of a schema that is made now; of another one what hosts need: `catch_up` does the rest.

    Args:
        connection: Its `search_path` is the schema and nothing else.
        schema: Created when it is missing.
        migrations: Migrations in order; by default those of this release.
        functions: Functions by name; by default those of this release.
        connect: Makes another connection to see blocking sessions, or None if they need not be named.

    Raises:
        MigrationError: An applied file differs from this release's, or is one of before `OLDEST`.
    """
    steps = known_migrations() if migrations is None else migrations
    current_functions = known_functions() if functions is None else functions
    find = partial(_find_missing, connection, schema, steps, current_functions)
    return await _carry_out(connection, schema, find, lock=TABLES, connect=connect)


def is_behind(applied_versions: Collection[int]) -> bool:
    """Return True if a migration of this release is missing where these versions were applied."""
    return any(step.version not in applied_versions for step in known_migrations())


async def catch_up(
    connection: Connection,
    schema: str,
    migrations: Sequence[Migration] | None = None,
    *,
    connect: Connect | None = None,
) -> list[str]:
    """Apply the migrations that hosts start without; return the names of those applied now.

    Call it after `migrate`. An index is built without blocking other sessions; the build waits for older
    transactions. An index that a crash left half built is dropped and built again.

    Raises:
        MigrationError: An applied file differs from this release's.
    """
    steps = known_migrations() if migrations is None else migrations

    async def find() -> list[_MissingFiles]:
        applied_versions = await _applied_versions(connection, schema, steps)
        return [
            _MissingFiles([step.name], partial(_apply_late, connection, step))
            for step in steps
            if step.can_wait and step.version not in applied_versions
        ]

    return await _carry_out(connection, schema, find, lock=REST, connect=connect)


async def _carry_out(
    connection: Connection,
    schema: str,
    find: Callable[[], Awaitable[list[_MissingFiles]]],
    *,
    lock: str,
    connect: Connect | None,
) -> list[str]:
    # Without the lock: a host that starts on a schema that is up to date waits for nobody.
    missing_files = await find()
    if not missing_files:
        return []
    applied_names: list[str] = []
    session, backoff = (
        Waiting(connection.get_server_pid(), missing_files[0].names[0]),
        Backoff(0.5, 5.0),
    )
    async with blockers_named(session, connect, schema=schema):
        while True:
            try:
                async with _hold_lock(connection, lock):
                    await _make_schema(connection, schema)
                    # Again, under the lock: another process may have applied them meanwhile.
                    for work in await find():
                        session.doing = work.names[0]
                        await work.execute()
                        applied_names += work.names
                break
            except (asyncpg.LockNotAvailableError, asyncpg.DeadlockDetectedError):
                # The lock is released meanwhile: hosts of before that start wait for it.
                await asyncio.sleep(backoff.next_s())
    if applied_names:
        _log.info("schema migrated", extra={"schema": schema, "applied": applied_names})
    return applied_names


@asynccontextmanager
async def _hold_lock(connection: Connection, lock: str) -> AsyncIterator[None]:
    await _limit_waits(connection, LOCK_WAIT_S)
    await connection.execute(SQL_LOCK, lock)
    try:
        yield
    finally:
        if not connection.is_closed():
            await connection.execute(SQL_UNLOCK, lock)


async def _limit_waits(connection: Connection, limit_s: float) -> None:
    await connection.execute(SQL_LIMIT_WAITS, f"{limit_s}s")


async def _make_schema(connection: Connection, schema: str) -> None:
    if not await connection.fetchval(SQL_HAS_SCHEMA, schema):
        quoted_schema = schema.replace('"', '""')
        await connection.execute(f'create schema "{quoted_schema}"')
    await connection.execute(SQL_CREATE_TABLE)


async def _applied_versions(
    connection: Connection, schema: str, steps: Sequence[Migration]
) -> set[int]:
    """Return the versions that were applied, also those of a newer release.

    Raises:
        MigrationError: The file of one of them was changed since.
    """
    if not await connection.fetchval(SQL_HAS_TABLE):
        return set()
    applied_rows = {row["version"]: row for row in await connection.fetch(SQL_SELECT_APPLIED)}
    for step in steps:
        row = applied_rows.get(step.version)
        if row is not None and row["checksum"] != step.checksum:
            raise MigrationError(
                schema,
                row["name"],
                "its file was changed after it was applied; restore the file and put the "
                "change into a new one, or use another schema",
            )
    return set(applied_rows)


async def _find_missing(
    connection: Connection, schema: str, steps: Sequence[Migration], functions: Sequence[Function]
) -> list[_MissingFiles]:
    applied_versions = await _applied_versions(connection, schema, steps)
    changed_functions = await stale_functions(connection, functions)
    # Nobody uses a schema that is made now.
    missing_steps = [
        step
        for step in (steps if applied_versions else on_an_empty_schema(steps))
        if step.version not in applied_versions and not (applied_versions and step.can_wait)
    ]
    if (
        applied_versions
        and missing_steps
        and missing_steps[0].recorded
        and missing_steps[0].version <= OLDEST
    ):
        raise MigrationError(
            schema,
            missing_steps[0].name,
            f"this release upgrades schemas from migration {OLDEST:04} on; bring the schema there with "
            "an older release, or use another schema",
        )
    if not changed_functions:
        return [
            _MissingFiles([step.name], partial(_apply, connection, [step]))
            for step in missing_steps
        ]
    names = [step.name for step in missing_steps] + [
        function.file for function in changed_functions if applied_versions
    ]
    return [_MissingFiles(names, partial(_apply, connection, missing_steps, changed_functions))]


async def _apply(
    connection: Connection, steps: Sequence[Migration], functions: Sequence[Function] = ()
) -> None:
    texts = [step.sql.replace(" concurrently", "") if step.is_index else step.sql for step in steps]
    # Functions change together with the tables that they are about: none is called before its table exists,
    # and a function that fills a new column misses no row (ADR 12).
    async with connection.transaction():
        if functions:
            await replace_functions(connection, functions)
        if script := "\n;\n".join(filter(None, texts)):
            await connection.execute(script)
        await _record(connection, steps)


async def _apply_late(connection: Connection, step: Migration) -> None:
    if not step.is_index:
        await _limit_waits(connection, LOCK_WAIT_S)
        await _apply(connection, [step])
        return
    # No other session waits for the one that builds an index.
    await _limit_waits(connection, 0)
    # Each statement may be repeated, so a crash anywhere is harmless.
    for name, statement in step.indexes:
        if await connection.fetchval(SQL_IS_INVALID, name):
            await connection.execute(f"drop index concurrently {name}")
        await connection.execute(statement)
    await _record(connection, [step])


async def _record(connection: Connection, steps: Sequence[Migration]) -> None:
    await connection.execute(
        SQL_INSERT_APPLIED,
        [step.version for step in steps],
        [step.name for step in steps],
        [step.checksum for step in steps],
    )


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
    checksums = {row["name"]: row["checksum"] for row in rows}
    return [f for f in functions if checksums.get(f.name) != f.checksum]


async def replace_functions(connection: Connection, functions: Sequence[Function]) -> None:
    """Make the functions what they are here, in the transaction that is open.

    One whose parameters or columns changed replaces the old one. Bodies are not looked at: they
    may be about tables that come later in the transaction.
    """
    # A body may name tables that a later migration of this transaction makes.
    await connection.execute("set local check_function_bodies = off")
    names = [function.name for function in functions]
    if await connection.fetch(SQL_SIGNATURES, names):
        for function in functions:
            await _replace(connection, function)
    else:
        await connection.execute("\n".join(function.sql for function in functions))
    await connection.execute(SQL_CREATE_FUNCTIONS)
    await connection.execute(
        SQL_KEEP_FUNCTIONS, names, [function.checksum for function in functions], REVISION
    )


async def _replace(connection: Connection, function: Function) -> None:
    old_signatures = await _signatures(connection, function.name)
    try:
        # A savepoint: the refused statement must not end the transaction of the migration.
        async with connection.transaction():
            await connection.execute(function.sql)
    except asyncpg.InvalidFunctionDefinitionError:  # it returns something else
        await _drop(connection, old_signatures)
        await connection.execute(function.sql)
    else:
        if await _signatures(connection, function.name) != old_signatures:
            await _drop(connection, old_signatures)


async def _signatures(connection: Connection, name: str) -> set[str]:
    return {row["signature"] for row in await connection.fetch(SQL_SIGNATURES, [name])}


async def _drop(connection: Connection, signatures: set[str]) -> None:
    for signature in signatures:
        await connection.execute(f"drop function {signature}")
