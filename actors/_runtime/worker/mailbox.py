"""The work of one agent in memory, and what its owner does next. Pure.

An agent is serial: from its first entry to its terminal one a run holds its agent. Messages and runs
wait in one queue, by arrival. Rules: docs/semantics.md, 10. Of many waiting messages only the
oldest are here; a mailbox that is `spilled` has others in the store.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import Enum, auto
from operator import itemgetter
from typing import Final, TypeAlias

from actors._kernel.agent.agent import MAX_MESSAGES
from actors._kernel.runtime.ids import AgentId, RunId, ShardId
from actors._kernel.runtime.rows import Arrived, RunRow
from actors._kernel.runtime.scheduler import RunStatus
from actors._runtime.loop.timers import HORIZON_S, LEAD_S

MAILBOX_LIMIT: Final = 200
"""Number of waiting messages of one agent that are in memory."""

WORKER_LIMIT: Final = 50_000
"""Number of waiting messages of all agents that are in memory; what an agent starts with comes on top."""


class Holding(Enum):
    """The state of the run that holds the agent."""

    NOTHING = auto()
    READY = auto()
    """The agent is in the host's ready queue."""
    EXECUTING = auto()
    SUSPENDED = auto()
    """Rows only, until something of its wake set comes."""
    BACKOFF = auto()
    """Rows only, until its next attempt is due; signals and messages do not hasten it."""
    PARKED = auto()
    """Rows only, until an operator decides."""


class Adoption(Enum):
    """The progress of reading the agent's open runs. Nothing starts before they were read."""

    NOT_SERVED = auto()
    """No: the agent is not served here. All that comes stays rows."""
    UNDER_WAY = auto()
    ASKED = auto()
    """No: a run that slept holds the agent, and the store is asked for it."""
    DONE = auto()


class MailboxCapacity:
    """The number of waiting messages that fit into the memory of one worker."""

    each: int
    total: int

    __slots__ = ("each", "total", "used")

    def __init__(self, *, each: int = MAILBOX_LIMIT, total: int = WORKER_LIMIT) -> None:
        self.each, self.total = each, total
        self.used: int = 0


