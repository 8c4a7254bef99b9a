"""Shards, rows and readers for tests of a connection to the broker."""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from actors._kernel.agent.message import Message
from actors._kernel.runtime.ids import (
    PARTITIONS,
    AgentId,
    HostIncarnation,
    ShardId,
    partition_hash,
    partition_shard,
)
from actors._kernel.runtime.scheduler import ShardLease
from actors._kernel.stores.transport import Cursor, OutboxRow, Received
from broker import JetStreamTransport

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Iterable
    from contextlib import AbstractAsyncContextManager

    from actors._kernel.runtime.hints import Nudge
    from actors._kernel.stores.transport import MailBatch
    from broker import JetStreamConnection

DEPLOYMENT = "d-1"
START = Cursor(stream_epoch=1, sequence=0)
EXPIRY = datetime(2100, 1, 1, tzinfo=UTC)


def lease_of(shard: ShardId, *, epoch: int = 1, owner: str = "0123456789abcdef") -> ShardLease:
    """The right to read a shard."""
    return ShardLease(shard, HostIncarnation(owner), epoch, EXPIRY)


def shard_of(agent: AgentId) -> ShardId:
    """The shard of an agent whose type is registered whole."""
    return partition_shard(agent.type, partition_hash(agent) % PARTITIONS)


def shards_of(type_: str) -> list[ShardId]:
    """All partitions of a type."""
    return [partition_shard(type_, partition) for partition in range(PARTITIONS)]


def row(n: int, agent: AgentId, *, text: str = "", dead_letter: str | None = None) -> OutboxRow:
    """The n-th message that desk/1 sent."""
    message = Message(id=f"m-{n}", target=agent, sender="agent:desk/1", payload={"n": n, "t": text})
    return OutboxRow(n, message, dead_letter=dead_letter)


def connect(
    url: str, namespace: str = "", owner: str | None = None, nudge_list: list[Nudge] | None = None
) -> AbstractAsyncContextManager[JetStreamConnection]:
    """A connection, with the list to which nudges go."""
    transport = JetStreamTransport(
        url, namespace=namespace, owner=None if owner is None else HostIncarnation(owner)
    )
    nudges: list[Nudge] = [] if nudge_list is None else nudge_list
    return transport.connect(deployment=DEPLOYMENT, on_nudge=nudges.append)


async def send_all(connection: JetStreamConnection, rows: Iterable[OutboxRow]) -> list[int]:
    """Send all rows at once, whatever order they get."""
    async with asyncio.TaskGroup() as tasks:
        sending = [tasks.create_task(connection.send(outbox_row)) for outbox_row in rows]
    return [task.result() for task in sending]


def numbers(batches: Iterable[MailBatch]) -> list[int]:
    """The `n` of the messages in batches, in order."""
    return [number_of(message) for batch in batches for message in batch.received]


def number_of(received: Received) -> int:
    """The `n` of a row that arrived."""
    assert isinstance(received.content, Message)
    assert isinstance(received.content.payload, dict)
    return int(str(received.content.payload["n"]))


async def take(
    connection: JetStreamConnection,
    reading: AsyncGenerator[MailBatch, None],
    count: int,
    *,
    is_acked: bool = True,
) -> list[MailBatch]:
    """Read until `count` messages came."""
    batches: list[MailBatch] = []
    message_count = 0
    while message_count < count:
        batch = await anext(reading)
        batches.append(batch)
        message_count += len(batch.received)
        if is_acked:
            connection.ack(batch)
    return batches


@contextlib.asynccontextmanager
async def reading(
    connection: JetStreamConnection, shard: ShardId, cursor: Cursor = START, *, epoch: int = 1
) -> AsyncGenerator[AsyncGenerator[MailBatch, None], None]:
    """A reader of a shard, closed at the end."""
    async with contextlib.aclosing(
        connection.read(lease_of(shard, epoch=epoch), cursor)
    ) as batches:
        yield batches


@contextlib.asynccontextmanager
async def plain_server(folder: Path, config: str) -> AsyncGenerator[int, None]:
    """A nats-server with exactly this configuration; yields its port on 127.0.0.1."""
    file = folder / "server.conf"
    file.write_text(config)
    program = Path(sys.executable).with_name("nats-server")
    process = await asyncio.create_subprocess_exec(
        str(program),
        "-c",
        str(file),
        "-a",
        "127.0.0.1",
        "-p",
        "-1",
        "--ports_file_dir",
        str(folder),
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.DEVNULL,
    )
    try:
        async with asyncio.timeout(10):
            while not (ports := _written(folder)).endswith("}"):  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        yield int(json.loads(ports)["nats"][0].rpartition(":")[2])
    finally:
        process.terminate()
        await process.wait()


def _written(folder: Path) -> str:
    """What the server has written so far of the file that tells its ports."""
    return "".join(file.read_text() for file in folder.glob("*.ports")).rstrip()
