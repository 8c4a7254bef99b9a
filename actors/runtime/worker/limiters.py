"""Limiters: a host's share of a limit (slots or starts) with the queue for it. Pure."""

from __future__ import annotations

from typing import Final, Generic, Protocol, TypeAlias, TypeVar

from actors.kernel.runtime.ids import AgentId, RunId
from actors.kernel.stores.limits import Grant
from actors.runtime.worker.ready_queue import ReadyQueue

POLL_S: Final = 0.5
"""Pause before slots are asked for again that there were not: a nudge says so earlier."""
LINGER_S: Final = 0.25
"""Seconds that an unneeded slot is kept, unless other hosts want it."""
SHARE_S: Final = 0.1
"""Seconds between requests for its share by a host whose slots others want."""
REFRESH_S: Final = 5.0
"""Seconds between reports of a host that has slots; the answer replaces hints that were lost."""
SHORTEST_WAIT_S: Final = 0.02
LONGEST_WAIT_S: Final = 1.0
"""Bounds of the pause before starts are asked for again: high rates come in blocks."""


class Entrant(Protocol):
    """A candidate for execution: an agent, with the run that holds it if there is one."""

    agent_id: AgentId
    run_id: RunId | None
    priority: int


E = TypeVar("E", bound=Entrant)


class WaitQueue(Generic[E]):
    """The queue at one limiter: tenants in rotation, inside a tenant by priority, then by arrival.

    Items in `notified` are back in the ready queue. The limiter admits them, unless a more urgent item comes
    first.
    """

    def __init__(self, weights: dict[str, int]) -> None:
        self.waiting: ReadyQueue[E] = ReadyQueue()
        self.waiting.weights = weights
        self.notified: set[E] = set()

    def __len__(self) -> int:
        return len(self.waiting) + len(self.notified)

    def admits(self, item: E, *, free: int) -> bool:
        """Return True if an item may pass: it does not overtake an item that came before it."""
        return free > 0 and (item in self.notified or not self.waiting)

    def put(self, item: E) -> None:
        """Queue an item. One that was notified in vain is the next of its lane."""
        was_notified = item in self.notified
        self.notified.discard(item)
        self.waiting.offer(
            item, priority=item.priority, tenant=item.agent_id.tenant, first=was_notified
        )

    def notify(self, *, free: int) -> list[E]:
        """Return the items that may try now, the next one first."""
        found = self.waiting.take(max(free - len(self.notified), 0))
        self.notified.update(found)
        return found

    def remove(self, item: E) -> None:
        """Forget an item: it was admitted, or is not to execute any more."""
        self.notified.discard(item)
        self.waiting.discard(item)

    def take_all(self) -> list[E]:
        """Remove and return all waiting items, the next one first."""
        found = self.waiting.take(len(self.waiting))
        self.notified.clear()
        return found


class Slots(Generic[E]):
    """The slots of one limit that this host holds, and the executions that use them."""

    def __init__(self, queue: WaitQueue[E]) -> None:
        self.queue = queue
        self.used = 0
        self.held = 0
        """Slots that the store has granted; after a lost answer, the most that it may have granted."""
        self._usable = 0
        """Number of them that may be used: fewer than are held while some are being released."""
        self._share = 0
        self._contended = False
        self._asked = 0
        self._asked_at = self._spare_since = 0.0

    @property
    def free(self) -> int:
        """The number of free slots."""
        return self._usable - self.used

    @property
    def _demand(self) -> int:
        return self.used + len(self.queue)

    def acquire(self) -> None:
        """Note that an execution begins."""
        self.used += 1

    def release(self, now: float) -> None:
        """Note that an execution has ended, or was evicted: slots above the share are not used again."""
        self.used -= 1
        self._spare_since = now
        if self._usable > self._share:
            self._usable = max(self._share, self.used)

    def refresh(self, *, is_changed: bool) -> None:
        """Note that the limit was changed, or that slots may be free elsewhere, or be wanted there."""
        if is_changed or len(self.queue):
            self._asked = 0
        self._contended = self._contended or self.held > 0

    def due_at(self, now: float) -> float | None:
        """Return the instant of the next call of the store, for more slots or to release some; None: never."""
        if max(self.used, self._usable) < self.held or self.used > self.held:
            return now
        found: list[float] = []
        if self._demand > self._usable:
            found.append(now if self._demand > self._asked else self._asked_at + POLL_S)
        elif self._demand < self._usable:
            found.append(now if self._contended else self._spare_since + LINGER_S)
        elif self._demand < self._asked:
            found.append(self._asked_at + LINGER_S)  # no run waits: others may be admitted
        if self.held:
            found.append(self._asked_at + (SHARE_S if self._contended else REFRESH_S))
        return min(found, default=None)

    def claim(self, now: float) -> tuple[int, int]:
        """Return how many slots to go on holding, and how many would be of use, that included."""
        is_lingering = not self._contended and now < self._spare_since + LINGER_S
        keep = self._usable if is_lingering else min(self._usable, self._demand)
        # Nothing above what is said to be kept may be used before the answer is here.
        self._usable = keep = max(keep, self.used)
        self._asked, self._asked_at = self._demand, now
        return keep, max(self._demand, keep)

    def apply(self, grant: Grant, now: float) -> None:
        """Take over the answer to a claim."""
        if grant.held > self._usable:
            self._spare_since = now
        self.held, self._share, self._contended = grant.held, grant.share, grant.contended
        self._usable = max(min(grant.held, grant.share), self.used)

    def mark_unanswered(self) -> None:
        """Note that the answer to a claim was lost: as many slots as were wanted may be held."""
        self.held = max(self.held, self._asked, self._usable)


class TokenBucket(Generic[E]):
    """The starts of one limit that this host was granted and has not used."""

    def __init__(self, queue: WaitQueue[E]) -> None:
        self.queue = queue
        self.free = 0
        self.held = 0
        """Always 0: a start is over when it has been used."""
        self._next_at = 0.0

    @property
    def _missing(self) -> int:
        return len(self.queue) - self.free

    def acquire(self) -> None:
        """Note that a run starts."""
        self.free -= 1

    def release(self, now: float) -> None:
        """Do nothing: a run that has started gives nothing back."""

    def refresh(self, *, is_changed: bool) -> None:
        """Ask again at once if the limit was changed."""
        if is_changed:
            self._next_at = 0.0

    def due_at(self, now: float) -> float | None:
        """See `Slots.due_at`. What is not used is returned at once."""
        if self._missing > 0:
            return max(self._next_at, now)
        return now if self._missing < 0 else None

    def claim(self, now: float) -> int:
        """Return how many more starts are wanted; below 0: so many are returned."""
        if self._missing > 0 and now < self._next_at:
            return 0
        wanted = self._missing
        if wanted < 0:
            self.free += wanted
        return wanted

    def apply(self, grant: Grant, now: float) -> None:
        """Take over the answer to a claim."""
        self.free += grant.starts
        if self._missing > 0:
            wait_s = min(max(grant.next_start_s, SHORTEST_WAIT_S), LONGEST_WAIT_S)
            self._next_at = max(self._next_at, now + wait_s)

    def mark_unanswered(self) -> None:
        """Do nothing: the starts in a lost answer are lost."""


Limiter: TypeAlias = Slots[E] | TokenBucket[E]
