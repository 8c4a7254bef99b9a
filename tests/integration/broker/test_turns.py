"""Readers with a backlog ask in turns: what they have on its way together is bounded."""

from __future__ import annotations

import asyncio
from collections import Counter
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING

from actors._kernel.runtime.ids import PARTITIONS, AgentId, partition_hash
from broker._mail import pulls
from broker._mail import reader as reader_module
from tests.integration.broker.lines import connect, numbers, reading, row, send_all, shards_of

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    import pytest

    from actors._kernel.stores.transport import MailBatch
    from tests.harness.servers import TestNats

COUNT = 4800
AGENTS = [AgentId("desk", f"a{i}") for i in range(40)]


async def test_of_readers_with_a_backlog_only_some_have_messages_on_their_way(
    nats_server: TestNats, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The others get theirs when one of those was read to its end, and nothing is passed over."""
    monkeypatch.setattr(pulls, "CATCHING_UP", 2)
    monkeypatch.setattr(reader_module, "PROVE_EVERY_S", 1000.0)
    async with connect(nats_server.url, namespace) as connection, AsyncExitStack() as stack:
        for start in range(0, COUNT, 1200):
            rows = range(start, start + 1200)
            await send_all(connection, [row(n, AGENTS[n % 40]) for n in rows])
        readers = [
            await stack.enter_async_context(reading(connection, shard))
            for shard in shards_of("desk")
        ]
        counts = dict(Counter(partition_hash(AGENTS[n % 40]) % PARTITIONS for n in range(COUNT)))
        first = [asyncio.ensure_future(anext(reader)) for reader in readers]
        async with asyncio.timeout(20):
            while sum(future.done() for future in first) < 2:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        done_futures, waiting = await asyncio.wait(first, timeout=0.5)
        received_numbers: list[int] = []
        rest = [
            asyncio.ensure_future(_read_all(received_numbers, counts.get(i, 0), future, reader))
            for i, (future, reader) in enumerate(zip(first, readers, strict=True))
            if i in counts
        ]
        await asyncio.wait(rest, timeout=30)

    assert len(done_futures) == 2
    assert len(waiting) == 14
    assert sorted(received_numbers) == list(range(COUNT))


async def _read_all(
    received_numbers: list[int],
    count: int,
    first: asyncio.Future[MailBatch],
    reader: AsyncGenerator[MailBatch, None],
) -> None:
    """Read so many messages."""
    batch = await first
    while (count := count - len(batch.received)) > 0:
        received_numbers += numbers([batch])
        batch = await anext(reader)
    received_numbers += numbers([batch])
    await reader.aclose()
