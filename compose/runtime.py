"""Runtimes put together: on a PostgreSQL of yours, or on an embedded one in a folder.

Every builder yields a started `Runtime`, and closes what it opened in reverse order, also after an
error or a cancellation. Nothing has to be set up before: tables are made when they are not there.
"""

from __future__ import annotations

import asyncio
import contextlib
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

from actors.errors import ActorsError
from actors.kernel.runtime.ids import HostIncarnation
from actors.runtime import Runtime
from actors.runtime.clock import SystemEntropy
from actors.runtime.tasks import TaskScope
from compose.embedded import (
    DataDirInUseError,
    PostgresServer,
    postgres_url_if_running,
    start_postgres,
)
from compose.settings import Settings, read_settings
from persistence.postgres import Heartbeat, StoreSettings, Takeover, open_store

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from actors.kernel.runtime.commit import HostReport

LEASE_MARGIN_S: Final = 2.0
"""So long before the end of a lease that was not renewed a host begins no effect any more."""


@asynccontextmanager
async def build_postgres_runtime(
    postgres_url: str,
    *,
    settings: Settings | None = None,
    client: str = "local",
    serve: bool = True,
) -> AsyncIterator[Runtime]:
    """Yield a started runtime on a PostgreSQL server.

    A server that is not there is waited for, and the log says so every few seconds. Tables are made
    or brought up to date. The host's lease is renewed by a thread of its own.

    Args:
        postgres_url: ``postgresql://user:password@host:port/database``.
        settings: Lease, capacity and so on; those of the environment when left out.
        client: Who submits here; order and dedup are per client and agent.
        serve: False makes a client: it submits, asks and reads, and executes nothing.

    Raises:
        DatabaseUrlError: The server refuses the user or the database, or the URL is not one.
        DatabaseUnreachableError: No server within `settings.start_wait_s`.
        MigrationError: The tables were made by files of another release that were changed.
    """
    chosen = settings or read_settings()
    owner = HostIncarnation(SystemEntropy().token())
    store_settings = StoreSettings(
        url=postgres_url, owner=owner, schema=chosen.db_schema, lease_s=chosen.lease_s,
        heartbeat_s=chosen.beat_s, outage_s=chosen.outage_s, start_wait_s=chosen.start_wait_s,
    )  # fmt: skip
    async with AsyncExitStack() as stack:
        store = await stack.enter_async_context(open_store(store_settings))

        def heard(report: HostReport) -> None:
            store.heard(owner, report)
            runtime.on_report(report)

        heartbeat = Heartbeat(
            store_settings, owner, known=lambda: runtime.worker.shards, on_report=heard
        )
        margin_s = min(LEASE_MARGIN_S, chosen.lease_s / 3)
        runtime = Runtime(
            store=store, suspend_after=chosen.suspend_after, capacity=chosen.capacity,
            owner=owner, client=client, serve=serve,
            may_act=lambda: heartbeat.remaining_s > margin_s,
        )  # fmt: skip
        if serve:
            await stack.enter_async_context(heartbeat)
        await stack.enter_async_context(runtime)
        if serve:
            tasks = await stack.enter_async_context(TaskScope())
            tasks.start(Takeover(store_settings, runtime.claim).run(), name="takeover")
        yield runtime


@asynccontextmanager
async def build_local_runtime(
    path: Path | str,
    *,
    settings: Settings | None = None,
    client: str = "local",
    serve: bool = True,
) -> AsyncIterator[Runtime]:
    """Yield a started runtime on a durable PostgreSQL inside the folder `path`; nothing to install.

    The first process that opens the folder runs the server and takes it along when it ends; others
    that open the folder meanwhile use that server. See `build_postgres_runtime`.

    Raises:
        EmbeddedServerMissingError: ``callboard[embedded]`` is not installed, or cannot run here.
        ServerFailedError: The server did not start.
    """
    async with (
        local_postgres(Path(path)) as url,
        build_postgres_runtime(url, settings=settings, client=client, serve=serve) as runtime,
    ):
        yield runtime


@asynccontextmanager
async def local_postgres(path: Path) -> AsyncIterator[str]:
    """Yield the URL of the folder's server: another process's, or one that runs while we do."""
    server: PostgresServer | None = None
    while server is None:
        url = await asyncio.to_thread(postgres_url_if_running, path)
        if url is not None:
            yield url
            return
        # Refused when somebody else was faster: then it is their server that we want.
        with contextlib.suppress(DataDirInUseError):
            server = await _start(path)
    try:
        yield server.url
    finally:
        await asyncio.to_thread(server.close)


async def _start(path: Path) -> PostgresServer:
    loop = asyncio.get_running_loop()
    starting = loop.run_in_executor(None, lambda: start_postgres(path, durable=True))
    try:
        return await asyncio.shield(starting)
    except asyncio.CancelledError:
        # A start cannot be broken off: let it end, so that its server can be stopped.
        with contextlib.suppress(ActorsError):
            await asyncio.to_thread((await starting).close)
        raise
