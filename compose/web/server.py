"""The web server of the API: uvicorn, on the loop of its process, with limits of what a connection may cost."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, Final

import uvicorn
from starlette.types import ASGIApp

from actors.runtime.loop.tasks import TaskScope
from compose.host.http import HttpServer, listen, url_of
from compose.web.limits import MAX_HEAD_BYTES

_log = logging.getLogger("callboard.web")

BACKLOG: Final = 1_024
STOP_LIMIT_S: Final = 5.0
"""So long answers under way have when the server ends."""


@asynccontextmanager
async def serve_web(
    address: str, application: ASGIApp, *, before_stop: Callable[[], None] = lambda: None
) -> AsyncIterator[str]:
    """Serve an application there; yield the URL, with the port it got.

    Args:
        address: ``HOST:PORT``; port 0 is a free one.
        application: The application.
        before_stop: Called when the server is to end, so that endless answers end by themselves.

    Raises:
        AddressError: The address is none, or somebody else has it.
    """
    listening = listen(address, "--listen")
    config = uvicorn.Config(
        application,
        log_config=None,
        log_level="warning",
        access_log=False,
        lifespan="off",
        timeout_graceful_shutdown=int(STOP_LIMIT_S),
        http=_connection_class(),
        h11_max_incomplete_event_size=MAX_HEAD_BYTES,
        ws="none",
        server_header=False,
        backlog=BACKLOG,
    )
    server = HttpServer(config)
    async with TaskScope() as tasks:
        tasks.start(server.serve(sockets=[listening]), name="web")
        _log.info("web.listening", extra={"url": url_of(listening)})
        try:
            yield url_of(listening)
        finally:
            before_stop()
            server.should_exit = True
            await tasks.settle(limit_s=2 * STOP_LIMIT_S)


def _connection_class() -> Any:
    """Return the protocol of a connection: with httptools where there is a wheel of it, else with h11."""
    try:
        from compose.web.connection import HeadLimited  # noqa: PLC0415
    except ImportError:
        return "h11"
    return HeadLimited
