"""The host process: serves agents until it is told to stop.

SIGTERM or SIGINT: nothing new is started, running code ends or is dropped within `drain_s`, the
agents are given up so that another host has them at once, and the process ends with 0. A second
signal ends it at once. Each of these is one log line. Where `settings.http` names an address,
``/readyz`` there says 503 from the signal on, before anything is given up.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
from contextlib import AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING, Final, Protocol, TypeVar

from actors.errors import ContractError
from actors.runtime.clock import SystemClock
from compose.runtime import build_local_runtime, build_postgres_runtime, build_runtime
from compose.serving import find_served, serve_all

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Sequence
    from contextlib import AbstractAsyncContextManager

    from actors.runtime import Runtime
    from compose.settings import Settings

_log = logging.getLogger("callboard.host")

T = TypeVar("T")
SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)
EXIT_SECOND_SIGNAL: Final = 130


async def run_host(settings: Settings, specs: Sequence[str]) -> None:
    """Serve what ``MODULE:ATTR`` names until SIGTERM or SIGINT.

    Raises:
        ServeError: One of the names does not lead to agents.
        ContractError: There is no server to use, it refuses us, or `settings.http` is taken.
    """
    stop = Stop()
    stop.listen()
    found = {spec: find_served(spec) for spec in specs}
    facts = {"pid": os.getpid(), "machine": socket.gethostname(), "serves": " ".join(specs)}
    _log.info("host.starting", extra={**facts, "lease_s": settings.lease_s})
    async with AsyncExitStack() as stack:
        watcher = await stack.enter_async_context(_watched(settings))
        building = _runtime(settings)
        runtime = await stop.unless_told(stack.enter_async_context(building))
        if runtime is None:
            _log.info("host.stopped", extra={"pid": os.getpid(), "signal": stop.signal_name})
            return
        host = {"host": runtime.owner, "pid": os.getpid()}
        await serve_all(runtime, found)
        watcher.serving(runtime)
        _log.info("host.serving", extra={**host, "shards": len(runtime.worker.shards)})
        await stop.told.wait()
        watcher.draining()
        extra = {**host, "signal": stop.signal_name, "in_memory": runtime.worker.load}
        _log.info("host.draining", extra={**extra, "drain_s": settings.drain_s})
        await runtime.stop(drain_s=settings.drain_s)
    _log.info("host.stopped", extra={**host, "signal": stop.signal_name})


class Watcher(Protocol):
    """Told how far the life of a host is."""

    def serving(self, runtime: Runtime) -> None:
        """The host has its agents."""
        ...

    def draining(self) -> None:
        """The host was told to stop, and gives up its agents next."""
        ...


class _Nobody:
    def serving(self, runtime: Runtime) -> None:
        """See `Watcher.serving`."""

    def draining(self) -> None:
        """See `Watcher.draining`."""


@asynccontextmanager
async def _watched(settings: Settings) -> AsyncIterator[Watcher]:
    """Yield who is told of the host's life: with an address for health and metrics, what is asked there."""
    if settings.http is None:
        yield _Nobody()
        return
    # Imported here: a web server is needed by those hosts only that have an address.
    try:
        from compose.http import serve_http  # noqa: PLC0415
        from compose.metrics import HostProbes  # noqa: PLC0415
    except ModuleNotFoundError as exc:
        problem = f"--http needs {exc.name!r}, which is not installed"
        raise ContractError(f"{problem}: pip install 'callboard[host]'") from exc
    probes = HostProbes(SystemClock())
    async with serve_http(settings.http, probes):
        yield probes


def _runtime(settings: Settings) -> AbstractAsyncContextManager[Runtime]:
    if settings.postgres_url is not None and settings.nats_url is not None:
        return build_runtime(
            settings.nats_url, settings.postgres_url, settings.redis_url,
            settings=settings, client="host",
        )  # fmt: skip
    if settings.postgres_url is not None:
        return build_postgres_runtime(
            settings.postgres_url, settings.redis_url, settings=settings, client="host"
        )
    assert settings.data_dir is not None
    return build_local_runtime(settings.data_dir, settings=settings, client="host")


class Stop:
    """Whether this process was told to stop, and by which signal."""

    def __init__(self) -> None:
        self.told = asyncio.Event()
        self.signal_name = ""
        self._opening: asyncio.Timeout | None = None

    def listen(self) -> None:
        """Hear SIGTERM and SIGINT from now on."""
        loop = asyncio.get_running_loop()
        for number in SIGNALS:
            loop.add_signal_handler(number, self._tell, number)

    def _tell(self, number: signal.Signals) -> None:
        if self.told.is_set():
            _log.warning("host.killed", extra={"pid": os.getpid(), "signal": number.name})
            os._exit(EXIT_SECOND_SIGNAL)
        self.signal_name = number.name
        self.told.set()
        if self._opening is not None:
            self._opening.reschedule(asyncio.get_running_loop().time())

    async def unless_told(self, opening: Awaitable[T]) -> T | None:
        """Return what `opening` gives, or None after it was broken off by a signal."""
        try:
            async with asyncio.timeout(0 if self.told.is_set() else None) as self._opening:
                return await opening
        except TimeoutError:
            if not self.told.is_set():
                raise
            return None
        finally:
            self._opening = None
