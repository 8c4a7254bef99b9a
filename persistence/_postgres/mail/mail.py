"""Messages that a broker delivers, as rows of PostgreSQL, and the outbox that it publishes from.

`ingest` is grouped: batches of different shards that come together are one `ingest_mail` statement. The
committer writes the rows of the outbox.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Final, LiteralString, NamedTuple, TypeAlias

from typing_extensions import override

from actors._kernel.agent.message import Message, stored_message
from actors._kernel.faults import armed
from actors._kernel.json import JsonValue, read_or
from actors._kernel.runtime.commit import LeaseLost
from actors._kernel.runtime.hints import Nudge
from actors._kernel.runtime.ids import AgentId, RunId, ShardId, TopicId, partition_hash, place_of
from actors._kernel.runtime.rows import Arrived
from actors._kernel.runtime.scheduler import ShardLease
from actors._kernel.stores.transport import (
    KEPT_BYTES,
    Cursor,
    Ingested,
    IngestOutcome,
    MailBatch,
    MailStore,
    OutboxRow,
    OutboxStore,
    Received,
    SentSignal,
    StaleStream,
    StreamRecord,
    StreamState,
    Undecodable,
)
from actors.errors import NotSerializableError
from persistence._postgres.commits.committer import Committer
from persistence._postgres.commits.encode import columns, json_text, message_from_text, message_text
from persistence._postgres.connection.batch import Batched, Batcher
from persistence._postgres.connection.link import Link, Links, Row, StoreSettings

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
    """A `MailStore` on PostgreSQL.

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
        self.batchers: tuple[Batcher[IngestBatch, IngestOutcome]] = (self._batches,)

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
        cursors_by_shard = {
            row["shard"]: Cursor(stream.epoch, row["sequence"], row["at"]) for row in rows
        }
        return [cursors_by_shard.get(shard) or Cursor(stream.epoch, 0) for shard in shards]

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
        return await self._batches.call(encode_batch(batch))

    async def _send(self, calls: list[IngestCall]) -> None:
        with self._fault:
            await self._round_trip(calls)

    async def _round_trip(self, calls: list[IngestCall]) -> None:
        batches = [call.args for call in calls]
        rows, may_be_done = await self._link.fetch_once_or_again(
            "writing messages", SQL_INGEST_MAIL, self._me, *arguments_of(batches)
        )
        refusals_by_number: dict[int, IngestOutcome] = {}
        rows_by_outcome: dict[str, list[Row]] = {"arrived": [], "signalled": [], "posted": []}
        for row in rows:
            outcome = row["outcome"]
            if outcome in rows_by_outcome:
                rows_by_outcome[outcome].append(row)
            else:
                refusals_by_number[row["batch"]] = (
                    LeaseLost() if outcome == "lease" else StaleStream()
                )
        if may_be_done:
            accepted_batches = [
                batch for i, batch in enumerate(batches, 1) if i not in refusals_by_number
            ]
            keys = columns((key for batch in accepted_batches for key in batch.messages), 3)
            rows_by_outcome["arrived"] = await self._link.fetch(_AGAIN, SQL_FIND_INGESTED, *keys)
            keys = columns((key for batch in accepted_batches for key in batch.signals), 4)
            rows_by_outcome["signalled"] = await self._link.fetch(_AGAIN, SQL_FIND_SIGNALLED, *keys)
            keys = columns((key for batch in accepted_batches for key in batch.posts), 3)
            rows_by_outcome["posted"] = await self._link.fetch(_AGAIN, SQL_FIND_POSTED, *keys)
        for i, outcome in refusals_by_number.items():
            calls[i - 1].answer(outcome)
        own_shards = list[ShardId]()  # shards of ours that have followers to reach
        for row in rows_by_outcome["posted"]:
            owner, shard = row["sender"], ShardId(row["agent"])
            if owner == self._me:
                own_shards.append(shard)
            elif owner is not None:  # it lives
                self._on_foreign(owner, Nudge("fanout", shard=shard))
        open_calls = [call for call in calls if not call.future.done()]
        answer_of(open_calls, rows_by_outcome["arrived"], rows_by_outcome["signalled"], own_shards)


GROUP_ROWS: Final = 2000
"""Maximum number of messages in one statement, unless it has only one batch."""
Key: TypeAlias = tuple[str, str, str]
"""Agent, sender and message id."""


class IngestBatch(NamedTuple):
    """A batch as rows of columns, encoded by the caller and not by the task that writes."""

    lease: ShardLease
    upto: Cursor
    behind: int
    mail: dict[Key, tuple[object, ...]]
    messages: dict[Key, Message]
    signals: dict[tuple[str, ...], tuple[object, ...]]
    """Rows of signals, by agent, sender, message id and run."""
    posts: dict[Key, tuple[object, ...]]
    """Rows of posts, by topic, sender and message id."""


