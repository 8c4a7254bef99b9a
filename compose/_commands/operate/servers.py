"""`callboard doctor`, `migrate` and `indexes`: check the servers of a deployment, and bring them up to date.

`indexes` builds indexes for search by meaning in large collections and memory scopes.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Final, Literal, TypeAlias

from actors._kernel.runtime.ids import HostIncarnation
from actors._runtime.delivery.stream_guard import StreamRolledBackError, guard_stream
from actors.errors import BrokerError, ContractError
from compose._assembly.local import local_servers
from compose._assembly.settings import NATS_LOGIN, Settings
from compose._commands import options as opt
from compose._commands.options import HERE, Flag, Target, within
from compose._commands.output import Exit, NoDataError, pick, print_json
from compose._commands.terminal import print_table, say
from compose._diagnosis.finding import Finding, Level, judge
from compose._diagnosis.postgres import deployment_of, diagnose_postgres
from persistence._postgres.data.indexes import BUILD_MEMORY_MB, EXACT_ROWS, SearchScope
from persistence._postgres.opening import bring_up_to_date, wait_for_server
from persistence._schema_files import known_migrations
from persistence.errors import DatabaseUnreachableError
from persistence.postgres import StoreSettings, open_store

if TYPE_CHECKING:
    from persistence._postgres.data.indexes import SearchIndexes

_MARKS: dict[Level, str] = {"ok": "✓", "note": "·", "wrong": "✗"}
AGAIN_S: Final = 0.5
"""Pause in seconds between two attempts to connect to NATS."""
_COLUMNS = ("store", "tenant", "name", "rows", "dimensions", "index", "size")
Store: TypeAlias = Literal["documents", "memories"]
MemoryMb: TypeAlias = Annotated[int, within(1, 2**20, "MiB")]
Workers: TypeAlias = Annotated[int, within(0, 64)]


async def doctor(*, target: Target = HERE) -> int:
    """Check the servers, the hosts and the waiting work. The exit code is 1 if a person must act.

    PostgreSQL: server version, durability (fsync, synchronous_commit), clock, encryption, whether the
    role is a superuser, schema version, live hosts, shards without an owner, types with waiting runs
    or messages that no host serves, parked runs, dead letters. NATS, if CALLBOARD_NATS_URL names
    a server: version, whether it requires a login, JetStream, sync_interval, the configuration of the
    streams, consumers. Redis, if CALLBOARD_REDIS_URL names a server: version, eviction, persistence.
    The bucket or folder of CALLBOARD_ARTIFACTS: whether it answers. The command changes nothing.

    Example: `callboard doctor --data ./data`
    """
    async with _servers(target) as settings:
        findings, deployment = await _postgres(settings)
        is_reachable = findings[0].data.get("reachable", True)
        # The drivers are extras, so each is imported only if the settings name such a server.
        if settings.nats_url is not None:
            from compose._assembly.gateway import nats_server  # noqa: PLC0415
            from compose._diagnosis.nats import diagnose_nats  # noqa: PLC0415

            findings += await diagnose_nats(
                nats_server(settings.nats_url, settings),
                namespace=settings.namespace,
                deployment=deployment,
            )
        if settings.redis_url is not None:
            from compose._diagnosis.others import diagnose_redis  # noqa: PLC0415

            findings += await diagnose_redis(settings.redis_url)
        if settings.artifacts is not None:
            from compose._diagnosis.others import diagnose_artifacts  # noqa: PLC0415

            findings += await diagnose_artifacts(settings.artifacts)
    _print(findings, as_json=target.json)
    if not is_reachable:
        return Exit.UNREACHABLE
    return Exit.FAILED if any(finding.level == "wrong" for finding in findings) else Exit.OK


@asynccontextmanager
async def _servers(target: Target) -> AsyncIterator[Settings]:
    """Yield settings with the servers' URLs. Servers of a data folder run until the caller is done."""
    settings = target.client_settings()
    if settings.postgres_url is not None:
        yield settings
        return
    assert settings.data_dir is not None
    async with local_servers(settings.data_dir) as local:
        # A login of the environment is for another NATS than that of the folder, which would refuse it.
        yield settings.model_copy(update={**asdict(local), **dict.fromkeys(NATS_LOGIN)})


async def _postgres(settings: Settings) -> tuple[list[Finding], str | None]:
    """Return the findings, and the id of the database, or None if the database does not answer."""
    assert settings.postgres_url is not None
    store_settings = StoreSettings(
        url=settings.postgres_url,
        owner=HostIncarnation("doctor"),
        schema=settings.db_schema,
        start_wait_s=settings.start_wait_s,
    )
    try:
        connection = await wait_for_server(store_settings)
    except DatabaseUnreachableError as exc:
        remedy = "start PostgreSQL, or correct CALLBOARD_POSTGRES_URL"
        return [judge("server", str(exc), {"reachable": False}, wrong=True, remedy=remedy)], None
    try:
        return await diagnose_postgres(connection), await deployment_of(connection)
    finally:
        await connection.close(timeout=2)


def _print(findings: list[Finding], *, as_json: bool) -> None:
    problems = [finding for finding in findings if finding.level == "wrong"]
    if as_json:
        checks = [
            {**pick(finding, "check level found"), "remedy": finding.remedy or None, **finding.data}
            for finding in findings
        ]
        print_json({"healthy": not problems, "checks": checks})
    else:
        rows = [
            (_MARKS[finding.level], finding.check, finding.found, finding.remedy)
            for finding in findings
        ]
        print_table(("", "check", "found", "what to do"), rows, empty_text="")
        say("no problems found" if not problems else f"{len(problems)} problem(s) need an operator")


