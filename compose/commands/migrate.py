"""`callboard migrate`: bring the tables up to date without starting anything."""

from __future__ import annotations

from typing import TYPE_CHECKING

from actors.kernel.runtime.ids import HostIncarnation
from compose.commands.output import print_json, say
from compose.commands.target import HERE, Target
from persistence.migrate import known_migrations
from persistence.migrate import migrate as apply_migrations
from persistence.postgres import StoreSettings
from persistence.postgres.opening import wait_for_server

if TYPE_CHECKING:
    from actors.kernel.json import JsonValue


async def migrate(*, target: Target = HERE) -> None:
    """Create the tables, or bring them up to date. Safe at any time and by any number at once.

    Hosts and clients do it by themselves when they start; this is for deployments whose hosts may
    not change the schema.

    Example: `callboard migrate --postgres-url postgresql://owner:secret@db/shop`
    """
    async with target.server() as (url, settings):
        store_settings = StoreSettings(
            url=url, owner=HostIncarnation("migrate"), schema=settings.db_schema,
            start_wait_s=settings.start_wait_s,
        )  # fmt: skip
        connection = await wait_for_server(store_settings)
        try:
            applied = await apply_migrations(connection, settings.db_schema)
        finally:
            await connection.close(timeout=2)
    newest = known_migrations()[-1].name
    if target.json:
        done: list[JsonValue] = list(applied)
        print_json({"schema": settings.db_schema, "applied": done, "version": newest})
    elif applied:
        say(f"schema {settings.db_schema!r}: applied {', '.join(applied)}")
    else:
        say(f"schema {settings.db_schema!r} is up to date ({newest})")
