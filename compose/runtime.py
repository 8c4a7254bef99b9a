"""Runtimes put together: on servers of yours, or on embedded ones in a folder.

Every builder yields a started `Runtime`, and closes what it opened in reverse order, also after an
error or a cancellation. Nothing has to be set up before: tables and streams are made when they are
not there.
"""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

from actors.errors import BrokerError
from actors.kernel.runtime.ids import HostIncarnation
from actors.runtime import Runtime
from actors.runtime.blocking import blocker_in
from actors.runtime.clock import SystemClock, SystemEntropy
from actors.runtime.mail import Broker
from actors.runtime.secrets import FileSecrets
from actors.runtime.sweeping import sweep_for_ever
from actors.runtime.tasks import TaskScope
from compose.local import local_postgres, local_servers
from compose.settings import NATS_LOGIN, Settings, read_settings
from persistence.postgres import Heartbeat, Host, PostgresStore, StoreSettings, Takeover, open_store

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from actors.kernel.runtime.commit import HostReport
    from persistence.redis import RedisJournal

LEASE_MARGIN_S: Final = 2.0
"""So long before the end of a lease that was not renewed a host begins no effect any more."""


@asynccontextmanager
async def build_runtime(
    nats_url: str,
    postgres_url: str,
    redis_url: str | None = None,
    *,
    settings: Settings | None = None,
    client: str = "local",
    serve: bool = True,
) -> AsyncIterator[Runtime]:
    """Yield a started runtime on NATS, PostgreSQL and Redis: the assembly for production.

    Messages between agents travel as JetStream subjects, each agent's inbox being (a part of) a
    durable consumer; other services publish to agents with any NATS client. PostgreSQL is the
    truth: losing all that NATS or Redis hold loses nothing that agents sent.
    A server that is not there is waited for, and the log says so. Tables and streams are made or
    brought up to date.

    Args:
        nats_url: ``nats://user:password@host:port``, several separated by commas.
        postgres_url: ``postgresql://user:password@host:port/database``.
        redis_url: ``redis://:password@host:port/0``; left out, results of effects that must not
            happen twice are known only once PostgreSQL has them.
        settings: Lease, capacity and so on; those of the environment when left out.
        client: Who submits here; order and dedup are per client and agent.
        serve: False makes a client: it submits, asks and reads, and executes nothing.

    Raises:
        DatabaseUrlError: The server refuses the user or the database, or the URL is not one.
        DatabaseUnreachableError: No server within `settings.start_wait_s`.
        BrokerError: No NATS server within `settings.start_wait_s`.
        ContractError: The streams belong to another deployment.
        MigrationError: The tables were made by files of another release that were changed.
    """
    chosen = settings or read_settings()
    urls = _Urls(postgres_url, nats_url, redis_url)
    async with _assemble(urls, chosen, client=client, serve=serve) as runtime:
        yield runtime


@asynccontextmanager
async def build_postgres_runtime(
    postgres_url: str,
    redis_url: str | None = None,
    *,
    settings: Settings | None = None,
    client: str = "local",
    serve: bool = True,
) -> AsyncIterator[Runtime]:
    """Yield a started runtime on a PostgreSQL server alone: the sender's commit writes the inbox.

    Everything else is as in `build_runtime`, except that nobody can publish to an agent by a
    broker.
    """
    chosen = settings or read_settings()
    urls = _Urls(postgres_url, None, redis_url)
    async with _assemble(urls, chosen, client=client, serve=serve) as runtime:
        yield runtime


@asynccontextmanager
async def build_local_runtime(
    path: Path | str,
    *,
    settings: Settings | None = None,
    client: str = "local",
    serve: bool = True,
) -> AsyncIterator[Runtime]:
    """Yield a started runtime on durable servers inside the folder `path`; nothing to install.

    NATS, PostgreSQL and Valkey come from wheels. The first process that opens the folder runs them
    and takes them along when it ends; others that open the folder meanwhile use them. A client
    (`serve=False`) needs, and starts, PostgreSQL only. See `build_runtime`.

    Raises:
        EmbeddedServerMissingError: ``callboard[embedded]`` is not installed, or cannot run here.
        ServerFailedError: A server did not start.
    """
    async with AsyncExitStack() as stack:
        if serve:
            servers = await stack.enter_async_context(local_servers(Path(path)))
            urls = _Urls(servers.postgres_url, servers.nats_url, servers.redis_url)
        else:
            urls = _Urls(await stack.enter_async_context(local_postgres(Path(path))))
        # The login of another NATS, perhaps left in the environment, does not concern this one.
        chosen = (settings or read_settings()).model_copy(update=dict.fromkeys(NATS_LOGIN))
        yield await stack.enter_async_context(_assemble(urls, chosen, client=client, serve=serve))


@dataclass(frozen=True, slots=True)
class _Urls:
    postgres: str
    nats: str | None = None
    redis: str | None = None


