"""`callboard migrate`: bring tables and streams up to date without starting a host."""

from __future__ import annotations

import asyncio
from typing import Final

from actors.errors import BrokerError, ContractError
from actors.kernel.runtime.ids import HostIncarnation
from actors.runtime.delivery.stream_guard import StreamRolledBackError, guard_stream
from compose.assembly.settings import Settings
from compose.commands.options import HERE, Flag, Target
from persistence.postgres import StoreSettings, open_store
from persistence.postgres.opening import bring_up_to_date
from persistence.schema_files import known_migrations

AGAIN_S: Final = 0.5
"""Pause in seconds between two attempts to connect to NATS."""


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
    async with target.server() as (url, settings):
        if streams and settings.nats_url is None:
            raise ContractError("--streams needs a NATS: set CALLBOARD_NATS_URL")
        store_settings = StoreSettings(
            url=url,
            owner=HostIncarnation("migrate"),
            schema=settings.db_schema,
            start_wait_s=settings.start_wait_s,
        )
        applied = await bring_up_to_date(store_settings, whole=True)
        if streams and settings.nats_url is not None:
            await _make_streams(settings.nats_url, store_settings, settings)
    newest = known_migrations()[-1].name
    text = f"schema {settings.db_schema!r}: applied {', '.join(applied)}"
    target.tell(
        {"schema": settings.db_schema, "applied": list(applied), "version": newest},
        text if applied else f"schema {settings.db_schema!r} is up to date ({newest})",
    )


async def _make_streams(nats_url: str, store_settings: StoreSettings, settings: Settings) -> None:
    # Imported here, because without `--streams` the command needs no client of the broker.
    from broker import JetStreamTransport, NotPermittedError  # noqa: PLC0415
    from compose.assembly.nats import nats_server  # noqa: PLC0415

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
                is_deleted = isinstance(exc, StreamRolledBackError) and not exc.problem
                is_final = isinstance(exc, (NotPermittedError, StreamRolledBackError))
                if not is_deleted and (is_final or loop.time() > deadline):
                    raise
                await asyncio.sleep(AGAIN_S)
            else:
                return
