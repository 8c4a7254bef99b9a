"""Migrated schemas, used by one test after another: the migrations take longer than most tests."""

from __future__ import annotations

import asyncio
import secrets
import threading
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeVar

import asyncpg

from persistence._migrate import migrate
from tests.harness.servers.postgres import OBSERVER, drop_schema, until_alone

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Coroutine

    from tests.harness.servers.postgres import TestPostgres

    Connection = asyncpg.Connection[asyncpg.Record]


T = TypeVar("T")


class Observer:
    """One connection of the test run, in a thread of its own: event loops end with their test."""

    def __init__(self, postgres: TestPostgres) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name=OBSERVER)
        self._thread.start()
        settings = {"application_name": OBSERVER, "lock_timeout": "10s"}
        self._connection = self._result(self._connect(postgres.url, settings))

    @staticmethod
    async def _connect(url: str, settings: dict[str, str]) -> Connection:
        return await asyncpg.connect(url, server_settings=settings)

    def begin(self, script: str) -> None:
        """Execute several statements before the first test."""
        self._result(self._connection.execute(script))

    async def fetch(self, sql: str, *args: object) -> list[asyncpg.Record]:
        """Return the rows of a statement."""
        return await self._call(self._connection.fetch(sql, *args))

    async def execute(self, script: str) -> None:
        """Execute several statements as one."""
        await self._call(self._connection.execute(script))

    def _result(self, call: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(call, self._loop).result()

    async def _call(self, call: Coroutine[Any, Any, T]) -> T:
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(call, self._loop))

    def close(self) -> None:
        """End the connection and the thread."""
        self._result(self._connection.close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Schema:
    """A schema as the migrations left it."""

    name: str
    migrations: list[asyncpg.Record]
    """A digest of the rows that name its migrations."""


class Schemas:
    """The migrated schemas of one server; each belongs to one test at a time.

    Attributes: observer: Reads any of them.
    """

    def __init__(self, postgres: TestPostgres) -> None:
        self._postgres = postgres
        self._free: list[_Schema] = []
        self.observer = Observer(postgres)
        self._notes_changes = True
        try:
            self.observer.begin(_NOTING_CHANGES)
        except asyncpg.InsufficientPrivilegeError:  # a server of somebody else
            self._notes_changes = False

    @asynccontextmanager
    async def lent(self) -> AsyncIterator[str]:
        """The name of a schema as the migrations make it; any change to it is undone afterwards.

        Raises:
            AssertionError: See `drop_schema`.
        """
        schema = self._free.pop() if self._free else await self._make_schema()
        is_clean = False
        try:
            yield schema.name
            is_clean = await self._is_cleaned(schema)
        finally:
            if is_clean:
                self._free.append(schema)
            else:
                await drop_schema(self._postgres, schema.name)

    def close(self) -> None:
        """Drop the schemas that no test has."""
        self.observer.close()
        while self._free:
            asyncio.run(drop_schema(self._postgres, self._free.pop().name))

    async def _make_schema(self) -> _Schema:
        name = f"t_{secrets.token_hex(6)}"
        settings = {"search_path": name, "application_name": OBSERVER}
        connection = await asyncpg.connect(self._postgres.url, server_settings=settings)
        try:
            await migrate(connection, name)
            [(starts,)] = await connection.fetch(_START_OF_SEQUENCES, name)
            emptying = [starts]
            for (table,) in await connection.fetch(_TABLES, name):
                emptying.append(f"delete from {table}")
                rows = await connection.fetchval(f"select jsonb_agg(t)::text from {table} t")
                if rows is not None:
                    emptying.append(await connection.fetchval(_FILLING, table, rows))
        finally:
            await connection.close()
        await self.observer.execute(_EMPTYING.format(schema=name, statements=";".join(emptying)))
        if self._notes_changes:
            await self.observer.fetch(_CHANGES, name)
        return _Schema(name=name, migrations=await self._migrations(name))

    async def _migrations(self, name: str) -> list[asyncpg.Record]:
        return await self.observer.fetch(_MIGRATIONS.format(schema=name))

    async def _is_cleaned(self, schema: _Schema) -> bool:
        """Empty its tables; return False, without a change, if a test changed more than rows."""
        if not (self._notes_changes and await until_alone(self.observer, self._postgres)):
            return False
        if await self.observer.fetch(_CHANGES, schema.name):
            return False
        if await self._migrations(schema.name) != schema.migrations:
            return False
        await self.observer.fetch(f"select pg_temp.empty_{schema.name}()")
        return True


_NAMES_OF_MIGRATIONS: Final = ("schema_migrations", "schema_functions")
"""Tables of hundreds of rows that tests seldom write: a test that does gets a schema of its own."""
_TABLES: Final = f"""
    select format('%I.%I', schemaname, tablename) from pg_tables
    where schemaname = $1 and tablename not in {_NAMES_OF_MIGRATIONS}
"""
_FILLING: Final = """
    select format('insert into %1$s select * from jsonb_populate_recordset(null::%1$s, %2$L)',
      $1::text, $2::text)
"""
_EMPTYING: Final = """
    create function pg_temp.empty_{schema}() returns void language plpgsql as $$ begin {statements}; end $$
"""
"""A function that deletes all rows but those of the migrations: planned once, not once for each test."""
_START_OF_SEQUENCES: Final = """
    select coalesce(string_agg(format('perform setval(%L, %s, false)',
      format('%I.%I', schemaname, sequencename), start_value), ';'), 'null')
    from pg_sequences where schemaname = $1
"""
_NOTING_CHANGES: Final = """
    create schema if not exists callboard_tests;
    create table if not exists callboard_tests.changes (schema text);
    create or replace function callboard_tests.changed() returns event_trigger
      language plpgsql security definer as $$ begin
        insert into callboard_tests.changes
          select distinct schema_name from pg_event_trigger_ddl_commands()
          where schema_name is distinct from 'pg_temp';
      end $$;
    create or replace function callboard_tests.dropped() returns event_trigger
      language plpgsql security definer as $$ begin
        insert into callboard_tests.changes
          select distinct schema_name from pg_event_trigger_dropped_objects() where not is_temporary;
      end $$;
    drop event trigger if exists callboard_tests_changed;
    drop event trigger if exists callboard_tests_dropped;
    create event trigger callboard_tests_changed on ddl_command_end
      execute function callboard_tests.changed();
    create event trigger callboard_tests_dropped on sql_drop execute function callboard_tests.dropped()
"""
"""Each change of a definition or of a right is a row: a look at the whole catalog takes milliseconds."""
_CHANGES: Final = """
    with gone as (delete from callboard_tests.changes where schema = $1 or schema is null returning 1)
    select 1 from gone limit 1
"""
"""A change of a schema itself, or of a right, names no schema."""
_MIGRATIONS: Final = """
    select count(*), sum(hashtextextended(concat_ws('.', name, at), 0)) from (
      select version::text as name, xmin as at from {schema}.schema_migrations
      union all select name, xmin from {schema}.schema_functions
    ) parts
"""