IngestCall: TypeAlias = "Batched[IngestBatch, IngestOutcome]"


def encode_batch(batch: MailBatch) -> IngestBatch:
    """Return the batch as the rows of its messages, signals, posts and dead letters."""
    mail: dict[Key, tuple[object, ...]] = {}
    messages: dict[Key, Message] = {}
    signals: dict[tuple[str, ...], tuple[object, ...]] = {}
    posts: dict[Key, tuple[object, ...]] = {}
    for item in batch.received:
        key = (str(item.agent_id), item.sender, item.message_id)
        address = (key[0], partition_hash(item.agent_id), *key[1:])
        content = item.content
        try:
            if isinstance(content, SentSignal):
                text = json_text(content.payload, f"signal {content.name}")
                row = (*address, content.run_id, content.name, text)
                signals.setdefault((*key, content.run_id), row)
                continue
            if isinstance(content, Message) and isinstance(content.target, TopicId):
                topic, body = content.target, message_text(content, item.sender)
                post_key = (str(topic), *key[1:])
                posts.setdefault(
                    post_key, (post_key[0], partition_hash(place_of(topic)), *key[1:], body)
                )
                continue
            if key in mail:
                continue
            if isinstance(content, Message):
                mail[key] = (*address, message_text(content, item.sender), None, item.sourced)
                messages[key] = content
                continue
        except NotSerializableError as exc:
            # It becomes a dead letter: else its batch could never be written, and the shard would stand still.
            content = Undecodable(str(exc), repr(content).encode(errors="replace")[:KEPT_BYTES])
        # PostgreSQL keeps no NUL in a text.
        problem = content.problem.replace("\x00", "")
        mail.setdefault(
            key, (*address, _dead_letter_text(item, content.data), problem, item.sourced)
        )
    return IngestBatch(batch.lease, batch.upto, batch.behind, mail, messages, signals, posts)


def _dead_letter_text(item: Received, data: bytes) -> str:
    """Return the body of the dead letter that bytes become."""
    payload: JsonValue = {
        "encoding": "base64",
        "data": base64.b64encode(data).decode(),
        "bytes": len(data),
    }
    return message_text(Message(item.message_id, item.agent_id, payload), item.sender)


def group_of(calls: list[IngestCall]) -> tuple[list[IngestCall], list[IngestCall]]:
    """Split the calls into those of one statement, in order, and the others. A shard is in a statement once.

    A small batch after large ones joins the next statement if it fits. So a shard with few messages waits
    only for the statement under way, even if one client sends thousands of messages to another shard.
    """
    group: list[IngestCall] = []
    later_calls: list[IngestCall] = []
    shards: set[ShardId] = set()
    count = 0
    for call in calls:
        batch = call.args
        size = len(batch.mail) + len(batch.signals) + len(batch.posts)
        if batch.lease.shard in shards or (group and count + size > GROUP_ROWS):
            later_calls.append(call)
        else:
            group.append(call)
            count += size
        shards.add(batch.lease.shard)
    return group, later_calls


def arguments_of(batches: list[IngestBatch]) -> list[Sequence[object]]:
    """Return the columns of all batches, as the statement takes them."""
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
    numbered_batches = list(enumerate(batches, 1))
    mail = ((i, *row) for i, batch in numbered_batches for row in batch.mail.values())
    signals = ((i, *row) for i, batch in numbered_batches for row in batch.signals.values())
    posts = ((i, *row) for i, batch in numbered_batches for row in batch.posts.values())
    behind = [batch.behind for batch in batches]
    return [*columns(heads, 6), *columns(mail, 8), *columns(signals, 8), *columns(posts, 6), behind]


def answer_of(
    calls: list[IngestCall],
    arrived_rows: list[Row],
    signalled_rows: list[Row],
    posted_shards: list[ShardId],
) -> None:
    """Tell each call which of its messages and signals are new; of posts, the first that had some."""
    call_of_key: dict[Key, int] = {}
    call_of_run: dict[str, int] = {}
    for i, call in enumerate(calls):
        for key in call.args.messages:
            call_of_key.setdefault(key, i)
        for signal in call.args.signals:
            call_of_run.setdefault(signal[3], i)
    mail: list[list[Arrived]] = [[] for _ in calls]
    for row in sorted(arrived_rows, key=lambda row: row["arrival"]):
        key = (row["agent"], row["sender"], row["message_id"])
        i = call_of_key[key]
        message = calls[i].args.messages[key]
        assert isinstance(message.target, AgentId)
        mail[i].append(Arrived(message, row["sender"], message.target, row["arrival"]))
    woken_runs: list[list[tuple[RunId, AgentId]]] = [[] for _ in calls]
    for row in signalled_rows:
        run_id = RunId(row["run_id"])
        woken_runs[call_of_run[run_id]].append((run_id, AgentId.parse(row["agent"])))
    for call, messages, signals in zip(calls, mail, woken_runs, strict=True):
        shards: tuple[ShardId, ...] = ()
        if call.args.posts:
            shards, posted_shards = tuple(posted_shards), []
        call.answer(Ingested(tuple(messages), tuple(signals), shards))


