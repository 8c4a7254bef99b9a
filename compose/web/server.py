"""The web server of the API: uvicorn on the process's event loop, with limits per connection."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, Final

from starlette.types import ASGIApp

from compose.host.http import listen, run_server, url_of
from compose.web.limits import MAX_HEAD_BYTES

_log = logging.getLogger("callboard.web")

BACKLOG: Final = 1_024
STOP_LIMIT_S: Final = 5
"""Seconds in which pending responses may finish when the server stops."""


@asynccontextmanager
async def serve_web(
    address: str,
    application: ASGIApp,
    *,
    before_stop: Callable[[], None] = lambda: None,
    option: str = "--listen",
) -> AsyncIterator[str]:
    """Serve an application at an address; yield the URL with the actual port.

    Args:
        address: ``HOST:PORT``; with port 0 the system chooses a free port.
        application: The application.
        before_stop: Called before the server stops. It has to end responses that never end by themselves.
        option: The command-line option of the address, for errors.

    Raises:
        AddressError: `address` is not an address, or another process uses it.
    """
    listening = listen(address, option)
    url = url_of(listening)
    answering = run_server(
        listening,
        application,
        name="web",
        stop_limit_s=STOP_LIMIT_S,
        http=_connection_class(),
        h11_max_incomplete_event_size=MAX_HEAD_BYTES,
        backlog=BACKLOG,
    )
    async with answering:
        _log.info("web.listening", extra={"url": url})
        try:
            yield url
        finally:
            before_stop()


def _connection_class() -> Any:
    """Return the connection's protocol: with httptools if it is installed, else h11."""
    try:
        from compose.web.connection import HeadLimited  # noqa: PLC0415
    except ImportError:
        return "h11"
    return HeadLimited
