"""MailStore on PostgreSQL: mail that travels by a broker, as rows.

`ingest` is grouped: batches of different shards that come together are one statement.
"""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING, Final, LiteralString, NamedTuple, TypeAlias

from pydantic_core import from_json

from actors.errors import NotSerializableError
from actors.kernel.agent.message import Message
from actors.kernel.faults import armed
from actors.kernel.runtime.commit import Arrived, LeaseLost
from actors.kernel.runtime.ids import AgentId, RunId, ShardId, TopicId, partition_hash
from actors.kernel.runtime.shards import place_of
from actors.kernel.runtime.store import Nudge
from actors.kernel.runtime.transport import (
    KEPT_BYTES,
    Cursor,
    Ingested,
    OutboxRow,
    SentSignal,
    StaleStream,
    StreamRecord,
    Undecodable,
)
from persistence.postgres.batch import Batcher
from persistence.postgres.encode import columns, json_text, message_text
from persistence.postgres.link import KEYED, Link

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from datetime import datetime

    from actors.kernel.json import JsonValue
    from actors.kernel.runtime.scheduler import ShardLease
    from actors.kernel.runtime.transport import IngestOutcome, MailBatch, Received, StreamState
    from persistence.postgres.batch import Call
    from persistence.postgres.link import Links, Outage, Row
    from persistence.postgres.settings import StoreSettings

GROUP_ROWS: Final = 2000
"""So many messages are one statement at most, or one batch, however large."""
_AGAIN: Final = "looking for mail that may be written"

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
  join inbox i on i.agent = m.agent and i.sender = m.sender and i.message_id = m.message_id
  where i.state = 'p'
"""
SQL_FIND_SIGNALLED: Final[LiteralString] = """
select distinct r.run_id, r.agent
  from unnest($1::text[], $2::text[], $3::text[], $4::text[]) g(agent, sender, message_id, run_id)
  join signals s on s.run_id = g.run_id and s.sender = g.sender and s.message_id = g.message_id
  join runs r on r.run_id = s.run_id and r.agent = g.agent
  where not s.consumed
"""
# After an unknown outcome all shards are told that have followers to reach.
SQL_FIND_POSTED: Final[LiteralString] = """
select distinct x.shard as agent, s.owner as sender
  from unnest($1::text[], $2::text[], $3::text[]) m(topic, sender, id)
  join posts p on p.topic = m.topic and p.sender = m.sender and p.id = m.id
  join fanouts x on x.seq = p.seq left join shards s on s.shard = x.shard
"""
# Of each shard no more than a page is looked at. What a topic's shard has is for no agent's inbox.
SQL_OUTBOX: Final[LiteralString] = """
select o.n, o.body, o.dead, coalesce(c.sequence, 0) as target_read
  from (select p.shard, p.n from unnest($1::text[]) s(shard)
    cross join lateral (select o.shard, o.n from outbox o
      where o.shard = s.shard and o.n > $2 order by o.n limit $3) p
    order by p.n limit $3) page
  cross join lateral (select * from outbox o
    where o.shard = page.shard and o.n = page.n offset 0) o
  left join types y on y.type = agent_type(o.target)
  left join cursors c on c.shard = shard_of(o.target, o.target_hash, y.mode, y.partitions)
    and c.stream_epoch = (select present_stream_epoch()) and o.dead is null
    and page.shard <> 'u:~topic' and page.shard not like 'p:~topic:%'
  order by o.n
"""
SQL_FORGET_SENT: Final[LiteralString] = """
delete from outbox o using unnest($1::text[], $2::text[], $3::bigint[]) g(sender, target, n)
  where o.sender || E'\\n' || o.target = g.sender || E'\\n' || g.target and o.n = g.n
