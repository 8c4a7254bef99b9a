"""A NATS client by hand: lines and bytes over TCP, as a service in any language would write it.

It uses no code of ours and none of nats-py, so that the documented protocol is tested from outside.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from urllib.parse import urlsplit

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping

PATIENCE_S: Final = 15.0


class RawNatsError(Exception):
    """The server sent `-ERR`, or closed the connection."""


class Frame(NamedTuple):
    """A received message: MSG, or HMSG with its header block."""

    subject: str
    head: bytes
    body: bytes


class RawNats:
    """One connection, without a background task: bytes are read where an answer is awaited."""

    def __init__(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, inbox: str
    ) -> None:
        self._reader, self._writer = reader, writer
        self._inbox, self._count = inbox, 0

    async def send(self, raw: bytes) -> None:
        """Send bytes of the protocol unchanged."""
        self._writer.write(raw)
        await self._writer.drain()

    async def line(self) -> bytes:
        """Return the next line without its CRLF; answer and skip a PING."""
        while (line := await self._reader.readline()) == b"PING\r\n":
            await self.send(b"PONG\r\n")
        if not line:
            raise RawNatsError("closed")
        return line.removesuffix(b"\r\n")

    async def frame(self) -> Frame:
        """Return the next message.

        Raises: RawNatsError: The server sent an error instead.
        """
        async with asyncio.timeout(PATIENCE_S):
            verb, *arguments = (await self.line()).decode().split(" ")
            if verb == "-ERR":
                raise RawNatsError(" ".join(arguments))
            assert verb in {"MSG", "HMSG"}, (verb, arguments)
            raw = (await self._reader.readexactly(int(arguments[-1]) + 2))[:-2]
        head = int(arguments[-2]) if verb == "HMSG" else 0
        return Frame(arguments[0], raw[:head], raw[head:])

    async def settled(self) -> None:
        """Return when the server has processed all sent bytes.

        Raises: RawNatsError: It refused some of them.
        """
        await self.send(b"PING\r\n")
        async with asyncio.timeout(PATIENCE_S):
            line = await self.line()
        if line != b"PONG":
            raise RawNatsError(line.decode().removeprefix("-ERR "))

    async def request(
        self, subject: str, body: bytes = b"", headers: Mapping[str, str] | bytes = b""
    ) -> Frame:
        """Publish with a reply subject of our own, and return the answer.

        Args: subject: Sent unchanged. body: Sent unchanged. headers: Names and values, or the
        block's lines unchanged.
        """
        if not self._count:
            await self.send(b"SUB %b.* 1\r\n" % self._inbox.encode())
        self._count += 1
        reply = f"{self._inbox}.{self._count}"
        await self.send(publish_bytes(subject, body, headers, reply))
        while (frame := await self.frame()).subject != reply:
            pass
        return frame

    async def publish(
        self, subject: str, body: bytes = b"", headers: Mapping[str, str] | bytes = b""
    ) -> dict[str, Any]:
        """Publish to the stream of a subject, and return the PubAck, which may hold an `error`."""
        frame = await self.request(subject, body, headers)
        if frame.head.startswith(b"NATS/1.0 503"):
            raise RawNatsError("no responders")
        ack: dict[str, Any] = json.loads(frame.body)
        return ack


def publish_bytes(
    subject: str, body: bytes, headers: Mapping[str, str] | bytes = b"", reply: str = ""
) -> bytes:
    """Return PUB, or HPUB if there are headers."""
    to = f"{subject} {reply}" if reply else subject
    if not headers:
        return b"PUB %b %d\r\n%b\r\n" % (to.encode(), len(body), body)
    lines = headers
    if not isinstance(lines, bytes):
        lines = b"".join(f"{name}: {value}\r\n".encode() for name, value in lines.items())
    head = b"NATS/1.0\r\n%b\r\n" % lines
    sizes = b"%d %d" % (len(head), len(head) + len(body))
    return b"HPUB %b %b\r\n%b%b\r\n" % (to.encode(), sizes, head, body)


@asynccontextmanager
async def raw_nats(url: str, *, inbox: str = "_INBOX_raw") -> AsyncIterator[RawNats]:
    """Yield a connection to `nats://[user:password@]host:port`.

    Raises:
        RawNatsError: The server refuses the login.
    """
    parts = urlsplit(url)
    hello = {"verbose": False, "pedantic": False, "headers": True, "no_responders": True}
    login = {"user": parts.username, "pass": parts.password} if parts.username else {}
    reader, writer = await asyncio.open_connection(parts.hostname, parts.port)
    try:
        client = RawNats(reader, writer, inbox)
        assert (await client.line()).startswith(b"INFO {")
        await client.send(f"CONNECT {json.dumps(hello | login)}\r\n".encode())
        await client.settled()
        yield client
    finally:
        writer.close()
        with contextlib.suppress(OSError):  # the server was faster
            await writer.wait_closed()
