"""Reading shards from a real NATS: complete, in order, once, and within bounds."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
import signal
from collections import defaultdict, deque
from typing import TYPE_CHECKING, Any

import nats
import pytest

from actors._kernel.runtime.ids import AgentId, instance_shard, undeclared_shard
from actors._kernel.stores.transport import Cursor
from broker._mail import reader as reader_module
from broker._mail.backlog import parse_ack_subject
from tests.integration.broker.lines import (
    START,
    connect,
    number_of,
    numbers,
    plain_server,
    reading,
    row,
    send_all,
    shard_of,
    shards_of,
    take,
)

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from actors._kernel.runtime.ids import ShardId
    from broker import JetStreamConnection
    from broker._nats.client import Sink
    from tests.harness.servers import OwnNats, TestNats

ALICE = AgentId("greeter", "alice")
ALICES = shard_of(ALICE)


@contextlib.asynccontextmanager
async def _client(url: str) -> Any:
    client = await nats.connect(url)
    try:
        yield client
    finally:
        await client.close()


async def _api(client: Any, what: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
    answer = await client.request(f"$JS.API.{what}", json.dumps(body or {}).encode(), timeout=10)
    answer_body: dict[str, Any] = json.loads(answer.data)
    return answer_body


def _intercept(connection: JetStreamConnection, make: Callable[[Sink], Sink]) -> None:
    """Put something between the line and the readers."""
    client = connection._client
    sid, sink = next((s, k) for s, k in client._sinks.items() if k == connection._pulls._on_message)
    client._sinks[sid] = make(sink)


def _drop(connection: JetStreamConnection, is_dropped: Callable[[], bool]) -> None:
    """Lose deliveries on their way, as a slow consumer's client or a stolen pull would."""

    def make(sink: Sink) -> Sink:
        def lossy(subject: bytes, reply: bytes, data: bytes, headers: bytes) -> None:
            if not (reply and is_dropped()):
                sink(subject, reply, data, headers)

        return lossy

    _intercept(connection, make)


def _delay(connection: JetStreamConnection, chance: random.Random) -> None:
    """Deliver what is for one shard later than what is for another, as a busy server may."""
    loop = asyncio.get_running_loop()
    lines: dict[bytes, deque[tuple[bytes, bytes, bytes, bytes]]] = defaultdict(deque)

    def make(sink: Sink) -> Sink:
        def late(subject: bytes, reply: bytes, data: bytes, headers: bytes) -> None:
            if not reply:
                sink(subject, reply, data, headers)
                return
            line = lines[parse_ack_subject(reply)[0]]
            line.append((subject, reply, data, headers))
            loop.call_later(chance.choice((0, 0, 0.01)), lambda: sink(*line.popleft()))

        return late

    _intercept(connection, make)


def test_both_forms_of_ack_subjects_are_understood() -> None:
    """Of servers before 2.16 and of later ones, with and without the token at the end."""
    tail = b"s0a-3-abcd-1.2.30.4.1763770000123456789.5"
    expected = (b"s0a-3-abcd-1", 2, 30, 4, 1763770000123456789)

    assert parse_ack_subject(b"$JS.ACK.MAIL." + tail) == expected
    assert parse_ack_subject(b"$JS.ACK._.ACCHASH.MAIL." + tail) == expected
    assert parse_ack_subject(b"$JS.ACK._.ACCHASH.MAIL." + tail + b".r4nd0m") == expected


async def test_the_ack_subjects_of_the_next_server_work(tmp_path: Path) -> None:
    """With the server's flag for domain-aware ack subjects, mail is read and acknowledged."""
    config = f'jetstream {{ store_dir: "{tmp_path}/s" }}\nfeature_flags {{ js_ack_fc_v2: true }}'
    async with (
        plain_server(tmp_path, config) as port,
        connect(f"nats://127.0.0.1:{port}") as connection,
    ):
        await send_all(connection, [row(n, ALICE) for n in range(3)])
        async with reading(connection, ALICES) as batches:
            await take(connection, batches, 3)
            ((name, only),) = connection._pulls._readers.items()
            reader: Any = only
            waiting = asyncio.create_task(anext(batches))
            async with _client(f"nats://127.0.0.1:{port}") as client, asyncio.timeout(20):
                floor = 0
                while floor != 3:
                    info = await _api(client, f"CONSUMER.INFO.MAIL.{name.decode()}")
                    floor = info["ack_floor"]["consumer_seq"]
            await connection.send(row(3, ALICE))
            assert numbers([await waiting]) == [3]

    assert len(reader._unacked_batches[-1][1].split(b".")) > 9


