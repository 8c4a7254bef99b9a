"""`callboard migrate`: bring tables and streams up to date without starting anything."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from actors.errors import ContractError
from actors.kernel.runtime.ids import HostIncarnation
from compose.commands.output import print_json, say
from compose.commands.target import HERE, Target
from persistence.migrate import known_migrations
from persistence.migrate import migrate as apply_migrations
from persistence.postgres import StoreSettings, open_store
from persistence.postgres.opening import wait_for_server

if TYPE_CHECKING:
    from actors.kernel.json import JsonValue
    from compose.settings import Settings


async def migrate(
    *, streams: Annotated[bool, Parameter(negative="")] = False, target: Target = HERE
) -> None:
    """Create the tables, or bring them up to date. Safe at any time and by any number at once.

    Hosts and clients do it by themselves when they start; this is for deployments whose hosts may
    not change the schema, or not make streams.

    Examples: `callboard migrate --postgres-url postgresql://owner:secret@db/shop`;
    `CALLBOARD_NATS_URL=nats://admin:secret@nats callboard migrate --streams`

    Parameters
    ----------
    streams
        Also make the streams, in the NATS that CALLBOARD_NATS_URL names.
    """
    async with target.server() as (url, settings):
        if streams and settings.nats_url is None:
            raise ContractError("--streams needs a NATS: set CALLBOARD_NATS_URL")
        store_settings = StoreSettings(
            url=url, owner=HostIncarnation("migrate"), schema=settings.db_schema,
            start_wait_s=settings.start_wait_s,
        )  # fmt: skip
        connection = await wait_for_server(store_settings)
        try:
            applied = await apply_migrations(connection, settings.db_schema)
        finally:
            await connection.close(timeout=2)
        if streams and settings.nats_url is not None:
            await _make_streams(settings.nats_url, store_settings, settings)
    newest = known_migrations()[-1].name
    if target.json:
        done: list[JsonValue] = list(applied)
        print_json({"schema": settings.db_schema, "applied": done, "version": newest})
    elif applied:
        say(f"schema {settings.db_schema!r}: applied {', '.join(applied)}")
    else:
        say(f"schema {settings.db_schema!r} is up to date ({newest})")


async def _make_streams(nats_url: str, store_settings: StoreSettings, settings: Settings) -> None:
    # Imported here: who only brings tables up to date needs no broker's client.
    from broker import JetStreamTransport  # noqa: PLC0415
    from compose.nats_server import nats_server  # noqa: PLC0415

    async with open_store(store_settings) as store:
        deployment = await store.deployment()
    transport = JetStreamTransport(
        nats_server(nats_url, settings), namespace=settings.namespace,
        replicas=settings.nats_replicas,
    )  # fmt: skip
    async with transport.connect(deployment=deployment, on_nudge=lambda _: None):
        pass  # connecting has made them
