"""Tables of stores, made when a program uses them first.

They are apart from the runtime's migrations: a deployment that has no boards has no table for them.
"""

from __future__ import annotations

import asyncio
import hashlib
from importlib import resources
from typing import Final, LiteralString, cast

from persistence.postgres.connection.link import Links

_APPLY: Final = """
do $first_use$ begin
  perform pg_advisory_xact_lock(hashtext('callboard stores'), hashtext(current_setting('search_path')));
  create table if not exists store_tables (
    name text primary key, checksum text not null, applied_at timestamptz not null default clock_timestamp());
  if not exists (select from store_tables t where t.name = '{name}' and t.checksum = '{checksum}') then
{sql}
    insert into store_tables (name, checksum) values ('{name}', '{checksum}')
      on conflict (name) do update set checksum = excluded.checksum, applied_at = clock_timestamp();
  end if;
end $first_use$
"""


class StoreTables:
    """Tables of one kind of store.

    Args:
        links: To the schema that gets them.
        name: Of the file in ``schema/stores``, without its suffix. Its statements may be repeated
            (``create … if not exists``).
    """

    def __init__(self, links: Links, name: str) -> None:
        self._links, self._name = links, name
        self._lock = asyncio.Lock()
        self._is_ready = False

    async def ready(self) -> None:
        """Return when the tables are there. Executes a statement once, and nothing after that.

        Several processes may do it at the same time. A crash leaves all tables or none.

        Raises:
            RefusedError: The server refused it, for example because the user may not create tables.
            DatabaseUnreachableError: See `Link.fetch`.
        """
        if self._is_ready:
            return
        async with (
            self._lock
        ):  # calls of one process wait for the first one, and not for the server
            if not self._is_ready:
                sql = cast("LiteralString", statement_of(self._name))
                await self._links.fetch(f"making the tables of {self._name}", sql)
                self._is_ready = True


def statement_of(name: str) -> str:
    """Return the statement that makes the tables of a file, unless its text is recorded as applied."""
    file = resources.files("persistence.postgres").joinpath("schema", "stores", f"{name}.sql")
    sql = file.read_text("utf-8").replace("\r\n", "\n")
    checksum = hashlib.sha256(sql.encode()).hexdigest()
    return _APPLY.format(name=name, checksum=checksum, sql=sql)
