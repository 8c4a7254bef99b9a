"""Whose turn it is: the work of one agent in memory, and what its owner does next. Pure.

An agent is serial: from its first entry to its terminal one a run holds its agent. Messages and runs
wait in one queue, by arrival. Rules: DESIGN §9, "Whose turn is it". Of many waiting messages only the
oldest are here; a mailbox that is `spilled` has others in the store.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass
from datetime import timedelta
from enum import Enum, auto
from typing import TYPE_CHECKING, Final, TypeAlias

from actors.kernel.runtime.scheduler import RunStatus
from actors.runtime.timers import LEAD_S

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from datetime import datetime

    from actors.kernel.runtime.commit import Arrived, RunRow
    from actors.kernel.runtime.ids import AgentId, RunId, ShardId

MAX_MESSAGES: Final = 100
"""How many waiting messages one run is given."""

MAILBOX_LIMIT: Final = 200
"""How many waiting messages of one agent are in memory."""

WORKER_LIMIT: Final = 50_000
"""How many waiting messages of all agents are in memory; what an agent's turn needs comes on top."""


class Holding(Enum):
    """What the run that holds the agent is at."""

    NOTHING = auto()
    READY = auto()
    """In the host's ready queue."""
    EXECUTING = auto()
    SUSPENDED = auto()
    """Rows only, until something of its wake set comes."""
    BACKOFF = auto()
    """Rows only, until its next attempt is due; signals and mail do not hasten it."""
    PARKED = auto()
    """Rows only, until an operator decides."""


class Adoption(Enum):
    """Whether the agent's open runs were read. Nothing starts before they were."""

    NOT_SERVED = auto()
    """No: the agent is not served here. All that comes stays rows."""
    UNDER_WAY = auto()
    DONE = auto()


class Room:
    """How many waiting messages fit into the memory of one worker."""

    __slots__ = ("each", "held", "total")

    def __init__(self, *, each: int = MAILBOX_LIMIT, total: int = WORKER_LIMIT) -> None:
        self.each, self.total = each, total
        self.held = 0


