"""A `Transport` and a `MailStore` together, without the runtime between them: NATS and PostgreSQL.

What one of them says is handed to the other as it is: leases and cursors, rows, batches.
"""

from __future__ import annotations

import asyncio
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import pytest

from actors._kernel.runtime.commit import Finish, LeaseLost
from actors._kernel.runtime.ids import TOPICS, AgentId, HostIncarnation, TopicId, topic_shard
from actors._kernel.runtime.log_entry import EntryKind, NewEntry
from actors._kernel.runtime.scheduler import RunStatus
from actors._kernel.stores.shards import Serves
from actors._kernel.stores.transport import Ingested, StaleStream
from actors._runtime.loop.clock import SystemClock
from broker import JetStreamTransport, Subjects
from persistence.postgres import StoreSettings, open_store
from tests.conformance.bed import Bed, Turns, outgoing, result
from tests.harness.rawnats import raw_nats
from tests.harness.slow import wait_for_the_broker

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from actors._kernel.runtime.scheduler import ShardLease
    from actors._kernel.stores.transport import (
        Cursor,
        MailBatch,
        MailConnection,
        OutboxRow,
        StreamRecord,
        Transport,
    )
    from persistence.postgres import PostgresStore
    from tests.harness.servers import TestNats

SOLO = AgentId("solo", "1")
"""Registered by itself."""
ANNA, BERT = AgentId("clerk", "anna"), AgentId("clerk", "bert")
"""Of a type that is registered whole."""
NEWS = TopicId("news", "eu")
NOVA = AgentId("nova", "1")
"""Of a type that nobody registered."""


@dataclass
class Line:
    """One host between its store and its broker connection."""

    bed: Bed
    store: PostgresStore
    connection: MailConnection
    stream: StreamRecord
    turns: Turns

    async def send(self, target: AgentId, *ids: str) -> list[OutboxRow]:
        """Send an agent's messages in one commit; return the outbox messages to the target."""
        out = tuple(outgoing(id_, to=target, id=id_, sender=f"agent:{SOLO}") for id_ in ids)
        await self.turns.commit(self.turns.turn(result(ids[0]), outgoing=out))
        rows = await self.store.outbox.page(list(self.bed.leases.values()))
        return [row for row in rows if row.message.target == target]

    async def cursor(self, target: AgentId) -> Cursor:
        """Return the cursor of the target's shard."""
        lease = self.bed.lease_of(target)
        assert lease is not None
        return (await self.store.mail.cursors([lease], self.stream))[0]

    async def read(
        self, target: AgentId, count: int, cursor: Cursor | None = None
    ) -> list[MailBatch]:
        """Read this many messages of the target's shard after its cursor."""
        lease = self.bed.lease_of(target)
        assert lease is not None
        batches: list[MailBatch] = []
        reading = self.connection.read(lease, cursor or await self.cursor(target))
        async with aclosing(reading), asyncio.timeout(10):
            async for batch in reading:
                batches.append(batch)
                self.connection.ack(batch)
                count -= len(batch.received)
                if count <= 0:
                    return batches
        raise AssertionError(f"{count} messages did not come")

    async def arrive(self, target: AgentId, count: int, cursor: Cursor | None = None) -> list[str]:
        """Read this many messages and write them; return the ids of the new ones."""
        new: list[str] = []
        for batch in await self.read(target, count, cursor):
            outcome = await self.store.mail.ingest(batch)
            assert isinstance(outcome, Ingested), outcome
            new += [item.message.id for item in outcome.arrived]
        return new

    async def on_the_way(self) -> list[str]:
        """Return the ids of messages in the outbox."""
        rows = await self.store.outbox.page(list(self.bed.leases.values()))
        return [row.message.id for row in rows]


@pytest.fixture(autouse=True)
def _patience(monkeypatch: pytest.MonkeyPatch) -> None:
    wait_for_the_broker(monkeypatch)


@pytest.fixture
def transport(nats_server: TestNats, namespace: str) -> Transport:
    """Return the transport to the broker."""
    return JetStreamTransport(nats_server.url, namespace=namespace)


@asynccontextmanager
async def open_line(url: str, schema: str, transport: Transport) -> AsyncIterator[Line]:
    """Yield a host that owns all shards and sends all its messages through the broker."""
    owner = HostIncarnation("host-1")
    settings = StoreSettings(
        url=url, schema=schema, owner=owner, brokered=True, local_delivery=False, lease_s=60
    )
    serves = Serves(types=("clerk", TOPICS), agents=(SOLO,))
    async with open_store(settings) as store:
        await store.shards.declare(serves)
        leases = await store.shards.claim(owner=owner, serves=serves, limit=100)
        by_shard = {lease.shard: lease for lease in leases}
        unused: Any = None
        bed = Bed("brokered", store, owner, unused, SystemClock(), unused, leases=by_shard)
        turns = await bed.begin(agent=SOLO)
        deployment = await store.mail.deployment()
        async with transport.connect(deployment=deployment, on_nudge=lambda _: None) as connection:
            stream = await store.mail.stream(await connection.stream_state())
            yield Line(bed, store, connection, stream, turns)


