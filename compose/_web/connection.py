"""A connection of the web server, with httptools as its parser.

It is a module of its own because its base class needs httptools, which is missing where it has no wheel.
"""

from __future__ import annotations

import asyncio
from typing import Final

from typing_extensions import override
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from compose._web.requests import MAX_HEAD_BYTES

HEAD_LIMIT_S: Final = 10.0
"""Seconds that the head of a request may take. A new connection has to start its first request in this time."""
LINGER_S: Final = 2.0
"""Seconds that a refused client may continue to send."""
_HEAD_TOO_LARGE: Final = b"\r\n".join(
    (
        b"HTTP/1.1 431 Request Header Fields Too Large",
        b"connection: close",
        b"content-length: 0",
        b"",
        b"",
    )
)


class HeadLimited(HttpToolsProtocol):
    """Closes a connection if a request's head is too large or too slow, because httptools has no limit."""

    _timer: asyncio.TimerHandle | None = None
    _head_bytes = 0
    _in_head = False
    _is_refused = False

    @override
    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._await_head()

    @override
    def connection_lost(self, exc: Exception | None) -> None:
        self._forget_timer()
        super().connection_lost(exc)

    @override
    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._in_head, self._head_bytes = True, 0
        self._await_head()

    @override
    def on_headers_complete(self) -> None:
        self._in_head = False
        self._forget_timer()
        super().on_headers_complete()

    @override
    def data_received(self, data: bytes) -> None:
        if self._is_refused:
            return
        super().data_received(data)
        if self._in_head and not self.transport.is_closing():
            self._head_bytes += len(data)
            if self._head_bytes > MAX_HEAD_BYTES:
                self._is_refused = True
                self.transport.write(_HEAD_TOO_LARGE)
                self.transport.write_eof()
                self._forget_timer()
                # Closed later: a client that still sends could otherwise not read the answer.
                self._timer = self.loop.call_later(LINGER_S, self.transport.abort)

    def _await_head(self) -> None:
        self._forget_timer()
        self._timer = self.loop.call_later(HEAD_LIMIT_S, self.transport.abort)

    def _forget_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
