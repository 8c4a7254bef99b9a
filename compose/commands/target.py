"""Which installation a command talks to, and how it prints."""

from __future__ import annotations

from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from actors.errors import ContractError
from compose.commands.exits import NoDataError as NoDataError  # noqa: PLC0414 - others raise it too
from compose.settings import read_settings

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from actors.runtime import Runtime
    from compose.settings import Settings

CLIENT_WAIT_S = 5.0
NO_TARGET = (
    "no database was named: give --postgres-url URL or --data DIR, or set CALLBOARD_POSTGRES_URL"
)


@Parameter(name="*")
@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """Options that every command has.

    Attributes:
        postgres_url: postgresql://user:password@host:port/database. [env: CALLBOARD_POSTGRES_URL]
        data: Folder of an embedded PostgreSQL, instead of a URL. [env: CALLBOARD_DATA_DIR]
        schema: Schema that holds the tables. [env: CALLBOARD_SCHEMA]
        json: Print JSON for programs instead of tables for people.
        debug: Show the traceback of an error, and every log line.
    """

    postgres_url: str | None = None
    data: Path | None = None
    schema: str | None = None
    json: Annotated[bool, Parameter(negative="")] = False
    debug: Annotated[bool, Parameter(negative="")] = False

    def settings(self, **given: object) -> Settings:
        """Return the settings with one place to connect to; options win over the environment.

        Raises:
            ContractError: No place, two places, or a value that is not allowed.
        """
        if self.postgres_url is not None and self.data is not None:
            raise ContractError("--postgres-url and --data name two databases: give one of them")
        settings = read_settings(
            postgres_url=self.postgres_url, data_dir=self.data, db_schema=self.schema, **given
        )
        if self.data is not None:
            settings = settings.model_copy(update={"postgres_url": None})
        if settings.postgres_url is None and settings.data_dir is None:
            raise ContractError(NO_TARGET)
        return settings

    def client_settings(self) -> Settings:
        """Return the settings of a short-lived client: it waits 5 seconds for a server, not longer.

        Raises:
            NoDataError: `--data` names a folder without data.
        """
        settings = self.settings()
        if settings.start_wait_s is None:
            settings = settings.model_copy(update={"start_wait_s": CLIENT_WAIT_S})
        folder = settings.data_dir
        if settings.postgres_url is None and folder is not None and not _holds_data(folder):
            remedy = f"start a host with `callboard host … --data {folder}` first"
            raise NoDataError(f"{folder} holds no Callboard data: {remedy}")
        return settings

    @asynccontextmanager
    async def client(self, *, client: str = "cli") -> AsyncIterator[Runtime]:
        """Yield a runtime that submits and reads, and executes nothing."""
        # Drivers are loaded when there is somebody to connect to: not for help, nor for a mistyped option.
        from compose.runtime import build_local_runtime, build_postgres_runtime  # noqa: PLC0415

        settings = self.client_settings()
        if settings.postgres_url is not None:
            building = build_postgres_runtime(
                settings.postgres_url, settings=settings, client=client, serve=False
            )
        else:
            assert settings.data_dir is not None
            building = build_local_runtime(
                settings.data_dir, settings=settings, client=client, serve=False
            )
        async with building as runtime:
            yield runtime

    @asynccontextmanager
    async def server(self) -> AsyncIterator[tuple[str, Settings]]:
        """Yield the URL of the server and the settings, for commands below the runtime."""
        settings = self.client_settings()
        if settings.postgres_url is not None:
            yield settings.postgres_url, settings
            return
        assert settings.data_dir is not None
        from compose.local import local_postgres  # noqa: PLC0415 - as above

        async with local_postgres(settings.data_dir) as url:
            yield url, settings


def _holds_data(folder: Path) -> bool:
    from compose.embedded import postgres_url_if_running  # noqa: PLC0415 - as above

    return (folder / "pgdata").exists() or postgres_url_if_running(folder) is not None


HERE = Target()
"""The default of every command's `target`."""
