"""A TCP proxy with faults on request, between a client and its server in tests.

Four states of a network (`cut`, `heal`, `reset`, `delay_s`) and two ways of losing an exchange:
`lose_request` (the server never gets it) and `lose_response` (the server executes it, and the
client gets no answer), which is how a COMMIT is applied and its answer lost.
"""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Self
from urllib.parse import urlsplit

if TYPE_CHECKING:
    from types import TracebackType

READY_FOR_QUERY = b"Z\x00\x00\x00\x05I"
"""The end of a PostgreSQL answer outside a transaction: the statement is committed."""
_CHUNK_BYTES = 65536


@dataclass(slots=True, eq=False)
class Loss:
    """One exchange to be lost; `happened` is set once it was, and then the connection is reset."""

    request_has: bytes
    """The first request chunk that holds these bytes is the one."""
    response_ends: bytes | None
    """The answer is complete when it ends so; None loses the request itself."""
    happened: asyncio.Event = field(default_factory=asyncio.Event)


@dataclass(slots=True, eq=False)
class _Link:
    """One client connection and its server connection."""

    client: asyncio.StreamWriter
    server: asyncio.StreamWriter
    losing: Loss | None = None
    swallowed: bytes = b""

    def abort(self) -> None:
        for writer in (self.client, self.server):
            writer.transport.abort()


class FaultProxy:
    """An async context manager that forwards `port` on loopback to a server.

    It is for one event loop; clients may be on any. After `async with` every connection is gone.
    """

    def __init__(self, host: str, port: int) -> None:
        self.port = 0
        self.delay_s = 0.0
        self.accepted_count = 0
        self._upstream = (host, port)
        self._open = asyncio.Event()
        self._open.set()
        self._links: set[_Link] = set()
        self._losses: list[Loss] = []

    @classmethod
    def to(cls, url: str) -> Self:
        """Return a proxy to the server that a URL names."""
        parts = urlsplit(url)
        assert parts.hostname, f"no host in {url}"
        assert parts.port, f"no port in {url}"
        return cls(parts.hostname, parts.port)

    def through(self, url: str) -> str:
        """Return the same URL, through this proxy."""
        parts = urlsplit(url)
        login, at, _ = parts.netloc.rpartition("@")
        return parts._replace(netloc=f"{login}{at}127.0.0.1:{self.port}").geturl()

    def cut(self) -> None:
        """Stop bytes in both directions and keep connections, like a dropped route."""
        self._open.clear()

    def heal(self) -> None:
        """Let bytes flow again, held ones first."""
        self._open.set()

    def reset(self) -> None:
        """Abort every connection at once; new ones are accepted."""
        for link in list(self._links):
            link.abort()

    def lose_response(
        self, *, request_has: bytes = b"", response_ends: bytes = READY_FOR_QUERY
    ) -> Loss:
        """Forward the next request that holds `request_has`, drop its answer, then reset.

        The reset comes when the answer is complete, so the server has executed the request. `await
        loss.happened.wait()` returns then. With an empty `response_ends` the first bytes count as
        the answer.
        """
        return self._arm(Loss(request_has, response_ends))

    def lose_request(self, *, request_has: bytes = b"") -> Loss:
        """Reset instead of forwarding the next request that holds `request_has`."""
        return self._arm(Loss(request_has, None))

    async def __aenter__(self) -> Self:
        self._listener = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.port = self._listener.sockets[0].getsockname()[1]
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._listener.close()
        self.heal()
        while self._links:
            self.reset()
            await asyncio.sleep(0)
        await self._listener.wait_closed()

    def _arm(self, loss: Loss) -> Loss:
        self._losses.append(loss)
        return loss

    async def _accept(self, reader: asyncio.StreamReader, client: asyncio.StreamWriter) -> None:
        await self._open.wait()  # a connection attempt over a cut line gets no answer
        try:
            server_reader, server = await asyncio.open_connection(*self._upstream)
        except OSError:
            client.transport.abort()
            return
        self.accepted_count += 1
        link = _Link(client, server)
        self._links.add(link)
        try:
            async with asyncio.TaskGroup() as pumps:
                pumps.create_task(self._pump_requests(reader, link))
                pumps.create_task(self._pump_responses(server_reader, link))
        finally:
            self._links.discard(link)
            for writer in (client, server):
                writer.close()

    async def _pump_requests(self, reader: asyncio.StreamReader, link: _Link) -> None:
        with contextlib.suppress(OSError):
            while data := await self._read(reader):
                loss = next(
                    (candidate for candidate in self._losses if candidate.request_has in data), None
                )
                if loss is not None:
                    self._losses.remove(loss)
                    if loss.response_ends is None:
                        self._end(link, loss)
                        return
                    link.losing = loss
                link.server.write(data)
                await link.server.drain()
        _end_writing(link.server)

    async def _pump_responses(self, reader: asyncio.StreamReader, link: _Link) -> None:
        with contextlib.suppress(OSError):
            while data := await self._read(reader):
                if link.losing is None:
                    link.client.write(data)
                    await link.client.drain()
                    continue
                link.swallowed += data
                if link.swallowed.endswith(link.losing.response_ends or b""):
                    self._end(link, link.losing)
                    return
        _end_writing(link.client)

    async def _read(self, reader: asyncio.StreamReader) -> bytes:
        data = await reader.read(_CHUNK_BYTES)
        if data and self.delay_s:
            await asyncio.sleep(self.delay_s)
        await self._open.wait()
        return data

    def _end(self, link: _Link, loss: Loss) -> None:
        link.abort()
        loss.happened.set()


def _end_writing(writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError, RuntimeError):
        writer.write_eof()
