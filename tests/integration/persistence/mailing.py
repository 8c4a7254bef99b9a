"""Mail that travels by a broker, as the tests of its rows need it."""

from __future__ import annotations

import itertools
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final

from actors._kernel.runtime.ids import AgentId
from actors._kernel.stores.transport import Cursor, Ingested, MailBatch, Received, StreamState
from tests.conformance.bed import message, outgoing, result
from tests.integration.persistence.hosts import host, sql, store_of

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    from actors._kernel.runtime.commit import Committed
    from actors._kernel.runtime.ids import ShardId
    from actors._kernel.runtime.rows import Arrived
    from actors._kernel.stores.transport import OutboxRow, SentSignal, StreamRecord, Undecodable
    from persistence.postgres import PostgresStore
    from tests.conformance.bed import Bed, Turns

CREATED: Final = datetime(2030, 1, 1, tzinfo=UTC)
STATE: Final = StreamState("MAIL", CREATED, 1, 0, "ours")
ANNA: Final = AgentId("desk", "anna")
BERT: Final = AgentId("clerk", "bert")
"""Of another type, so of another shard."""


@dataclass
class Post:
    """A host that reads and writes mail: what the runtime does between broker and store."""

    bed: Bed
    stream: StreamRecord
    sequences: itertools.count[int] = field(default_factory=lambda: itertools.count(1))
    ids: itertools.count[int] = field(default_factory=itertools.count)

    @property
    def store(self) -> PostgresStore:
        """The rows."""
        return store_of(self.bed)

    async def begin(self, agent: AgentId = ANNA) -> Turns:
        """A run of the agent that sends."""
        return await self.bed.begin(agent=agent)

    async def send(self, run: Turns, *ids: str, to: AgentId = BERT) -> Committed:
        """Send messages of these ids with one commit."""
        out = tuple(outgoing(id_, to=to, id=id_, sender=f"agent:{run.agent}") for id_ in ids)
        return await run.commit(run.turn(result(str(next(self.ids))), outgoing=out))

    async def outbox(self) -> list[OutboxRow]:
        """All that is on its way from this host's shards."""
        return await self.store.outbox.page(list(self.bed.leases.values()))

    async def on_the_way(self) -> list[str]:
        """The ids of it."""
        return [row.message.id for row in await self.outbox()]

    def batch(self, *items: Received, agent: AgentId = BERT, upto: int | None = None) -> MailBatch:
        """What was read of the agent's shard, up to its last message."""
        lease = self.bed.lease_of(agent)
        assert lease is not None
        last = max((item.sequence for item in items), default=0) if upto is None else upto
        cursor = Cursor(self.stream.epoch, last, CREATED + timedelta(seconds=last))
        return MailBatch(lease, cursor, items)

    def read(
        self,
        id: str,  # noqa: A002
        *,
        sender: AgentId = ANNA,
        to: AgentId = BERT,
        content: SentSignal | Undecodable | None = None,
        sourced: bool = False,
    ) -> Received:
        """A message as a broker hands it over, behind all others."""
        name = f"agent:{sender}"
        message_content = content or message(id, to=to, id=id, sender=name)
        return Received(next(self.sequences), to, name, id, message_content, sourced)

    async def ingest(self, *items: Received, agent: AgentId = BERT) -> Ingested:
        """Write what was read; it has to succeed."""
        outcome = await self.store.mail.ingest(self.batch(*items, agent=agent))
        assert isinstance(outcome, Ingested), outcome
        return outcome

    async def arrive(self, *ids: str, **parts: Any) -> list[str]:
        """Inbound messages of these ids in this order; return what became a row, in its order."""
        items = [self.read(id_, **parts) for id_ in ids]
        return ids_of((await self.ingest(*items, agent=parts.get("to", BERT))).arrived)

    async def inbox(self, agent: AgentId = BERT) -> list[str]:
        """The ids of the agent's pending mail, in order."""
        return ids_of(await self.store.backlog.pending_mail(agent=agent))

    async def cursor(self, agent: AgentId = BERT) -> int:
        """How far the agent's shard was read."""
        lease = self.bed.lease_of(agent)
        assert lease is not None
        return (await self.store.mail.cursors([lease], self.stream))[0].sequence


def ids_of(arrivals: Sequence[Arrived]) -> list[str]:
    """The ids of messages."""
    return [item.message.id for item in arrivals]


@asynccontextmanager
async def post_office(url: str, schema: str, **settings: Any) -> AsyncIterator[Post]:
    """A host behind a broker that owns every shard; `local_delivery=False` sends all by it."""
    async with host(url, schema, brokered=True, **settings) as bed:
        yield await post_of(bed)


async def post_of(bed: Bed) -> Post:
    """The post of a host."""
    return Post(bed, await store_of(bed).mail.stream(STATE))


async def move_shard(giver: Post, taker: Post, shard: ShardId) -> None:
    """Let another host own a shard, as its claim would; fair shares do not matter here."""
    settings = taker.store.settings
    lease = giver.bed.leases[shard]
    rows = await sql(
        settings.url,
        settings.schema,
        "update shards set owner = $2, epoch = epoch + 1 where shard = $1 and owner = $3"
        " returning epoch",
        shard,
        taker.bed.owner,
        lease.owner,
    )
    taker.bed.leases[shard] = replace(lease, owner=taker.bed.owner, epoch=rows[0]["epoch"])
    del giver.bed.leases[shard]