@pytest.fixture
async def line(postgres_dsn: str, schema: str, transport: Transport) -> AsyncIterator[Line]:
    """See `open_line`."""
    async with open_line(postgres_dsn, schema, transport) as new_line:
        yield new_line


@pytest.mark.item(117, 118, 200)
@pytest.mark.parametrize("target", [SOLO, ANNA, BERT], ids=str)
async def test_what_a_commit_posts_arrives_once_and_in_order(line: Line, target: AgentId) -> None:
    """In the target's shard. Sent twice and read twice, it is stored once."""
    rows = await line.send(target, "a", "b", "c")
    for row in (*rows, *rows):
        assert await line.connection.send(row) > 0
    start = await line.cursor(target)

    assert await line.arrive(target, 6) == ["a", "b", "c"]
    assert await line.arrive(target, 6, start) == []

    waiting = await line.store.backlog.pending_mail(agent=target)
    assert [item.message.id for item in waiting] == ["a", "b", "c"]
    assert await line.on_the_way() == []
    assert (await line.cursor(target)).sequence == 6


@pytest.mark.item(118, 201)
async def test_what_the_broker_turns_round_comes_in_order(line: Line) -> None:
    """A message without its predecessor stays in the outbox, whose rows have the cursor after it."""
    rows = await line.send(BERT, "a", "b", "c")
    await line.connection.send(rows[1])
    assert await line.arrive(BERT, 1) == []

    outbox_rows = await line.store.outbox.page(list(line.bed.leases.values()))
    assert [(row.message.id, row.target_read) for row in outbox_rows] == [
        ("a", 1),
        ("b", 1),
        ("c", 1),
    ]
    for row in outbox_rows:
        await line.connection.send(row)
    assert await line.arrive(BERT, 3) == ["a", "b", "c"]


async def test_the_cursor_tells_the_stream_that_was_read(line: Line) -> None:
    """Its time is when the broker stored the message. Another epoch of the stream refuses it."""
    [row] = await line.send(BERT, "a")
    sequence = await line.connection.send(row)
    [batch] = await line.read(BERT, 1)
    assert isinstance(await line.store.mail.ingest(batch), Ingested)

    state = await line.connection.stream_state()
    stream = await line.store.mail.stream(state)
    assert stream.highest is not None
    assert (stream.highest.sequence, state.last_sequence) == (sequence, sequence)
    assert await line.connection.stored_at(sequence) == stream.highest.at
    assert await line.connection.stored_at(sequence + 1) is None
    assert state.deployment == await line.store.mail.deployment()

    await line.store.mail.next_stream_epoch(stream, state.created)
    assert await line.store.mail.ingest(batch) == StaleStream()


async def test_a_batch_behind_what_the_store_has_read_is_refused(line: Line) -> None:
    """The store lost commits: the earlier messages are read again first, from its cursor."""
    for row in await line.send(BERT, "a", "b"):
        await line.connection.send(row)
    start = await line.cursor(BERT)
    [batch] = await line.read(BERT, 1)
    later_batch = replace(
        batch, received=(), upto=replace(batch.upto, sequence=9), behind=batch.upto.sequence
    )

    assert batch.behind == start.sequence
    assert await line.store.mail.ingest(later_batch) == StaleStream()
    assert await line.cursor(BERT) == start
    assert await line.arrive(BERT, 2) == ["a", "b"]
    assert isinstance(await line.store.mail.ingest(later_batch), Ingested)
    assert (await line.cursor(BERT)).sequence == 9


@pytest.mark.item(157)
async def test_only_the_owner_of_a_shard_makes_rows(line: Line) -> None:
    """A former owner's batches are refused. The next owner starts at the cursor."""
    rows = await line.send(BERT, "a", "b")
    await line.connection.send(rows[0])
    assert await line.arrive(BERT, 1) == ["a"]
    await line.connection.send(rows[1])
    [batch] = await line.read(BERT, 1)

    lost = replace(batch, lease=replace(batch.lease, epoch=batch.lease.epoch - 1))
    assert await line.store.mail.ingest(lost) == LeaseLost()
    assert await line.arrive(BERT, 1) == ["b"]


@pytest.mark.item(41)
async def test_messages_of_undeclared_agents_are_found_and_not_purged_unread(line: Line) -> None:
    """The shard is created from the broker's list of pending subjects.

    Messages that all shards have read are purged.
    """
    for agent, name in ((BERT, "a"), (NOVA, "n")):
        [row] = await line.send(agent, name)
        await line.connection.send(row)
    assert sorted(await line.connection.waiting(), key=str) == [BERT, NOVA]

    assert await line.store.mail.account_for(await line.connection.waiting()) == 1
    assert await line.arrive(BERT, 1) == ["a"]
    assert await line.store.mail.low_water(line.stream) == 0
    assert await line.connection.purge(2) == 1
    assert list(await line.connection.waiting()) == [NOVA]


