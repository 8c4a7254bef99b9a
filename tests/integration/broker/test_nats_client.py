"""nats-py's client as ours: whoever is cancelled while it waits for the server stops."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING, Final

import pytest

from broker._nats.client import ConnectOptions, open_client

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

LATEST: Final = 40
"""Turns of the event loop after which the server here has answered."""


@asynccontextmanager
async def answering_server(commands: list[bytes] | None = None) -> AsyncIterator[ConnectOptions]:
    """A server in this event loop, so that its answers come after as many turns each time.

    The block ends when every client has closed its socket.
    """
    served: set[asyncio.Task[None] | None] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        served.add(asyncio.current_task())
        writer.write(b'INFO {"max_payload":1048576,"headers":true,"version":"2.14.5"}\r\n')
        with suppress(ConnectionError):  # a client that was cancelled resets it
            while line := await reader.readline():
                if commands is not None:
                    commands.append(line.split()[0])
                if line.startswith(b"PING"):
                    writer.write(b"PONG\r\n")
        writer.close()
        with suppress(ConnectionError):
            await writer.wait_closed()

    listening = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with listening:
        host, port = listening.sockets[0].getsockname()
        yield ConnectOptions(urls=(f"nats://{host}:{port}",))
        async with asyncio.timeout(20):
            await asyncio.wait([task for task in served if task is not None])


async def cancel_after(turns: int, doing: Callable[[], Awaitable[object]]) -> None:
    """Cancel it so many turns after it began; it stops, unless it was ready before."""

    async def do() -> None:
        await doing()
        await asyncio.sleep(0)  # whoever is cancelled does not get behind this

    task = asyncio.create_task(do())
    for _ in range(turns):
        await asyncio.sleep(0)
    was_under_way = task.cancel()
    async with asyncio.timeout(20):
        await asyncio.wait([task])

    assert task.cancelled() == was_under_way, f"cancelled after {turns} turns, it went on"


async def test_who_is_cancelled_while_connecting_stops() -> None:
    """Also in the very turn in which the server answers: nothing else would ever end it."""
    async with answering_server() as server:

        async def connect() -> None:
            client = await open_client(server, inbox_prefix="_INBOX_t")
            await client.shut()

        for turns in range(1, LATEST):
            await cancel_after(turns, connect)


@pytest.mark.parametrize("verb", ["flush", "shut"])
async def test_who_is_cancelled_while_the_server_takes_what_was_sent_stops(verb: str) -> None:
    """Whether the connection goes on or is being closed."""
    async with answering_server() as server:
        for turns in range(1, LATEST):
            client = await open_client(server, inbox_prefix="_INBOX_t")
            await cancel_after(turns, getattr(client, verb))
            await client.shut()


async def test_a_flush_says_that_all_before_it_is_there() -> None:
    """The PING goes out behind what was sent before it, so its PONG is an answer to that too."""
    commands: list[bytes] = []
    async with answering_server(commands) as server:
        client = await open_client(server, inbox_prefix="_INBOX_t")
        commands.clear()
        await client.listen("a", lambda *_: None)
        await client.flush()
        await client.shut()

    assert commands[:2] == [b"SUB", b"PING"]
