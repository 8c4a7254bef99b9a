"""Indexes of large scopes: made and dropped by operators, beside the work of hosts.

A search of a collection, or of memories about something, reads all of its embeddings and is exact. Up to about
`EXACT_ROWS` of them that is fast enough. A larger scope gets an HNSW index of its own, with which a search
reads a few hundred embeddings and finds nearly all of the nearest; and a GIN index of its metadata, with which
a search whose filter few rows pass reads these and is exact. No host builds them by itself: the first one takes
minutes of a processor and as much memory as the embeddings, and makes each write slower for good.

An index is built `concurrently`: no writer waits for it, and searches stay exact until it is ready. What a
crash leaves half built is never searched by; the next `build` drops it and begins anew. One process builds at a
time.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Final, Literal, LiteralString, TypeAlias

import asyncpg

from actors.errors import ConflictError, ContractError
from persistence._postgres.connection.link import Connection
from persistence._postgres.data.first_use import first_use
from persistence.errors import DRIVER_ERRORS, translate

EXACT_ROWS: Final = 50_000
"""Rows of a scope up to which a search without an index is fast enough: about 50 ms of a processor."""
MAX_INDEXED_DIMENSIONS: Final = 4_000
"""Maximum of pgvector's `halfvec`. An index over up to 2,000 dimensions keeps all 32 bits of each number."""
BUILD_MEMORY_MB: Final = 1_024
"""The most that one build takes; one that needs more goes on by the disk, and takes much longer."""
OLDEST_PGVECTOR: Final = (0, 8)
"""The first release whose searches go on where a filter leaves too few."""
LINKS_OF_ROW: Final = 16
BUILD_EFFORT: Final = 128
"""Candidates for the links of a row: more find more, and take longer to build. pgvector's default is 64."""
BY_FILTER: Final = "gin (filterable jsonb_path_ops) with (fastupdate = off)"
"""Without a list of pending rows, which each search would read."""
_BYTES_BESIDE: Final = 500
"""Bytes of a row in the index's graph, in addition to its embedding."""

State: TypeAlias = Literal["none", "building", "ready", "broken"]

