"""Tables of stores that are made when a store is first used, apart from the migrations of the runtime."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Mapping
from importlib import resources
from typing import Final, Literal, TypeAlias

from actors._kernel.basics import Backoff
from persistence._migrate import LOCK_WAIT_S, SQL_READERS, say_blockers
from persistence._postgres.connection.link import Links, Row
from persistence.errors import RefusedError

StoreName: TypeAlias = Literal[
    "boards", "files", "graphs", "graphs_cypher", "indexes", "memories", "vectors"
]

VERSIONS: Final[Mapping[StoreName, int]] = {"boards": 2, "memories": 2, "vectors": 2}
"""Newest versions of tables that have more than one. `NAME.sql` makes version 1, `NAME_2.sql` version 2."""
NEEDED: Final[Mapping[StoreName, int]] = {"vectors": 2}
"""Oldest versions that the statements of a store can use, if it is not version 1."""
_MISSING: Final = frozenset(("42P01", "42703", "42883"))
"""SQLSTATE of a table, column or function that is not there. A database that lost its last commits may have
lost tables that this process has used."""
_LOCKED: Final = "55P03"
"""SQLSTATE of a lock that was not to be had in time."""
AGAIN_S: Final = 60.0
"""Seconds that tables are used before the next check that they are up to date."""
_FIRST_USE: Final = """
do $first_use$
declare there int;
begin
  if to_regclass('store_tables') is not null then
    execute 'select s.version from store_tables s where s.name = ''{name}''' into there;
  end if;
  if there >= {version} then return; end if;
  begin
    perform pg_advisory_xact_lock(hashtext('callboard store tables'));
    perform set_config('lock_timeout', '{lock_wait_s}s', true);
    create table if not exists store_tables (
      name text primary key, version int not null, made_at timestamptz not null default clock_timestamp());
    there := coalesce((select s.version from store_tables s where s.name = '{name}'), 0);
    {steps}
    insert into store_tables as s (name, version) values ('{name}', {version})
      on conflict (name) do update set version = excluded.version where s.version < excluded.version;
  exception when insufficient_privilege or lock_not_available then
    if coalesce(there, 0) < {needed} then raise; end if;
  end;
end $first_use$
"""
_STEP: Final = """
    if there < {version} then
      execute $tables$ {tables} $tables$;
    end if;"""


class StoreTables:
    """Links to the tables of one store, which the first statement makes when they are missing.

    They are made in one transaction, with a row of `store_tables` that says so: after a crash they are there
    as a whole, or not. Tables of an older version are brought up to date in the same way. Any number of
    processes may be first at once: one of them makes the tables, under an advisory lock of the database, and
    the others wait. Tables that a database has lost since are made anew, without their rows. A user without
    the right to create tables may use existing tables. Another user has to bring them up to a newer version;
    if the store's statements need that version, calls are refused until then.

    If another session, for example a back-up, has locked the tables, each attempt waits half a second for the
    lock, so that other sessions do not queue after it. Between attempts, calls use the older tables. If their
    statements need the newer version, calls wait, and a log line names the session.

    Args:
        links: Connections, each for one statement at a time. Their schema has been migrated.
        name: Name of the file in `schema/stores` that makes the tables.
    """

    def __init__(self, links: Links, name: StoreName) -> None:
        self._links, self._name = links, name
        self._made_until = -math.inf
        """Instant, by the event loop's clock, at which the version of the tables is read again."""

    async def fetch(self, doing: str, sql: str, *args: object) -> list[Row]:
        """Return the rows of a statement on the tables. See `Link.fetch`, also for errors."""
        if asyncio.get_running_loop().time() < self._made_until:
            try:
                return await self._links.fetch(doing, sql, *args)
            except RefusedError as exc:
                # A database that lost its last commits may have lost these tables: they are made anew below.
                if exc.sqlstate not in _MISSING:
                    raise
        await self.make()
        return await self._links.fetch(doing, sql, *args)

    async def make(self) -> None:
        """Make the tables unless they are there. See `Link.fetch` for errors.

        Raises:
            RefusedError: See above; or another session reads the tables for longer than calls wait.
        """
        loop, backoff, what = (
            asyncio.get_running_loop(),
            Backoff(0.5, 5.0),
            f"tables of {self._name}",
        )
        started_at = loop.time()
        while True:
            try:
                await self._links.fetch(f"making {what}", first_use(self._name))
            except RefusedError as exc:
                waited_s = loop.time() - started_at
                if exc.sqlstate != _LOCKED or waited_s > self._links.outage_s:
                    raise
                if readers := await self._links.fetch("looking for who reads", SQL_READERS):
                    say_blockers(readers, migration=what, waited_s=round(waited_s))
                await asyncio.sleep(backoff.next_s())
            else:
                self._made_until = loop.time() + AGAIN_S
                return


def first_use(name: StoreName) -> str:
    """Return the statement that makes a store's tables, or brings them up to date, unless they are."""
    folder = resources.files("persistence._postgres").joinpath("schema", "stores")
    newest, steps_sql = VERSIONS.get(name, 1), ""
    for version in range(1, newest + 1):
        file = f"{name}.sql" if version == 1 else f"{name}_{version}.sql"
        steps_sql += _STEP.format(version=version, tables=folder.joinpath(file).read_text("utf-8"))
    needed_version = NEEDED.get(name, 1)
    return _FIRST_USE.format(
        name=name, steps=steps_sql, version=newest, needed=needed_version, lock_wait_s=LOCK_WAIT_S
    )
