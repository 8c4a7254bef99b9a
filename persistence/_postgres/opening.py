"""Opening of stores: wait for the server, migrate, connect; close all in reverse.

The stores of one tenant are for programs with or without a runtime.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import replace
from functools import partial
from typing import Final

from typing_extensions import TypedDict, Unpack

from actors._kernel.basics import Backoff
from actors._kernel.runtime.ids import DEFAULT_TENANT, HostIncarnation
from actors._kernel.stores.artifacts import ArtifactBytes
from actors._kernel.stores.data import EmbeddingClient
from actors.errors import ActorsError
from persistence._migrate import SQL_SELECT_APPLIED, catch_up, is_behind, migrate
from persistence._postgres.connection.link import (
    Connection,
    Link,
    Links,
    ServerOutage,
    StoreSettings,
    address,
    connect,
    shut,
)
from persistence._postgres.connection.listener import PostgresClock, read_clock
from persistence._postgres.conversations.transcripts import PostgresHistoryProvider, Transcripts
from persistence._postgres.data.artifacts import PostgresArtifacts, PostgresFiles, PostgresFileStore
from persistence._postgres.data.first_use import StoreTables
from persistence._postgres.data.graphs import QUERY_S, AGEGraphStore, PostgresGraphStore
from persistence._postgres.data.indexes import SearchIndexes
from persistence._postgres.data.vectors import PgVectorStore
from persistence._postgres.store import PostgresStore
from persistence.errors import (
    DRIVER_ERRORS,
    DatabaseUnreachableError,
    bad_url,
    check_url,
    is_lost,
    translate,
)

_log = logging.getLogger("callboard.postgres")
SAY_EVERY_S: Final = 3.0
BY_INDEX: Final = {"enable_seqscan": "off"}
"""Connection settings of stores that read rows by key: the planner must use the index, also of small tables."""
CATCH_UP_AGAIN_S: Final = 60.0


@asynccontextmanager
async def open_postgres_store(
    url: str,
    *,
    owner: HostIncarnation,
    schema: str = "callboard",
    lease_s: float = 10.0,
    heartbeat_s: float = 3.0,
    outage_s: float = 60.0,
    start_wait_s: float | None = None,
    artifact_bytes: ArtifactBytes | None = None,
) -> AsyncIterator[PostgresStore]:
    """Yield a store whose schema is up to date.

    Args:
        url: ``postgresql://user:password@host:port/database``.
        owner: This incarnation of this host.
        schema: The schema; made if it is missing.
        lease_s: Seconds of ownership after a heartbeat.
        heartbeat_s: Seconds between heartbeats.
        outage_s: Seconds for which calls wait for a server that went away.
        start_wait_s: Seconds to wait for a server that is not there yet; None if there is no limit.
        artifact_bytes: A bucket or folder for the bytes of new artifacts; None if they are rows.

    Raises:
        DatabaseUrlError: The server refuses this user or database, or the URL is not one.
        DatabaseUnreachableError: No server within `start_wait_s`.
        MigrationError: The schema was made by changed files.
    """
    settings = StoreSettings(
        url=url,
        owner=owner,
        schema=schema,
        lease_s=lease_s,
        heartbeat_s=heartbeat_s,
        outage_s=outage_s,
        start_wait_s=start_wait_s,
    )
    async with open_store(settings, artifact_bytes=artifact_bytes) as store:
        yield store


@asynccontextmanager
async def open_store(
    settings: StoreSettings, *, artifact_bytes: ArtifactBytes | None = None
) -> AsyncIterator[PostgresStore]:
    """Like `open_postgres_store`, with all settings in one value.

    Args:
        settings: Settings of the store.
        artifact_bytes: A bucket or folder for the bytes of new artifacts, the same for all that use the schema;
            None if they are rows. Turns of conversations are always rows.
    """
    async with _open_link(settings) as link:
        # From here on a server that goes away, or hangs, is waited for.
        applied = [row["version"] for row in await link.fetch("opening", SQL_SELECT_APPLIED)]
        clock = PostgresClock(await read_clock(link))
    store = PostgresStore(
        settings, clock, is_behind=is_behind(applied), artifact_bytes=artifact_bytes
    )
    async with store.running():
        yield store


@asynccontextmanager
async def open_postgres_history(
    url: str,
    *,
    schema: str = "callboard",
    outage_s: float = 60.0,
    start_wait_s: float | None = None,
) -> AsyncIterator[PostgresHistoryProvider]:
    """Yield the history that a schema holds, for programs with or without a runtime.

    It is that of the runs on this schema. The schema is brought up to date as hosts do it.

    Args:
        url: See `open_postgres_store`, whose errors it raises; so for the others.
        schema: The schema; made if it is missing.
        outage_s: Seconds for which calls wait for a server that went away.
        start_wait_s: Seconds to wait for a server that is not there yet; None if there is no limit.
    """
    async with open_links(
        url, "history", schema=schema, outage_s=outage_s, start_wait_s=start_wait_s
    ) as links:
        yield PostgresHistoryProvider(Transcripts(links, PostgresArtifacts(links).of))


class LinkLimits(TypedDict, total=False):
    """Settings that a program may choose for its links. See `StoreSettings`."""

    answer_s: float
    readers: int


@asynccontextmanager
async def open_links(
    url: str,
    name: str,
    *,
    schema: str,
    outage_s: float,
    start_wait_s: float | None,
    extra: Mapping[str, str] | None = None,
    **limits: Unpack[LinkLimits],
) -> AsyncIterator[Links]:
    """Yield links to a schema that has been brought to what hosts need, for programs that are no hosts.

    Args:
        url: See `open_postgres_store`; so for the others.
        name: Name of the program, as the server shows it.
        schema: The schema; made if it is missing.
        outage_s: Seconds for which calls wait for a server that went away.
        start_wait_s: Seconds to wait for a server that is not there yet; None if there is no limit.
        extra: Settings of the sessions.
        limits: Others of `StoreSettings`.
    """
    settings = StoreSettings(
        url=url,
        owner=HostIncarnation(name),
        schema=schema,
        outage_s=outage_s,
        start_wait_s=start_wait_s,
        **limits,
    )
    async with _open_link(settings):
        links = Links(settings, ServerOutage(settings), settings.readers, extra)
    try:
        yield links
    finally:
        await links.close()


@asynccontextmanager
async def _open_link(settings: StoreSettings) -> AsyncIterator[Link]:
    """Yield a link to a schema that has been brought to what hosts need."""
    connection = await wait_for_server(settings)
    link = Link(settings, ServerOutage(settings), first=connection)
    try:
        with _translate_errors(settings):
            await migrate(connection, settings.schema, connect=partial(connect, settings))
        yield link
    finally:
        await link.close()


async def bring_up_to_date(settings: StoreSettings, *, whole: bool = False) -> list[str]:
    """Return the names of the migrations that were applied now. See `migrate`.

    If `whole`, the migrations that hosts start without are applied, too.

    Raises:
        DatabaseUrlError: See `open_postgres_store`; so for the others.
        DatabaseUnreachableError: No server within `start_wait_s`.
        MigrationError: The schema was made by changed files.
        RefusedError: The server refused a migration.
    """
    connection = await wait_for_server(settings)
    connect_another = partial(connect, settings)
    try:
        with _translate_errors(settings):
            applied_names = await migrate(connection, settings.schema, connect=connect_another)
            if whole:
                applied_names += await catch_up(
                    connection, settings.schema, connect=connect_another
                )
    finally:
        await shut(connection)
    return applied_names


@contextmanager
def _translate_errors(settings: StoreSettings) -> Iterator[None]:
    try:
        yield
    except DRIVER_ERRORS as exc:
        raise bad_url(settings.url, exc) or translate(exc, "migrating") from exc


async def catch_up_beside_work(settings: StoreSettings) -> None:
    """Apply the migrations that a host has started without; return when none is missing."""
    while True:
        try:
            await bring_up_to_date(replace(settings, start_wait_s=None), whole=True)
        except ActorsError as exc:
            _log.warning(
                "migrations could not be finished; trying again",
                extra={"problem": str(exc), "pause_s": CATCH_UP_AGAIN_S},
            )
            await asyncio.sleep(CATCH_UP_AGAIN_S)
        else:
            return


async def wait_for_server(settings: StoreSettings) -> Connection:
    """Return a connection once the server answers; say every three seconds that it does not.

    Raises:
        DatabaseUrlError: Waiting does not help.
        DatabaseUnreachableError: `start_wait_s` is over.
    """
    check_url(settings.url)
    loop = asyncio.get_running_loop()
    started_at, next_log_s, backoff = loop.time(), 0.0, Backoff()
    while True:
        try:
            return await connect(settings)
        except (ValueError, *DRIVER_ERRORS) as exc:
            if (url_error := bad_url(settings.url, exc)) is not None:
                raise url_error from exc
            if not is_lost(exc):
                raise translate(exc, "connecting") from exc
            waited_s = loop.time() - started_at
            limit = settings.start_wait_s
            if limit is not None and waited_s + backoff.pause_s > limit:
                raise DatabaseUnreachableError(address(settings), limit, str(exc)) from exc
            if waited_s >= next_log_s:
                next_log_s = waited_s + SAY_EVERY_S
                _log.warning(
                    "waiting for PostgreSQL",
                    extra={"server": address(settings), "problem": str(exc)},
                )
        await asyncio.sleep(backoff.next_s())


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
        start_wait_s: Seconds to wait for a server that is not there yet; None if there is no limit.
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
    open_graph_links = partial(
        open_links, url, "graph", schema=schema, outage_s=outage_s, start_wait_s=start_wait_s
    )
    async with (
        open_graph_links(extra=BY_INDEX) as links,
        open_graph_links(extra=CYPHER_SESSION) as query_links,
        open_graph_links(answer_s=COPY_S, readers=1) as copy_links,
    ):
        store = AGEGraphStore(
            StoreTables(links, "graphs"),
            StoreTables(copy_links, "graphs_cypher"),
            StoreTables(query_links, "graphs_cypher"),
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
        start_wait_s: Seconds to wait for a server that is not there yet; None if there is no limit.
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
