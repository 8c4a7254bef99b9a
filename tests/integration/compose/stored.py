"""The three embedded servers from a client's side: write some things, count them again."""

from __future__ import annotations

from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import asyncpg
from nats.aio.client import Client
from redis.asyncio import Redis

from compose.embedded import start_nats, start_postgres, start_valkey

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable
    from pathlib import Path

    from compose.embedded import EmbeddedServer


class StartServer(Protocol):
    """One of the starters, as all of them can be called."""

    def __call__(self, data_dir: Path, *, durable: bool) -> EmbeddedServer:
        """A running server."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """A kind of server, and what a client does with it."""

    starter: str
    start: StartServer
    write: Callable[[str, int], Awaitable[None]]
    count: Callable[[str], Awaitable[int]]
    refusal: str
    """What a client without the password is told."""


@asynccontextmanager
async def postgres_client(url: str) -> AsyncIterator[asyncpg.Connection[asyncpg.Record]]:
    """A connection."""
    connection = await asyncpg.connect(url)
    try:
        yield connection
    finally:
        await connection.close()


@asynccontextmanager
async def nats_client(url: str) -> AsyncIterator[Client]:
    """A connection that fails at once and says nothing about it."""

    async def ignore(_: Exception) -> None:
        pass

    client = Client()
    try:
        await client.connect(
            url,
            allow_reconnect=False,
            max_reconnect_attempts=1,
            reconnect_time_wait=0,
            error_cb=ignore,
        )
        yield client
    finally:
        await client.close()


@asynccontextmanager
async def redis_client(url: str) -> AsyncIterator[Any]:
    """A client."""
    client: Any = Redis.from_url(url)
    try:
        yield client
    finally:
        await client.aclose()


async def _write_rows(url: str, count: int) -> None:
    async with postgres_client(url) as client:
        await client.execute("create table if not exists t (n int)")
        await client.execute("insert into t select generate_series(1, $1)", count)


async def _count_rows(url: str) -> int:
    async with postgres_client(url) as client:
        return int(await client.fetchval("select count(*) from t"))


async def _write_messages(url: str, count: int) -> None:
    async with nats_client(url) as client:
        stream = client.jetstream()
        await stream.add_stream(name="T", subjects=["t"])
        for _ in range(count):
            await stream.publish("t", b"x")


async def _count_messages(url: str) -> int:
    async with nats_client(url) as client:
        return (await client.jetstream().stream_info("T")).state.messages


async def _write_items(url: str, count: int) -> None:
    async with redis_client(url) as client:
        for _ in range(count):
            await client.rpush("t", "x")


async def _count_items(url: str) -> int:
    async with redis_client(url) as client:
        return int(await client.llen("t"))


KINDS = {
    "postgres": Kind(
        starter="start_postgres",
        start=start_postgres,
        write=_write_rows,
        count=_count_rows,
        refusal="password authentication failed",
    ),
    "nats": Kind(
        starter="start_nats",
        start=start_nats,
        write=_write_messages,
        count=_count_messages,
        refusal="Authorization Violation",
    ),
    "redis": Kind(
        starter="start_valkey",
        start=start_valkey,
        write=_write_items,
        count=_count_items,
        refusal="invalid username-password pair",
    ),
}
