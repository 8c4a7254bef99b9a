"""The web server of the API: uvicorn, on the loop of its process, with limits of what a connection may cost."""

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
"""Seconds that answers under way have when the server ends."""


@asynccontextmanager
async def serve_web(
    address: str,
    application: ASGIApp,
    *,
    before_stop: Callable[[], None] = lambda: None,
    option: str = "--listen",
) -> AsyncIterator[str]:
    """Serve an application there; yield the URL, with the port it got.

    Args:
        address: ``HOST:PORT``; port 0 is a free one.
        application: The application.
        before_stop: Called when the server is to end, so that endless answers end by themselves.
        option: The command's name of the address, for errors.

    Raises:
        AddressError: The address is none, or another process has it.
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
    """Return the protocol of a connection: with httptools where there is a wheel of it, else with h11."""
    try:
        from compose.web.connection import HeadLimited  # noqa: PLC0415
    except ImportError:
        return "h11"
    return HeadLimited
