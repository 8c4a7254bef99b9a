"""Builders of runtimes, on servers of yours or on embedded servers in a folder.

Every builder yields a started `Runtime`. At the end, and after an error or a cancellation, it closes what it
opened, in reverse order. No set-up is needed, because missing tables and streams are created. `artifact_bytes`
opens the bucket or folder of artifacts' bytes that the settings name.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Final
from urllib.parse import parse_qsl, urlsplit

from actors._kernel.hidden import HiddenNames
from actors._kernel.runtime.ids import HostIncarnation
from actors._kernel.runtime.rows import HostReport
from actors._kernel.stores.artifacts import ArtifactBytes
from actors._runtime import Runtime
from actors._runtime.delivery.mail_service import Broker, MailService
from actors._runtime.host_parts import HostParts
from actors._runtime.loop.clock import SystemClock, SystemEntropy
from actors._runtime.loop.tasks import TaskScope
from actors._runtime.runtime import host_of
from actors._runtime.sharding.retention import sweep_for_ever
from actors._runtime.telemetry.spans import Tracing
from actors._runtime.verbs.secrets import FileSecrets
from actors._runtime.worker.blocking import blocker_in
from actors.errors import BrokerError, ContractError
from compose._assembly.settings import NATS_LOGIN, Settings, read_settings
from persistence.postgres import (
    Heartbeat,
    Host,
    PostgresStore,
    StoreSettings,
    Takeover,
    catch_up_beside_work,
    open_store,
)

if TYPE_CHECKING:
    from compose._assembly.local import Opening
    from persistence.redis import RedisJournal

LEASE_MARGIN_S: Final = 2.0
"""Seconds before the end of a host's lease. If less time is left, the host starts no effect."""
_BUCKET_OPTIONS: Final = frozenset({"endpoint", "region"})


def build_runtime(
    nats_url: str,
    postgres_url: str,
    redis_url: str | None = None,
    *,
    settings: Settings | None = None,
    client: str = "local",
    serve: bool = True,
) -> AbstractAsyncContextManager[Runtime]:
    """Yield a started runtime on NATS, PostgreSQL and Redis: the assembly for production.

    JetStream carries messages between agents. Each agent's inbox is (a part of) a durable consumer. External
    clients publish to agents with any NATS client. PostgreSQL is the only source of truth: if NATS or Redis
    lose all their data, no message of an agent is lost.
    If a server does not answer, the builder waits for it, and logs that. It creates the tables and streams, or
    brings them up to date.

    Args:
        nats_url: ``nats://user:password@host:port``, several separated by commas.
        postgres_url: ``postgresql://user:password@host:port/database``.
        redis_url: ``redis://:password@host:port/0``. Without Redis, results of effects that must not
            happen twice are known only after PostgreSQL has them.
        settings: Lease, capacity and other settings. Default: the settings of the environment.
        client: Name of the submitting client. Order and deduplication are per client and agent.
        serve: False makes a client, which submits, asks and reads, and executes no runs.

    Raises:
        DatabaseUrlError: The server refuses the user or the database, or the URL is not valid.
        DatabaseUnreachableError: No database answered within `settings.start_wait_s`.
        BrokerError: No NATS server answered within `settings.start_wait_s`.
        ContractError: The streams belong to another deployment.
        MigrationError: The tables were made by migrations that differ from the files of this release.
    """
    server_settings = _with_urls(settings, postgres_url, nats_url, redis_url)
    return _assemble(server_settings, client=client, serve=serve)


def build_postgres_runtime(
    postgres_url: str,
    redis_url: str | None = None,
    *,
    settings: Settings | None = None,
    client: str = "local",
    serve: bool = True,
) -> AbstractAsyncContextManager[Runtime]:
    """Yield a started runtime on a PostgreSQL server without a broker.

    The sender's commit writes a message into the receiver's inbox. External clients cannot publish to agents.
    Otherwise the runtime is like that of `build_runtime`.
    """
    server_settings = _with_urls(settings, postgres_url, redis_url=redis_url)
    return _assemble(server_settings, client=client, serve=serve)


