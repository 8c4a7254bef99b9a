"""Thousands of messages of one tenant, valid or not, do not delay another tenant's message.

The delay is measured by the number of messages written before it, which is the same on each
machine.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final

import asyncpg
import nats
import pytest
import pytest_asyncio

from actors._kernel.runtime.ids import PARTITIONS, AgentId, partition_hash
from actors._runtime.delivery import mail_service as mail
from broker._mail.backlog import REASONS_OF_ONE
from persistence._postgres.mail.mail import Outbox
from tests.system.outside import PATIENCE_S, make_bed
from tests.system.waiting import until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable

    from tests.harness.servers import TestNats, TestPostgres, TestRedis
    from tests.system.outside import Bed

FLOOD: Final = AgentId("desk", "k", "flood")
COUNT: Final = 3000
GARBAGE: Final = 600
SIZE: Final = 64 * 1024


def beside(agent: AgentId, tenant: str) -> AgentId:
    """Return an agent of another tenant in the same shard."""
    keys = (AgentId(agent.type, f"q{n}", tenant) for n in range(1000))
    return next(candidate for candidate in keys if _partition(candidate) == _partition(agent))


def _partition(agent: AgentId) -> int:
    return partition_hash(agent) % PARTITIONS


@pytest_asyncio.fixture
async def bed(
    postgres_server: TestPostgres, nats_server: TestNats, redis_server: TestRedis
) -> AsyncIterator[Bed]:
    """Yield a deployment with its streams, without a host."""
    async with make_bed(postgres_server, nats_server, redis_server) as new_bed:
        async with new_bed.running():
            pass
        yield new_bed


async def published(bed: Bed, bodies: Iterable[bytes]) -> AgentId:
    """Publish bodies for an agent of one tenant, then a message for another's, which is returned."""
    quiet = beside(FLOOD, "quiet")
    client = await nats.connect(bed.nats_url)
    try:
        for n, body in enumerate(bodies):
            await client.publish(bed.subject(FLOOD, "ext.bad"), body)
            if n % 500 == 0:
                await client.flush()
        await client.request(bed.subject(quiet, "ext.crm"), b'{"n": 1}', timeout=PATIENCE_S)
    finally:
        await client.close()
    return quiet


async def overtaken(bed: Bed, quiet: AgentId) -> int:
    """Return how many messages of the flood became rows before the other tenant's."""
    sql = """select count(*) from inbox f where f.agent = $1
      and f.arrival < (select q.arrival from inbox q where q.agent = $2)"""
    return int((await _fetch(bed, sql, str(FLOOD), str(quiet)))[0][0])


async def _fetch(bed: Bed, sql: str, *args: object) -> list[Any]:
    connection = await asyncpg.connect(bed.postgres_url)
    try:
        await connection.execute(f'set search_path to "{bed.schema}"')
        return list(await connection.fetch(sql, *args))
    finally:
        await connection.close()


async def test_a_flood_in_the_same_shard_does_not_delay_another_tenant(bed: Bed) -> None:
    """3,000 messages were published before; the other tenant's is written before most of them."""
    quiet = await published(bed, [b'{"n": 0}'] * COUNT)
    async with bed.running():
        await bed.notes.until(quiet, {"n": 1})
        before = await overtaken(bed, quiet)
        async with asyncio.timeout(PATIENCE_S):
            await until(lambda: _all_are_rows(bed), "the flood was written")

    assert before < COUNT / 2


async def _all_are_rows(bed: Bed) -> bool:
    [(count,)] = await _fetch(bed, "select count(*) from inbox where agent = $1", str(FLOOD))
    return bool(count == COUNT)


@pytest.mark.costly
async def test_large_invalid_bodies_do_not_delay_another_tenant(
    bed: Bed, monkeypatch: pytest.MonkeyPatch
) -> None:
    """600 large invalid bodies, each with its own error, are overtaken, and make a few dead letters.

    They are logged, and no statement is for a single one.
    """
    forgotten: list[int] = []
    forget = Outbox.forget

    async def counting(self: Outbox, rows: Any) -> None:
        forgotten.append(len(rows))
        await forget(self, rows)

    monkeypatch.setattr(Outbox, "forget", counting)
    monkeypatch.setattr(mail, "UPKEEP_S", 0.2)
    quiet = await published(bed, (b" " * n + b"!" * (SIZE - n) for n in range(GARBAGE)))
    async with bed.running():
        await bed.notes.until(quiet, {"n": 1})
        before = await overtaken(bed, quiet)
        await until(lambda: _are_reported(bed), "all letters were told and forgotten")
    letters = await _fetch(bed, "select body #>> '{payload,bytes}' as kept from dead_letters")

    assert before < GARBAGE / 2
    periods = 2  # one may end meanwhile
    assert REASONS_OF_ONE < len(letters) <= periods * (REASONS_OF_ONE + 1)
    assert sum(int(row["kept"]) > 0 for row in letters) >= REASONS_OF_ONE
    assert sum(forgotten) == len(letters)


async def _are_reported(bed: Bed) -> bool:
    [(is_complete,)] = await _fetch(
        bed,
        "select (select sum(times) from dead_letters) = $1 and not exists (table outbox)",
        GARBAGE,
    )
    return bool(is_complete)