"""
SQL_BURY: Final[LiteralString] = "select bury_outbox($1,$2,$3,$4)"
SQL_ACCOUNT_FOR: Final[LiteralString] = "select account_for($1,$2) as made"
SQL_LOW_WATER: Final[LiteralString] = """
select coalesce(min(coalesce(c.sequence, 0)), 0) as low from shards s
  left join cursors c on c.shard = s.shard and c.stream_epoch = $1
  where present_stream_epoch() = $1
"""

SQL_ALLOW_PURGE: Final[LiteralString] = """
update streams set purged = greatest(purged, $3) where name = $1 and epoch = $2
"""

_Key: TypeAlias = tuple[str, str, str]
"""Agent, sender and message id."""


class _Batch(NamedTuple):
    """A batch as rows of columns, encoded in the caller's time."""

    lease: ShardLease
    upto: Cursor
    behind: int
    mail: dict[_Key, tuple[object, ...]]
    messages: dict[_Key, Message]
    signals: dict[tuple[str, ...], tuple[object, ...]]
    """By agent, sender, message id and run."""
    posts: dict[_Key, tuple[object, ...]]
    """By topic, sender and message id."""


_Call: TypeAlias = "Call[_Batch, IngestOutcome]"


class Mail:
    """See `MailStore`; the outbox is written by the committer.

    Args:
        settings: Of the store.
        outage: Shared by its connections.
        links: For what is read.
        on_foreign: Told of owners of other hosts that have followers of a new post.
    """

    def __init__(
        self,
        settings: StoreSettings,
        outage: Outage,
        links: Links,
        *,
        on_foreign: Callable[[str, Nudge], None],
    ) -> None:
        self._me = settings.owner
        self._on_foreign = on_foreign
        self._link, self._links = Link(settings, outage, KEYED), links
        self._batches: Batcher[_Batch, IngestOutcome] = Batcher(
            self._flush, limit=settings.group_limit
        )
        self._fault = armed("ingest")
        self.batchers = (self._batches,)

    async def close(self) -> None:
        """Close the connection; the batcher has ended."""
        await self._link.close()

    # --- the stream -------------------------------------------------------------------------------

    async def deployment(self) -> str:
        """See `MailStore.deployment`."""
        rows = await self._links.fetch("reading the deployment", SQL_DEPLOYMENT)
        found: str = rows[0]["id"]
        return found

    async def stream(self, state: StreamState) -> StreamRecord:
        """See `MailStore.stream`. Another name than the present stream's begins another epoch."""
        return await self._meet(state.name, state.created, state.first_sequence)

    async def _meet(self, name: str, created: datetime, first: int | None = None) -> StreamRecord:
        (row,) = await self._links.fetch(
            "reading the stream", SQL_MEET_STREAM, name, created, first
        )
        highest = None
        if row["sequence"] is not None:
            highest = Cursor(row["epoch"], row["sequence"], row["at"])
        return StreamRecord(name, row["epoch"], row["created"], highest, row["purged"])

    async def next_stream_epoch(self, known: StreamRecord, created: datetime) -> StreamRecord:
        """See `MailStore.next_stream_epoch`."""
        args = (known.name, known.epoch, created)
        await self._links.fetch("beginning a stream epoch", SQL_NEXT_STREAM_EPOCH, *args)
        return await self._meet(known.name, created)

    async def cursors(self, leases: Sequence[ShardLease], stream: StreamRecord) -> list[Cursor]:
        """See `MailStore.cursors`."""
        shards = [lease.shard for lease in leases]
        rows = await self._links.fetch("reading cursors", SQL_CURSORS, shards, stream.epoch)
        found = {row["shard"]: Cursor(stream.epoch, row["sequence"], row["at"]) for row in rows}
        return [found.get(shard) or Cursor(stream.epoch, 0) for shard in shards]

    async def account_for(self, agents: Sequence[AgentId]) -> int:
        """See `MailStore.account_for`."""
        if not agents:
            return 0
        texts, hashes = [str(agent) for agent in agents], [partition_hash(a) for a in agents]
        rows = await self._links.fetch("accounting for mail", SQL_ACCOUNT_FOR, texts, hashes)
        made: int = rows[0]["made"]
        return made

    async def low_water(self, stream: StreamRecord) -> int:
        """See `MailStore.low_water`."""
        rows = await self._links.fetch("reading cursors", SQL_LOW_WATER, stream.epoch)
        low: int = rows[0]["low"]
        return low

    async def allow_purge(self, stream: StreamRecord, below: int) -> None:
        """See `MailStore.allow_purge`."""
        args = (stream.name, stream.epoch, below)
        await self._links.fetch("allowing to purge mail", SQL_ALLOW_PURGE, *args)

    # --- the outbox -------------------------------------------------------------------------------

    async def outbox(self, leases: Sequence[ShardLease], after: int, limit: int) -> list[OutboxRow]:
        """See `MailStore.outbox`."""
        shards = [lease.shard for lease in leases]
        rows = await self._links.fetch("reading the outbox", SQL_OUTBOX, shards, after, limit)
        return [
            OutboxRow(
                row["n"],
                Message.from_json(from_json(row["body"])),
                row["dead"],
                row["target_read"],
            )
            for row in rows
        ]

    async def forget_sent(self, rows: Sequence[OutboxRow]) -> None:
        """See `MailStore.forget_sent`."""
        keys = ((row.message.sender, _outbox_target(row), row.n) for row in rows)
        await self._links.fetch("forgetting what was sent", SQL_FORGET_SENT, *columns(keys, 3))

    async def bury(self, row: OutboxRow, problem: str) -> None:
        """See `MailStore.bury`."""
        args = (row.message.sender, _outbox_target(row), row.n, problem.replace("\x00", ""))
        await self._links.fetch("giving up what cannot be published", SQL_BURY, *args)

    # --- ingest -----------------------------------------------------------------------------------

    async def ingest(self, batch: MailBatch) -> IngestOutcome:
        """See `MailStore.ingest`."""
        return await self._batches.call(_encoded(batch))

    async def _flush(self, calls: list[_Call]) -> None:
        while calls:
            group, calls = _group_of(calls)
            await self._send(group)

    async def _send(self, calls: list[_Call]) -> None:
        if self._fault is not None:
            self._fault.before()
        await self._round_trip(calls)
        if self._fault is not None:
            self._fault.after()

    async def _round_trip(self, calls: list[_Call]) -> None:
        batches = [call.args for call in calls]
        rows, again = await self._link.fetch_once_or_again(
            "writing mail", SQL_INGEST_MAIL, self._me, *_arguments(batches)
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
        _answer(answered, found["arrived"], found["signalled"], mine)

    def _split(self, posted: list[Row]) -> tuple[list[ShardId], list[tuple[str, ShardId]]]:
        """Tell shards of ours that have followers to reach from those of living others."""
        rows = [(row["sender"], ShardId(row["agent"])) for row in posted]
        mine = [shard for owner, shard in rows if owner == self._me]
        return mine, [row for row in rows if row[0] not in (None, self._me)]


def _encoded(batch: MailBatch) -> _Batch:
    mail: dict[_Key, tuple[object, ...]] = {}
    messages: dict[_Key, Message] = {}
    signals: dict[tuple[str, ...], tuple[object, ...]] = {}
    posts: dict[_Key, tuple[object, ...]] = {}
    for item in batch.received:
        key = (str(item.agent_id), item.sender, item.message_id)
        where = (key[0], partition_hash(item.agent_id), *key[1:])
        content = item.content
        try:
            if isinstance(content, SentSignal):
                text = json_text(content.payload, f"signal {content.name}")
                row = (*where, content.run_id, content.name, text)
                signals.setdefault((*key, content.run_id), row)
                continue
            if isinstance(content, Message) and isinstance(content.target, TopicId):
                topic, body = content.target, message_text(content, item.sender)
                post = (str(topic), *key[1:])
                posts.setdefault(post, (post[0], partition_hash(place_of(topic)), *key[1:], body))
                continue
            if key in mail:
                continue
            if isinstance(content, Message):
                mail[key] = (*where, message_text(content, item.sender), None, item.sourced)
                messages[key] = content
                continue
        except NotSerializableError as exc:
            content = Undecodable(str(exc), repr(content).encode(errors="replace")[:KEPT_BYTES])
        problem = content.problem.replace("\x00", "")
        mail.setdefault(key, (*where, _letter(item, content.data), problem, item.sourced))
    return _Batch(batch.lease, batch.upto, batch.behind, mail, messages, signals, posts)


def _letter(item: Received, data: bytes) -> str:
    """The body of the dead letter that bytes become."""
    payload: JsonValue = {
        "encoding": "base64",
        "data": base64.b64encode(data).decode(),
        "bytes": len(data),
    }
    return message_text(Message(item.message_id, item.agent_id, payload), item.sender)


def _group_of(calls: list[_Call]) -> tuple[list[_Call], list[_Call]]:
    """What one statement takes, in order: a shard once, and so many rows. The rest is for later."""
    group: list[_Call] = []
    later: list[_Call] = []
    shards: set[ShardId] = set()
    count = 0
    for call in calls:
        batch = call.args
        count += len(batch.mail) + len(batch.signals) + len(batch.posts)
        if batch.lease.shard in shards or (group and count > GROUP_ROWS):
            later.append(call)
        else:
            group.append(call)
        shards.add(batch.lease.shard)
    return group, later


def _arguments(batches: list[_Batch]) -> list[Sequence[object]]:
    heads = [
        (
            batch.lease.shard,
            batch.lease.owner,
            batch.lease.epoch,
            batch.upto.stream_epoch,
            batch.upto.sequence,
            batch.upto.at,
        )
        for batch in batches
    ]
    numbered = list(enumerate(batches, 1))
    mail = ((i, *row) for i, batch in numbered for row in batch.mail.values())
    signals = ((i, *row) for i, batch in numbered for row in batch.signals.values())
    posts = ((i, *row) for i, batch in numbered for row in batch.posts.values())
    behind = [batch.behind for batch in batches]
    return [
        *columns(heads, 6), *columns(mail, 8), *columns(signals, 8), *columns(posts, 6), behind,
    ]  # fmt: skip


def _answer(
    calls: list[_Call], arrived: list[Row], signalled: list[Row], posted: list[ShardId]
) -> None:
    """Tell each call which of its messages and signals are new; of posts, the first that had some."""
    whose: dict[_Key, int] = {}
    runs: dict[str, int] = {}
    for i, call in enumerate(calls):
        for key in call.args.messages:
            whose.setdefault(key, i)
        for signal in call.args.signals:
            runs.setdefault(signal[3], i)
    mail: list[list[Arrived]] = [[] for _ in calls]
    for row in sorted(arrived, key=lambda row: row["arrival"]):
        key = (row["agent"], row["sender"], row["message_id"])
        i = whose[key]
        message = calls[i].args.messages[key]
        assert isinstance(message.target, AgentId)
        mail[i].append(Arrived(message, row["sender"], message.target, row["arrival"]))
    woken: list[list[tuple[RunId, AgentId]]] = [[] for _ in calls]
    for row in signalled:
        run_id = RunId(row["run_id"])
        woken[runs[run_id]].append((run_id, AgentId.parse(row["agent"])))
    for call, messages, signals in zip(calls, mail, woken, strict=True):
        shards: tuple[ShardId, ...] = ()
        if call.args.posts:
            shards, posted = tuple(posted), []
        call.answer(Ingested(tuple(messages), tuple(signals), shards))


def _outbox_target(row: OutboxRow) -> str:
    """Return the target as the outbox has it, which tells letters, posts and mail apart."""
    target = str(row.message.target)
    if row.dead_letter is not None:
        return f"dead:{target}"
    return f"topic:{target}" if isinstance(row.message.target, TopicId) else target