@asynccontextmanager
async def build_local_runtime(
    path: Path | str, *, settings: Settings | None = None, client: str = "local", serve: bool = True
) -> AsyncIterator[Runtime]:
    """Yield a started runtime on durable embedded servers, whose data is in the folder `path`.

    NATS, PostgreSQL and Valkey come from wheels. The first process that opens the folder runs the servers,
    and stops them when it ends. Other processes that open the folder use these servers. A client
    (`serve=False`) needs and starts only PostgreSQL. The arguments are those of `build_runtime`.

    Raises:
        EmbeddedServerMissingError: ``callboard[embedded]`` is not installed, or cannot run here.
        ServerFailedError: A server did not start.
    """
    from compose._assembly.local import Opening, local_postgres  # noqa: PLC0415 - as it runs servers

    folder, base_settings = Path(path), settings or read_settings()
    async with AsyncExitStack() as stack:
        if serve:
            opening = await stack.enter_async_context(Opening.of_all(folder))
            building = _build_on_opening(opening, base_settings, client=client)
        else:
            url = await stack.enter_async_context(local_postgres(folder))
            building = _assemble(_with_folder_urls(base_settings, url), client=client, serve=False)
        yield await stack.enter_async_context(building)


@asynccontextmanager
async def settings_of_client(settings: Settings) -> AsyncIterator[Settings]:
    """Yield settings with a database's URL: the given settings, or a copy with the folder's PostgreSQL.

    The copy also names the folder's NATS if a process runs it, so that the client receives live pieces of
    answers.
    """
    if settings.postgres_url is not None:
        yield settings
        return
    from compose._assembly.local import local_postgres  # noqa: PLC0415 - as it runs servers
    from compose.embedded import url_if_running  # noqa: PLC0415

    assert settings.data_dir is not None
    async with local_postgres(settings.data_dir) as url:
        nats = await asyncio.to_thread(url_if_running, settings.data_dir / "nats")
        changes = {"postgres_url": url, "nats_url": nats, **dict.fromkeys(NATS_LOGIN)}
        yield settings.model_copy(update=changes)


def build_as_set(
    settings: Settings, *, client: str, serve: bool = True, opening: Opening | None = None
) -> AbstractAsyncContextManager[Runtime]:
    """Return a runtime on the servers that the settings name, else on the servers of their folder.

    Args:
        settings: Settings with `postgres_url` or `data_dir`.
        client: Name of the submitting client.
        serve: False makes a client, which executes no runs.
        opening: The opening of the folder's servers if it was started already. The caller closes it.
    """
    if settings.postgres_url is not None:
        return _assemble(settings, client=client, serve=serve)
    if opening is not None:
        return _build_on_opening(opening, settings, client=client)
    assert settings.data_dir is not None
    return build_local_runtime(settings.data_dir, settings=settings, client=client, serve=serve)


def artifact_bytes(location: str | None) -> ArtifactBytes | None:
    """Return a store of artifacts' bytes in a bucket or a folder, or None if `place` is None.

    The function sends no request.

    Args:
        location: ``s3://BUCKET/PREFIX?endpoint=https://HOST&region=REGION``, or the absolute path of a folder.
            Keys come from the environment: ``AWS_ACCESS_KEY_ID``, or the role of the container or machine.

    Raises:
        ContractError: `place` is not a valid location, or the extra ``s3`` is not installed.
    """
    if location is None:
        return None
    parts = urlsplit(location)
    options = dict(parse_qsl(parts.query))
    is_bucket = (
        parts.scheme == "s3" and options.keys() <= _BUCKET_OPTIONS and "@" not in parts.netloc
    )
    if not is_bucket and not Path(location).is_absolute():
        remedy = "s3://BUCKET/PREFIX?endpoint=https://HOST&region=REGION, or an absolute path"
        raise ContractError(f"CALLBOARD_ARTIFACTS names no bucket and no folder: write {remedy}")
    if find_spec("obstore") is None:
        raise ContractError("CALLBOARD_ARTIFACTS needs an extra: pip install 'callboard[s3]'")
    from persistence.objects import ObjectArtifactBytes, S3Settings  # noqa: PLC0415 - few use it

    if is_bucket:
        settings = S3Settings(
            bucket=parts.netloc,
            prefix=parts.path.strip("/"),
            endpoint=options.get("endpoint"),
            region=options.get("region", "us-east-1"),
        )
        return ObjectArtifactBytes.in_s3(settings)
    return ObjectArtifactBytes.in_folder(Path(location))


