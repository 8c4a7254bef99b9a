"""The host's HTTP address for liveness, readiness and metrics.

The event loop that executes agents answers, so that a probe detects a blocked loop. Answers never have agents'
ids, payloads or keys.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any, Final, Protocol, TypeAlias

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp
from typing_extensions import override
from uvicorn.protocols.http.h11_impl import H11Protocol

from actors._runtime.loop.tasks import TaskScope
from actors.errors import ContractError, Facts

_log = logging.getLogger("callboard.host")

BACKLOG: Final = 64
STOP_LIMIT_S: Final = 2
"""Seconds that started answers have when the host ends."""
MAX_REQUESTS: Final = 32
"""Limit of concurrent requests for readiness and metrics. Others get 503. ``/healthz`` has no limit."""
MAX_CONNECTIONS: Final = 256
"""Limit of connections. A further connection closes the oldest, so that idle ones do not block requests."""
QUIET_LIMIT_S: Final = 5.0
"""Seconds after which a connection without a new complete request is closed, even during an answer."""


class Probes(Protocol):
    """The facts that the HTTP address shows."""

    @property
    def phase(self) -> str:
        """Return ``starting``, ``serving`` or ``draining``."""

    async def reasons(self) -> list[dict[str, str]]:
        """Return the reasons why the host is not ready, each with `check` and `problem`. Ready: empty."""

    async def metrics(self) -> tuple[bytes, str]:
        """Return the metrics and their media type."""


class AddressError(Facts, ContractError):
    """The process cannot listen at an address."""

    text = "{option} {address}: {problem}; {remedy}"
    address: str
    problem: str
    remedy: str
    option: str = "--http"


def parse_address(text: str, option: str = "--http") -> tuple[str, int]:
    """Return host and port of ``HOST:PORT``, ``[IPV6]:PORT`` or ``:PORT``. Port 0 means a free port.

    Raises:
        AddressError: The text is not an address.
    """
    host, colon, port = text.rpartition(":")
    if not (colon and port.isascii() and port.isdigit() and int(port) < 2**16):
        remedy = "write it HOST:PORT, for example 127.0.0.1:8080"
        raise AddressError(text, "it is not an address", remedy, option)
    return host.removeprefix("[").removesuffix("]"), int(port)


@asynccontextmanager
async def serve_http(address: str, probes: Probes) -> AsyncIterator[str]:
    """Answer ``/healthz``, ``/readyz`` and ``/metrics`` at an address. Yield the URL with the actual port.

    Raises:
        AddressError: The text is not an address, or another process uses it.
    """
    server_socket = listen(address)
    url = url_of(server_socket)
    server = run_server(
        server_socket,
        _application(probes),
        name="http",
        stop_limit_s=STOP_LIMIT_S,
        http=_Connection,
        backlog=BACKLOG,
    )
    async with server:
        _log.info("host.http", extra={"url": url})
        yield url


@asynccontextmanager
async def run_server(
    server_socket: socket.socket,
    application: ASGIApp,
    *,
    name: str,
    stop_limit_s: int,
    **options: Any,
) -> AsyncIterator[None]:
    """Serve an application at a socket, on the loop of the process, until the end of the block.

    Args:
        server_socket: The socket.
        application: The application.
        name: Name of the task.
        stop_limit_s: Seconds that started answers have at the end.
        **options: Options of `uvicorn.Config`.
    """
    config = uvicorn.Config(
        application,
        log_config=None,
        log_level="warning",
        access_log=False,
        lifespan="off",
        timeout_graceful_shutdown=stop_limit_s,
        ws="none",
        server_header=False,
        **options,
    )
    server = HttpServer(config)
    async with TaskScope() as tasks:
        tasks.start(server.serve(sockets=[server_socket]), name=name)
        try:
            yield
        finally:
            server.should_exit = True
            # The server drops answers after `stop_limit_s` itself. After twice that time its task is
            # cancelled.
            await tasks.settle(limit_s=2 * stop_limit_s)


class HttpServer(uvicorn.Server):
    """A server that leaves signals to the host, because the address must answer while the host drains."""

    @override
    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


class _Connection(H11Protocol):
    """A connection that closes itself without a request, for which uvicorn would wait for ever."""

    @override
    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.made_at = self.loop.time()
        self._next_check = self.loop.call_later(QUIET_LIMIT_S, self._check_progress, self.cycle)
        if len(self.connections) > MAX_CONNECTIONS:
            connections = (
                connection for connection in self.connections if isinstance(connection, _Connection)
            )
            min(connections, key=lambda connection: connection.made_at).transport.abort()

    def _check_progress(self, last_cycle: Any) -> None:
        """Close the connection if no new request has arrived since the last check."""
        if self.cycle is last_cycle:
            self.transport.abort()
        else:
            self._next_check = self.loop.call_later(QUIET_LIMIT_S, self._check_progress, self.cycle)

    @override
    def connection_lost(self, exc: Exception | None) -> None:
        self._next_check.cancel()
        super().connection_lost(exc)


def listen(address: str, option: str = "--http") -> socket.socket:
    """Return a socket that listens at an address.

    Raises:
        AddressError: The text is not an address, or another process uses it.
    """
    host, port = parse_address(address, option)
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # With IPPROTO_TCP asyncio sets TCP_NODELAY. Without it a piece of a stream waits 40 ms.
    server_socket = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        server_socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        server_socket.bind((host, port))
        server_socket.listen(
            BACKLOG
        )  # so that a client can connect as soon as it knows the address
    except OSError as exc:
        server_socket.close()
        problem = exc.strerror or str(exc)
        remedy = "choose another port, or 0 for a free one"
        raise AddressError(address, problem, remedy, option) from exc
    return server_socket


def url_of(server_socket: socket.socket) -> str:
    """Return the URL of a socket that listens."""
    host, port = server_socket.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def _application(probes: Probes) -> Starlette:
    async def healthz(_: Request) -> Response:
        return JSONResponse({"status": "alive", "phase": probes.phase})

    async def readyz(_: Request) -> Response:
        reasons = await probes.reasons()
        body = {"ready": not reasons, "phase": probes.phase, "reasons": reasons}
        return JSONResponse(body, status_code=503 if reasons else 200)

    async def metrics(_: Request) -> Response:
        body, media_type = await probes.metrics()
        return Response(body, headers={"content-type": media_type})

    slots = asyncio.Semaphore(MAX_REQUESTS)
    return Starlette(
        routes=[
            Route("/healthz", healthz),
            Route("/readyz", _limited(slots, readyz)),
            Route("/metrics", _limited(slots, metrics)),
        ]
    )


_Endpoint: TypeAlias = "Callable[[Request], Awaitable[Response]]"


def _limited(slots: asyncio.Semaphore, endpoint: _Endpoint) -> _Endpoint:
    """Return the endpoint with a limit: if no slot is free, the answer is 503 at once."""

    async def answer(request: Request) -> Response:
        if slots.locked():
            return Response("too many requests at once", status_code=503)
        async with slots:
            return await endpoint(request)

    return answer
