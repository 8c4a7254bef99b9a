"""Batches of arrived messages as the arguments and answers of one `ingest_mail` statement."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from typing import Final, NamedTuple, TypeAlias

from actors.errors import NotSerializableError
from actors.kernel.agent.message import Message
from actors.kernel.json import JsonValue
from actors.kernel.runtime.ids import AgentId, RunId, ShardId, TopicId, partition_hash, place_of
from actors.kernel.runtime.rows import Arrived
from actors.kernel.runtime.scheduler import ShardLease
from actors.kernel.stores.transport import (
    KEPT_BYTES,
    Cursor,
    Ingested,
    IngestOutcome,
    MailBatch,
    Received,
    SentSignal,
    Undecodable,
)
from persistence.postgres.commits.encode import columns, json_text, message_text
from persistence.postgres.connection.batch import Batched
from persistence.postgres.connection.link import Row

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


def encoded(batch: MailBatch) -> IngestBatch:
    """Return the batch as the rows of its messages, signals, posts and dead letters."""
    mail: dict[Key, tuple[object, ...]] = {}
    messages: dict[Key, Message] = {}
    signals: dict[tuple[str, ...], tuple[object, ...]] = {}
    posts: dict[Key, tuple[object, ...]] = {}
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
        mail.setdefault(key, (*where, _dead_letter_text(item, content.data), problem, item.sourced))
    return IngestBatch(batch.lease, batch.upto, batch.behind, mail, messages, signals, posts)


def _dead_letter_text(item: Received, data: bytes) -> str:
    """The body of the dead letter that bytes become."""
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
    later: list[IngestCall] = []
    shards: set[ShardId] = set()
    count = 0
    for call in calls:
        batch = call.args
        size = len(batch.mail) + len(batch.signals) + len(batch.posts)
        if batch.lease.shard in shards or (group and count + size > GROUP_ROWS):
            later.append(call)
        else:
            group.append(call)
            count += size
        shards.add(batch.lease.shard)
    return group, later


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
    numbered = list(enumerate(batches, 1))
    mail = ((i, *row) for i, batch in numbered for row in batch.mail.values())
    signals = ((i, *row) for i, batch in numbered for row in batch.signals.values())
    posts = ((i, *row) for i, batch in numbered for row in batch.posts.values())
    behind = [batch.behind for batch in batches]
    return [*columns(heads, 6), *columns(mail, 8), *columns(signals, 8), *columns(posts, 6), behind]


def answer_of(
    calls: list[IngestCall], arrived: list[Row], signalled: list[Row], posted: list[ShardId]
) -> None:
    """Tell each call which of its messages and signals are new; of posts, the first that had some."""
    whose: dict[Key, int] = {}
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
