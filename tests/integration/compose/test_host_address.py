"""The host's own address under those who connect and do not ask, and under more questions than it takes."""

from __future__ import annotations

import asyncio
import socket
from contextlib import AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import pytest

from compose._host import http
from compose._host.http import MAX_CONNECTIONS, MAX_REQUESTS, serve_http

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

PATIENCE_S = 20


async def test_what_is_written_leaves_at_once() -> None:
    """A piece of a stream would wait for the client's word that it has the one before, else."""
    socket_option: asyncio.Future[int] = asyncio.get_running_loop().create_future()

    def take(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        option = (socket.IPPROTO_TCP, socket.TCP_NODELAY)
        socket_option.set_result(writer.get_extra_info("socket").getsockopt(*option))
        writer.close()

    listening = http.listen("127.0.0.1:0")
    async with await asyncio.start_server(take, sock=listening):
        _, writer = await asyncio.open_connection(*listening.getsockname())
        async with asyncio.timeout(PATIENCE_S):
            assert await socket_option == 1
        writer.close()


class Probes:
    """A host that is ready once `decided` is set."""

    phase = "serving"

    def __init__(self) -> None:
        self.decided, self.all_asked = asyncio.Event(), asyncio.Event()
        self.asked = 0

    async def reasons(self) -> list[dict[str, str]]:
        """Nothing is wrong."""
        self.asked += 1
        if self.asked == MAX_REQUESTS:
            self.all_asked.set()
        await self.decided.wait()
        return []

    async def metrics(self) -> tuple[bytes, str]:
        """There are none."""
        return b"", "text/plain"


class Line:
    """One TCP connection to the address."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    async def ask(self, path: str) -> int:
        """The status of what is answered."""
        self.writer.write(f"GET {path} HTTP/1.1\r\nhost: h\r\n\r\n".encode())
        head = (await self.reader.readuntil(b"\r\n\r\n")).decode().lower()
        await self.reader.readexactly(int(head.split("content-length: ")[1].split("\r\n")[0]))
        return int(head.split()[1])

    async def ended(self) -> bool:
        """Whether it was closed and nothing was answered."""
        try:
            return await self.reader.read() == b""
        except ConnectionResetError:
            return True


@asynccontextmanager
async def line(url: str) -> AsyncIterator[Line]:
    """Connect."""
    parts = urlsplit(url)
    reader, writer = await asyncio.open_connection(parts.hostname, parts.port)
    try:
        yield Line(reader, writer)
    finally:
        writer.transport.abort()


async def status(url: str, path: str) -> int:
    """The status of one request on a connection of its own."""
    async with line(url) as connection:
        return await connection.ask(path)


async def test_connections_that_ask_nothing_do_not_hide_the_hosts_health() -> None:
    """However many: one more than the limit ends the oldest, and whoever asks is answered."""
    probes = Probes()
    probes.decided.set()
    async with asyncio.timeout(PATIENCE_S), AsyncExitStack() as stack:
        url = await stack.enter_async_context(serve_http("127.0.0.1:0", probes))
        idle = [await stack.enter_async_context(line(url)) for _ in range(MAX_REQUESTS + 1)]
        few = [await status(url, path) for path in ("/healthz", "/readyz", "/metrics")]
        rest = MAX_CONNECTIONS - len(idle)
        idle += [await stack.enter_async_context(line(url)) for _ in range(rest)]
        many = [await status(url, path) for path in ("/healthz", "/readyz", "/metrics")]

        assert few == many == [200, 200, 200]
        assert await idle[0].ended()


@pytest.mark.parametrize("head", [b"", b"GET /healthz HTTP/1.1\r\nhost: h\r\n"])
async def test_a_connection_that_brings_no_request_is_closed(
    monkeypatch: pytest.MonkeyPatch, head: bytes
) -> None:
    """Whether it is silent or never comes to an end; one that asks again and again is not."""
    monkeypatch.setattr(http, "QUIET_LIMIT_S", 2.0)  # a busy machine may pause for a second
    async with (
        asyncio.timeout(PATIENCE_S),
        serve_http("127.0.0.1:0", Probes()) as url,
        line(url) as slow,
        line(url) as asking,
    ):
        end = asyncio.create_task(slow.ended())
        slow.writer.write(head)
        while not end.done():
            if head:
                slow.writer.write(b"x: y\r\n")
            assert await asking.ask("/healthz") == 200
            await asyncio.sleep(0.05)  # the pace of its headers

        assert await end
        assert await asking.ask("/healthz") == 200


async def test_more_questions_than_are_worked_on_do_not_hide_the_hosts_health() -> None:
    """Readiness beyond the limit is refused at once; health is answered, and the others in time."""
    probes = Probes()
    async with asyncio.timeout(PATIENCE_S), serve_http("127.0.0.1:0", probes) as url:
        asking = [asyncio.create_task(status(url, "/readyz")) for _ in range(MAX_REQUESTS)]
        await probes.all_asked.wait()
        beyond = [await status(url, path) for path in ("/readyz", "/metrics", "/healthz")]
        probes.decided.set()

        assert beyond == [503, 503, 200]
        assert await asyncio.gather(*asking) == [200] * MAX_REQUESTS