async def test_a_hundred_and_twenty_eight_shards_are_read_at_once(
    nats_server: TestNats, namespace: str
) -> None:
    """Eight types of 16 partitions each, over one connection: every message comes to its shard."""
    shards = [shard for n in range(8) for shard in shards_of(f"t{n}")]
    agents = [AgentId(f"t{n % 8}", f"k{n}") for n in range(1024)]

    async with connect(nats_server.url, namespace) as connection:

        async def read(shard: ShardId) -> list[int]:
            expected = [n for n, agent in enumerate(agents) if shard_of(agent) == shard]
            async with reading(connection, shard) as batches:
                received_numbers = numbers(await take(connection, batches, len(expected)))
            assert sorted(received_numbers) == expected
            return received_numbers

        async with asyncio.TaskGroup() as tasks:
            reads = [tasks.create_task(read(shard)) for shard in shards]
            tasks.create_task(send_all(connection, map(row, range(1024), agents)))

    assert sum(len(task.result()) for task in reads) == 1024


@pytest.mark.parametrize("shard", [instance_shard(ALICE), undeclared_shard("greeter")])
async def test_other_kinds_of_shards_are_read_by_their_own_filter(
    nats_server: TestNats, namespace: str, shard: ShardId
) -> None:
    """An agent registered by itself gets its own mail only; an undeclared type's shard gets all."""
    rows = [row(n, AgentId("greeter", ("alice", "bob")[n % 2])) for n in range(10)]
    expected = [1, 3, 5, 7, 9] if shard.startswith("i:") else list(range(1, 11))

    async with connect(nats_server.url, namespace) as connection:
        for outbox_row in rows:
            await connection.send(outbox_row)
        async with reading(connection, shard) as batches:
            received_batches = await take(connection, batches, len(expected))

    assert [
        message.sequence for batch in received_batches for message in batch.received
    ] == expected


@pytest.mark.costly
async def test_twenty_thousand_messages_come_in_order_and_without_a_gap(
    nats_server: TestNats, namespace: str
) -> None:
    """Sixteen shards are read while they are written to: each message once, in the stream's order."""
    total = 20_000
    agents = [AgentId("greeter", f"k{n % 320}") for n in range(total)]

    async with connect(nats_server.url, namespace) as connection:
        sequences: dict[int, int] = {}
        read_places: dict[ShardId, list[tuple[int, int]]] = {}

        async def write() -> None:
            for first in range(0, total, 500):
                some = range(first, first + 500)
                acks = await send_all(connection, [row(n, agents[n]) for n in some])
                sequences.update(zip(some, acks, strict=True))

        async def read(shard: ShardId) -> None:
            expected = sum(1 for agent in agents if shard_of(agent) == shard)
            async with reading(connection, shard) as batches:
                received_batches = await take(connection, batches, expected)
            assert all(
                b.upto.sequence == b.received[-1].sequence for b in received_batches if b.received
            )
            read_places[shard] = [
                (message.sequence, number_of(message))
                for b in received_batches
                for message in b.received
            ]

        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(write())
            for shard in shards_of("greeter"):
                tasks.create_task(read(shard))

    expected = {shard: list[tuple[int, int]]() for shard in read_places}
    for n, sequence in sequences.items():
        expected[shard_of(agents[n])].append((sequence, n))
    assert read_places == {shard: sorted(places) for shard, places in expected.items()}