SQL_OUTBOX: Final[LiteralString] = "select n, body, dead, target_read from outbox_page($1,$2,$3)"
# Of the few rows that cannot be read.
SQL_OUTBOX_KEYS: Final[LiteralString] = """
select o.n, o.sender, o.target, o.message_id from unnest($1::text[]) s(shard)
  cross join lateral (select x.* from outbox x where x.shard = s.shard and x.n = any($2::bigint[]) offset 0) o
"""
SQL_FORGET_SENT: Final[LiteralString] = "select forget_sent($1,$2,$3)"
SQL_DEAD_LETTER_OUTBOX: Final[LiteralString] = "select dead_letter_outbox($1,$2,$3,$4)"
SQL_HAND_OVER: Final[LiteralString] = "select n from hand_over($1,$2,$3)"


class Outbox(OutboxStore):
    """An `OutboxStore` on PostgreSQL.

    Args:
        links: The connections for statements.
        committer: The committer, which notifies of new rows.
        limit: Maximum number of rows that one statement hands over.
    """

    def __init__(self, links: Links, committer: Committer, *, limit: int) -> None:
        self._links, self._committer = links, committer
        self._rows: Batcher[OutboxRow, bool] = Batcher(self._hand_over, limit=limit)
        self.batchers: tuple[Batcher[OutboxRow, bool]] = (self._rows,)

    @override
    async def page(
        self, leases: Sequence[ShardLease], *, after: int = -1, limit: int = 1000
    ) -> list[OutboxRow]:
        shards = [lease.shard for lease in leases]
        rows = await self._links.fetch("reading the outbox", SQL_OUTBOX, shards, after, limit)
        outbox, damaged_rows = list[OutboxRow](), dict[int, Row]()
        for row in rows:
            message = read_or(row["body"], message_from_text, lambda _: None)
            if message is None:
                damaged_rows[row["n"]] = row
            else:
                outbox.append(OutboxRow(row["n"], message, row["dead"], row["target_read"]))
        if damaged_rows:  # their columns still have sender, target and id
            args = (shards, [*damaged_rows])
            keys = await self._links.fetch("reading the outbox", SQL_OUTBOX_KEYS, *args)
            outbox += [_unreadable_row(damaged_rows[key["n"]], key) for key in keys]
            outbox.sort(key=lambda row: row.n)
        return outbox

    @override
    async def forget(self, rows: Sequence[OutboxRow]) -> None:
        keys = columns(map(_key, rows), 3)
        await self._links.fetch("forgetting what was sent", SQL_FORGET_SENT, *keys)

    @override
    async def bury(self, row: OutboxRow, problem: str) -> None:
        args = (*_key(row), problem.replace("\x00", ""))
        await self._links.fetch("giving up what cannot be published", SQL_DEAD_LETTER_OUTBOX, *args)

    @override
    async def hand_over(self, row: OutboxRow) -> bool:
        return await self._rows.call(row)

    async def _hand_over(self, calls: list[Batched[OutboxRow, bool]]) -> None:
        rows = (call.args for call in calls)
        keys = columns(((row.message.sender, str(row.message.target), row.n) for row in rows), 3)
        left_rows = await self._links.fetch("handing messages over", SQL_HAND_OVER, *keys)
        waiting_numbers = {row["n"] for row in left_rows}
        for call in calls:
            call.answer(call.args.n not in waiting_numbers)

    @override
    def set_hook(self, hook: Callable[[Sequence[OutboxRow]], None] | None) -> None:
        self._committer.on_posted = hook


def _unreadable_row(row: Row, key: Row) -> OutboxRow:
    kind, _, rest = key["target"].partition(":")
    agent = AgentId.parse(rest if kind in ("dead", "topic") else key["target"])
    message = stored_message(row["body"], id_=key["message_id"], target=agent, sender=key["sender"])
    if kind == "topic":
        message = replace(message, target=TopicId(agent.type, agent.key, agent.tenant))
    return OutboxRow(row["n"], message, row["dead"], row["target_read"])


def _key(row: OutboxRow) -> tuple[str | None, str, int]:
    """Return sender, target and `n` as in the table. A prefix of the target marks dead letters and posts."""
    target = str(row.message.target)
    if row.dead_letter is not None:
        target = f"dead:{target}"
    elif isinstance(row.message.target, TopicId):
        target = f"topic:{target}"
    return row.message.sender, target, row.n