class Mailbox:
    """One agent's work. Kept small: there is one for every suspended run."""

    __slots__ = (
        "adoption", "agent_id", "holding", "is_reading", "lazy", "missed", "nudged", "plain",
        "priority", "queue", "ready_at", "recovering", "room", "run_id", "shard", "spilled", "taken",
        "turns", "wake_at", "wants_mail",
    )  # fmt: skip

    def __init__(
        self,
        agent_id: AgentId,
        shard: ShardId,
        room: Room | None = None,
        *,
        adoption: Adoption = Adoption.DONE,
        spilled: bool = False,
        lazy: bool = False,
    ) -> None:
        self.agent_id = agent_id
        self.shard = shard
        self.room = room or Room()
        self.adoption = adoption
        self.holding = Holding.NOTHING
        self.run_id: RunId | None = None
        self.priority = 5
        self.wake_at: datetime | None = None
        """When the waiting run is loaded to go on by itself."""
        self.ready_at = 0.0
        """When it could go on, by the loop's clock; for a meter."""
        self.wants_mail = False
        """Whether plain mail wakes the waiting run."""
        self.nudged = False
        """Something came while the run could not be woken: wake it when it can."""
        self.recovering = False
        """The run was found RUNNING: another host died while executing it."""
        self.queue: list[tuple[int, Arrived]] | None = None
        """Messages by arrival; one with a `run_id` is the boot message of a queued run."""
        self.plain = 0
        """How many of them are plain mail."""
        self.spilled = spilled
        """Mail may wait in the store: no new message is kept before that was read."""
        self.missed = False
        """It does."""
        self.lazy = lazy
        """Posts may wait in the store that start nothing: whatever else does is given them first."""
        self.is_reading = False
        """The store is being asked, beside the run that holds the agent."""
        self.taken: set[int] | None = None
        """Arrivals that the run in memory has taken and whose rows may still look pending."""
        self.turns = 0
        """Grows whenever `taken` is forgotten: what was read before may be out of date."""

    # --- what comes in --------------------------------------------------------------------------

    def add(self, arrived: Arrived) -> bool:
        """Put a message in the queue, or note that it waits in the store; False when it is known.

        A new message is kept only behind everything that came before it from the same sender.
        """
        if self.adoption is Adoption.NOT_SERVED:
            self.note_mail()
            return False
        if self.knows(arrived.arrival):
            return False
        if arrived.run_id is None and (self._has_unread or not self._has_place):
            self.note_mail()
        else:
            self._insert(arrived)
        return True

    def knows(self, arrival: int) -> bool:
        """Whether the message is in the queue, or was taken by the run in memory."""
        if self.taken is not None and arrival in self.taken:
            return True
        place = self._place_of(arrival)
        return self.queue is not None and (
            place < len(self.queue) and self.queue[place][0] == arrival
        )

    def note_mail(self) -> None:
        """Mail waits in the store that is not here."""
        self.spilled = self.missed = True

    def _place_of(self, arrival: int) -> int:
        return 0 if self.queue is None else bisect_left(self.queue, arrival, key=_arrival)

    def _insert(self, arrived: Arrived) -> None:
        place = self._place_of(arrived.arrival)
        if self.queue is None:
            self.queue = []
        self.queue.insert(place, (arrived.arrival, arrived))
        if arrived.run_id is None:
            self._count(1)

    def _count(self, more: int) -> None:
        self.plain += more
        self.room.held += more

    @property
    def _has_place(self) -> bool:
        return self.plain < self.room.each and self.room.held < self.room.total

    # --- what is in the store -------------------------------------------------------------------

    @property
    def is_low(self) -> bool:
        """Whether mail has to be read before the next turn, or the next message, is decided on."""
        return self._has_unread and self.plain < self._enough

    @property
    def _has_unread(self) -> bool:
        return self.spilled or self.lazy

    @property
    def _enough(self) -> int:
        return min(MAX_MESSAGES, self.room.each)

    def ask(self) -> int:
        """Return how many of the oldest pending rows to read for `refill`.

        When they cannot be read, or are out of date, `note_mail` has to say so.
        """
        self.missed = self.lazy = False
        known = self.plain + len(self.taken or ())
        free = min(self.room.each - self.plain, self.room.total - self.room.held)
        return known + max(free, self._enough - self.plain, 1)

    def refill(self, page: Sequence[Arrived], *, is_all: bool) -> None:
        """Take over the oldest pending rows, as read; `is_all`: there were no others."""
        if self.taken is not None:
            last = page[-1].arrival if page else 0
            pending = {arrived.arrival for arrived in page}
            self.taken = {a for a in self.taken if a in pending or not (is_all or a <= last)}
        for arrived in page:
            if self.knows(arrived.arrival):
                continue
            if self.plain >= self._enough and not self._has_place:
                is_all = False
                break
            self._insert(arrived)
        self.spilled = self.missed = self.missed or not is_all

    def spill(self) -> None:
        """Forget the plain mail: it is in the store, and read again when it is needed."""
        if self.plain:
            self.queue = [item for item in self.queue or () if item[1].run_id is not None] or None
            self._count(-self.plain)
        self.note_mail()

    def doubt(self) -> None:
        """The store may be behind what is known here: read it again, but for the run in memory."""
        self.queue = None
        self._count(-self.plain)
        self.note_mail()
        self.turns += 1
        if self.adoption is Adoption.DONE:
            self.adoption = Adoption.UNDER_WAY

    # --- what goes out --------------------------------------------------------------------------

    @property
    def has_mail(self) -> bool:
        """Whether a plain message is here."""
        return self.plain > 0

    @property
    def has_work(self) -> bool:
        """Whether something waits for the agent to be free, here or in the store."""
        return bool(self.queue) or self.spilled

    def take_mail(self) -> Arrived | None:
        """Remove and return the first plain message (for `ctx.receive`)."""
        for index, (arrival, arrived) in enumerate(self.queue or ()):
            if arrived.run_id is None:
                del self.queue[index]  # type: ignore[union-attr]
                self._count(-1)
                self.take(arrival)
                return arrived
        return None

    def take(self, arrival: int) -> None:
        """Remember that the run in memory has this message."""
        if self.taken is None:
            self.taken = set()
        self.taken.add(arrival)

    def put_back(self, arrival: int) -> None:
        """The run in memory may not have this message yet: older mail is read first."""
        if self.taken is not None:
            self.taken.discard(arrival)
        self.spill()

    def broke_off(self) -> None:
        """The run in memory was broken off: what it has taken may look pending until it is loaded."""
        self.taken = self.taken or set()

    def next_turn(self) -> Turn | None:
        """Remove and return what a free agent does next, or None: a queued run, or waiting mail."""
        if not self.queue or self.holding is not Holding.NOTHING:
            return None
        first = self.queue[0][1]
        if first.run_id is not None:
            del self.queue[0]
            self.take(first.arrival)
            return StartRun(first.run_id, first)
        mail: list[Arrived] = []
        rest: list[tuple[int, Arrived]] = []
        is_full = False
        for arrival, arrived in self.queue:
            is_full = is_full or (arrived.alone and bool(mail))
            if arrived.run_id is None and not is_full:
                mail.append(arrived)
                self.take(arrival)
                is_full = arrived.alone or len(mail) == MAX_MESSAGES
            else:
                rest.append((arrival, arrived))
        self.queue = rest or None
        self._count(-len(mail))
        return StartMail(tuple(mail))

    # --- the run that holds the agent -----------------------------------------------------------

    def free(self) -> None:
        """The run that held the agent has ended."""
        self.holding = Holding.NOTHING
        self.run_id = None
        self.taken = self.wake_at = None
        self.wants_mail = self.nudged = self.recovering = False
        self.turns += 1

    def forget(self, run_id: RunId) -> None:
        """A run of this agent has ended without executing: it holds nothing and waits no more."""
        if self.run_id == run_id:
            self.free()
        else:
            self.queue = [item for item in self.queue or () if item[1].run_id != run_id] or None

    def rest(self, holding: Holding, *, wake_at: datetime | None, wants_mail: bool) -> None:
        """The run that holds the agent is rows only from now on, to go on at `wake_at`.

        One that waits is loaded a moment before, and waits on in memory: see `Execution`.
        """
        if wake_at is not None and holding is Holding.SUSPENDED:
            wake_at -= timedelta(seconds=LEAD_S)
        self.holding, self.wake_at, self.wants_mail = holding, wake_at, wants_mail
        self.taken = None
        self.turns += 1

    def set_aside(self) -> None:
        """What was to go on may not now: it is woken, or considered, when it may."""
        self.nudged = self.run_id is not None
        self.holding = Holding.BACKOFF if self.nudged else Holding.NOTHING

    @property
    def is_at_rest(self) -> bool:
        """Whether a run holds the agent that is rows only."""
        return self.holding in (Holding.SUSPENDED, Holding.BACKOFF, Holding.PARKED)

    @property
    def is_empty(self) -> bool:
        """Whether nothing is known of this agent and it can be forgotten."""
        is_free = self.holding is Holding.NOTHING and not self.has_work
        return is_free and self.adoption is Adoption.DONE


