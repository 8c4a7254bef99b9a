"""The embedded PostgreSQL: its settings, who it runs as, and a broken cluster."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from typing import TYPE_CHECKING

import asyncpg
import pytest

from compose.embedded import start_postgres
from tests.harness.servers import server_directory
from tests.harness.slow import BUSY_S

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from compose.embedded import PostgresServer
    from tests.harness.servers import OwnPostgres


@pytest.fixture
def directory() -> Iterator[Path]:
    """A directory for one server."""
    with server_directory() as path:
        yield path


async def ask(server: PostgresServer, statement: str) -> object:
    """The first value of the statement's answer."""
    connection = await asyncpg.connect(server.url)
    try:
        return await connection.fetchval(statement)
    finally:
        await connection.close()


async def test_settings_win_over_ours(own_postgres: OwnPostgres) -> None:
    """A setting given by the caller is in force, and so is what it did not mention."""
    server = own_postgres(settings={"max_connections": "17", "fsync": "on"})

    assert await ask(server, "show max_connections") == "17"
    assert await ask(server, "show fsync") == "on"
    assert await ask(server, "show synchronous_commit") == "off"


@pytest.mark.skipif(
    sys.platform != "linux" or os.geteuid() != 0, reason="only root has to become somebody else"
)
def test_root_without_user_namespaces_drops_to_another_user(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where namespaces are forbidden the server runs as another user and works all the same."""
    monkeypatch.setenv("CALLBOARD_NO_USERNS", "1")
    with start_postgres(directory, durable=False) as server:
        assert (directory / "pgdata").stat().st_uid != 0
        assert server.is_running
    monkeypatch.delenv("CALLBOARD_NO_USERNS")
    with start_postgres(directory, durable=False) as server:
        assert server.is_running


def test_a_broken_cluster_is_reported_with_the_servers_words(directory: Path) -> None:
    """The error carries the tail of the server's log."""
    with start_postgres(directory, durable=False):
        pass
    (directory / "pgdata" / "PG_VERSION").write_text("12\n")
    started = time.monotonic()

    with pytest.raises(Exception, match="version 12"):
        start_postgres(directory, durable=False)
    assert time.monotonic() - started < 10 + BUSY_S


@pytest.mark.skipif(sys.platform != "linux", reason="it needs /proc")
def test_a_pid_of_another_program_in_the_pid_file_is_no_server(directory: Path) -> None:
    """After the restart of a container the pid of a killed server may be any program's."""
    with start_postgres(directory, durable=False):
        pass
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as program:
        stale = f"{program.pid}\n{directory}/pgdata\n1\n5432\n\n127.0.0.1\n\nready   \n"
        (directory / "pgdata" / "postmaster.pid").write_text(stale)

        with start_postgres(directory, durable=False) as server:
            assert server.is_running
        program.communicate(b"\n")