@asynccontextmanager
async def _assemble(
    urls: _Urls, settings: Settings, *, client: str, serve: bool
) -> AsyncIterator[Runtime]:
    """Open everything, yield the started runtime, close in reverse."""
    owner = HostIncarnation(SystemEntropy().token())
    store_settings = StoreSettings(
        url=urls.postgres, owner=owner, schema=settings.db_schema, lease_s=settings.lease_s,
        heartbeat_s=settings.beat_s, blocked_s=settings.blocked_s, outage_s=settings.outage_s,
        start_wait_s=settings.start_wait_s, capacity=settings.capacity,
        brokered=urls.nats is not None, local_delivery=settings.local_delivery,
    )  # fmt: skip
    async with AsyncExitStack() as stack:
        store = await stack.enter_async_context(open_store(store_settings))

        def heard(report: HostReport) -> None:
            store.heard(owner, report)
            runtime.on_report(report)

        tracing = None
        if serve and settings.otlp_endpoint:
            # Imported here: the SDK is needed by those hosts only that send traces.
            from compose.telemetry import traced  # noqa: PLC0415

            system = "callboard" if urls.nats is None else "nats"
            tracing = await stack.enter_async_context(traced(settings, host=owner, system=system))
        results = None
        if urls.redis is not None and serve:
            results = await stack.enter_async_context(_journal(urls.redis, store))
        host = Host(
            known=lambda: runtime.worker.shards, on_report=heard, machine=SystemClock(),
            blocker=lambda frame: blocker_in(frame, runtime.worker),
            is_connected=lambda: runtime.mail is None or runtime.mail.connected.is_set(),
        )  # fmt: skip
        heartbeat = Heartbeat(store_settings, owner, host, store.clock)
        margin_s = min(LEASE_MARGIN_S, settings.lease_s / 3)
        runtime = Runtime(
            store=store, clock=store.clock, suspend_after=settings.suspend_after, capacity=settings.capacity,
            owner=owner, client=client, serve=serve,
            may_act=lambda: heartbeat.remaining_s > margin_s,
            broker=_broker(urls, settings, owner, store), results=results, tracing=tracing,
        )  # fmt: skip
        if settings.secrets_dir is not None:
            runtime.worker.secrets.provider = FileSecrets(settings.secrets_dir)
        outside = None
        if urls.nats is not None:
            from compose.outside import attach_outside  # noqa: PLC0415 - as it needs NATS

            outside = attach_outside(runtime, urls.nats, settings, serve=serve)
        if serve:
            await stack.enter_async_context(heartbeat)
        tasks = await stack.enter_async_context(TaskScope())  # ends behind `Runtime.stop`
        await stack.enter_async_context(runtime)
        _keep(tasks, store, runtime, settings, serve=serve)
        if serve:
            await _until_connected(runtime, settings)
        if outside is not None:
            await outside.ready()
        yield runtime


def _keep(
    tasks: TaskScope, store: PostgresStore, runtime: Runtime, settings: Settings, *, serve: bool
) -> None:
    """Start what goes on beside the runtime."""
    if not serve:
        tasks.keep(store.keep_time, name="clock")
        return
    tasks.keep(Takeover(store.settings, runtime.claim).run, name="takeover")
    if settings.retain_days is not None:
        sweep = partial(sweep_for_ever, store, older_than_s=settings.retain_days * 86_400)
        tasks.keep(sweep, name="sweep")


@asynccontextmanager
async def _journal(url: str, store: PostgresStore) -> AsyncIterator[RedisJournal]:
    from persistence.redis import open_redis_journal  # noqa: PLC0415 - as it needs Redis

    async with open_redis_journal(url, namespace=await store.deployment()) as journal:
        yield journal


def _broker(
    urls: _Urls, settings: Settings, owner: HostIncarnation, store: PostgresStore
) -> Broker | None:
    if urls.nats is None:
        return None
    from broker import JetStreamTransport  # noqa: PLC0415 - as they need NATS
    from compose.nats_server import nats_server  # noqa: PLC0415

    transport = JetStreamTransport(
        nats_server(urls.nats, settings), namespace=settings.namespace, owner=owner,
        replicas=settings.nats_replicas,
    )  # fmt: skip
    return Broker(transport, store)


async def _until_connected(runtime: Runtime, settings: Settings) -> None:
    """Return when mail moves; the mail service says in the log why it does not.

    Raises:
        BrokerError: Not within `settings.start_wait_s`.
        ContractError: See `MailService.ready`.
    """
    if runtime.mail is None:
        return
    try:
        async with asyncio.timeout(settings.start_wait_s):
            await runtime.mail.ready()
    except TimeoutError:
        msg = f"no NATS server for {settings.start_wait_s:g} s; check CALLBOARD_NATS_URL"
        raise BrokerError(msg) from None