@asynccontextmanager
async def _build_on_opening(
    opening: Opening, settings: Settings, *, client: str
) -> AsyncIterator[Runtime]:
    """Wait for the servers of the folder, and yield a runtime that serves agents."""
    servers = await opening.servers()
    server_settings = _with_folder_urls(
        settings, servers.postgres_url, servers.nats_url, servers.redis_url
    )
    async with _assemble(server_settings, client=client, serve=True) as runtime:
        yield runtime


def _with_folder_urls(settings: Settings, *urls: str) -> Settings:
    """Return the settings with the URLs of a folder's servers, and without the login of another NATS server."""
    return _with_urls(settings, *urls).model_copy(update=dict.fromkeys(NATS_LOGIN))


def _with_urls(
    settings: Settings | None,
    postgres_url: str,
    nats_url: str | None = None,
    redis_url: str | None = None,
) -> Settings:
    """Return the settings with the URLs of the three servers replaced. None means those of the environment."""
    urls = {"postgres_url": postgres_url, "nats_url": nats_url, "redis_url": redis_url}
    return (settings or read_settings()).model_copy(update=urls)


@asynccontextmanager
async def _assemble(settings: Settings, *, client: str, serve: bool) -> AsyncIterator[Runtime]:
    """Open the store and the other parts, yield the started runtime, and close all in reverse order."""
    owner = HostIncarnation(SystemEntropy().token())
    async with AsyncExitStack() as stack:
        opening = open_store(
            _store_settings(settings, owner), artifact_bytes=artifact_bytes(settings.artifacts)
        )
        store = await stack.enter_async_context(opening)
        if settings.runtime_backend == "postgres":
            from actors._inmemory.boards import GlobalTaskStore  # noqa: PLC0415 - rarely used

            # Entered before the runtime, so that it is closed after the runtime has stopped.
            stack.enter_context(GlobalTaskStore.using(store.boards))
        tracing = results = None
        if serve:
            tracing = await stack.enter_async_context(_tracing(settings, owner))
            results = await stack.enter_async_context(_journal(settings, store))
        # A host with a short lease would otherwise have no time left in which it may act.
        margin_s = min(LEASE_MARGIN_S, settings.lease_s / 3)
        runtime = Runtime(
            store=store,
            clock=store.clock,
            suspend_after=settings.suspend_after,
            capacity=settings.capacity,
            owner=owner,
            client=client,
            serve=serve,
            may_act=lambda: heartbeat.remaining_s > margin_s,
            broker=_broker(settings, owner, store),
            results=results,
            tracing=tracing,
            hidden_names=HiddenNames(settings.trace_redact),
        )
        parts = host_of(runtime)
        heartbeat = _heartbeat(parts, store)
        if settings.secrets_dir is not None:
            parts.worker.env.secrets.provider = FileSecrets(settings.secrets_dir)
        wait_for_outside = None
        if settings.nats_url is not None:
            from compose._assembly.gateway import attach_outside  # noqa: PLC0415 - needs NATS

            wait_for_outside = attach_outside(runtime, settings.nats_url, settings, serve=serve)
        if serve:
            stack.push_async_exit(heartbeat)  # renews the lease until the runtime has stopped
        tasks = await stack.enter_async_context(TaskScope())  # closed after `Runtime.stop`
        await stack.enter_async_context(runtime)
        if serve:
            # The broker connects during the first heartbeat, which claims no shard: no agent is registered.
            await heartbeat.start()
            await _wait_for_broker(parts.mail, settings)
        if wait_for_outside is not None:
            await wait_for_outside()
        _start_background_tasks(tasks, store, runtime, settings, serve=serve)
        yield runtime


