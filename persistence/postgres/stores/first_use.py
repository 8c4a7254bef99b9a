"""Tables of stores that are made when a store is first used, apart from the migrations of the runtime."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import resources
from typing import Final, Literal, TypeAlias

from persistence.errors import RefusedError
from persistence.postgres.connection.link import Links, Row

StoreName: TypeAlias = Literal[
    "boards", "files", "graphs", "graphs_cypher", "indexes", "memories", "vectors"
]

VERSIONS: Final[Mapping[StoreName, int]] = {"boards": 2, "memories": 2, "vectors": 2}
"""Of tables that have had more than one. `NAME.sql` makes version 1, `NAME_2.sql` makes version 2 of that."""
NEEDED: Final[Mapping[StoreName, int]] = {"vectors": 2}
"""The least version that the statements of a store can use, where it is not the first."""
_MISSING: Final = frozenset(("42P01", "42703", "42883"))
"""SQLSTATE of a table, column or function that is not there. A database that lost its last commits may have
lost tables that this process has used."""
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
    create table if not exists store_tables (
      name text primary key, version int not null, made_at timestamptz not null default clock_timestamp());
    there := coalesce((select s.version from store_tables s where s.name = '{name}'), 0);
    {steps}
    insert into store_tables as s (name, version) values ('{name}', {version})
      on conflict (name) do update set version = excluded.version where s.version < excluded.version;
  exception when insufficient_privilege then
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
    the right to create tables may use those that are there; what a newer version adds is left to another user.
    If the store's statements need it, calls are refused until then.

    Args:
        links: For one statement at a time. Their schema has been migrated.
        name: Of the file in `schema/stores` that makes the tables.
    """

    def __init__(self, links: Links, name: StoreName) -> None:
        self._links, self._name = links, name
        self._are_made = False

    async def fetch(self, doing: str, sql: str, *args: object) -> list[Row]:
        """Return the rows of a statement on the tables. See `Link.fetch`, also for errors."""
        if self._are_made:
            try:
                return await self._links.fetch(doing, sql, *args)
            except RefusedError as exc:
                if exc.sqlstate not in _MISSING:
                    raise
        await self.make()
        return await self._links.fetch(doing, sql, *args)

    async def make(self) -> None:
        """Make the tables unless they are there. See `Link.fetch` for errors."""
        await self._links.fetch(f"making tables of {self._name}", first_use(self._name))
        self._are_made = True


def first_use(name: StoreName) -> str:
    """Return the statement that makes a store's tables, or brings them up to date, unless they are."""
    folder = resources.files("persistence.postgres").joinpath("schema", "stores")
    newest, steps = VERSIONS.get(name, 1), ""
    for version in range(1, newest + 1):
        file = f"{name}.sql" if version == 1 else f"{name}_{version}.sql"
        steps += _STEP.format(version=version, tables=folder.joinpath(file).read_text("utf-8"))
    needed = NEEDED.get(name, 1)
    return _FIRST_USE.format(name=name, steps=steps, version=newest, needed=needed)