async def test_dropped_deliveries_are_read_again_and_nothing_twice(
    nats_server: TestNats, namespace: str
) -> None:
    """Where one delivery in 200 is lost on its way, the reader hands out all, in order, once."""
    chance = random.Random(7)
    async with connect(nats_server.url, namespace) as connection:
        await send_all(connection, [row(n, ALICE) for n in range(3000)])
        drops = 0

        def is_dropped() -> bool:
            nonlocal drops
            drops += (is_hit := chance.random() < 0.005)
            return is_hit

        _drop(connection, is_dropped)
        async with asyncio.timeout(20), reading(connection, ALICES) as batches:
            sequences = [
                r.sequence for b in await take(connection, batches, 3000) for r in b.received
            ]

    assert drops > 5
    assert sequences == list(range(1, 3001))


async def test_a_dropped_last_delivery_is_noticed_by_the_heartbeat(
    nats_server: TestNats, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """When nothing follows that would show the gap, the server's next heartbeat does."""
    monkeypatch.setattr(reader_module, "HEARTBEAT_S", 1)
    monkeypatch.setattr(reader_module, "EXPIRES_S", 60)
    monkeypatch.setattr(reader_module, "SILENT_S", 60.0)
    hits = iter([False, True])
    async with connect(nats_server.url, namespace) as connection:
        await send_all(connection, [row(n, ALICE) for n in range(2)])
        _drop(connection, lambda: next(hits, False))
        async with asyncio.timeout(20), reading(connection, ALICES) as batches:
            received_batches = await take(connection, batches, 2)

    assert [message.sequence for batch in received_batches for message in batch.received] == [1, 2]


async def test_a_redelivery_is_not_handed_out(
    nats_server: TestNats, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A caller that commits longer than the ack wait gets nothing twice, and all that follows."""
    monkeypatch.setattr(reader_module, "ACK_WAIT_S", 1)
    async with connect(nats_server.url, namespace) as connection:
        await connection.send(row(1, ALICE))
        async with reading(connection, ALICES) as batches:
            (first,) = await take(connection, batches, 1, is_acked=False)
            consumer = next(iter(connection._pulls._readers))
            pending = asyncio.create_task(anext(batches))
            async with asyncio.timeout(20):
                while consumer in connection._pulls._readers:
                    await connection.stream_state()
            connection.ack(first)
            await connection.send(row(2, ALICE))
            assert numbers([await pending]) == [2]


async def test_a_consumer_deleted_under_its_owner_is_made_again(
    nats_server: TestNats, namespace: str
) -> None:
    """An operator who deletes consumers loses nothing and gets nothing delivered twice."""
    stream = f"{namespace}_MAIL"
    async with connect(nats_server.url, namespace) as connection, _client(nats_server.url) as nc:
        async with reading(connection, ALICES) as batches:
            for n in range(5):
                await connection.send(row(n, ALICE))
                assert numbers(await take(connection, batches, 1)) == [n]
                name = next(iter(connection._pulls._readers)).decode()
                assert (await _api(nc, f"CONSUMER.DELETE.{stream}.{name}"))["success"]
        consumers = await _api(nc, f"CONSUMER.NAMES.{stream}")

    assert consumers["consumers"] in (None, [])


async def test_a_new_owner_gets_everything_beside_an_old_one_that_still_pulls(
    nats_server: TestNats, namespace: str
) -> None:
    """A frozen owner's waiting pulls take nothing from the owner of the next epoch."""
    async with (
        connect(nats_server.url, namespace) as old,
        connect(nats_server.url, namespace) as new,
        reading(old, ALICES) as frozen,
    ):
        await old.send(row(0, ALICE))
        (first,) = await take(old, frozen, 1)
        pulling = asyncio.create_task(anext(frozen))  # leaves a request of 256 waiting
        await old.stream_state()
        async with reading(new, ALICES, first.upto, epoch=2) as batches:
            await send_all(new, [row(n, ALICE) for n in range(1, 600)])
            received_batches = await take(new, batches, 599)
        await pulling

    assert [message.sequence for batch in received_batches for message in batch.received] == list(
        range(2, 601)
    )


async def test_an_ack_moves_the_consumers_floor(nats_server: TestNats, namespace: str) -> None:
    """One acknowledgement covers all that was handed out before; it goes out while reading waits."""
    async with connect(nats_server.url, namespace) as connection, _client(nats_server.url) as nc:
        await send_all(connection, [row(n, ALICE) for n in range(700)])
        async with reading(connection, ALICES) as batches:
            received_batches = await take(connection, batches, 700, is_acked=False)
            name = next(iter(connection._pulls._readers)).decode()
            waiting = asyncio.create_task(anext(batches))
            connection.ack(received_batches[-1])
            async with asyncio.timeout(20):
                while True:
                    info = await _api(nc, f"CONSUMER.INFO.{namespace}_MAIL.{name}")
                    if info["ack_floor"]["stream_seq"] == 700:
                        break
            await connection.send(row(700, ALICE))
            assert numbers([await waiting]) == [700]


@pytest.mark.costly
async def test_a_caller_that_takes_nothing_gets_a_bounded_amount(
    nats_server: TestNats, namespace: str
) -> None:
    """With 20,000 messages waiting, the server has sent two requests when the caller has taken one batch."""
    async with connect(nats_server.url, namespace) as connection, _client(nats_server.url) as nc:
        subject = connection._subjects.inbox(ALICE)
        for n in range(20_000):
            await nc.publish(subject, b"{}")
            if n % 2000 == 0:
                await nc.flush()
        await nc.flush()
        async with reading(connection, ALICES) as batches:
            message_count = len((await anext(batches)).received)
            name = next(iter(connection._pulls._readers)).decode()
            reader: Any = next(iter(connection._pulls._readers.values()))
            # A pull that a slow server ended before it was full is renewed with the next step.
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(5):
                    while len(reader._buffer) < 2 * reader_module.MAX_ASK - message_count:
                        await connection.stream_state()
            info = await _api(nc, f"CONSUMER.INFO.{namespace}_MAIL.{name}")
            await connection.stream_state()

            assert info["delivered"]["consumer_seq"] <= 2 * reader_module.MAX_ASK
            assert len(reader._buffer) <= 2 * reader_module.MAX_ASK - message_count
            rest = await take(connection, batches, 3000)

    assert rest[-1].upto.sequence >= 3000


async def test_a_tenant_is_not_read_behind_another_ones_thousands(
    nats_server: TestNats, namespace: str
) -> None:
    """Behind 3,000 messages of one tenant another's is in the next batch once it is in memory."""
    keys = (AgentId("greeter", f"q{n}", "quiet") for n in range(1000))
    quiet = next(agent for agent in keys if shard_of(agent) == ALICES)
    async with connect(nats_server.url, namespace) as connection:
        await send_all(connection, [row(n, ALICE) for n in range(3000)])
        await send_all(connection, [row(3000, quiet)])
        async with reading(connection, ALICES) as batches:
            first = await take(connection, batches, 1)
            reader: Any = next(iter(connection._pulls._readers.values()))
            async with asyncio.timeout(20):
                while len(numbers(first)) + len(reader._buffer) < 3001:
                    await connection.stream_state()
            rest = await take(connection, batches, 3001 - len(numbers(first)))

    assert 3000 in numbers(first) or numbers(rest[:1])[1] == 3000
    assert [n for n in numbers([*first, *rest]) if n != 3000] == list(range(3000))
    assert rest[-1].upto.sequence == 3001
    assert connection._pulls.buffered_bytes == 0


async def test_large_messages_are_bounded_by_their_bytes(
    nats_server: TestNats, namespace: str
) -> None:
    """Of 30 messages of 700 KiB, no more than 4 MiB are in memory, and all are delivered."""
    async with connect(nats_server.url, namespace) as connection, _client(nats_server.url) as nc:
        subject = connection._subjects.inbox(ALICE)
        for _ in range(30):
            await nc.publish(subject, b"x" * 700 * 1024)
        await nc.flush()
        count = most = 0
        async with reading(connection, ALICES) as batches:
            reader: Any = None
            while count < 30:
                count += len((await anext(batches)).received)
                reader = reader or next(iter(connection._pulls._readers.values()))
                await connection.stream_state()
                most = max(most, reader._buffer.size)

    assert count == 30
    assert 0 < most <= 4 * 1024 * 1024


async def test_a_message_larger_than_a_request_comes_by_itself(
    nats_server: TestNats, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What does not fit the request's limit of bytes is asked for without one."""
    monkeypatch.setattr(reader_module, "ASK_BYTES", 1000)
    async with connect(nats_server.url, namespace) as connection, asyncio.timeout(20):
        texts = ["x" * size for size in (10, 50_000, 10, 50_000, 50_000, 10)]
        for n, text in enumerate(texts):
            await connection.send(row(n, ALICE, text=text))
        async with reading(connection, ALICES) as batches:
            received_numbers = numbers(await take(connection, batches, 6))

    assert received_numbers == list(range(6))


async def test_an_idle_shard_moves_with_what_others_read(
    nats_server: TestNats, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A shard without mail yields an empty batch up to what was read elsewhere, with its time."""
    monkeypatch.setattr(reader_module, "PROVE_EVERY_S", 0.05)
    other = undeclared_shard("other")
    async with connect(nats_server.url, namespace) as connection:
        await connection.send(row(1, ALICE))
        async with reading(connection, ALICES) as busy, reading(connection, other) as idle:
            (read_batch,) = await take(connection, busy, 1)
            proof = await anext(idle)

    assert proof.received == ()
    assert proof.upto == read_batch.upto


@pytest.mark.parametrize("seed", [1, 2, 3])
async def test_a_proof_of_idleness_never_passes_a_message(
    own_nats: OwnNats, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    """However late deliveries are, and whenever the server is stopped: all it covers was handed out."""
    monkeypatch.setattr(reader_module, "PROVE_EVERY_S", 0.002)
    monkeypatch.setattr(reader_module, "EXPIRES_S", 1)
    monkeypatch.setattr(reader_module, "HEARTBEAT_S", 0)
    chance = random.Random(seed)
    server = own_nats()
    agents = [AgentId("greeter", f"k{n}") for n in range(6)]
    shards = sorted({shard_of(agent) for agent in agents})
    sequences_by_shard: dict[ShardId, list[int]] = {shard: [] for shard in shards}
    proofs: list[tuple[ShardId, int, int]] = []
    shard_by_sequence: dict[int, ShardId] = {}

    async with connect(server.url) as connection:
        _delay(connection, chance)

        async def write() -> None:
            for n in range(400):
                agent = chance.choice(agents)
                shard_by_sequence[await connection.send(row(n, agent))] = shard_of(agent)
                if n % 150 == 100:
                    os.kill(server.pid, signal.SIGSTOP)
                    asyncio.get_running_loop().call_later(1.2, os.kill, server.pid, signal.SIGCONT)

        async def read(shard: ShardId) -> None:
            async with reading(connection, shard) as batches:
                async for batch in batches:
                    sequences_by_shard[shard] += [message.sequence for message in batch.received]
                    if not batch.received:
                        proofs.append((shard, batch.upto.sequence, len(sequences_by_shard[shard])))
                    connection.ack(batch)

        async with asyncio.TaskGroup() as tasks:
            readers = [tasks.create_task(read(shard)) for shard in shards]
            await write()
            while sum(map(len, sequences_by_shard.values())) < 400:
                await connection.stream_state()
            for task in readers:
                task.cancel()

    assert len(proofs) > 20
    for shard, upto, count in proofs:
        covered_sequences = sorted(
            s for s, of in shard_by_sequence.items() if of == shard and s <= upto
        )
        assert covered_sequences == [s for s in sequences_by_shard[shard][:count] if s <= upto]
    for shard in shards:
        assert sequences_by_shard[shard] == sorted(
            s for s, of in shard_by_sequence.items() if of == shard
        )


async def test_reading_goes_on_behind_the_cursor(nats_server: TestNats, namespace: str) -> None:
    """What is at or before the cursor is not delivered again."""
    async with connect(nats_server.url, namespace) as connection:
        await send_all(connection, [row(n, ALICE) for n in range(10)])
        async with reading(connection, ALICES, Cursor(3, 7)) as batches:
            received_batches = await take(connection, batches, 3)

    assert [message.sequence for batch in received_batches for message in batch.received] == [
        8,
        9,
        10,
    ]
    assert {batch.upto.stream_epoch for batch in received_batches} == {3}
    assert {batch.lease.shard for batch in received_batches} == {ALICES}
    assert START.sequence == 0