def _store_settings(settings: Settings, owner: HostIncarnation) -> StoreSettings:
    assert settings.postgres_url is not None
    return StoreSettings(
        url=settings.postgres_url,
        owner=owner,
        schema=settings.db_schema,
        lease_s=settings.lease_s,
        heartbeat_s=settings.beat_s,
        blocked_s=settings.blocked_s,
        outage_s=settings.outage_s,
        start_wait_s=settings.start_wait_s,
        capacity=settings.capacity,
        brokered=settings.nats_url is not None,
        local_delivery=settings.local_delivery,
    )


def _heartbeat(parts: HostParts, store: PostgresStore) -> Heartbeat:
    """Return the heartbeat, which renews the host's lease, and passes each report to the host's parts."""
    owner = store.settings.owner

    def on_report(report: HostReport) -> None:
        store.shards.apply_report(owner, report)
        parts.ownership.on_report(report)

    host = Host(
        known=lambda: parts.worker.held.leases,
        on_report=on_report,
        machine=SystemClock(),
        blocker=lambda frame: blocker_in(frame, parts.worker),
        is_connected=lambda: parts.mail is None or parts.mail.connected.is_set(),
    )
    return Heartbeat(store.settings, owner, host, store.clock)


def _start_background_tasks(
    tasks: TaskScope, store: PostgresStore, runtime: Runtime, settings: Settings, *, serve: bool
) -> None:
    """Start the background tasks: clock, take-over, late migrations and sweep."""
    if not serve:
        tasks.keep(store.keep_time, name="clock")
        return
    tasks.keep(Takeover(store.settings, host_of(runtime).claim).run, name="takeover")
    if store.is_behind:
        tasks.keep(partial(catch_up_beside_work, store.settings), name="migrations")
    retain_s = None if settings.retain_days is None else settings.retain_days * 86_400
    tasks.keep(partial(sweep_for_ever, store, older_than_s=retain_s), name="sweep")


@asynccontextmanager
async def _tracing(settings: Settings, owner: HostIncarnation) -> AsyncIterator[Tracing | None]:
    if not settings.otlp_endpoint:
        yield None
        return
    # Imported here, because only hosts that send traces need the SDK.
    from compose._assembly.telemetry import open_tracing  # noqa: PLC0415

    system = "callboard" if settings.nats_url is None else "nats"
    async with open_tracing(settings, host=owner, system=system) as tracing:
        yield tracing


@asynccontextmanager
async def _journal(settings: Settings, store: PostgresStore) -> AsyncIterator[RedisJournal | None]:
    if settings.redis_url is None:
        yield None
        return
    from persistence.redis import open_redis_journal  # noqa: PLC0415 - as it needs Redis

    namespace = await store.mail.deployment()
    async with open_redis_journal(settings.redis_url, namespace=namespace) as journal:
        yield journal


def _broker(settings: Settings, owner: HostIncarnation, store: PostgresStore) -> Broker | None:
    if settings.nats_url is None:
        return None
    from broker import JetStreamTransport  # noqa: PLC0415 - as they need NATS
    from compose._assembly.gateway import nats_server  # noqa: PLC0415

    transport = JetStreamTransport(
        nats_server(settings.nats_url, settings),
        namespace=settings.namespace,
        owner=owner,
        replicas=settings.nats_replicas,
    )
    return Broker(transport, store.mail, store.outbox)


async def _wait_for_broker(mail: MailService | None, settings: Settings) -> None:
    """Wait until the mail service is ready. It logs the reason if it is not.

    Raises:
        BrokerError: The mail service was not ready within `settings.start_wait_s`.
        ContractError: The broker cannot be used as it is configured, and waiting does not help.
    """
    if mail is None:
        return
    try:
        async with asyncio.timeout(settings.start_wait_s):
            await mail.ready()
    except TimeoutError:
        problem = mail.trouble or "no NATS server answered; check CALLBOARD_NATS_URL"
        msg = f"no messages are sent or read after {settings.start_wait_s:g} s: {problem}"
        raise BrokerError(msg) from None
