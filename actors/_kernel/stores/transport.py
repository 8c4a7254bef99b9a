"""Transport: who moves bytes between hosts. The store is the truth; nothing here is trusted.

In memory and on Postgres alone there is none: the sender's commit writes the receiver's row.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from datetime import datetime
from typing import Final, Protocol, TypeAlias

from actors._kernel.agent.message import Message
from actors._kernel.json import JsonValue
from actors._kernel.runtime.commit import LeaseLost
from actors._kernel.runtime.hints import Nudge
from actors._kernel.runtime.ids import AgentId, HostIncarnation, RunId, ShardId
from actors._kernel.runtime.rows import Arrived
from actors._kernel.runtime.scheduler import ShardLease


@dataclass(frozen=True, slots=True)
class Cursor:
    """The position up to which a shard's messages were read into rows.

    Attributes:
        stream_epoch: The incarnation of the stream; sequences of another one mean nothing.
        sequence: The last message of the stream that needs no reading any more; 0 = none.
        at: When the broker stored that message (whole microseconds); distinguishes a stream that was
            rolled back.
    """

    stream_epoch: int
    sequence: int
    at: datetime | None = None


@dataclass(frozen=True, slots=True)
class SentSignal:
    """A signal for a run, sent as a broker message."""

    run_id: RunId
    name: str
    payload: JsonValue


KEPT_BYTES: Final = 4 * 1024
"""Number of bytes that are kept of a body that is no message."""


@dataclass(frozen=True, slots=True)
class Undecodable:
    """Bytes that are no message; they become one dead letter, and the mailbox goes on.

    Attributes:
        problem: What is wrong, for a person.
        data: The original bytes, cut after `KEPT_BYTES`.
    """

    problem: str
    data: bytes


@dataclass(frozen=True, slots=True)
class Received:
    """A broker message of a shard.

    Attributes:
        sequence: Its position in the stream.
        agent_id: The addressed agent, from the subject. Of a post: the owner of the dead letter when it
            is none.
        sender: Typed sender. For what came from outside it is taken from the origin subject.
        message_id: Id of the message; for one without, derived from its position in the stream.
        content: What it is. A `Message` has target, sender and id set as above; a post has its topic
            as target.
        sourced: True if it came from outside: no sender's outbox row belongs to it.
    """

    sequence: int
    agent_id: AgentId
    sender: str
    message_id: str
    content: Message | SentSignal | Undecodable
    sourced: bool = False


@dataclass(frozen=True, slots=True)
class MailBatch:
    """A batch of messages of one shard, without gaps.

    Attributes:
        lease: The right under which it was read.
        upto: There is nothing else for this shard up to here.
        received: In the stream's order; empty when only `upto` moved.
        behind: Up to here it was read before; a store that does not know of that has forgotten it.
    """

    lease: ShardLease
    upto: Cursor
    received: tuple[Received, ...]
    behind: int = 0


@dataclass(frozen=True, slots=True)
class OutboxRow:
    """A message on its way, as the sender's commit stored it.

    Attributes:
        n: Place in the order of its (sender, target); grows over all rows.
        message: With id, target (an agent, or a topic for posts that observers are to see) and sender.
        dead_letter: None for messages and posts. Else the reason it was given up: it goes to the stream
            of dead letters. Rows of dead letters and posts are deleted once the broker has them.
        target_read: Sequence up to which the target's shard was read when this row was read from
            the store; 0 = unknown.
    """

    n: int
    message: Message
    dead_letter: str | None = None
    target_read: int = 0


@dataclass(frozen=True, slots=True)
class StreamState:
    """The stream MAIL that is connected, for the stream guard."""

    name: str
    created: datetime
    """Whole microseconds."""
    first_sequence: int
    last_sequence: int
    deployment: str
    """Owner of the stream: the id of the database that belongs to it."""


class MailConnection(Protocol):
    """A connection to the broker, from its making to its loss. It never reconnects by itself.

    Raises everywhere: BrokerError when the broker did not answer, or the connection is lost.
    """

    async def send(self, row: OutboxRow) -> int:
        """Publish and return the stream sequence under which the broker stored it.

        Sending one again is harmless: the receiver drops it. Rows of one (sender, target) are sent
        one after the other by the caller; different pairs at once.

        Raises:
            ContractError: The broker will never take it, however often it is sent.
        """

    def read(self, lease: ShardLease, cursor: Cursor) -> AsyncGenerator[MailBatch, None]:
        """Yield the messages after `cursor` and then new ones, contiguous, in batches.

        A gap (a drop, a deleted consumer) is repaired inside. Ends only by an error or by closing
        the iterator, which gives the shard's consumer up. Memory is bounded: nothing more is asked
        of the broker while the caller does not take batches.
        """

    def ack(self, batch: MailBatch) -> None:
        """Tell the broker that the batch is in rows; a lost one is harmless."""

    async def stream_state(self, *, read_only: bool = False) -> StreamState:
        """Return the state of the stream MAIL; streams are set right before.

        With `read_only` nothing is changed: the leaders of stream and cluster have answered.
        """

    async def stored_at(self, sequence: int) -> datetime | None:
        """Return when this message of the stream MAIL was stored; None if it is not there."""

    async def forget_stream(self, state: StreamState) -> None:
        """Delete the stream MAIL if it is still this one; the next connection makes it anew.

        What is unread of it comes again: from outboxes, and from where external clients published it.
        """

    async def waiting(self) -> Sequence[AgentId]:
        """Return the agents that have messages in the stream MAIL."""

    async def purge(self, below: int) -> int:
        """Remove all messages with a smaller sequence; return how many messages went."""

    async def nudge(self, owner: HostIncarnation, nudge: Nudge) -> None:
        """Hint another host that something changed; may be lost."""

    async def lost(self) -> None:
        """Return when the connection is lost."""


class Transport(Protocol):
    """Opens connections to one broker."""

    def connect(
        self,
        *,
        deployment: str,
        on_nudge: Callable[[Nudge], None],
        on_suspect: Callable[[], None] = lambda: None,
    ) -> AbstractAsyncContextManager[MailConnection]:
        """Connect, and create or update the streams. Tries once.

        Args:
            deployment: Id of the database that belongs to these streams.
            on_nudge: Called on the event loop for hints of other hosts.
            on_suspect: Called there when another server of the cluster is lost: messages may wait until leaders
                are chosen.

        Raises:
            BrokerError: No server answers.
            ContractError: The streams belong to another deployment, or are of another kind.
        """


@dataclass(frozen=True, slots=True)
class StreamRecord:
    """The store's record of the stream MAIL.

    Attributes:
        epoch: The number of its incarnation.
        created: The instant at which the stream was created, by the broker's clock.
        highest: The furthest cursor of this epoch; None when nothing was read yet.
        purged: Below this sequence messages may be gone from the stream. Who finds one gone that is
            not, has a store that is behind it.
    """

    name: str
    epoch: int
    created: datetime
    highest: Cursor | None
    purged: int = 1


@dataclass(frozen=True, slots=True)
class Ingested:
    """A batch is in rows, and its shard's cursor moved.

    Attributes:
        arrived: Messages that were not known, in order.
        signalled: Runs that have a new signal, with their agents.
        posted: Shards of this host that have followers of a new post; other owners are notified by the
            store.
    """

    arrived: tuple[Arrived, ...] = ()
    signalled: tuple[tuple[RunId, AgentId], ...] = ()
    posted: tuple[ShardId, ...] = ()


@dataclass(frozen=True, slots=True)
class StaleStream:
    """The stream has a new incarnation, or the database lost its last commits: guard the stream again."""


IngestOutcome: TypeAlias = "Ingested | LeaseLost | StaleStream"


class MailStore(Protocol):
    """The rows of messages that a broker delivers; a role of stores for deployments with a broker."""

    async def deployment(self) -> str:
        """Return this database's id: it never changes."""

    async def stream(self, state: StreamState) -> StreamRecord:
        """Return what is known of the stream; the first call for a name makes its record."""

    async def next_stream_epoch(self, known: StreamRecord, created: datetime) -> StreamRecord:
        """Begin another incarnation of the stream, unless another host did since `known` was read.

        Cursors of older epochs count as 0 from then on, and ingests under them are refused.
        """

    async def cursors(self, leases: Sequence[ShardLease], stream: StreamRecord) -> list[Cursor]:
        """Return each shard's cursor in this incarnation of the stream, sequence 0 where it has none."""

    async def ingest(self, batch: MailBatch) -> IngestOutcome:
        """Write a batch to rows and move the cursor, in one commit; concurrent calls are grouped.

        Known ids are dropped. A post becomes work for the owners of its followers' shards, once. A message
        of a sender inside becomes a row only when all that the sender sent to that agent before has:
        the sender's outbox tells. Its outbox row goes in the same commit; without one nobody has sent
        it: it is known, or of a commit that the store has forgotten. Safe to call again.

        A batch that begins after the shard's cursor is refused as a whole (`StaleStream`): the database lost
        its last commits, so the messages between have to be read again.

        Raises:
            PersistenceError: Outcome unknown after the time limit.
        """

    async def account_for(self, agents: Sequence[AgentId]) -> int:
        """Give a shard to messages that no shard reads; return how many shards were made."""

    async def allow_purge(self, stream: StreamRecord, below: int) -> None:
        """Note that messages below may be gone from the stream; durable before the first one goes."""

    async def low_water(self, stream: StreamRecord) -> int:
        """Return the lowest cursor of all shards in this incarnation of the stream; 0 when unknown.

        All shards have read the messages below it.
        """


class OutboxStore(Protocol):
    """The rows that leave by a broker, as the commits of their senders wrote them; a role as `MailStore`."""

    async def page(
        self, leases: Sequence[ShardLease], *, after: int = -1, limit: int = 1000
    ) -> list[OutboxRow]:
        """Return what agents of these shards sent and no receiver has yet, by `n`, after `after`."""

    async def forget(self, rows: Sequence[OutboxRow]) -> None:
        """Delete rows without a receiver in this database: the broker has them."""

    async def bury(self, row: OutboxRow, problem: str) -> None:
        """Make a message that can never be published a dead letter of its target, once.

        Its row goes in the same commit: what its sender sent to that agent after it goes
        on. A row that is gone already was taken by another host, and nothing is done.
        """

    async def hand_over(self, row: OutboxRow) -> bool:
        """Make a message a row of its receiver's inbox, as `MailStore.ingest` does, without the broker.

        The receiver's owner is notified. Return False if it is not its turn in its pair: it stays. A row that
        is gone already was taken by another host, and nothing is done. Concurrent calls are grouped.
        """

    def set_hook(self, hook: Callable[[Sequence[OutboxRow]], None] | None) -> None:
        """Call `hook` on the event loop, in order, with rows that commits of this host wrote."""
