"""Long-term memory: see `schema/stores/memories.sql`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, LiteralString

from pydantic_core import to_json
from typing_extensions import override

from actors._kernel.json import decoded_object
from actors._kernel.memory_rules import (
    KEPT_VERSIONS,
    LEAST_CLOSENESS,
    LEAST_LETTERS,
    FoundMemory,
    check_about,
    check_page,
    checked_keys,
    checked_memory,
    checked_query,
    conflict,
    named,
    ranked,
)
from actors._kernel.runtime.ids import check_name
from actors._kernel.runtime.scheduler import Lease
from actors._kernel.stores.memory import (
    LongTermMemories,
    LongTermMemory,
    Memory,
    MemoryQuery,
    NewMemory,
)
from actors.errors import LeaseLostError
from persistence._postgres.connection.link import Links, Row
from persistence._postgres.data.first_use import StoreTables

SQL_PUT_MEMORY: Final[LiteralString] = """
select outcome, id, key, about, text, source, run_id, turn, metadata, version, created_at, updated_at,
    valid_until
  from put_memory($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16)
"""
SQL_SEARCH_MEMORIES: Final[LiteralString] = """
select id, key, about, text, source, run_id, turn, metadata, version, created_at, updated_at, valid_until,
    meaning, wording
  from search_memories($1, $2, $3, $4, $5, $6, $7, $8, $9, $10)
"""
SQL_SELECT_VERSIONS: Final[LiteralString] = """
select m.id, m.key, m.about, m.text, m.source, m.run_id, m.turn, m.metadata, m.version, m.created_at,
    m.updated_at, m.valid_until
  from memories m where m.tenant = $1 and m.about = $2 and m.slot = (select memory_slot($1, $2, $3, $4))
  order by m.version desc
"""
SQL_FORGET_MEMORY: Final[LiteralString] = """
select outcome, removed from forget_memory($1, $2, $3, $4, $5, $6, $7)
"""
_PRESENT: Final[LiteralString] = """
select m.id, m.key, m.about, m.text, m.source, m.run_id, m.turn, m.metadata, m.version, m.created_at,
    m.updated_at, m.valid_until
  from memories m where m.valid_until is null and ($3::text[] is null or m.key = any($3))
"""
_NEWEST: Final[LiteralString] = " order by m.updated_at desc, m.id limit $1 offset $2"
SQL_LIST_MEMORIES: Final[LiteralString] = f"{_PRESENT} and m.tenant = $4 {_NEWEST}"
SQL_LIST_SCOPE: Final[LiteralString] = f"{_PRESENT} and m.tenant = $4 and m.about = $5 {_NEWEST}"


class PostgresLongTermMemories(LongTermMemories):
    """The memories of all tenants of one schema, whose tables are made when one is first used.

    Args:
        links: Connections, each for one statement at a time.
    """

    def __init__(self, links: Links) -> None:
        self._tables = StoreTables(links, "memories")

    @override
    def of(self, tenant: str) -> PostgresLongTermMemory:
        return PostgresLongTermMemory(self._tables, tenant)


class PostgresLongTermMemory(LongTermMemory):
    """A `LongTermMemory` of one tenant on PostgreSQL. Made by `PostgresLongTermMemories.of`.

    Each call is one statement: it is done as a whole or not at all, whatever dies.
    """

    def __init__(self, tables: StoreTables, tenant: str) -> None:
        self._tables, self._tenant = tables, check_name("tenant", tenant)

    @override
    async def put(
        self,
        new: NewMemory,
        *,
        embedding: tuple[float, ...] | None = None,
        fence: Lease | None = None,
    ) -> Memory:
        checked = checked_memory(new, embedding)
        args = (
            *(self._tenant, new.about, checked.slot, new.id, new.key, new.text, new.source),
            *(new.run_id, new.turn, checked.metadata, checked.unit.tolist() or None, new.expected),
            *(*_fence(fence), KEPT_VERSIONS),
        )
        [row] = await self._tables.fetch("keeping a memory", SQL_PUT_MEMORY, *args)
        _check(row, fence)
        if row["outcome"] == "conflict":
            raise conflict(new, row["version"] or 0, row["text"])
        return _memory(row)

    @override
    async def search(self, query: MemoryQuery) -> list[Memory]:
        checked = checked_query(query)
        filter_text = None if checked.filter is None else to_json(checked.filter).decode()
        args = (
            *(self._tenant, query.about, checked.unit.tolist(), checked.words, LEAST_LETTERS),
            *(query.as_of, query.sources, filter_text, checked.candidates, LEAST_CLOSENESS),
        )
        rows = await self._tables.fetch("searching memories", SQL_SEARCH_MEMORIES, *args)
        memories = [
            FoundMemory(memory=_memory(row), meaning=row["meaning"], words=row["wording"])
            for row in rows
        ]
        return ranked(memories, query, checked.candidates)

    @override
    async def versions(self, key_or_id: str, *, about: str) -> list[Memory]:
        args = (self._tenant, *named(key_or_id, about))
        rows = await self._tables.fetch("reading a memory", SQL_SELECT_VERSIONS, *args)
        return [_memory(row) for row in rows]

    @override
    async def forget(self, key_or_id: str, *, about: str, fence: Lease | None = None) -> int:
        args = (self._tenant, *named(key_or_id, about), *_fence(fence))
        [row] = await self._tables.fetch("forgetting a memory", SQL_FORGET_MEMORY, *args)
        _check(row, fence)
        return int(row["removed"])

    @override
    async def page(
        self,
        *,
        about: str | None = None,
        keys: Sequence[str] | None = None,
        limit: int = 100,
        offset: int = 0,
    ) -> list[Memory]:
        check_page(limit, offset)
        args = (limit, offset, None if keys is None else checked_keys(keys), self._tenant)
        if about is None:
            rows = await self._tables.fetch("listing memories", SQL_LIST_MEMORIES, *args)
        else:
            check_about(about)
            rows = await self._tables.fetch("listing memories", SQL_LIST_SCOPE, *args, about)
        return [_memory(row) for row in rows]


def _fence(lease: Lease | None) -> tuple[str | None, str | None, int | None]:
    return (None, None, None) if lease is None else (lease.shard, lease.owner, lease.epoch)


def _check(row: Row, fence: Lease | None) -> None:
    if row["outcome"] == "lease" and fence is not None:
        raise LeaseLostError(fence.shard, fence.owner, fence.epoch)


def _memory(row: Row) -> Memory:
    return Memory(
        id=row["id"],
        key=row["key"],
        about=row["about"],
        text=row["text"],
        source=row["source"],
        run_id=row["run_id"],
        turn=row["turn"],
        metadata=decoded_object(row["metadata"]),
        version=row["version"],
        created_at=row["created_at"],
        updated_at=row["updated_at"],
        valid_until=row["valid_until"],
    )
