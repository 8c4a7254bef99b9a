"""A table that refuses inserts as on a full disk while a test asks for it, and counts the refusals."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

import asyncpg

from tests.system.waiting import until

_SQL = """
create table {schema}.fullness (is_full boolean not null);
insert into {schema}.fullness values (false);
create sequence {schema}.refusals;
create function {schema}.refuse() returns trigger language plpgsql as $$
begin
  if (select is_full from {schema}.fullness) then
    perform nextval('{schema}.refusals');
    raise exception 'could not extend file: No space left on device' using errcode = '{code}';
  end if;
  return null;
end $$;
create trigger refuse before insert on {schema}.{table}
  for each statement execute function {schema}.refuse();
"""


@dataclass(frozen=True, slots=True)
class Fullness:
    """Raises the server's error of a full disk, for the inserts of one table."""

    url: str
    schema: str

    @classmethod
    async def of(cls, url: str, schema: str, *, table: str, code: str = "53100") -> Self:
        """Prepare a table of a schema; its inserts succeed until `begin`."""
        fullness = cls(url, schema)
        await fullness._do(_SQL.format(schema=schema, table=table, code=code))
        return fullness

    async def begin(self) -> None:
        """Refuse inserts from now on."""
        await self._do(f"update {self.schema}.fullness set is_full = true")

    async def end(self) -> None:
        """Accept inserts again."""
        await self._do(f"update {self.schema}.fullness set is_full = false")

    async def count(self) -> int:
        """Return how many statements were refused."""
        query = (
            f"select coalesce((select last_value from {self.schema}.refusals where is_called), 0)"
        )
        connection = await asyncpg.connect(self.url)
        try:
            return int(await connection.fetchval(query) or 0)
        finally:
            await connection.close()

    async def refused(self, count: int) -> None:
        """Return once this many more were refused."""
        enough = await self.count() + count

        async def are_there() -> bool:
            return await self.count() >= enough

        await until(are_there, f"{count} refusals")

    async def _do(self, statements: str) -> None:
        connection = await asyncpg.connect(self.url)
        try:
            await connection.execute(statements)
        finally:
            await connection.close()
