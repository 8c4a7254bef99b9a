"""MailStore on PostgreSQL: messages that a broker delivers, as rows.

`ingest` is grouped: batches of different shards that come together are one statement.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Final, LiteralString

from typing_extensions import override

from actors.kernel.faults import armed
from actors.kernel.runtime.commit import LeaseLost
from actors.kernel.runtime.hints import Nudge
from actors.kernel.runtime.ids import AgentId, ShardId, partition_hash
from actors.kernel.runtime.scheduler import ShardLease
from actors.kernel.stores.transport import (
    Cursor,
    IngestOutcome,
    MailBatch,
    MailStore,
    StaleStream,
    StreamRecord,
    StreamState,
)
from persistence.postgres.commits.encode import columns
from persistence.postgres.connection.batch import Batcher
from persistence.postgres.connection.link import Link, Links, Row
from persistence.postgres.connection.settings import StoreSettings
from persistence.postgres.mail.batches import (
    IngestBatch,
    IngestCall,
    answer_of,
    arguments_of,
    encoded,
    group_of,
)

_AGAIN: Final = "looking for messages that may be written"
SQL_DEPLOYMENT: Final[LiteralString] = "select id from deployment"
SQL_MEET_STREAM: Final[LiteralString] = (
    "select epoch, created, sequence, at, purged from meet_stream($1,$2,$3)"
)
SQL_NEXT_STREAM_EPOCH: Final[LiteralString] = "select next_stream_epoch($1,$2,$3)"
SQL_CURSORS: Final[LiteralString] = """
select c.shard, c.sequence, c.at from cursors c
  where c.shard = any($1::text[]) and c.stream_epoch = $2
"""
SQL_INGEST_MAIL: Final[LiteralString] = (
    "select batch, outcome, agent, sender, message_id, arrival, run_id from ingest_mail"
    "($1,$2,$3,$4,$5,$6,$7,$8,$9,$10,$11,$12,$13,$14,$15,$16,$17,$18,$19,$20,$21,$22,$23,"
    "$24,$25,$26,$27,$28,$29,$30)"
)
# After an unknown outcome: what is there and still waits was written by the first try, or is
# offered twice, which does no harm.
SQL_FIND_INGESTED: Final[LiteralString] = """
select i.agent, i.sender, i.message_id, i.arrival
  from unnest($1::text[], $2::text[], $3::text[]) m(agent, sender, message_id)
  cross join lateral (select * from inbox i
    where i.agent = m.agent and i.sender = m.sender and i.message_id = m.message_id offset 0) i
  where i.state = 'p'
"""
SQL_FIND_SIGNALLED: Final[LiteralString] = """
select distinct r.run_id, r.agent
  from unnest($1::text[], $2::text[], $3::text[], $4::text[]) g(agent, sender, message_id, run_id)
  cross join lateral (select * from signals s
    where s.run_id = g.run_id and s.sender = g.sender and s.message_id = g.message_id offset 0) s
  cross join lateral (select * from runs r where r.run_id = s.run_id offset 0) r
  where not s.consumed and r.agent = g.agent
"""
# After an unknown outcome all shards are notified that have followers to reach.
SQL_FIND_POSTED: Final[LiteralString] = """
select distinct s.shard as agent, s.owner as sender
  from unnest($1::text[], $2::text[], $3::text[]) m(topic, sender, id)
  cross join lateral (select * from posts p
    where p.topic = m.topic and p.sender = m.sender and p.id = m.id offset 0) p
  cross join shards s
  cross join lateral (select from fanouts x where x.shard = s.shard and x.seq = p.seq offset 0) x
"""
SQL_ACCOUNT_FOR: Final[LiteralString] = "select account_for($1,$2) as made"
SQL_LOW_WATER: Final[LiteralString] = """
select coalesce(min(coalesce(c.sequence, 0)), 0) as low from shards s
  left join cursors c on c.shard = s.shard and c.stream_epoch = $1
  where present_stream_epoch() = $1
