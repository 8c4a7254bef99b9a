"""`callboard indexes list|build|drop`: indexes for search by meaning in large collections and memory scopes."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Annotated, Literal, TypeAlias

from compose.commands import options as opt
from compose.commands.options import HERE, Target, within
from compose.commands.output import NoDataError, picked
from persistence.postgres.data.indexes import BUILD_MEMORY_MB, EXACT_ROWS, SearchScope

if TYPE_CHECKING:
    from persistence.postgres.data.indexes import SearchIndexes

Store: TypeAlias = Literal["documents", "memories"]
MemoryMb: TypeAlias = Annotated[int, within(1, 2**20, "Give 1 or more MiB.")]
Workers: TypeAlias = Annotated[int, within(0, 64, "Give 0 to 64.")]
_COLUMNS = ("store", "tenant", "name", "rows", "dimensions", "index", "size")


async def list_indexes(
    *, tenant: opt.TenantOpt = None, rows: opt.Count = EXACT_ROWS, target: Target = HERE
) -> None:
    """List the collections and memory scopes that are large or have an index.

    A search in a collection or scope without an index reads all its embeddings, and is exact. The command
    counts all documents and memories, which takes a second for some millions.

    Examples:
    `callboard indexes list`;
    `callboard indexes list --tenant acme --rows 1000 --json`

    Parameters
    ----------
    tenant
        Only collections and scopes of this tenant.
    rows
        Number of rows above which a collection or scope is large.
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
    """Build an index for each large collection and memory scope that has none.

    Agents continue to work during a build. A build takes minutes of one processor of the server and as much
    memory as the embeddings. If the command is stopped or dies, searches stay exact. Call it again then. The
    command drops indexes whose rows are all removed. Call it regularly, for example each night.

    Examples:
    `callboard indexes build`;
    `callboard indexes build --tenant acme --rows 20000 --memory-mb 4096`

    Parameters
    ----------
    tenant
        Only collections and scopes of this tenant.
    rows
        Number of rows above which a collection or scope is large.
    memory_mb
        Most memory of the server for one build, in MiB.
    workers
        Number of further server processes for a build. They use shared memory, so that a container
        needs as much shared memory (`shm_size`).
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
    """Drop the index of a collection or memory scope. Later searches in it are exact.

    Example: `callboard indexes drop memories user:7 --tenant acme`

    Parameters
    ----------
    store
        `documents` or `memories`.
    name
        Name of the collection or of the memory scope.
    tenant
        Owner of the collection or scope. `default` is the tenant of agents whose id names none.
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
    # Imported here, because the module imports the database driver.
    from persistence.postgres.opening import open_search_indexes  # noqa: PLC0415

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
