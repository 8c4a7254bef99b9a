"""Numbered SQL files, applied once each, in order, by whoever comes first."""

from __future__ import annotations

import hashlib
import logging
from dataclasses import dataclass
from importlib import resources
from typing import TYPE_CHECKING, Final, LiteralString, TypeAlias

from persistence.errors import MigrationError

if TYPE_CHECKING:
    from collections.abc import Sequence

    import asyncpg

    Connection: TypeAlias = asyncpg.Connection[asyncpg.Record]

_log = logging.getLogger(__name__)

SQL_LOCK: Final[LiteralString] = (
    "select pg_advisory_lock"
    "(hashtext('callboard migrations'), hashtext(current_setting('search_path')))"
)
SQL_UNLOCK: Final[LiteralString] = (
    "select pg_advisory_unlock"
    "(hashtext('callboard migrations'), hashtext(current_setting('search_path')))"
)
SQL_HAS_SCHEMA: Final[LiteralString] = (
    "select exists (select 1 from pg_namespace where nspname = $1)"
)
SQL_CREATE_TABLE: Final[LiteralString] = """
create table if not exists schema_migrations (
  version int primary key, name text not null, checksum text not null,
  applied_at timestamptz not null default clock_timestamp())
"""
SQL_SELECT_APPLIED: Final[LiteralString] = "select version, name, checksum from schema_migrations"
SQL_INSERT_APPLIED: Final[LiteralString] = (
    "insert into schema_migrations (version, name, checksum) values ($1, $2, $3)"
)


@dataclass(frozen=True, slots=True)
class Migration:
    """One file: its number, name and text."""

    version: int
    name: str
    sql: str

    @property
    def checksum(self) -> str:
        """SHA-256 of the text, whatever the line ends of the checkout."""
        return hashlib.sha256(self.sql.replace("\r\n", "\n").encode()).hexdigest()


def known_migrations() -> list[Migration]:
    """Return the files of this release, in order.

    Raises:
        MigrationError: Two files have one number, or a number is missing.
    """
    folder = resources.files("persistence.postgres").joinpath("migrations")
    found = sorted(
        (
            Migration(int(file.name[:4]), file.name.removesuffix(".sql"), file.read_text("utf-8"))
            for file in folder.iterdir()
            if file.name.endswith(".sql")
        ),
        key=lambda migration: migration.version,
    )
    for number, migration in enumerate(found, 1):
        if migration.version != number:
            raise MigrationError("", migration.name, f"expected number {number:04}")
    return found


async def migrate(
    connection: Connection, schema: str, migrations: Sequence[Migration] | None = None
) -> list[str]:
    """Bring the schema up to date and return the names of what was applied now.

    Safe with any number of runners at once (an advisory lock); each file is one transaction, so a
    crash leaves whole files. Migrations of a newer release are left alone.

    Args:
        connection: Its `search_path` is the schema and nothing else.
        schema: Created when it is missing.
        migrations: In order; those of this release when left out.

    Raises:
        MigrationError: An applied file differs from this release's.
    """
    steps = known_migrations() if migrations is None else migrations
    await connection.execute(SQL_LOCK)
    try:
        if not await connection.fetchval(SQL_HAS_SCHEMA, schema):
            quoted = schema.replace('"', '""')
            await connection.execute(f'create schema "{quoted}"')
        await connection.execute(SQL_CREATE_TABLE)
        applied = {row["version"]: row for row in await connection.fetch(SQL_SELECT_APPLIED)}
        done: list[str] = []
        for step in steps:
            if (row := applied.get(step.version)) is None:
                await _apply(connection, step)
                done.append(step.name)
            elif row["checksum"] != step.checksum:
                raise MigrationError(
                    schema,
                    row["name"],
                    "its file was changed after it was applied; restore the file and put the "
                    "change into a new one, or use another schema",
                )
    finally:
        if not connection.is_closed():
            await connection.execute(SQL_UNLOCK)
    if done:
        _log.info("schema migrated", extra={"schema": schema, "applied": done})
    return done


async def _apply(connection: Connection, step: Migration) -> None:
    async with connection.transaction():
        await connection.execute(step.sql)
        await connection.execute(SQL_INSERT_APPLIED, step.version, step.name, step.checksum)
