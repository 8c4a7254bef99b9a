"""A backlog of large messages is read far ahead of what is written, and little of it is in memory."""

from __future__ import annotations

import asyncio
import json
from functools import partial
from typing import TYPE_CHECKING, Any

import nats
import pytest

from actors._kernel.agent.message import Message
from actors._kernel.runtime.ids import AgentId
from actors.errors import BrokerError
from broker._mail import reader as reader_module
from broker._mail.backlog import WHOLE_BYTES
from tests.integration.broker.lines import connect, number_of, reading, row, send_all, shard_of

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable

    from actors._kernel.stores.transport import MailBatch
    from broker import JetStreamConnection
    from broker._mail.reader import ShardReader
    from tests.harness.servers import TestNats

FLOOD = AgentId("greeter", "alice")
QUIET = next(
    agent
    for agent in (AgentId("greeter", f"q{n}", "quiet") for n in range(1000))
    if shard_of(agent) == shard_of(FLOOD)
)
COUNT = 400
TEXT = "x" * 64 * 1024
REQUESTS = COUNT * len(TEXT) // (reader_module.ASK_AHEAD * reader_module.ASK_BYTES) + 1


async def _until(connection: JetStreamConnection, holds: Callable[[ShardReader], bool]) -> None:
    """Return once it holds of the one reader, which nobody asks for a batch meanwhile."""
    reader: Any = next(iter(connection._pulls._readers.values()))
    async with asyncio.timeout(20):
        while not holds(reader):
            await connection.stream_state()


def _is_over(reader: ShardReader, count: int) -> bool:
    """Whether what was asked for came, or all did: so many were handed out."""
    return not reader._outstanding or count + len(reader._buffer) > COUNT


async def test_another_tenants_message_waits_for_requests_and_not_for_writing(
    nats_server: TestNats, namespace: str
) -> None:
    """Behind 25 MiB of large ones it comes as soon as they are read; all come whole, once, in order."""
    async with connect(nats_server.url, namespace) as connection:
        for start in range(0, COUNT, 100):
            rows = range(start, start + 100)
            await send_all(connection, [row(n, FLOOD, text=TEXT) for n in rows])
        await connection.send(row(COUNT, QUIET))
        received_numbers: list[int] = []
        batches = quiet_in = most = 0
        async with reading(connection, shard_of(FLOOD)) as mail:
            while len(received_numbers) < COUNT + 1:
                batch = await anext(mail)
                batches += 1
                for message in batch.received:
                    received_numbers.append(number_of(message))
                    assert isinstance(message.content, Message)
                    assert message.agent_id == QUIET or TEXT in json.dumps(message.content.payload)
                if COUNT in received_numbers and not quiet_in:
                    quiet_in = batches
                assert len(batch.received) <= reader_module.BATCH_BYTES // len(TEXT) + 1
                count = len(received_numbers)
                await _until(connection, partial(_is_over, count=count))
                most = max(most, connection._pulls.buffered_bytes)
                connection.ack(batch)

    assert sorted(received_numbers) == list(range(COUNT + 1))
    assert [n for n in received_numbers if n < COUNT] == list(range(COUNT))
    # The first request is an ordinary one, and the batch of the last one is handed out after it.
    assert quiet_in <= REQUESTS + 3
    assert most <= WHOLE_BYTES + 1024 * 1024
    assert connection._pulls.buffered_bytes == 0


async def _hand_out(mail: AsyncGenerator[MailBatch, None], sequences: list[int]) -> None:
    """Note how far all was handed out."""
    while True:
        sequences.append((await anext(mail)).upto.sequence)


async def test_what_was_passed_by_and_is_lost_is_not_passed_over(
    nats_server: TestNats, namespace: str
) -> None:
    """A stream that does not have it any more was rolled back: it is guarded before it is read on."""
    client = await nats.connect(nats_server.url)
    try:
        async with connect(nats_server.url, namespace) as connection:
            count = 2 * WHOLE_BYTES // len(TEXT)
            await send_all(connection, [row(n, FLOOD, text=TEXT) for n in range(count)])
            async with reading(connection, shard_of(FLOOD)) as mail:
                last_sequence = (await anext(mail)).upto.sequence
                await _until(
                    connection, lambda reader: last_sequence + len(reader._buffer) == count
                )
                request = json.dumps({"seq": count - 1, "no_erase": True}).encode()
                subject = f"$JS.API.STREAM.MSG.DELETE.{namespace}_MAIL"
                assert json.loads((await client.request(subject, request)).data)["success"]
                sequences = [last_sequence]
                with pytest.raises(BrokerError, match=f"lost message {count - 1}"):
                    await _hand_out(mail, sequences)

            assert connection._client.lost.is_set()
            assert count - 10 < sequences[-1] < count - 1
    finally:
        await client.close()
