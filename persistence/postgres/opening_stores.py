"""Opening the stores of one tenant, for programs with or without a runtime."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from typing import Final

from actors.kernel.runtime.ids import DEFAULT_TENANT, HostIncarnation
from actors.kernel.stores.data import EmbeddingClient
from persistence.postgres.connection.link import connect, shut
from persistence.postgres.connection.settings import StoreSettings
from persistence.postgres.opening import BY_INDEX, bring_up_to_date, open_links
from persistence.postgres.stores.age import QUERY_S, AGEGraphStore
from persistence.postgres.stores.files import PostgresFiles, PostgresFileStore
from persistence.postgres.stores.first_use import StoreTables
from persistence.postgres.stores.graphs import PostgresGraphStore
from persistence.postgres.stores.indexes import SearchIndexes
from persistence.postgres.stores.vectors import PgVectorStore

COPY_S: Final = 600.0
"""Seconds that copying a graph for Apache AGE may take. 200,000 entities with 200,000 edges took 12 s."""

CYPHER_SESSION: Final = {"statement_timeout": f"{QUERY_S:g}s"}
"""Settings of sessions that run Cypher."""


@asynccontextmanager
async def open_postgres_vectors(
    url: str,
    *,
    tenant: str = DEFAULT_TENANT,
    embedder: EmbeddingClient | None = None,
    schema: str = "callboard",
    outage_s: float = 60.0,
    start_wait_s: float | None = None,
) -> AsyncIterator[PgVectorStore]:
    """Yield the vector store of one tenant, for programs with or without a runtime.

    The schema is brought up to date as hosts do it; the store's tables are made on first use.

    Args:
        url: See `open_postgres_store`, whose errors it raises; so for the others.
        tenant: Owner of all that the store reads and writes.
        embedder: Computes embeddings of documents that have none.
        schema: The schema; made if it is missing.
        outage_s: Seconds for which calls wait for a server that went away.
        start_wait_s: Seconds to wait for a server that is not there yet; None: for ever.
    """
    async with open_links(
        url, "vectors", schema=schema, outage_s=outage_s, start_wait_s=start_wait_s, extra=BY_INDEX
    ) as links:
        yield PgVectorStore(StoreTables(links, "vectors"), tenant=tenant, embedder=embedder)


@asynccontextmanager
async def open_postgres_graph(
    url: str,
    *,
    tenant: str = DEFAULT_TENANT,
    schema: str = "callboard",
    outage_s: float = 60.0,
    start_wait_s: float | None = None,
) -> AsyncIterator[PostgresGraphStore]:
    """Yield the graph of one tenant, for programs with or without a runtime. See `open_postgres_vectors`."""
    async with open_links(
        url, "graph", schema=schema, outage_s=outage_s, start_wait_s=start_wait_s, extra=BY_INDEX
    ) as links:
        yield PostgresGraphStore(StoreTables(links, "graphs"), tenant=tenant)


@asynccontextmanager
async def open_age_graph(
    url: str,
    *,
    tenant: str = DEFAULT_TENANT,
    schema: str = "callboard",
    outage_s: float = 60.0,
    start_wait_s: float | None = None,
) -> AsyncIterator[AGEGraphStore]:
    """Yield the graph of one tenant that also runs Cypher, by Apache AGE. See `open_postgres_vectors`.

    It is the graph of `open_postgres_graph`. The first opening copies what is there.

    Raises:
        AGEMissingError: The database has no AGE that this user may use; the message has the remedy.
    """
    opened = partial(
        open_links, url, "graph", schema=schema, outage_s=outage_s, start_wait_s=start_wait_s
    )
    async with (
        opened(extra=BY_INDEX) as links,
        opened(extra=CYPHER_SESSION) as queries,
        opened(answer_s=COPY_S, readers=1) as copying,
    ):
        store = AGEGraphStore(
            StoreTables(links, "graphs"),
            StoreTables(copying, "graphs_cypher"),
            StoreTables(queries, "graphs_cypher"),
            tenant=tenant,
        )
        await store.make_ready()
        yield store


@asynccontextmanager
async def open_postgres_files(
    url: str,
    *,
    tenant: str = DEFAULT_TENANT,
    scope: str = "main",
    schema: str = "callboard",
    outage_s: float = 60.0,
    start_wait_s: float | None = None,
) -> AsyncIterator[PostgresFileStore]:
    """Yield the files of one tenant and one scope within it. See `open_postgres_vectors`.

    Args:
        url: See `open_postgres_store`, whose errors it raises; so for the others.
        tenant: Owner of the files.
        scope: A name within the tenant, for example of an application; 1,000 bytes at most.
        schema: The schema; made if it is missing.
        outage_s: Seconds for which calls wait for a server that went away.
        start_wait_s: Seconds to wait for a server that is not there yet; None: for ever.
    """
    async with open_links(
        url, "files", schema=schema, outage_s=outage_s, start_wait_s=start_wait_s, extra=BY_INDEX
    ) as links:
        yield PostgresFiles(links).of(tenant, scope)


@asynccontextmanager
async def open_search_indexes(
    url: str, *, schema: str = "callboard", start_wait_s: float | None = None
) -> AsyncIterator[SearchIndexes]:
    """Yield the indexes of large scopes, of all tenants of a schema. See `open_postgres_vectors`."""
    settings = StoreSettings(
        url=url, owner=HostIncarnation("indexes"), schema=schema, start_wait_s=start_wait_s
    )
    await bring_up_to_date(settings)
    connection = await connect(settings)
    try:
        yield SearchIndexes(connection)
    finally:
        await shut(connection)
