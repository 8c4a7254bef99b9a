"""Whose turn it is: the work of one agent in memory, and what its owner does next. Pure.

An agent is serial: from its first entry to its terminal one a run holds its agent. Messages and runs
wait in one queue, by arrival. Rules: DESIGN §9, "Whose turn is it".
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass
from enum import Enum, auto
from typing import TYPE_CHECKING, Final, TypeAlias

if TYPE_CHECKING:
    from datetime import datetime

    from actors.kernel.runtime.commit import Arrived
    from actors.kernel.runtime.ids import AgentId, RunId, ShardId

MAX_MESSAGES: Final = 100
"""How many waiting messages one run is given."""


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


class Mailbox:
    """One agent's work. Kept small: there is one for every suspended run."""

    __slots__ = (
        "agent_id", "holding", "nudged", "priority", "queue", "recovering", "run_id", "shard",
        "taken", "wake_at", "wants_mail",
    )  # fmt: skip

    def __init__(self, agent_id: AgentId, shard: ShardId) -> None:
        self.agent_id = agent_id
        self.shard = shard
        self.holding = Holding.NOTHING
        self.run_id: RunId | None = None
        self.priority = 5
        self.wake_at: datetime | None = None
        """When the waiting run goes on by itself."""
        self.wants_mail = False
        """Whether plain mail wakes the waiting run."""
        self.nudged = False
        """Something came while the run was on its way out of memory: wake it again."""
        self.recovering = False
        """The run was found RUNNING: another host died while executing it."""
        self.queue: list[tuple[int, Arrived]] | None = None
        """Messages by arrival; one with a `run_id` is the boot message of a queued run."""
        self.taken: set[int] | None = None
        """Arrivals that the run in memory has taken and whose rows may still look pending."""

    def add(self, arrived: Arrived) -> bool:
        """Put a message in the queue; False when it is there or taken already."""
        if self.taken is not None and arrived.arrival in self.taken:
            return False
        if self.queue is None:
            self.queue = []
        place = bisect_left(self.queue, arrived.arrival, key=_arrival)
        if place < len(self.queue) and self.queue[place][0] == arrived.arrival:
            return False
        self.queue.insert(place, (arrived.arrival, arrived))
        return True

    @property
    def has_mail(self) -> bool:
        """Whether a plain message waits."""
        return any(arrived.run_id is None for _, arrived in self.queue or ())

    def take_mail(self) -> Arrived | None:
        """Remove and return the first plain message (for `ctx.receive`)."""
        for index, (arrival, arrived) in enumerate(self.queue or ()):
            if arrived.run_id is None:
                del self.queue[index]  # type: ignore[union-attr]
                self.take(arrival)
                return arrived
        return None

    def take(self, arrival: int) -> None:
        """Remember that the run in memory has this message."""
        if self.taken is None:
            self.taken = set()
        self.taken.add(arrival)

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
        for arrival, arrived in self.queue:
            if arrived.run_id is None and len(mail) < MAX_MESSAGES:
                mail.append(arrived)
                self.take(arrival)
            else:
                rest.append((arrival, arrived))
        self.queue = rest or None
        return StartMail(tuple(mail))

    def free(self) -> None:
        """The run that held the agent has ended."""
        self.holding = Holding.NOTHING
        self.run_id = None
        self.taken = self.wake_at = None
        self.wants_mail = self.nudged = self.recovering = False

    def forget(self, run_id: RunId) -> None:
        """A run of this agent has ended without executing: it holds nothing and waits no more."""
        if self.run_id == run_id:
            self.free()
        else:
            self.queue = [item for item in self.queue or () if item[1].run_id != run_id] or None

    def rest(self, holding: Holding, *, wake_at: datetime | None, wants_mail: bool) -> None:
        """The run that holds the agent is rows only from now on."""
        self.holding, self.wake_at, self.wants_mail = holding, wake_at, wants_mail
        self.taken = None

    @property
    def is_at_rest(self) -> bool:
        """Whether a run holds the agent that is rows only."""
        return self.holding in (Holding.SUSPENDED, Holding.BACKOFF, Holding.PARKED)

    @property
    def is_empty(self) -> bool:
        """Whether nothing is known of this agent and it can be forgotten."""
        return self.holding is Holding.NOTHING and not self.queue


class WaitingMail:
    """The plain messages of a mailbox, as the run that holds it may receive them."""

    def __init__(self, mailbox: Mailbox) -> None:
        self._mailbox = mailbox

    def is_there(self) -> bool:
        """Whether one waits."""
        return self._mailbox.has_mail

    def take(self) -> Arrived | None:
        """Remove and return the next one."""
        return self._mailbox.take_mail()


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


def _arrival(item: tuple[int, Arrived]) -> int:
    return item[0]