SQL_LOCK_INDEXES: Final[LiteralString] = (
    "select pg_try_advisory_lock(hashtext('callboard search indexes'), hashtext(current_schema()))"
)
SQL_UNLOCK_INDEXES: Final[LiteralString] = (
    "select pg_advisory_unlock(hashtext('callboard search indexes'), hashtext(current_schema()))"
)
SQL_HAS_TABLES: Final[LiteralString] = (
    "select name from unnest($1::text[]) name where to_regclass(name) is not null"
)
SQL_PGVECTOR: Final[LiteralString] = "select extversion from pg_extension where extname = 'vector'"
SQL_DOCUMENT_SCOPES: Final[LiteralString] = """
select 'vector_documents' as on_table, c.tenant, c.collection as scope, c.dimensions, n.rows
  from vector_collections c cross join lateral (
    select count(*) as rows from vector_documents d where d.tenant = c.tenant and d.collection = c.collection) n
  where ($1::text is null or c.tenant = $1) and n.rows > 0
"""
SQL_MEMORY_SCOPES: Final[LiteralString] = """
select 'memories' as on_table, m.tenant, m.about as scope, m.dimensions, count(*) as rows
  from memories m where ($1::text is null or m.tenant = $1) and m.valid_until is null and m.dimensions > 0
  group by m.tenant, m.about, m.dimensions
"""
SQL_KNOWN_INDEXES: Final[LiteralString] = """
select s.on_table, s.tenant, s.scope, s.dimensions from search_indexes s where $1::text is null or s.tenant = $1
"""
SQL_INDEX_STATES: Final[LiteralString] = """
select s.at, i.name, i.filters, i.scope, i.type, i.class, i.is_ready, i.can_filter,
    coalesce(pg_relation_size(to_regclass(i.name)), 0)
      + coalesce(pg_relation_size(to_regclass(i.filters)), 0) as size, p.index_relid is not null as is_building,
    case when p.tuples_total > 0 then 100 * p.tuples_done / p.tuples_total end::int as percent
  from unnest($1::text[], $2::text[], $3::text[], $4::int[])
      with ordinality s(on_table, tenant, scope, dimensions, at)
    cross join lateral search_index(s.on_table, s.tenant, s.scope, s.dimensions) i
    left join pg_stat_progress_create_index p on p.index_relid in (to_regclass(i.name), to_regclass(i.filters))
"""
SQL_NOTE_INDEX: Final[LiteralString] = """
insert into search_indexes (name, on_table, tenant, scope, dimensions) values ($1, $2, $3, $4, $5)
  on conflict (name) do nothing
"""
SQL_FORGET_INDEX: Final[LiteralString] = "delete from search_indexes s where s.name = $1"
SQL_BUILD_LIMITS: Final[LiteralString] = """
select set_config('maintenance_work_mem', $1, false), set_config('max_parallel_maintenance_workers', $2, false)
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchScope:
    """A collection, or the memories about something, with its index.

    Attributes:
        store: ``documents`` or ``memories``.
        tenant: Their owner.
        name: The collection, or what the memories are about.
        dimensions: Numbers of each embedding.
        rows: Documents, or present memories with an embedding of so many numbers.
        state: ``broken``: a crash left it half built, or an earlier release built it without the part for
            filters.
        percent: Progress of a build in percent, as far as the server reports it.
        size_bytes: Size of the index.
    """

    store: Literal["documents", "memories"]
    tenant: str
    name: str
    dimensions: int
    rows: int
    state: State
    percent: int | None
    size_bytes: int

    @property
    def is_indexable(self) -> bool:
        """Return True unless its embeddings are too long for an index."""
        return self.dimensions <= MAX_INDEXED_DIMENSIONS


_TABLES: Final = {"documents": "vector_documents", "memories": "memories"}


class SearchIndexes:
    """The indexes of one schema. Made by `open_search_indexes`.

    Args:
        connection: A connection of its own, whose user owns the tables.
    """

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    async def scopes(
        self, *, tenant: str | None = None, rows: int = EXACT_ROWS
    ) -> list[SearchScope]:
        """Return scopes of more than `rows` rows, and those that have an index, the largest first.

        Counts all documents and memories of the tenant, or of all tenants if None.
        """
        row_counts = await self._count_rows(tenant)
        keys = list(row_counts)
        columns = [list(column) for column in zip(*keys, strict=True)] or [[], [], [], []]
        states = await self._connection.fetch(SQL_INDEX_STATES, *columns)
        states_by_key = {keys[row["at"] - 1]: row for row in states}
        scopes = [_scope(key, count, states_by_key.get(key)) for key, count in row_counts.items()]
        listed_scopes = [s for s in scopes if s.rows > rows or s.state != "none"]
        return sorted(listed_scopes, key=lambda s: (-s.rows, s.store, s.tenant, s.name))

    async def build(
        self, scope: SearchScope, *, memory_mb: int = BUILD_MEMORY_MB, workers: int = 0
    ) -> bool:
        """Build the index of a scope, and return True; False: it is ready. What is broken is built anew.

        It takes as long as `docs/operations.md` says, and waits for transactions that are older. If it is
        cancelled or its process dies, searches stay exact.

        Args:
            scope: One of the scopes that `scopes` returns.
            memory_mb: The most that the server takes for it, 1 or more.
            workers: Processes beside the first one. With any, the memory is the server's shared memory, of
                which a container has 64 MiB if nothing is said.

        Raises:
            ConflictError: Another process builds or drops an index.
            ContractError: Embeddings are arrays or too long, or pgvector is too old.
            PersistenceError: The server refused it.
        """
        await self._check_pgvector()
        async with self._hold_lock("building an index"):
            return await self._build(scope, memory_mb, workers)

    async def drop(self, scope: SearchScope) -> None:
        """Drop the index of a scope, whose searches are exact from then on. Nobody waits for it.

        Raises:
            ConflictError: See `build`; so for the others.
            PersistenceError: The server refused it.
        """
        async with self._hold_lock("dropping an index"):
            for row in await self._connection.fetch(
                SQL_INDEX_STATES, *([part] for part in _key(scope))
            ):
                await self._drop(row["filters"])
                await self._drop(row["name"])
                await self._connection.fetch(SQL_FORGET_INDEX, row["name"])

    async def _build(self, scope: SearchScope, memory_mb: int, workers: int) -> bool:
        key = _key(scope)
        rows = await self._connection.fetch(SQL_INDEX_STATES, *([part] for part in key))
        if not rows:
            raise ContractError(_no_index(scope))
        [row] = rows
        if row["is_ready"] and row["can_filter"]:
            return False
        await self._connection.execute(first_use("indexes"))
        await self._connection.fetch(SQL_NOTE_INDEX, row["name"], *key)
        needed_mb = scope.rows * (4 * scope.dimensions + _BYTES_BESIDE) // 2**20 + 16
        memory = f"{min(needed_mb, memory_mb)}MB"
        await self._connection.fetch(SQL_BUILD_LIMITS, memory, str(workers))
        vector_method = (
            f"hnsw ((embedding::{row['type']}) {row['class']})"
            f" with (m = {LINKS_OF_ROW}, ef_construction = {BUILD_EFFORT})"
        )
        for name, is_valid, using in (
            (row["name"], row["is_ready"], vector_method),
            (row["filters"], row["can_filter"], BY_FILTER),
        ):
            if not is_valid:
                await self._drop(name)
                await self._connection.execute(
                    f"create index concurrently {name} on {key[0]} using {using} where {row['scope']}"
                )
        await self._connection.execute(f"analyze {key[0]}")  # so that plans know filters
        return True

    async def _drop(self, name: str) -> None:
        await self._connection.execute(f"drop index concurrently if exists {name}")

    async def _count_rows(self, tenant: str | None) -> dict[tuple[str, str, str, int], int]:
        """Return the rows of each scope; 0: of one that has an index and no row."""
        names = ["search_indexes", "vector_documents", "memories"]
        existing_tables = {
            row["name"] for row in await self._connection.fetch(SQL_HAS_TABLES, names)
        }
        row_counts_by_key: dict[tuple[str, str, str, int], int] = {}
        statements = zip(
            names, (SQL_KNOWN_INDEXES, SQL_DOCUMENT_SCOPES, SQL_MEMORY_SCOPES), strict=True
        )
        for name, statement in statements:
            if name in existing_tables:
                for row in await self._connection.fetch(statement, tenant):
                    key = (row["on_table"], row["tenant"], row["scope"], row["dimensions"])
                    row_counts_by_key[key] = row.get("rows", 0)
        return row_counts_by_key

    async def _check_pgvector(self) -> None:
        version: str | None = await self._connection.fetchval(SQL_PGVECTOR)
        if version is None or tuple(map(int, version.split(".")[:2])) < OLDEST_PGVECTOR:
            remedy = (
                "as a superuser `alter extension vector update` once the server has a newer one"
            )
            raise ContractError(f"an index needs pgvector 0.8 or newer, not {version}: {remedy}")

    @asynccontextmanager
    async def _hold_lock(self, doing: str) -> AsyncIterator[None]:
        """Hold the lock of builds and drops of indexes; driver errors become ours."""
        if not await self._connection.fetchval(SQL_LOCK_INDEXES):
            raise ConflictError("another process builds or drops an index: wait for its end")
        try:
            yield
        except DRIVER_ERRORS as exc:
            raise translate(exc, doing) from exc
        finally:
            if not self._connection.is_closed():
                await self._connection.fetch(SQL_UNLOCK_INDEXES)


def _key(scope: SearchScope) -> tuple[str, str, str, int]:
    return (_TABLES[scope.store], scope.tenant, scope.name, scope.dimensions)


def _scope(key: tuple[str, str, str, int], count: int, row: asyncpg.Record | None) -> SearchScope:
    state: State = "none"
    if row is not None and row["is_ready"] is not None:
        unready: State = "building" if row["is_building"] else "broken"
        state = "ready" if row["is_ready"] and row["can_filter"] else unready
    table, tenant, name, dimensions = key
    return SearchScope(
        store="documents" if table == "vector_documents" else "memories",
        tenant=tenant,
        name=name,
        dimensions=dimensions,
        rows=count,
        state=state,
        percent=None if row is None else row["percent"],
        size_bytes=0 if row is None else row["size"],
    )


def _no_index(scope: SearchScope) -> str:
    what = f"{scope.store} {scope.name!r} of tenant {scope.tenant!r}"
    if scope.dimensions > MAX_INDEXED_DIMENSIONS:
        problem = (
            f"embeddings of {scope.dimensions} numbers are longer than {MAX_INDEXED_DIMENSIONS}"
        )
        return (
            f"{what}: {problem}: use a model whose embeddings are shorter, or keep the search exact"
        )
    return f"{what}: its embeddings are arrays, see docs/memory.md"
