"""Messages of a shard between their delivery and their batch: whose turn it is, and what is kept of them. Pure.

`Backlog` lets tenants take turns, and the cursor follows. `BodyBudget` limits the dead letters that a sender of
malformed bodies can make.

The store keeps one dead letter for each agent, sender and reason, and counts the others. That alone
bounds nothing: the sender of garbage chooses its reasons, for they name the position in the body, or the
media type. So of each sender some dead letters in a period have a reason of their own. What is garbage for
yet another reason has the same one, `TOO_MANY`, and is counted there.
"""

from __future__ import annotations

from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable
from dataclasses import replace
from typing import Final, NamedTuple

from actors._kernel.runtime.ids import AgentId
from actors._kernel.stores.transport import Received, Undecodable

_ACK_TOKENS: Final = 9
"""Number of tokens of ``$JS.ACK.<stream>.<consumer>.<count>.<sequence>.<number>.<time>.<pending>``. Servers
from 2.16 on put domain and account before the stream, and may add a token at the end."""
OVERHEAD_BYTES: Final = 512
"""Memory of a message beside its headers and its body: names, numbers, the reply subject."""
WHOLE_BYTES: Final = 3 * 1024 * 1024
"""Size of the backlog above which a large message is kept without its headers and body."""
LARGE_BYTES: Final = 8 * 1024
"""Of headers and body. Less is not worth to be read twice."""
REASONS_OF_ONE: Final = 16
"""Number of different reasons that are kept of one sender's bad messages to the shard, in a period."""
PERIOD_S: Final = 60.0
MAX_SENDERS: Final = 1000
"""A period ends when there are more, so that their number costs no memory."""
TOO_MANY: Final = (
    f"is no message; its reason is not kept, because {REASONS_OF_ONE} different reasons of this sender "
    f"were kept within {PERIOD_S:g} s"
)


def parse_ack_subject(reply: bytes) -> tuple[bytes, int, int, int, int]:
    """Return consumer, delivery count, stream sequence, consumer's number and time in nanoseconds."""
    tokens = reply.split(b".")
    consumer_index = 3 if len(tokens) == _ACK_TOKENS else 5
    count, sequence, number, stored_ns = map(int, tokens[consumer_index + 1 : consumer_index + 5])
    return tokens[consumer_index], count, sequence, number, stored_ns


def parse_pending(reply: bytes) -> int:
    """Return how many messages were left for the consumer when this one was delivered."""
    tokens = reply.split(b".")
    return int(tokens[8 if len(tokens) == _ACK_TOKENS else 10])


class Delivered(NamedTuple):
    """A message as it came."""

    sequence: int
    stored_ns: int
    subject: bytes
    reply: bytes
    """Subject for its acknowledgement."""
    headers: bytes
    data: bytes
    let_go_bytes: int = 0
    """Bytes of headers and data that were removed from memory; the stream still has them."""

    @property
    def length(self) -> int:
        """The bytes of headers and data, held here or only in the stream."""
        return len(self.headers) + len(self.data) + self.let_go_bytes


class Reached(NamedTuple):
    """The position up to which every message was handed out."""

    sequence: int
    stored_ns: int
    reply: bytes


class Backlog:
    """Messages of one shard in the order of the stream, handed out a batch at a time.

    Each batch has the oldest message, then one of each tenant in rotation. Those of one tenant keep their
    order, and with it what one sender sent to one agent.

    Memory does not bound how far is read ahead: of large messages only the first ones are kept whole,
    of the others the position in the stream, from which the rest is read again when they are next.

    Args:
        tenant_of: Function that returns the tenant of a message by the subject that it is stored under.
    """

    def __init__(self, tenant_of: Callable[[bytes], bytes]) -> None:
        self._tenant_of = tenant_of
        self._tenants: OrderedDict[bytes, deque[Delivered]] = OrderedDict()
        """Messages by tenant; the tenant whose message is delivered next comes first."""
        self._order: deque[Delivered] = deque()
        """Messages in order, from the oldest that was not delivered."""
        self._ahead: set[int] = set()
        """Sequences of what was handed out before something older."""
        self._count = 0
        self.size = 0
        """Bytes of memory that all take."""
        self.length = 0
        """Bytes of headers and bodies of all, also of those that were let go."""

    def __len__(self) -> int:
        return self._count

    def add(self, message: Delivered) -> int:
        """Put the newest message in; return how many bytes it takes."""
        length = message.length
        if self.size > WHOLE_BYTES and length >= LARGE_BYTES:
            message = message._replace(headers=b"", data=b"", let_go_bytes=length)
        tenant = self._tenant_of(message.subject)
        messages = self._tenants.get(tenant)
        if messages is None:
            messages = self._tenants[tenant] = deque()
        messages.append(message)
        self._order.append(message)
        self._count += 1
        size = _size_of(message)
        self.size += size
        self.length += length
        return size

    def take(self, limit: int, limit_bytes: int) -> tuple[list[Delivered], Reached]:
        """Remove and return the next messages, and how far all were handed out then.

        They are `limit` at most; the one that brings them to `limit_bytes` is the last.
        """
        tenants = self._tenants
        tenants.move_to_end(self._tenant_of(self._order[0].subject), last=False)
        messages: list[Delivered] = []
        length = 0
        while tenants and len(messages) < limit and length < limit_bytes:
            tenant, queue = next(iter(tenants.items()))
            messages.append(queue.popleft())
            length += messages[-1].length
            if not queue:
                del tenants[tenant]
            elif len(tenants) > 1:
                tenants.move_to_end(tenant)
        self.length -= length
        self._count -= len(messages)
        self.size -= sum(map(_size_of, messages))
        self._ahead.update(message.sequence for message in messages)
        last = self._order[0]  # the oldest is among what was handed out
        while self._order and self._order[0].sequence in self._ahead:
            last = self._order.popleft()
            self._ahead.remove(last.sequence)
        return messages, Reached(last.sequence, last.stored_ns, last.reply)


def _size_of(message: Delivered) -> int:
    return OVERHEAD_BYTES + len(message.headers) + len(message.data)


class BodyBudget:
    """The dead letters of one shard. Each has the bytes of the first body that it stands for.

    Args:
        now: Seconds since an arbitrary start.
    """

    def __init__(self, now: Callable[[], float]) -> None:
        self._now, self._until = now, now()
        self._reported: defaultdict[str, set[tuple[AgentId, str]]] = defaultdict(set)
        """The dead letters of each sender."""

    def spare(self, received: Received) -> Received:
        """Return what was received; of what is no message only what its dead letter needs."""
        content = received.content
        if not isinstance(content, Undecodable):
            return received
        if self._now() >= self._until or len(self._reported) > MAX_SENDERS:
            self._until = self._now() + PERIOD_S
            self._reported.clear()
        reported_letters, letter = (
            self._reported[received.sender],
            (received.agent_id, content.problem),
        )
        if letter in reported_letters:
            return replace(received, content=Undecodable(content.problem, b""))
        if len(reported_letters) < REASONS_OF_ONE:
            reported_letters.add(letter)
            return received
        return replace(received, content=Undecodable(TOO_MANY, b""))