class WaitingMail:
    """The plain messages of a mailbox, as the run that holds it may receive them.

    Args:
        mailbox: The agent's.
        read_more: Called when few are left here and the store has more; it pokes the run then.
    """

    def __init__(self, mailbox: Mailbox, read_more: Callable[[Mailbox], None]) -> None:
        self._mailbox, self._read_more = mailbox, read_more

    def is_there(self) -> bool:
        """Whether one waits here; if not, the store is asked when it may have one."""
        if not self._mailbox.has_mail and self._mailbox.is_low:
            self._read_more(self._mailbox)
        return self._mailbox.has_mail

    def take(self) -> Arrived | None:
        """Remove and return the next one."""
        arrived = self._mailbox.take_mail()
        if self._mailbox.is_low:
            self._read_more(self._mailbox)
        return arrived

    def put_back(self, arrived: Arrived) -> None:
        """It may not be taken yet: something older of its sender has to be read first."""
        self._mailbox.put_back(arrived.arrival)


@dataclass(frozen=True, slots=True)
class StartRun:
    """Start a submitted run with its message."""

    run_id: RunId
    first: Arrived


@dataclass(frozen=True, slots=True)
class StartMail:
    """Start a run for waiting messages."""

    mail: tuple[Arrived, ...]


Turn: TypeAlias = StartRun | StartMail


def holding_of(run: RunRow) -> Holding:
    """Return what an open run that has started, and is not in memory, is at."""
    if run.parked is not None:
        return Holding.PARKED
    return Holding.BACKOFF if run.status is RunStatus.PENDING else Holding.SUSPENDED


def _arrival(item: tuple[int, Arrived]) -> int:
    return item[0]
