"""`callboard indexes list|build|drop`: search by meaning in large collections and memory scopes."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Annotated, Literal, TypeAlias

from compose.commands import options as opt
from compose.commands.options import HERE, Target, within
from compose.commands.output import NoDataError, picked
from persistence.postgres.stores.indexes import BUILD_MEMORY_MB, EXACT_ROWS, SearchScope

if TYPE_CHECKING:
    from persistence.postgres.stores.indexes import SearchIndexes

Store: TypeAlias = Literal["documents", "memories"]
MemoryMb: TypeAlias = Annotated[int, within(1, 2**20, "Give 1 or more MiB.")]
Workers: TypeAlias = Annotated[int, within(0, 64, "Give 0 to 64.")]
_COLUMNS = ("store", "tenant", "name", "rows", "dimensions", "index", "size")


async def list_indexes(
    *, tenant: opt.TenantOpt = None, rows: opt.Count = EXACT_ROWS, target: Target = HERE
) -> None:
    """List large collections and memory scopes, and those that have an index.

    A search reads all embeddings of a collection or scope that has no index, and is exact. It counts all
    documents and memories, which takes a second for some millions.

    Examples:
    `callboard indexes list`;
    `callboard indexes list --tenant acme --rows 1000 --json`

    Parameters
    ----------
    tenant
        Of this tenant only.
    rows
        Large is what has more rows than this.
    """
    async with _opened(target) as indexes:
        found = await indexes.scopes(tenant=tenant, rows=rows)
    _table(found, target)


async def build(
    *,
    tenant: opt.TenantOpt = None,
    rows: opt.Count = EXACT_ROWS,
    memory_mb: MemoryMb = BUILD_MEMORY_MB,
    workers: Workers = 0,
    target: Target = HERE,
) -> None:
    """Build the index of each large collection and memory scope that has none.

    Agents work on meanwhile. It takes minutes of one processor of the server and as much memory as the
    embeddings. If it is stopped or dies, searches stay exact; call it again. Indexes whose rows are all gone
    are dropped. Call it now and then, for example each night.

    Examples:
    `callboard indexes build`;
    `callboard indexes build --tenant acme --rows 20000 --memory-mb 4096`

    Parameters
    ----------
    tenant
        Of this tenant only.
    rows
        Large is what has more rows than this.
    memory_mb
        The most that the server takes for one build.
    workers
        Processes of the server beside the first one. They take the memory from shared memory: give a
        container as much (`shm_size`).
    """
    async with _opened(target) as indexes:
        for one in await indexes.scopes(tenant=tenant, rows=rows):
            if one.rows == 0:
                await indexes.drop(one)
            elif one.state != "ready" and one.is_indexable:
                await indexes.build(one, memory_mb=memory_mb, workers=workers)
        found = await indexes.scopes(tenant=tenant, rows=rows)
    _table(found, target)


async def drop(store: Store, name: str, /, *, tenant: str, target: Target = HERE) -> int:
    """Drop the index of a collection or memory scope; its searches are exact from then on.

    Example: `callboard indexes drop memories user:7 --tenant acme`

    Parameters
    ----------
    store
        `documents` or `memories`.
    name
        The collection, or what the memories are about.
    tenant
        Its owner. `default` is the one without a name.
    """
    async with _opened(target) as indexes:
        found = [
            one
            for one in await indexes.scopes(tenant=tenant)
            if (one.store, one.name) == (store, name) and one.state != "none"
        ]
        for one in found:
            await indexes.drop(one)
    if not found:
        raise NoDataError(f"{store} {name!r} of tenant {tenant!r} have no index")
    return target.tell({"dropped": len(found)}, f"searches of {store} {name!r} are exact now")


@asynccontextmanager
async def _opened(target: Target) -> AsyncIterator[SearchIndexes]:
    # The driver is loaded when there is a server to connect to.
    from persistence.postgres.opening_stores import open_search_indexes  # noqa: PLC0415

    async with (
        target.server() as (url, settings),
        open_search_indexes(
            url, schema=settings.db_schema, start_wait_s=settings.start_wait_s
        ) as indexes,
    ):
        yield indexes


def _table(found: list[SearchScope], target: Target) -> None:
    target.table(found, _to_json, _COLUMNS, _row, empty="no large collection, and no index")


def _row(one: SearchScope) -> tuple[object, ...]:
    state = one.state if one.percent is None else f"{one.state} {one.percent} %"
    size = f"{one.size_bytes / 2**20:.0f} MiB" if one.size_bytes else ""
    return one.store, one.tenant, one.name, one.rows, one.dimensions, state, size


def _to_json(one: SearchScope) -> dict[str, object]:
    return picked(one, "store tenant name rows dimensions state percent size_bytes")
