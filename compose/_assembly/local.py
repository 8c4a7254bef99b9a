"""The servers of a folder. The first process that opens the folder runs them, and other processes use them."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Self, TypeAlias

from compose import embedded

Start: TypeAlias = Callable[[Path], embedded.EmbeddedServer]


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalServers:
    """The URLs of a folder's servers, each with its password."""

    postgres_url: str
    nats_url: str
    redis_url: str


class Opening:
    """The opening of several servers at once: each is found or started in a thread of its own.

    The threads start in `__init__`, so that the caller can import modules meanwhile. At the end of the block
    the servers that were started for it are closed in reverse order, even if another server failed or the
    caller did not wait for the URLs.

    Args:
        wanted: Pairs of a folder and the function that starts its server.
    """

    def __init__(self, starts: Sequence[tuple[Path, Start]]) -> None:
        self._given_up = threading.Event()
        threads = ThreadPoolExecutor(len(starts), "servers")
        self._openings = [
            threads.submit(_open, folder, start, self._given_up) for folder, start in starts
        ]
        threads.shutdown(wait=False)

    @classmethod
    def of_all(cls, path: Path) -> Self:
        """Start to open the three servers of a folder. See `local_servers`."""
        embedded.check_data_dir(path)
        # The folder is created first. As a missing parent of a sub-folder it would be open to all users.
        path.mkdir(0o700, parents=True, exist_ok=True)
        nats, redis = path / "nats", path / "redis"
        return cls([(path, _postgres), (nats, embedded.start_nats), (redis, embedded.start_valkey)])

    async def urls(self) -> list[str]:
        """Return the URLs of all servers, in the order of `wanted`, or raise the error of the first failure."""
        done, _ = await asyncio.to_thread(wait, self._openings, None, FIRST_EXCEPTION)
        return [opening.result()[0] for opening in self._openings if opening in done]

    async def servers(self) -> LocalServers:
        """Return the URLs of the folder's three servers. See `urls`."""
        postgres, nats, redis = await self.urls()
        return LocalServers(postgres_url=postgres, nats_url=nats, redis_url=redis)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        # A start cannot be cancelled. Wait for its end, so that its server can be stopped.
        self._given_up.set()
        await asyncio.to_thread(_close, self._openings)


@asynccontextmanager
async def local_servers(path: Path) -> AsyncIterator[LocalServers]:
    """Yield the URLs of the folder's three durable servers. Servers that do not run are started.

    PostgreSQL's data is in the folder itself, that of NATS in `nats/` and that of Valkey in `redis/`.
    A server belongs to the process that started it, and ends with it. The next process that opens the folder
    starts it again. An error or a cancellation closes the servers that were started for this call.

    Raises:
        EmbeddedServerMissingError: ``callboard[embedded]`` is not installed, or cannot run here.
        ServerFailedError: A server did not start.
    """
    async with Opening.of_all(path) as opening:
        yield await opening.servers()


@asynccontextmanager
async def local_postgres(path: Path) -> AsyncIterator[str]:
    """Yield the URL of the folder's PostgreSQL, and start no other server. See `local_servers`."""
    async with Opening([(path, _postgres)]) as opening:
        [url] = await opening.urls()
        yield url


def _postgres(folder: Path) -> embedded.EmbeddedServer:
    return embedded.start_postgres(folder, durable=True)


def _open(
    folder: Path, start: Start, given_up: threading.Event
) -> tuple[str, embedded.EmbeddedServer | None]:
    """Return the URL of the folder's server, and the server itself if it was started here."""
    while not given_up.is_set():
        url = embedded.url_if_running(folder, given_up=given_up)
        if url is not None:
            return url, None
        # The error means that another process was faster. The next round finds its server.
        with contextlib.suppress(embedded.DataDirInUseError):
            server = start(folder)
            return server.url, server
    return "", None


def _close(openings: Sequence[Future[tuple[str, embedded.EmbeddedServer | None]]]) -> None:
    """Wait for all openings, and close the servers that were started here."""
    for opening in reversed(openings):
        server = opening.result()[1] if opening.exception() is None else None
        if server is not None:
            server.close()
