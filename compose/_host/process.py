"""The host process, which serves agents until a signal stops it.

After SIGTERM or SIGINT the host starts no runs. Executing code ends or is dropped within `drain_s`. Then the
host releases its agents, so that another host can take them at once, and the exit code is 0. A second
signal ends the process at once. Each of these events is one log line. If `settings.http` names an
address, ``/readyz`` answers 503 from the signal on, before the host releases an agent.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
from collections.abc import AsyncIterator, Awaitable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING, Final, TypeVar

from actors._runtime.loop.clock import SystemClock
from actors.errors import ContractError
from compose._assembly.settings import Settings
from compose._host.collector import loading
from compose._host.loader import check_spec, find_served, serve_all

if TYPE_CHECKING:
    from compose._assembly.local import Opening
    from compose._host.metrics import HostProbes

_log = logging.getLogger("callboard.host")

T = TypeVar("T")
SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)
EXIT_SECOND_SIGNAL: Final = 130


async def run_host(settings: Settings, specs: Sequence[str]) -> None:
    """Serve the agents of `specs`, each ``MODULE:ATTR``, until SIGTERM or SIGINT.

    Raises:
        ServeError: One of the names does not lead to agents.
        ContractError: A server is missing or refuses the login, or the address of `settings.http` is taken.
    """
    # Before any server is started, so that a misspelt name fails at once.
    for spec in specs:
        check_spec(spec)
    stop = Stop()
    stop.listen()
    async with AsyncExitStack() as stack:
        opening = await stack.enter_async_context(opened(settings))
        with loading():  # while the servers start
            targets = {spec: find_served(spec) for spec in specs}
            from actors._runtime.runtime import host_of  # noqa: PLC0415
            from compose._assembly.runtime import build_as_set  # noqa: PLC0415

        facts = {"pid": os.getpid(), "machine": socket.gethostname(), "serves": " ".join(specs)}
        _log.info("host.starting", extra={**facts, "lease_s": settings.lease_s})
        probes = await stack.enter_async_context(probed(settings))
        building = build_as_set(settings, client="host", opening=opening)
        runtime = await stop.unless_stopped(stack.enter_async_context(building))
        if runtime is None:
            _log.info("host.stopped", extra={"pid": os.getpid(), "signal": stop.signal_name})
            return
        host = {"host": runtime.owner, "pid": os.getpid()}
        await serve_all(runtime, targets)
        worker = host_of(runtime).worker
        if probes is not None:
            probes.serving(runtime)
        _log.info("host.serving", extra={**host, "shards": len(worker.held.leases)})
        await stop.requested.wait()
        if probes is not None:
            probes.draining()
        extra = {**host, "signal": stop.signal_name, "in_memory": worker.dispatcher.load}
        _log.info("host.draining", extra={**extra, "drain_s": settings.drain_s})
        await runtime.stop(drain_s=settings.drain_s)
    _log.info("host.stopped", extra={**host, "signal": stop.signal_name})


@asynccontextmanager
async def opened(settings: Settings) -> AsyncIterator[Opening | None]:
    """Start to open the servers of the settings' folder, and yield the opening; None if there is a URL."""
    if settings.postgres_url is not None:
        yield None
        return
    from compose._assembly.local import Opening  # noqa: PLC0415 - most hosts run no servers

    assert settings.data_dir is not None
    async with Opening.of_all(settings.data_dir) as opening:
        yield opening


@asynccontextmanager
async def probed(settings: Settings) -> AsyncIterator[HostProbes | None]:
    """Yield the probes of the address for health and metrics, or None if the settings name no address."""
    if settings.http is None:
        yield None
        return
    # Imported here, because only hosts with an address need a web server.
    try:
        from compose._host.http import serve_http  # noqa: PLC0415
        from compose._host.metrics import HostProbes  # noqa: PLC0415
    except ModuleNotFoundError as exc:
        problem = f"--http needs {exc.name!r}, which is not installed"
        raise ContractError(f"{problem}: pip install 'callboard[host]'") from exc
    probes = HostProbes(SystemClock())
    async with serve_http(settings.http, probes):
        yield probes


class Stop:
    """The stop of this process, with the name of the signal that requested it."""

    def __init__(self) -> None:
        self.requested = asyncio.Event()
        self.signal_name = ""
        self._opening: asyncio.Timeout | None = None

    def listen(self) -> None:
        """Handle SIGTERM and SIGINT from now on."""
        loop = asyncio.get_running_loop()
        for number in SIGNALS:
            loop.add_signal_handler(number, self._on_signal, number)

    def _on_signal(self, number: signal.Signals) -> None:
        if self.requested.is_set():
            _log.warning("host.killed", extra={"pid": os.getpid(), "signal": number.name})
            os._exit(EXIT_SECOND_SIGNAL)
        self.signal_name = number.name
        self.requested.set()
        # The opening may wait for a server without a limit, and would not notice `requested`.
        if self._opening is not None:
            self._opening.reschedule(asyncio.get_running_loop().time())

    async def unless_stopped(self, opening: Awaitable[T]) -> T | None:
        """Await `opening` and return its result, or cancel it at a signal and return None."""
        try:
            async with asyncio.timeout(0 if self.requested.is_set() else None) as self._opening:
                return await opening
        except TimeoutError:
            if not self.requested.is_set():
                raise
            return None
        finally:
            self._opening = None
