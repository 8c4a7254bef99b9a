"""Tables of stores that are made when a store is first used, apart from the migrations of the runtime."""

from __future__ import annotations

from importlib import resources
from typing import Final, Literal

from persistence.errors import RefusedError
from persistence.postgres.connection.link import Links, Row

TABLES_VERSION: Final = 1
"""Of all files in `schema/stores`."""
_MISSING: Final = frozenset(("42P01", "42883"))
"""SQLSTATE of a table or function that is not there. A database that lost its last commits may have lost
tables that this process has used."""
_FIRST_USE: Final = """
do $first_use$
declare is_made boolean := false;
begin
  if to_regclass('store_tables') is not null then
    execute 'select exists (select from store_tables s where s.name = ''{name}'')' into is_made;
  end if;
  if is_made then return; end if;
  perform pg_advisory_xact_lock(hashtext('callboard store tables'));
  create table if not exists store_tables (
    name text primary key, version int not null, made_at timestamptz not null default clock_timestamp());
  if not exists (select from store_tables s where s.name = '{name}') then
    execute $tables$ {tables} $tables$;
    insert into store_tables (name, version) values ('{name}', {version});
  end if;
end $first_use$
"""


class StoreTables:
    """Links to the tables of one store, which the first statement makes when they are missing.

    They are made in one transaction, with a row of `store_tables` that says so: after a crash they are there
    as a whole, or not. Any number of processes may be first at once: one of them makes the tables, under an
    advisory lock of the database, and the others wait. Tables that a database has lost since are made anew,
    without their rows. A user without the right to create tables may use those that are there.

    Args:
        links: For one statement at a time. Their schema has been migrated.
        name: Of the file in `schema/stores` that makes the tables.
    """

    def __init__(
        self,
        links: Links,
        name: Literal["boards", "files", "graphs", "graphs_cypher", "memories", "vectors"],
    ) -> None:
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


def first_use(name: str) -> str:
    """Return the statement that makes a store's tables unless they are there."""
    folder = resources.files("persistence.postgres").joinpath("schema", "stores")
    tables = folder.joinpath(f"{name}.sql").read_text("utf-8")
    return _FIRST_USE.format(name=name, tables=tables, version=TABLES_VERSION)