@dataclass(slots=True, eq=False)
class Mailbox:
    """An agent's work in memory. There is none for an agent whose run sleeps: see `may_sleep`."""

    agent_id: AgentId
    shard: ShardId
    capacity: MailboxCapacity = field(default_factory=MailboxCapacity)
    adoption: Adoption = Adoption.DONE
    spilled: bool = False
    """True if messages may wait in the store: no new message is kept before these are read."""
    lazy: bool = False
    """True if posts may wait in the store that start nothing: the next run reads them before it starts."""
    ended: tuple[RunId, ...] = ()
    """Runs that ended while the agent's open runs were read: one of them may be named as open."""
    holding: Holding = Holding.NOTHING
    run_id: RunId | None = None
    priority: int = 5
    wake_at: datetime | None = None
    """The instant at which the waiting run is loaded to go on by itself."""
    ready_at: float = 0.0
    """The instant at which it could go on, in seconds of the loop's clock; for a metric."""
    wants_mail: bool = False
    """True if plain messages wake the waiting run."""
    presumed: bool = False
    """True if a hint named the run: its row has to say that it holds the agent, and what it waits for."""
    nudged: bool = False
    """True if a hint came while the run could not be woken: wake it when possible."""
    recovering: bool = False
    """True if the run was found RUNNING: another host died while executing it."""
    queue: list[tuple[int, Arrived]] | None = None
    """Messages by arrival; one with a `run_id` is the boot message of a queued run."""
    plain: int = 0
    """Number of them that are plain messages."""
    missed: bool = False
    """True if messages wait in the store that are not here."""
    is_reading: bool = False
    """True while the store is asked, beside the run that holds the agent."""
    taken_arrivals: set[int] | None = None
    """Arrivals that the run in memory has taken and whose rows may still look pending."""
    revision: int = 0
    """Counter that grows when `taken_arrivals` is cleared: rows that were read before may be out of date."""

    def add(self, arrived: Arrived) -> bool:
        """Put a message in the queue, or note that it waits in the store; return False if it is known.

        A new message is kept only after all earlier messages of the same sender.
        """
        if self.adoption is Adoption.NOT_SERVED:
            self.note_mail()
            return False
        if self.knows(arrived.arrival) or self._has_begun(arrived):
            return False
        # Earlier messages of its sender may wait in the store: this one would overtake them here.
        if arrived.run_id is None and (self._has_unread or not self._has_free_slot):
            self.note_mail()
        else:
            self._insert(arrived)
        return True

    def knows(self, arrival: int) -> bool:
        """Return True if the message is in the queue, or was taken by the run in memory."""
        if self.taken_arrivals is not None and arrival in self.taken_arrivals:
            return True
        index = self._index_of(arrival)
        return self.queue is not None and (
            index < len(self.queue) and self.queue[index][0] == arrival
        )

    def may_be_held_by(self, run_id: RunId) -> bool:
        """Return True if this run may hold the agent, and that is not known here yet."""
        is_open = self.adoption is not Adoption.DONE and self.run_id is None
        is_open = (is_open or self.presumed) and self.run_id != run_id
        return is_open or self.adoption is Adoption.ASKED

    def _has_begun(self, arrived: Arrived) -> bool:
        """Return True if it belongs to the suspended run that holds the agent: a hint of its arrival came late.

        While that run is loaded its row may be missed, and this be the hint of one that was submitted
        again. What is put in the queue in vain is removed when the run is suspended or ends.
        """
        is_loaded_later = self.holding is not Holding.EXECUTING and not self.presumed
        return self.run_id is not None and arrived.run_id == self.run_id and is_loaded_later

    def note_mail(self) -> None:
        """Note that messages wait in the store that are not here."""
        self.spilled = self.missed = True

    def _index_of(self, arrival: int) -> int:
        return 0 if self.queue is None else bisect_left(self.queue, arrival, key=itemgetter(0))

    def _insert(self, arrived: Arrived) -> None:
        index = self._index_of(arrived.arrival)
        if self.queue is None:
            self.queue = []
        self.queue.insert(index, (arrived.arrival, arrived))
        if arrived.run_id is None:
            self._count(1)

    def _count(self, more: int) -> None:
        self.plain += more
        self.capacity.used += more

    @property
    def _has_free_slot(self) -> bool:
        return self.plain < self.capacity.each and self.capacity.used < self.capacity.total

    @property
    def is_low(self) -> bool:
        """True if messages have to be read before the next start, or the next message, is decided on."""
        return self._has_unread and self.plain < self._enough

    @property
    def _has_unread(self) -> bool:
        return self.spilled or self.lazy

    @property
    def _enough(self) -> int:
        return min(MAX_MESSAGES, self.capacity.each)

    def ask(self) -> int:
        """Return how many of the oldest pending rows to read for `load_page`.

        When they cannot be read, or are out of date, `note_mail` has to say so.
        """
        self.missed = self.lazy = False
        known_count = self.plain + len(self.taken_arrivals or ())
        free = min(self.capacity.each - self.plain, self.capacity.total - self.capacity.used)
        return known_count + max(free, self._enough - self.plain, 1)

    def load_page(self, page: Sequence[Arrived], *, is_all: bool) -> None:
        """Take over the oldest pending rows, as read. `is_all` is True if there were no others."""
        # What was taken and is not pending any more is written: its arrival need not be remembered.
        if self.taken_arrivals is not None:
            last = page[-1].arrival if page else 0
            pending = {arrived.arrival for arrived in page}
            self.taken_arrivals = {
                a for a in self.taken_arrivals if a in pending or not (is_all or a <= last)
            }
        for arrived in page:
            if self.knows(arrived.arrival):
                continue
            if self.plain >= self._enough and not self._has_free_slot:
                is_all = False
                break
            self._insert(arrived)
        self.spilled = self.missed = self.missed or not is_all

    def spill(self) -> None:
        """Forget the plain messages: they are in the store, and read again when they are needed."""
        if self.plain:
            self.queue = [item for item in self.queue or () if item[1].run_id is not None] or None
            self._count(-self.plain)
        self.note_mail()

    def invalidate(self) -> None:
        """Read everything but the run in memory again, because the database may have lost its last commits."""
        self.queue = None
        self._count(-self.plain)
        self.note_mail()
        self.ended = ()
        self.revision += 1
        if self.adoption is Adoption.DONE:
            self.adoption = Adoption.UNDER_WAY

    @property
    def has_mail(self) -> bool:
        """True if a plain message is in memory."""
        return self.plain > 0

    @property
    def has_work(self) -> bool:
        """True if a message or a run waits for the agent to be free, in memory or in the store."""
        return bool(self.queue) or self.spilled

    @property
    def is_mail_next(self) -> bool:
        """True if a free agent takes waiting messages next, not a queued run."""
        return bool(self.queue) and self.queue[0][1].run_id is None  # type: ignore[index]

    def first_mail(self) -> Arrived | None:
        """Return what `take_mail` would return."""
        return next((arrived for _, arrived in self.queue or () if arrived.run_id is None), None)

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
        if self.taken_arrivals is None:
            self.taken_arrivals = set()
        self.taken_arrivals.add(arrival)

    def put_back(self, arrival: int) -> None:
        """Take a message back from the run in memory: older messages have to be read first."""
        if self.taken_arrivals is not None:
            self.taken_arrivals.discard(arrival)
        self.spill()

    def broke_off(self) -> None:
        """Note that the run in memory was broken off: what it has taken may look pending until it is loaded."""
        self.taken_arrivals = self.taken_arrivals or set()

    def take_next(self, most: int = MAX_MESSAGES) -> Start | None:
        """Remove and return what a free agent does next (a queued run, or waiting messages), or None.

        Of waiting messages `most` at most, and none ahead of a queued run of its sender: the store
        would refuse that, each time.
        """
        if not self.queue or self.holding is not Holding.NOTHING:
            return None
        first = self.queue[0][1]
        if first.run_id is not None:
            del self.queue[0]
            self.take(first.arrival)
            return StartRun(first.run_id, first)
        mail: list[Arrived] = []
        remaining_items: list[tuple[int, Arrived]] = []
        is_full, queued_senders = False, set[str]()
        for arrival, arrived in self.queue:
            # A message that a failed run gave back is processed alone: it may be the one that fails.
            is_full = is_full or (arrived.alone and bool(mail))
            if arrived.run_id is not None:
                queued_senders.add(arrived.sender)
            if arrived.run_id is None and not is_full and arrived.sender not in queued_senders:
                mail.append(arrived)
                self.take(arrival)
                is_full = arrived.alone or len(mail) == most
            else:
                remaining_items.append((arrival, arrived))
        self.queue = remaining_items or None
        self._count(-len(mail))
        return StartMail(tuple(mail))

    def free(self) -> None:
        """Note that the run that held the agent has ended."""
        self.holding = Holding.NOTHING
        self.run_id = None
        self.taken_arrivals = self.wake_at = None
        self.wants_mail = self.nudged = self.recovering = self.presumed = False
        self.revision += 1

    def forget(self, run_id: RunId) -> None:
        """Forget a run of this agent that has ended without executing: it holds nothing and waits no more."""
        if self.run_id == run_id:
            self.free()
        else:
            self._waits_no_more(run_id)

    def _waits_no_more(self, run_id: RunId | None) -> None:
        if self.queue is not None and run_id is not None:
            self.queue = [item for item in self.queue if item[1].run_id != run_id] or None

    def evict(self, holding: Holding, *, wake_at: datetime | None, wants_mail: bool) -> None:
        """Note that the run that holds the agent is rows only from now on, to go on at `wake_at`.

        A run that waits is loaded a moment before, and waits on in memory: see `Execution`.
        """
        if wake_at is not None and holding is Holding.SUSPENDED:
            wake_at -= timedelta(seconds=LEAD_S)
        self.holding, self.wake_at, self.wants_mail = holding, wake_at, wants_mail
        self._waits_no_more(self.run_id)
        self.taken_arrivals = None
        self.revision += 1

    def presume(self, run_id: RunId, priority: int) -> None:
        """Note that a hint is about this run, of an agent that a sleeping run holds."""
        self.run_id, self.priority, self.holding = run_id, priority, Holding.SUSPENDED
        self.presumed = True

    def confirm(self) -> None:
        """Note that the hint was right: this run holds the agent, and waits."""
        self.presumed = False
        self._waits_no_more(self.run_id)

    def may_sleep(self, now: datetime) -> bool:
        """Return True if rows are enough: the run waits, nothing else does, and no timer is due soon."""
        if self.holding is not Holding.SUSPENDED or self.adoption is not Adoption.DONE:
            return False
        is_soon = self.wake_at is not None and (self.wake_at - now).total_seconds() <= HORIZON_S
        return not (is_soon or self.has_work or self.nudged or self.is_reading)

    def set_aside(self) -> None:
        """Stop what was about to continue. It is woken, or considered again, when it may."""
        is_held = self.run_id is not None
        self.nudged = self.nudged or is_held
        self.holding = Holding.BACKOFF if is_held else Holding.NOTHING

    @property
    def is_evicted(self) -> bool:
        """True if a run holds the agent and exists as rows only."""
        return self.holding in (Holding.SUSPENDED, Holding.BACKOFF, Holding.PARKED)

    @property
    def is_empty(self) -> bool:
        """True if nothing is known of this agent, so that its mailbox can be dropped."""
        is_free = self.holding is Holding.NOTHING and not self.has_work
        return is_free and self.adoption is Adoption.DONE


@dataclass(frozen=True, slots=True)
class StartRun:
    """Start a submitted run with its message."""

    run_id: RunId
    first: Arrived


@dataclass(frozen=True, slots=True)
class StartMail:
    """Start a run for waiting messages."""

    mail: tuple[Arrived, ...]


Start: TypeAlias = StartRun | StartMail


def holding_of(run: RunRow) -> Holding:
    """Return the state of an open run that has started and is not in memory."""
    if run.parked is not None:
        return Holding.PARKED
    return Holding.BACKOFF if run.status is RunStatus.PENDING else Holding.SUSPENDED
