"""Two hosts, shards that move, and a broker that drops, doubles and reorders: order holds."""

from __future__ import annotations

import asyncio
import random
from collections import defaultdict
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import pytest

from actors._kernel.runtime.commit import Committed, LeaseLost
from actors._kernel.runtime.ids import AgentId
from actors._kernel.stores.transport import Cursor, Ingested, MailBatch, Received, StaleStream
from tests.conformance.bed import outgoing, result
from tests.integration.persistence.hosts import sql
from tests.integration.persistence.mailing import CREATED, move_shard, post_of, post_office

if TYPE_CHECKING:
    from actors._kernel.runtime.ids import ShardId
    from actors._kernel.runtime.scheduler import ShardLease
    from actors._kernel.stores.transport import OutboxRow
    from tests.conformance.bed import Turns
    from tests.integration.persistence.mailing import Post

AGENTS = [AgentId(type_, f"k{n}") for type_ in ("desk", "clerk") for n in range(4)]
ROUNDS = 40


@dataclass
class Wire:
    """A broker's stream, and what is between a host and it."""

    chance: random.Random
    stored: list[OutboxRow] = field(default_factory=list)
    late: list[OutboxRow] = field(default_factory=list)

    def publish(self, rows: list[OutboxRow], *, well: bool) -> None:
        """Store what comes through: in good times all of it, in order."""
        for row in rows:
            fate = 0.0 if well else self.chance.random()
            if fate < 0.6:
                self.stored.append(row)
            elif fate < 0.7:
                self.stored += [row, row]
            elif fate < 0.85:
                self.late.append(row)
        if self.late and not well:
            self.chance.shuffle(self.late)
            self.stored.append(self.late.pop())

    def read(self, post: Post, lease: ShardLease, cursor: Cursor, size: int) -> MailBatch | None:
        """Some of what is stored for a shard behind the cursor."""
        messages: list[Received] = []
        upto = cursor.sequence
        for sequence, row in enumerate(self.stored[upto:], upto + 1):
            if len(messages) == size:
                break
            upto, message = sequence, row.message
            assert isinstance(message.target, AgentId)
            assert message.sender is not None
            if post.store.shards.shard_of(message.target) == lease.shard:
                messages.append(
                    Received(sequence, message.target, message.sender, message.id, message)
                )
        if upto == cursor.sequence:
            return None
        moved_cursor = replace(cursor, sequence=upto, at=CREATED)
        return MailBatch(lease, moved_cursor, tuple(messages))