async def migrate(*, streams: Flag = False, target: Target = HERE) -> None:
    """Create the tables, or bring them up to date. Any number of these commands may run at any time.

    Hosts and clients bring tables up to date when they start. Call the command if their role may not change
    the schema. To create the streams, call it with the admin's login of NATS: before the first host starts,
    with each release, and when a host reports that a stream is missing or was rolled back. No message is
    lost by it. The command also waits for changes without which hosts start, such as indexes. If another
    session, such as a back-up, holds a lock, hosts continue, and the command waits and names that session.

    Examples: `callboard migrate --postgres-url postgresql://owner:secret@db/shop`;
    `CALLBOARD_NATS_URL=nats://admin:secret@nats callboard migrate --streams`

    Parameters
    ----------
    streams
        Also create the streams of the NATS server of CALLBOARD_NATS_URL, correct their settings, and recreate
        MAIL if MAIL or the database was rolled back. The command waits CALLBOARD_START_WAIT_S seconds for the
        server.
    """
    async with target.database() as (url, settings):
        if streams and settings.nats_url is None:
            raise ContractError("--streams needs a NATS: set CALLBOARD_NATS_URL")
        store_settings = StoreSettings(
            url=url,
            owner=HostIncarnation("migrate"),
            schema=settings.db_schema,
            start_wait_s=settings.start_wait_s,
        )
        applied_names = await bring_up_to_date(store_settings, whole=True)
        if streams and settings.nats_url is not None:
            await _make_streams(settings.nats_url, store_settings, settings)
    newest_name = known_migrations()[-1].name
    text = f"schema {settings.db_schema!r}: applied {', '.join(applied_names)}"
    target.tell(
        {"schema": settings.db_schema, "applied": list(applied_names), "version": newest_name},
        text if applied_names else f"schema {settings.db_schema!r} is up to date ({newest_name})",
    )


async def _make_streams(nats_url: str, store_settings: StoreSettings, settings: Settings) -> None:
    # Imported here, because without `--streams` the command needs no client of the broker.
    from broker import JetStreamTransport, NotPermittedError  # noqa: PLC0415
    from compose._assembly.gateway import nats_server  # noqa: PLC0415

    transport = JetStreamTransport(
        nats_server(nats_url, settings),
        namespace=settings.namespace,
        replicas=settings.nats_replicas,
    )
    loop = asyncio.get_running_loop()
    deadline = loop.time() + (settings.start_wait_s or 0)
    async with open_store(store_settings) as store:
        deployment = await store.mail.deployment()
        while True:
            try:
                async with transport.connect(
                    deployment=deployment, on_nudge=lambda _: None
                ) as connection:
                    await guard_stream(connection, store.mail)  # `connect` has created the streams
            except BrokerError as exc:
                # `guard_stream` deleted a stream that was rolled back, so the next connect creates it. If it
                # could not be deleted, or this login may not create streams, a repetition fails again.
                is_deleted = isinstance(exc, StreamRolledBackError) and not exc.problem
                is_final = isinstance(exc, (NotPermittedError, StreamRolledBackError))
                if not is_deleted and (is_final or loop.time() > deadline):
                    raise
                await asyncio.sleep(AGAIN_S)
            else:
                return


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
    async with _search_indexes(target) as indexes:
        scopes = await indexes.scopes(tenant=tenant, rows=rows)
    _table(scopes, target)


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
    async with _search_indexes(target) as indexes:
        for scope in await indexes.scopes(tenant=tenant, rows=rows):
            if scope.rows == 0:
                await indexes.drop(scope)
            elif scope.state != "ready" and scope.is_indexable:
                await indexes.build(scope, memory_mb=memory_mb, workers=workers)
        scopes = await indexes.scopes(tenant=tenant, rows=rows)
    _table(scopes, target)


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
    async with _search_indexes(target) as indexes:
        indexed_scopes = [
            scope
            for scope in await indexes.scopes(tenant=tenant)
            if (scope.store, scope.name) == (store, name) and scope.state != "none"
        ]
        for scope in indexed_scopes:
            await indexes.drop(scope)
    if not indexed_scopes:
        raise NoDataError(f"{store} {name!r} of tenant {tenant!r} have no index")
    return target.tell(
        {"dropped": len(indexed_scopes)}, f"searches of {store} {name!r} are exact now"
    )


@asynccontextmanager
async def _search_indexes(target: Target) -> AsyncIterator[SearchIndexes]:
    # Imported here, because the module imports the database driver.
    from persistence._postgres.opening import open_search_indexes  # noqa: PLC0415

    async with (
        target.database() as (url, settings),
        open_search_indexes(
            url, schema=settings.db_schema, start_wait_s=settings.start_wait_s
        ) as indexes,
    ):
        yield indexes


def _table(scopes: list[SearchScope], target: Target) -> None:
    columns_text = "store tenant name rows dimensions state percent size_bytes"
    target.table(
        scopes, columns_text, _COLUMNS, _row, empty_text="no large collection, and no index"
    )


def _row(scope: SearchScope) -> tuple[object, ...]:
    state = scope.state if scope.percent is None else f"{scope.state} {scope.percent} %"
    size = f"{scope.size_bytes / 2**20:.0f} MiB" if scope.size_bytes else ""
    return scope.store, scope.tenant, scope.name, scope.rows, scope.dimensions, state, size
