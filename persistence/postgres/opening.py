"""Opening a store: wait for the server, migrate, connect; close all in reverse."""

from __future__ import annotations

import asyncio
import logging
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Final

from persistence.errors import (
    DRIVER_ERRORS,
    DatabaseUnreachableError,
    bad_url,
    check_url,
    is_lost,
    translate,
)
from persistence.migrate import migrate
from persistence.postgres.clock import PostgresClock, read_clock
from persistence.postgres.link import (
    FIRST_PAUSE_S,
    LONGEST_PAUSE_S,
    Link,
    Outage,
    address,
    connect,
    shut,
)
from persistence.postgres.settings import StoreSettings
from persistence.postgres.store import PostgresStore

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from actors.kernel.runtime.ids import HostIncarnation
    from persistence.postgres.link import Connection

_log = logging.getLogger(__name__)
SAY_EVERY_S: Final = 3.0


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
) -> AsyncIterator[PostgresStore]:
    """Yield a store whose schema is up to date.

    Args:
        url: ``postgresql://user:password@host:port/database``.
        owner: This life of this host.
        schema: Made when it is missing.
        lease_s: How long ownership lasts after a heartbeat.
        heartbeat_s: Seconds between heartbeats.
        outage_s: How long calls wait for a server that went away.
        start_wait_s: How long to wait for a server that is not there yet; None = for ever.

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
    async with open_store(settings) as store:
        yield store


@asynccontextmanager
async def open_store(settings: StoreSettings) -> AsyncIterator[PostgresStore]:
    """Like `open_postgres_store`, with all settings in one value."""
    connection = await wait_for_server(settings)
    try:
        await migrate(connection, settings.schema)
    except DRIVER_ERRORS as exc:
        raise bad_url(settings.url, exc) or translate(exc, "migrating") from exc
    finally:
        await shut(connection)
    store = PostgresStore(settings, await _clock(settings))
    async with store.running():
        yield store


async def _clock(settings: StoreSettings) -> PostgresClock:
    """Return the database's clock; a server that goes away meanwhile is waited for."""
    link = Link(settings, Outage(settings))
    try:
        return PostgresClock(await read_clock(link))
    finally:
        await link.close()


async def wait_for_server(settings: StoreSettings) -> Connection:
    """Return a connection once the server answers; say every three seconds that it does not.

    Raises:
        DatabaseUrlError: Waiting does not help.
        DatabaseUnreachableError: `start_wait_s` is over.
    """
    check_url(settings.url)
    loop = asyncio.get_running_loop()
    begun, said, pause_s = loop.time(), 0.0, FIRST_PAUSE_S
    while True:
        try:
            return await connect(settings)
        except (ValueError, *DRIVER_ERRORS) as exc:
            if (bad := bad_url(settings.url, exc)) is not None:
                raise bad from exc
            if not is_lost(exc):
                raise translate(exc, "connecting") from exc
            waited = loop.time() - begun
            limit = settings.start_wait_s
            if limit is not None and waited + pause_s > limit:
                raise DatabaseUnreachableError(address(settings), limit, str(exc)) from exc
            if waited >= said:
                said = waited + SAY_EVERY_S
                _log.warning(
                    "waiting for PostgreSQL",
                    extra={"server": address(settings), "problem": str(exc)},
                )
        await asyncio.sleep(pause_s)
        pause_s = min(pause_s * 2, LONGEST_PAUSE_S)