@dataclass
class World:
    """Hosts, senders, and what every pair was sent."""

    chance: random.Random
    hosts: list[Post]
    wire: Wire
    runs: dict[AgentId, Turns] = field(default_factory=dict)
    waiting: dict[AgentId, list[tuple[str, AgentId]]] = field(default_factory=dict)
    sent: dict[tuple[str, str], list[str]] = field(default_factory=lambda: defaultdict(list))

    def owner_of(self, shard: ShardId) -> Post:
        """Who thinks that the shard is its own."""
        return next(post for post in self.hosts if shard in post.bed.leases)

    async def send(self, sender: AgentId) -> None:
        """One turn that sends up to three messages; sent again where it was refused."""
        run = self.runs[sender]
        run.bed = self.owner_of(self.hosts[0].store.shards.shard_of(sender)).bed
        batch = self.waiting.get(sender)
        if batch is None:
            targets = self.chance.choices(AGENTS, k=self.chance.randint(1, 3))
            batch = []
            for target in targets:
                pair = self.sent[f"agent:{sender}", str(target)]
                pair.append(f"{len(pair)}")
                batch.append((pair[-1], target))
            self.waiting[sender] = batch
        out = tuple(outgoing(id=i, to=to, sender=f"agent:{sender}") for i, to in batch)
        outcome = await run.send(run.turn(result(f"{run.seq}"), outgoing=out))
        if isinstance(outcome, Committed):
            del self.waiting[sender]

    async def read(self, post: Post, shard: ShardId, *, size: int) -> None:
        """Write some of a shard's mail."""
        lease = post.bed.leases.get(shard)
        if lease is None:
            return
        cursor = (await post.store.mail.cursors([lease], post.stream))[0]
        batch = self.wire.read(post, lease, cursor, size)
        if batch is not None:
            outcome = await post.store.mail.ingest(batch)
            assert isinstance(outcome, Ingested | LeaseLost | StaleStream)

    async def hand_over(self, post: Post) -> None:
        """Bring some of what is on the way without the broker, in any order."""
        rows = await post.outbox()
        chosen_rows = self.chance.sample(rows, self.chance.randint(0, len(rows)))
        await asyncio.gather(*(post.store.outbox.hand_over(row) for row in chosen_rows))

    async def move(self) -> None:
        """Give one shard from a host to the other, in the middle of what goes on."""
        giver, taker = self.chance.sample(self.hosts, 2)
        if giver.bed.leases:
            shard = self.chance.choice(sorted(giver.bed.leases))
            late = MailBatch(giver.bed.leases[shard], Cursor(giver.stream.epoch, 10**9), ())
            await move_shard(giver, taker, shard)
            assert await giver.store.mail.ingest(late) == LeaseLost()

    async def renew(self) -> None:
        """Begin another epoch of the stream; the hosts find out one after the other."""
        state = self.chance.choice(self.hosts).stream
        newer = await self.hosts[0].store.mail.next_stream_epoch(state, CREATED)
        for post in self.hosts:
            post.stream = newer

    async def round(self) -> None:
        """Many things at once."""
        tasks = [self.send(sender) for sender in self.chance.sample(AGENTS, 5)]
        tasks += [
            self.read(post, shard, size=self.chance.randint(1, 6))
            for post in self.hosts
            for shard in list(post.bed.leases)
            if self.chance.random() < 0.5
        ]
        tasks += [self.hand_over(post) for post in self.hosts if self.chance.random() < 0.2]
        if self.chance.random() < 0.5:
            tasks.append(self.move())
        if self.chance.random() < 0.1:
            tasks.append(self.renew())
        self.chance.shuffle(tasks)
        await asyncio.gather(*tasks)
        for post in self.hosts:
            self.wire.publish(await post.outbox(), well=False)

    async def calm(self) -> None:
        """Let everything arrive, by a broker that works."""
        while self.waiting:
            for sender in list(self.waiting):
                await self.send(sender)
        for _ in range(3):
            for post in self.hosts:
                self.wire.publish(await post.outbox(), well=True)
            for post in self.hosts:
                for shard in list(post.bed.leases):
                    await self.read(post, shard, size=100_000)


@pytest.mark.parametrize("seed", range(5))
async def test_messages_of_every_sender_are_handled_once_and_in_order(
    postgres_dsn: str, schema: str, seed: int
) -> None:
    """Whatever is lost, doubled or late on the way, or goes past the broker, and whoever owns the shards."""
    chance = random.Random(seed)
    async with (
        post_office(postgres_dsn, schema, lease_s=3600) as own_post,
        own_post.bed.rival() as rival,
    ):
        world = World(chance, [own_post, await post_of(rival)], Wire(chance))
        for agent in AGENTS:
            world.runs[agent] = await own_post.begin(agent)

        for _ in range(ROUNDS):
            await world.round()
        await world.calm()

        rows = await sql(
            postgres_dsn,
            schema,
            "select sender, agent, message_id from inbox where sender like 'agent:%'"
            " order by arrival",
        )
        rows_left = await sql(postgres_dsn, schema, "select count(*) as n from outbox")
    received_ids: dict[tuple[str, str], list[str]] = defaultdict(list)
    for row in rows:
        received_ids[row["sender"], row["agent"]].append(row["message_id"])
    assert received_ids == world.sent
    assert rows_left[0]["n"] == 0
