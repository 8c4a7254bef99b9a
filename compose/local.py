"""The servers of a folder: run by the first process that opens it, used by the others meanwhile."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from compose.embedded import (
    DataDirInUseError,
    EmbeddedServer,
    start_nats,
    start_postgres,
    start_valkey,
    url_if_running,
)

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterable
    from pathlib import Path

    Start = Callable[[Path], EmbeddedServer]


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalServers:
    """Where the servers of a folder answer; every URL holds its password."""

    postgres_url: str
    nats_url: str
    redis_url: str


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
    # First of all, or a sub-folder's parents would be made open to everybody.
    await asyncio.to_thread(path.mkdir, 0o700, parents=True, exist_ok=True)
    wanted = ((path, _postgres), (path / "nats", start_nats), (path / "redis", start_valkey))
    async with AsyncExitStack() as stack:
        postgres, nats, redis = await _open_all(stack, wanted)
        yield LocalServers(postgres_url=postgres, nats_url=nats, redis_url=redis)


@asynccontextmanager
async def local_postgres(path: Path) -> AsyncIterator[str]:
    """Yield the URL of the folder's PostgreSQL alone. See `local_servers`."""
    async with AsyncExitStack() as stack:
        (url,) = await _open_all(stack, [(path, _postgres)])
        yield url


def _postgres(folder: Path) -> EmbeddedServer:
    return start_postgres(folder, durable=True)


async def _open_all(stack: AsyncExitStack, wanted: Iterable[tuple[Path, Start]]) -> list[str]:
    """Return the servers' URLs, opened in parallel; the stack closes those that were started."""
    loop, given_up = asyncio.get_running_loop(), threading.Event()
    opening = [
        loop.run_in_executor(None, _open, folder, start, given_up) for folder, start in wanted
    ]
    try:
        await asyncio.wait(opening)
    except asyncio.CancelledError:
        # A start cannot be broken off: let it end, so that its server can be stopped.
        given_up.set()
        await asyncio.wait(opening)
        raise
    finally:
        for one in opening:
            server = one.result()[1] if one.done() and one.exception() is None else None
            if server is not None:
                stack.push_async_callback(asyncio.to_thread, server.close)
    return [one.result()[0] for one in opening]


def _open(
    folder: Path, start: Start, given_up: threading.Event
) -> tuple[str, EmbeddedServer | None]:
    """Return the URL of the folder's server, and the server itself if it was started here."""
    while not given_up.is_set():
        url = url_if_running(folder, given_up=given_up)
        if url is not None:
            return url, None
        # Refused when somebody else was faster: then it is their server that we want.
        with contextlib.suppress(DataDirInUseError):
            server = start(folder)
            return server.url, server
    return "", None
