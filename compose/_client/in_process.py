"""The transport of a client whose application is in this process."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, MutableMapping
from typing import Any

import httpx2
from starlette.types import ASGIApp
from typing_extensions import override

from actors._runtime.loop.tasks import start_task


class ApplicationTransport(httpx2.AsyncBaseTransport):
    """Sends requests to an ASGI application, and reads its answers while they are sent.

    `httpx2.ASGITransport` collects the whole answer first, and a stream of events has no end.

    Args:
        application: The application.
    """

    def __init__(self, application: ASGIApp) -> None:
        self._application = application

    @override
    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        exchange = _Exchange(await request.aread())
        call = exchange.run(self._application, _scope_of(request))
        name = f"{request.method} {request.url.path}"
        exchange.task = start_task(call, name=name, done=_take_error)
        try:
            start = await exchange.messages.get()
        except asyncio.CancelledError:
            await exchange.aclose()
            raise
        if start is None:
            exchange.task.result()  # raises what the application raised
            raise httpx2.RemoteProtocolError("the application gave no answer", request=request)
        return httpx2.Response(start["status"], headers=start.get("headers"), stream=exchange)


def _scope_of(request: httpx2.Request) -> dict[str, Any]:
    return {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": request.method,
        "headers": [(name.lower(), value) for name, value in request.headers.raw],
        "scheme": request.url.scheme,
        "path": request.url.path,
        "raw_path": request.url.raw_path.partition(b"?")[0],
        "query_string": request.url.query,
        "server": (request.url.host, request.url.port),
        "client": ("127.0.0.1", 0),
        "root_path": "",
    }


def _take_error(task: asyncio.Task[Any]) -> None:
    """Take a task's error, which its reader may not have asked for."""
    if not task.cancelled():
        task.exception()


class _Exchange(httpx2.AsyncByteStream):
    """A request and its answer."""

    task: asyncio.Task[None]

    def __init__(self, body: bytes) -> None:
        self._body: bytes | None = body
        # One message: the application waits for a slow reader, as it waits for a slow connection.
        self.messages: asyncio.Queue[MutableMapping[str, Any] | None] = asyncio.Queue(1)
        self._is_closed = asyncio.Event()

    async def run(self, application: ASGIApp, scope: dict[str, Any]) -> None:
        """Let the application answer. A None is its last message."""
        try:
            await application(scope, self._receive, self._send)
        finally:
            await self._send(None)

    async def _receive(self) -> MutableMapping[str, Any]:
        if self._body is not None:
            body, self._body = self._body, None
            return {"type": "http.request", "body": body, "more_body": False}
        await self._is_closed.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: MutableMapping[str, Any] | None) -> None:
        if not self._is_closed.is_set():
            await self.messages.put(message)

    @override
    async def __aiter__(self) -> AsyncIterator[bytes]:
        while (message := await self.messages.get()) is not None:
            if body := message.get("body"):
                yield body
            if not message.get("more_body"):
                return

    @override
    async def aclose(self) -> None:
        """Disconnect, and wait until the application has noticed."""
        self._is_closed.set()
        # A message that the application is about to send would wait for ever.
        while not self.messages.empty():
            self.messages.get_nowait()
        await asyncio.wait({self.task})
