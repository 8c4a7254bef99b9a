"""The servers of a folder: run by the first process that opens it, used by the others meanwhile."""

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
    """The URLs of a folder's servers; every URL holds its password."""

    postgres_url: str
    nats_url: str
    redis_url: str


class Opening:
    """Servers that are found, or start, at once and each in a thread of its own.

    They begin when this is made, so that their user can be loaded meanwhile. Leaving the block ends
    those that were started for it, in reverse order, also when another one failed or the caller did not wait.

    Args:
        wanted: The folder of each, and what starts the server there.
    """

    def __init__(self, wanted: Sequence[tuple[Path, Start]]) -> None:
        self._given_up = threading.Event()
        threads = ThreadPoolExecutor(len(wanted), "servers")
        self._under_way = [
            threads.submit(_open, folder, start, self._given_up) for folder, start in wanted
        ]
        threads.shutdown(wait=False)

    @classmethod
    def of_all(cls, path: Path) -> Self:
        """Begin to open the three servers of a folder; see `local_servers`."""
        # First of all, or a sub-folder's parents would be open to every user.
        path.mkdir(0o700, parents=True, exist_ok=True)
        nats, redis = path / "nats", path / "redis"
        return cls([(path, _postgres), (nats, embedded.start_nats), (redis, embedded.start_valkey)])

    async def urls(self) -> list[str]:
        """Return where all answer, in order, or raise the error of the first that fails."""
        done, _ = await asyncio.to_thread(wait, self._under_way, None, FIRST_EXCEPTION)
        return [one.result()[0] for one in self._under_way if one in done]

    async def servers(self) -> LocalServers:
        """Return where the three servers of a folder answer. See `urls`."""
        postgres, nats, redis = await self.urls()
        return LocalServers(postgres_url=postgres, nats_url=nats, redis_url=redis)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *raised: object) -> None:
        # A start cannot be broken off: let it end, so that its server can be stopped.
        self._given_up.set()
        await asyncio.to_thread(_close, self._under_way)


@asynccontextmanager
async def local_servers(path: Path) -> AsyncIterator[LocalServers]:
    """Yield the URLs of the folder's three durable servers; what does not run yet is started.

    PostgreSQL's data is in the folder itself, that of NATS in `nats/` and of Valkey in `redis/`.
    Each server belongs to the process that started it and ends with it; who opens the folder next
    starts it again. An error or a cancellation ends what was started for this call.

    Raises:
        EmbeddedServerMissingError: ``callboard[embedded]`` is not installed, or cannot run here.
        ServerFailedError: A server did not start.
    """
    async with Opening.of_all(path) as opening:
        yield await opening.servers()


@asynccontextmanager
async def local_postgres(path: Path) -> AsyncIterator[str]:
    """Yield the URL of the folder's PostgreSQL alone. See `local_servers`."""
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
        # Refused when another process was faster: then its server is the one that we want.
        with contextlib.suppress(embedded.DataDirInUseError):
            server = start(folder)
            return server.url, server
    return "", None


def _close(opened: Sequence[Future[tuple[str, embedded.EmbeddedServer | None]]]) -> None:
    """Wait for all, and close the servers that were started here."""
    for one in reversed(opened):
        server = one.result()[1] if one.exception() is None else None
        if server is not None:
            server.close()