"""
SQL_ALLOW_PURGE: Final[LiteralString] = """
update streams set purged = greatest(purged, $3) where name = $1 and epoch = $2
"""


class Mail(MailStore):
    """See `MailStore`.

    Args:
        settings: Settings of the store.
        links: Connections for reads.
        link: A connection for writes.
        on_foreign: Called with owners of other hosts that have followers of a new post.
    """

    def __init__(
        self,
        settings: StoreSettings,
        links: Links,
        link: Link,
        *,
        on_foreign: Callable[[str, Nudge], None],
    ) -> None:
        self._me = settings.owner
        self._on_foreign = on_foreign
        self._link, self._links = link, links
        self._batches: Batcher[IngestBatch, IngestOutcome] = Batcher(
            self._send, limit=settings.group_limit, choose=group_of
        )
        self._fault = armed("ingest")
        self.batchers = (self._batches,)

    @override
    async def deployment(self) -> str:
        return str(await self._links.value("reading the deployment", SQL_DEPLOYMENT))

    @override
    async def stream(self, state: StreamState) -> StreamRecord:
        """Another name than the present stream's begins another epoch."""
        return await self._meet(state.name, state.created, state.first_sequence)

    async def _meet(self, name: str, created: datetime, first: int | None = None) -> StreamRecord:
        (row,) = await self._links.fetch(
            "reading the stream", SQL_MEET_STREAM, name, created, first
        )
        highest = None
        if row["sequence"] is not None:
            highest = Cursor(row["epoch"], row["sequence"], row["at"])
        return StreamRecord(name, row["epoch"], row["created"], highest, row["purged"])

    @override
    async def next_stream_epoch(self, known: StreamRecord, created: datetime) -> StreamRecord:
        args = (known.name, known.epoch, created)
        await self._links.fetch("beginning a stream epoch", SQL_NEXT_STREAM_EPOCH, *args)
        return await self._meet(known.name, created)

    @override
    async def cursors(self, leases: Sequence[ShardLease], stream: StreamRecord) -> list[Cursor]:
        shards = [lease.shard for lease in leases]
        rows = await self._links.fetch("reading cursors", SQL_CURSORS, shards, stream.epoch)
        found = {row["shard"]: Cursor(stream.epoch, row["sequence"], row["at"]) for row in rows}
        return [found.get(shard) or Cursor(stream.epoch, 0) for shard in shards]

    @override
    async def account_for(self, agents: Sequence[AgentId]) -> int:
        if not agents:
            return 0
        texts, hashes = [str(agent) for agent in agents], [partition_hash(a) for a in agents]
        return int(
            await self._links.value("accounting for messages", SQL_ACCOUNT_FOR, texts, hashes)
        )

    @override
    async def low_water(self, stream: StreamRecord) -> int:
        return int(await self._links.value("reading cursors", SQL_LOW_WATER, stream.epoch))

    @override
    async def allow_purge(self, stream: StreamRecord, below: int) -> None:
        args = (stream.name, stream.epoch, below)
        await self._links.fetch("allowing to purge messages", SQL_ALLOW_PURGE, *args)

    @override
    async def ingest(self, batch: MailBatch) -> IngestOutcome:
        return await self._batches.call(encoded(batch))

    async def _send(self, calls: list[IngestCall]) -> None:
        with self._fault:
            await self._round_trip(calls)

    async def _round_trip(self, calls: list[IngestCall]) -> None:
        batches = [call.args for call in calls]
        rows, again = await self._link.fetch_once_or_again(
            "writing messages", SQL_INGEST_MAIL, self._me, *arguments_of(batches)
        )
        refused: dict[int, IngestOutcome] = {}
        found: dict[str, list[Row]] = {"arrived": [], "signalled": [], "posted": []}
        for row in rows:
            outcome = row["outcome"]
            if outcome in found:
                found[outcome].append(row)
            else:
                refused[row["batch"]] = LeaseLost() if outcome == "lease" else StaleStream()
        if again:
            kept = [batch for i, batch in enumerate(batches, 1) if i not in refused]
            keys = columns((key for batch in kept for key in batch.messages), 3)
            found["arrived"] = await self._link.fetch(_AGAIN, SQL_FIND_INGESTED, *keys)
            keys = columns((key for batch in kept for key in batch.signals), 4)
            found["signalled"] = await self._link.fetch(_AGAIN, SQL_FIND_SIGNALLED, *keys)
            keys = columns((key for batch in kept for key in batch.posts), 3)
            found["posted"] = await self._link.fetch(_AGAIN, SQL_FIND_POSTED, *keys)
        for i, outcome in refused.items():
            calls[i - 1].answer(outcome)
        mine, others = self._split(found["posted"])
        for owner, shard in others:
            self._on_foreign(owner, Nudge("fanout", shard=shard))
        answered = [call for call in calls if not call.future.done()]
        answer_of(answered, found["arrived"], found["signalled"], mine)

    def _split(self, posted: list[Row]) -> tuple[list[ShardId], list[tuple[str, ShardId]]]:
        """Tell shards of ours that have followers to reach from those of living others."""
        rows = [(row["sender"], ShardId(row["agent"])) for row in posted]
        mine = [shard for owner, shard in rows if owner == self._me]
        return mine, [row for row in rows if row[0] not in (None, self._me)]