@pytest.mark.item(119, 202)
async def test_a_dead_letter_leaves_the_outbox_once_the_broker_has_it(line: Line) -> None:
    """Its row has the receiver and the reason."""
    submitted = await line.bed.submit("bad", agent=BERT)
    turns = await Turns(line.bed, submitted.run_id, BERT).start()
    failed = NewEntry(EntryKind.RUN_FAILED, "", {"status": "FAILED", "error": {"message": "no"}})
    finish = Finish(RunStatus.FAILED, error={"message": "no"}, dead_letter="max_retries")
    await turns.commit(turns.turn(failed, then=finish))
    [row] = await line.store.outbox.page(list(line.bed.leases.values()))
    assert (row.message.target, row.dead_letter) == (BERT, "max_retries")

    assert await line.connection.send(row) > 0
    await line.store.outbox.forget([row])

    assert await line.on_the_way() == []
    assert list(await line.connection.waiting()) == []


async def test_a_message_that_is_given_up_is_one_dead_letter_and_what_is_behind_it_arrives(
    line: Line,
) -> None:
    """Its id stays known and its row is deleted.

    The sender's next messages arrive; a second copy changes nothing.
    """
    first, second, third = await line.send(BERT, "a", "b", "c")
    await line.connection.send(first)
    assert await line.arrive(BERT, 1) == ["a"]

    await line.store.outbox.bury(second, "too large\x00")
    await line.store.outbox.bury(second, "again")
    await line.store.outbox.bury(first, "it has arrived")
    await line.connection.send(third)
    assert await line.arrive(BERT, 1) == ["c"]

    [letter] = await line.store.lists.dead_letters()
    assert (letter.agent_id, letter.message.id, letter.message.sender) == (
        BERT,
        "b",
        f"agent:{SOLO}",
    )
    assert (letter.reason, letter.last_error, letter.attempts) == ("unpublishable", "too large", 0)
    [row] = await line.store.outbox.page(list(line.bed.leases.values()))
    assert (row.message.target, row.dead_letter) == (BERT, "unpublishable")
    assert [arrived.message.id for arrived in await line.store.operators.redrive([letter.id])] != [
        "b"
    ]
    mail = await line.store.backlog.pending_mail(agent=BERT)
    assert [m.message.payload for m in mail] == ["a", "c", "b"]


@pytest.mark.item(27, 94, 243)
async def test_an_external_clients_post_is_work_for_its_followers_owner_once(
    line: Line, nats_server: TestNats, namespace: str
) -> None:
    """In the commit that moves the cursor. A second read or publication of it is known."""
    await line.store.follows.follow(ANNA, NEWS)
    subject = Subjects(namespace).external_post(NEWS, "crm")
    async with raw_nats(nats_server.url) as outsider:
        for _ in range(2):
            await outsider.publish(subject, b'{"n": 1}', {"Nats-Msg-Id": "p-1"})
    lease = line.bed.leases[topic_shard(NEWS)]
    [start] = await line.store.mail.cursors([lease], line.stream)
    batch = await read_all(line, lease, start, 2)
    lost = replace(batch, lease=replace(lease, epoch=lease.epoch - 1))
    assert await line.store.mail.ingest(lost) == LeaseLost()

    followers = line.store.shards.shard_of(ANNA)
    assert await line.store.mail.ingest(batch) == Ingested(posted=(followers,))
    assert await line.store.mail.ingest(batch) == Ingested()

    brought = await line.store.posts.expand([line.bed.leases[followers]])
    assert list(brought.woken) == [followers]
    [waiting] = await line.store.backlog.pending_mail(agent=ANNA)
    assert waiting.message.metadata["publisher"] == "ext:crm"
    assert (await line.store.mail.cursors([lease], line.stream))[0].sequence == 2
    assert await line.on_the_way() == []  # observers have it from the broker


async def read_all(line: Line, lease: ShardLease, cursor: Cursor, count: int) -> MailBatch:
    """Read this many messages of a shard as one batch."""
    batches: list[MailBatch] = []
    async with aclosing(line.connection.read(lease, cursor)) as reading, asyncio.timeout(10):
        async for batch in reading:
            batches.append(batch)
            if sum(len(b.received) for b in batches) >= count:
                break
    received = tuple(item for b in batches for item in b.received)
    return replace(batches[-1], received=received)


async def test_a_commits_post_waits_for_observers_until_the_broker_has_it(line: Line) -> None:
    """In the outbox of its topic's shard and in no inbox. The row is deleted once it is sent."""
    post = outgoing("a", to=SOLO, id="a", sender=f"agent:{SOLO}")
    post = replace(post, target=NEWS, message=replace(post.message, target=NEWS))
    await line.turns.commit(line.turns.turn(result("a"), outgoing=(post,)))

    senders = line.bed.lease_of(SOLO)
    assert senders is not None
    assert await line.store.outbox.page([senders]) == []
    [row] = await line.store.outbox.page([line.bed.leases[topic_shard(NEWS)]])
    assert (row.message.target, row.target_read) == (NEWS, 0)
    assert await line.connection.send(row) > 0
    await line.store.outbox.forget([row])
    assert await line.on_the_way() == []
