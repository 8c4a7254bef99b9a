"""Transport: who moves bytes between hosts. Postgres is the truth; nothing here is trusted.

In memory and on Postgres alone there is none: the sender's commit writes the receiver's row.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, Protocol

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence
    from datetime import datetime

    from actors.kernel.agent.message import Message
    from actors.kernel.runtime.commit import Outgoing
    from actors.kernel.runtime.ids import HostIncarnation, RunId, ShardId
    from actors.kernel.runtime.scheduler import ShardLease
    from actors.kernel.runtime.store import Nudge


@dataclass(frozen=True, slots=True, order=True)
class Cursor:
    """How far a shard's mail was read. Opaque to the worker.

    Attributes:
        stream_epoch: Which life of the stream; sequences of another one mean nothing.
        sequence: The last message that was written to rows.
        at: When the broker stored that message; tells a stream that was rolled back.
    """

    stream_epoch: int
    sequence: int
    at: datetime | None = None


@dataclass(frozen=True, slots=True)
class Received:
    """One message read from a shard's mail, in the stream's order without gaps.

    Attributes:
        sequence: Its place in the stream.
        kind: What it is.
        message: The message, with sender and target taken from the subject; None when undecodable.
        run_id: The run that a reply or signal is for.
        name: The signal's name.
        stored_at: When the broker stored it.
        sourced: Whether it came from outside, so that no sender's outbox row belongs to it.
        problem: Why it is undecodable; it becomes one dead letter.
        body: The original bytes, for an undecodable one.
    """

    sequence: int
    kind: Literal["message", "reply", "signal", "fanout"]
    message: Message | None
    stored_at: datetime
    run_id: RunId | None = None
    name: str | None = None
    sourced: bool = False
    problem: str = ""
    body: bytes = b""


@dataclass(frozen=True, slots=True)
class StreamState:
    """Which life of the mail stream is connected, for the stream guard."""

    name: str
    created: datetime
    first_sequence: int
    last_sequence: int


class Transport(Protocol):
    """Moves messages between hosts, at least once, in order per (sender, target)."""

    async def send(self, outgoing: Sequence[Outgoing]) -> None:
        """Publish messages; returns when the broker accepted all of them.

        Order is kept per (sender, target). Sending one again is harmless: the receiver drops it.

        Raises:
            BrokerError: Some may not have been accepted; send all again, in their order.
        """
        ...

    def read(self, shard: ShardLease, cursor: Cursor) -> AsyncIterator[Sequence[Received]]:
        """Yield batches behind `cursor`, contiguous; ends when the shard is given up.

        Raises:
            BrokerError: The connection was lost; read again from the stored cursor.
        """
        ...

    async def ack(self, shard: ShardId, upto: int) -> None:
        """Tell the broker that everything up to `upto` is in rows. A lost one is harmless."""
        ...

    async def nudge(self, owner: HostIncarnation, nudge: Nudge) -> None:
        """Hint another host that something changed; may be lost."""
        ...

    async def incarnation(self) -> StreamState:
        """Return the state of the connected mail stream."""
        ...
