"""The embedded PostgreSQL: owned, exclusive, killable, restartable."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from typing import TYPE_CHECKING

import asyncpg
import pytest

from compose.embedded import DataDirInUseError, postgres_url_if_running, start_postgres
from compose.embedded.server import is_alive
from tests.harness.servers import server_directory

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from compose.embedded import PostgresServer
    from tests.harness.servers import OwnPostgres

HOLDER = """
import sys, time
from pathlib import Path
from compose.embedded import start_postgres
server = start_postgres(Path(sys.argv[1]), durable=True)
print(server.url, server.pid, flush=True)
time.sleep(60)
"""


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


async def test_committed_rows_survive_a_killed_server(own_postgres: OwnPostgres) -> None:
    """After SIGKILL the same port answers again with every committed row."""
    server = own_postgres(durable=True)
    url, old_pid = server.url, server.pid
    await ask(server, "create table t as select generate_series(1, 100) n")
    server.kill()
    assert not is_alive(old_pid)
    server.start()

    assert server.url == url
    assert server.pid != old_pid
    assert await ask(server, "select count(*) from t") == 100


async def test_a_restart_keeps_the_port(own_postgres: OwnPostgres) -> None:
    """Clients can reconnect to the URL they have."""
    server = own_postgres()
    url = server.url
    server.restart()

    assert server.url == url
    assert await ask(server, "select 1") == 1


async def test_settings_win_over_ours(own_postgres: OwnPostgres) -> None:
    """A setting given by the caller is in force, and so is what it did not mention."""
    server = own_postgres(settings={"max_connections": "17", "fsync": "on"})

    assert await ask(server, "show max_connections") == "17"
    assert await ask(server, "show fsync") == "on"
    assert await ask(server, "show synchronous_commit") == "off"


async def test_the_password_is_required(own_postgres: OwnPostgres) -> None:
    """Other users of the machine do not get in without the URL."""
    server = own_postgres()

    with pytest.raises(asyncpg.InvalidPasswordError):
        await asyncpg.connect(f"postgresql://postgres:guess@127.0.0.1:{server.port}/postgres")


def test_one_process_cannot_open_a_directory_twice(own_postgres: OwnPostgres) -> None:
    """The second opening names the process, which is this one."""
    server = own_postgres()

    with pytest.raises(DataDirInUseError, match=f"process {os.getpid()}:") as refused:
        start_postgres(server.log.parent, durable=False)
    assert refused.value.pid == os.getpid()


def test_a_closed_directory_can_be_opened_again(directory: Path) -> None:
    """Closing gives the directory back, and its content stays."""
    with start_postgres(directory, durable=False) as server:
        first = server.url
        assert postgres_url_if_running(directory) == first
    assert postgres_url_if_running(directory) is None
    with start_postgres(directory, durable=False) as server:
        assert server.url.partition("@")[0] == first.partition("@")[0]


def test_a_second_process_is_told_who_holds_the_directory(directory: Path) -> None:
    """It gets the holder's pid in the error, or the URL of the holder's server."""
    with subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(directory)], stdout=subprocess.PIPE, text=True
    ) as holder:
        assert holder.stdout is not None
        url, _ = holder.stdout.readline().split()
        with pytest.raises(DataDirInUseError) as refused:
            start_postgres(directory, durable=True)

        assert refused.value.pid == holder.pid
        assert postgres_url_if_running(directory) == url
        holder.terminate()


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel's parent-death signal is Linux's")
def test_a_server_ends_with_its_killed_owner(directory: Path) -> None:
    """After kill -9 of the owner the server shuts down, and the directory is free at once."""
    with subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(directory)], stdout=subprocess.PIPE, text=True
    ) as holder:
        assert holder.stdout is not None
        pid = int(holder.stdout.readline().split()[1])
        holder.send_signal(signal.SIGKILL)
    # Starting waits until the old server is really gone.
    with start_postgres(directory, durable=True) as server:
        assert not is_alive(pid)
        assert server.is_running


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
    assert time.monotonic() - started < 10
