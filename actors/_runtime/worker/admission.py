"""Admission: the decision which ready agents may execute now, and what to ask the store for. Pure.

A limit has a limiter of slots, one of starts, or both: a host's share of the limit, with the queue for it. An
agent executes if all limiters that apply to it admit it. If one of them does not, the agent takes nothing
from the others and waits in the queue of that one. Agents behind it in the ready queue continue: a limited
agent delays only agents of the same limit. The ready queue has tenants in rotation, then lower priority
number first, then order of arrival.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain
from typing import Final, Generic, Protocol, TypeAlias, TypeVar

from actors._kernel.runtime.ids import AgentId, RunId
from actors._kernel.stores.limits import Claim, Grant, Limit, LimitScope, ScopeKind, scopes_of

T = TypeVar("T")


class ReadyQueue(Generic[T]):
    """The queue of items that can continue. Each item is in it once, however often it is offered.

    Tenants with something to do take from it round-robin, so a tenant with
    thousands of items delays another's single item by one of its own, whatever their priorities. Inside
    a tenant higher numbers wait as long as there are lower ones, for ever if those never end.
    """

    def __init__(self) -> None:
        self._tenants: OrderedDict[str, dict[int, deque[T]]] = OrderedDict()
        """The next one comes first; the items of each by priority."""
        self._lane_of: dict[T, tuple[str, int]] = {}
        self.weights: dict[str, int] = {}
        """Number of items that a tenant takes in each round, if it is not one."""
        self._turn_count = 0
        """Number of those that the current tenant has had."""
        self._current: str | None = None

    def __len__(self) -> int:
        return len(self._lane_of)

    def __contains__(self, item: T) -> bool:
        return item in self._lane_of

    def offer(self, item: T, *, priority: int, tenant: str, first: bool = False) -> bool:
        """Put an item at the end of its lane; return False (and change nothing) if it is there already.

        `first` is for an item that was taken and could not be used: its tenant is the next one, and it
        is the next of its priority there.
        """
        if item in self._lane_of:
            return False
        self._lane_of[item] = (tenant, priority)
        items = self._tenants.setdefault(tenant, {}).setdefault(priority, deque())
        if first:
            items.appendleft(item)
            self._tenants.move_to_end(tenant, last=False)
        else:
            items.append(item)
        return True

    def take(self, capacity: int) -> list[T]:
        """Remove and return up to `capacity` items, the next one first."""
        items: list[T] = []
        while self._tenants and len(items) < capacity:
            tenant, lanes = next(iter(self._tenants.items()))
            priority = min(lanes)
            items.append(lanes[priority].popleft())
            del self._lane_of[items[-1]]
            if not self.weights or self._has_had_its_share(tenant):
                self._tenants.move_to_end(tenant)
            self._drop_empty(tenant, priority)
        return items

    def _has_had_its_share(self, tenant: str) -> bool:
        if self._current != tenant:
            self._current, self._turn_count = tenant, 0
        self._turn_count += 1
        if self._turn_count < self.weights.get(tenant, 1):
            return False
        self._current = None
        return True

    def discard(self, item: T) -> None:
        """Take an item out, if it is in it."""
        lane = self._lane_of.pop(item, None)
        if lane is not None:
            self._tenants[lane[0]][lane[1]].remove(item)
            self._drop_empty(*lane)

    def waiting(self, *, tenant: str | None = None) -> list[T]:
        """Return the items in the order `take` would; of one tenant only, if one is given."""
        return [i for i in self._in_order() if tenant is None or self._lane_of[i][0] == tenant]

    def clear(self) -> None:
        """Forget everything."""
        self._tenants.clear()
        self._lane_of.clear()

    def _in_order(self) -> Iterator[T]:
        queues = [
            list(chain.from_iterable(lanes[priority] for priority in sorted(lanes)))
            for lanes in self._tenants.values()
        ]
        for n in range(max(map(len, queues), default=0)):
            yield from (items[n] for items in queues if n < len(items))

    def _drop_empty(self, tenant: str, priority: int) -> None:
        lanes = self._tenants[tenant]
        if not lanes[priority]:
            del lanes[priority]
        if not lanes:
            del self._tenants[tenant]


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
        # It was the next one already: behind the others of its lane it would wait a second time.
        was_notified = item in self.notified
        self.notified.discard(item)
        self.waiting.offer(
            item, priority=item.priority, tenant=item.agent_id.tenant, first=was_notified
        )

    def notify(self, *, free: int) -> list[E]:
        """Return the items that may try now, the next one first."""
        items = self.waiting.take(max(free - len(self.notified), 0))
        self.notified.update(items)
        return items

    def remove(self, item: E) -> None:
        """Forget an item: it was admitted, or is not to execute any more."""
        self.notified.discard(item)
        self.waiting.discard(item)

    def take_all(self) -> list[E]:
        """Remove and return all waiting items, the next one first."""
        items = self.waiting.take(len(self.waiting))
        self.notified.clear()
        return items


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
        self._is_contended = False
        self._last_demand = 0
        self._last_claim_at = self._spare_since = 0.0

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
        # Other hosts want the slots above the share: they are released one by one, as executions end.
        if self._usable > self._share:
            self._usable = max(self._share, self.used)

    def refresh(self, *, is_changed: bool) -> None:
        """Note that the limit was changed, or that slots may be free elsewhere, or be wanted there."""
        if is_changed or len(self.queue):
            self._last_demand = 0
        # Another host may want the slots that are held here: with contention they are not kept for later.
        self._is_contended = self._is_contended or self.held > 0

    def due_at(self, now: float) -> float | None:
        """Return the instant of the next call of the store, to claim or to release slots, or None."""
        if max(self.used, self._usable) < self.held or self.used > self.held:
            return now
        instants: list[float] = []
        if self._demand > self._usable:
            instants.append(
                now if self._demand > self._last_demand else self._last_claim_at + POLL_S
            )
        elif self._demand < self._usable:
            instants.append(now if self._is_contended else self._spare_since + LINGER_S)
        elif self._demand < self._last_demand:
            instants.append(self._last_claim_at + LINGER_S)  # no run waits: others may be admitted
        if self.held:
            instants.append(self._last_claim_at + (SHARE_S if self._is_contended else REFRESH_S))
        return min(instants, default=None)

    def claim(self, now: float) -> tuple[int, int]:
        """Return how many slots to go on holding, and how many would be of use, that included."""
        is_lingering = not self._is_contended and now < self._spare_since + LINGER_S
        keep = self._usable if is_lingering else min(self._usable, self._demand)
        # Nothing above what is said to be kept may be used before the answer is here.
        self._usable = keep = max(keep, self.used)
        self._last_demand, self._last_claim_at = self._demand, now
        return keep, max(self._demand, keep)

    def apply(self, grant: Grant, now: float) -> None:
        """Take over the answer to a claim."""
        # New slots may stay unused for `LINGER_S` from now on, before they are returned.
        if grant.held > self._usable:
            self._spare_since = now
        self.held, self._share, self._is_contended = grant.held, grant.share, grant.contended
        self._usable = max(min(grant.held, grant.share), self.used)

    def mark_unanswered(self) -> None:
        """Note that the answer to a claim was lost: as many slots as were wanted may be held."""
        self.held = max(self.held, self._last_demand, self._usable)


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
        """Return the instant of the next call of the store, or None. What is not used is returned at once."""
        if self._missing > 0:
            return max(self._next_at, now)
        return now if self._missing < 0 else None

    def claim(self, now: float) -> int:
        """Return how many more starts are wanted; a number below 0 says how many are returned."""
        if self._missing > 0 and now < self._next_at:
            return 0
        count = self._missing
        if count < 0:
            self.free += count
        return count

    def apply(self, grant: Grant, now: float) -> None:
        """Take over the answer to a claim."""
        self.free += grant.starts
        if self._missing > 0:
            wait_s = min(max(grant.next_start_s, SHORTEST_WAIT_S), LONGEST_WAIT_S)
            self._next_at = max(self._next_at, now + wait_s)

    def mark_unanswered(self) -> None:
        """Do nothing: the starts in a lost answer are lost."""


Limiter: TypeAlias = Slots[E] | TokenBucket[E]


class Permit(Generic[E]):
    """An execution, with the slots that it uses until it ends."""

    item: E
    slots: tuple[Slots[E], ...]

    __slots__ = ("item", "slots")

    def __init__(self, item: E, slots: tuple[Slots[E], ...] = ()) -> None:
        self.item, self.slots = item, slots


class Admission(Generic[E]):
    """The limiters of one host.

    Args:
        ready: The queue to which admitted items return.
        clock: Seconds since an arbitrary start.
    """

    def __init__(self, ready: ReadyQueue[E], *, clock: Callable[[], float]) -> None:
        self._ready, self._clock = ready, clock
        self._limits: dict[LimitScope, Limit] = {}
        self._slots: dict[LimitScope, Slots[E]] = {}
        self._buckets: dict[LimitScope, TokenBucket[E]] = {}
        self._queued_on: dict[E, Limiter[E]] = {}
        self._permits: set[Permit[E]] = set()
        self.on_change: Callable[[], None] = lambda: None
        """Called when there may be something to ask the store for."""

    def concerns(self, agent_id: AgentId) -> bool:
        """Return True if any limit applies to this agent."""
        return bool(self._limits) and any(scope in self._limits for scope in scopes_of(agent_id))

    def admit(self, item: E) -> Permit[E] | None:
        """Return the permit to execute an item, or None if a limiter queued it for later."""
        if not self._limits:
            permit = Permit(item)
            self._permits.add(permit)
            return permit
        scopes = [scope for scope in scopes_of(item.agent_id) if scope in self._limits]
        slots = tuple(self._slots[scope] for scope in scopes if scope in self._slots)
        limiters: list[Limiter[E]] = [*slots]
        if item.run_id is None:  # else it goes on, and is no start
            limiters += (self._buckets[scope] for scope in scopes if scope in self._buckets)
        # All limiters are asked before one is used: an item that waits at one takes nothing from the others.
        for limiter in limiters:
            if not limiter.queue.admits(item, free=limiter.free):
                self._enqueue(item, limiter)
                return None
        self._dequeue(item)
        for limiter in limiters:
            limiter.acquire()
        permit = Permit(item, slots)
        self._permits.add(permit)
        return permit

    def release(self, permit: Permit[E]) -> None:
        """Release the slots of an execution that is over, or out of memory."""
        self._permits.discard(permit)
        if permit.slots:
            now = self._clock()
            for limiter in permit.slots:
                limiter.release(now)
                self._notify(limiter)
            self.on_change()

    def forget(self, item: E) -> None:
        """Forget an item that is not to execute any more."""
        limiter = self._dequeue(item)
        if limiter is not None:
            self._notify(limiter)
            self.on_change()

    def clear(self) -> None:
        """Forget everything that waits."""
        for limiter in self._limiters():
            limiter.queue.take_all()
        self._queued_on.clear()

    def _enqueue(self, item: E, limiter: Limiter[E]) -> None:
        previous = self._queued_on.get(item)
        if previous is not None and previous is not limiter:
            previous.queue.remove(item)
            self._notify(previous)
        self._queued_on[item] = limiter
        limiter.queue.put(item)
        self._notify(limiter)
        self.on_change()

    def _dequeue(self, item: E) -> Limiter[E] | None:
        limiter = self._queued_on.pop(item, None)
        if limiter is not None:
            limiter.queue.remove(item)
        return limiter

    def _notify(self, limiter: Limiter[E]) -> None:
        """Put as many items back into the ready queue as the limiter has free slots or starts for."""
        self._requeue(limiter.queue.notify(free=limiter.free))

    def _requeue(self, items: Sequence[E]) -> None:
        # Each is put in front, so the last one first keeps their order.
        for item in reversed(items):
            self._ready.offer(item, priority=item.priority, tenant=item.agent_id.tenant, first=True)

    def _limiters(self) -> Iterator[Limiter[E]]:
        yield from self._slots.values()
        yield from self._buckets.values()

    def define(self, limits: Iterable[Limit]) -> None:
        """Replace all limits. Agents that waited for a removed limit are tried again."""
        old_limits, self._limits = self._limits, {limit.scope: limit for limit in limits}
        weights = {
            scope.name: limit.weight
            for scope, limit in self._limits.items()
            if scope.kind is ScopeKind.TENANT and limit.weight != 1
        }
        if weights != self._ready.weights:
            self._ready.weights = weights
            for limiter in self._limiters():
                limiter.queue.waiting.weights = weights
        for scope in {*old_limits, *self._limits}:
            if old_limits.get(scope) != self._limits.get(scope):
                self._redefine(scope)

    def _redefine(self, scope: LimitScope) -> None:
        limit = self._limits.get(scope)
        if limit is None or limit.max_concurrent is None:
            self._remove_limiter(self._slots.pop(scope, None))
        elif scope not in self._slots:
            self._slots[scope] = self._new_slots(scope)
        if limit is None or limit.rate_per_s is None:
            self._remove_limiter(self._buckets.pop(scope, None))
        elif scope not in self._buckets:
            self._buckets[scope] = TokenBucket(WaitQueue(self._ready.weights))
        for limiter in (self._slots.get(scope), self._buckets.get(scope)):
            if limiter is not None:
                limiter.refresh(is_changed=True)
        self.on_change()

    def _remove_limiter(self, limiter: Limiter[E] | None) -> None:
        """Remove a limiter. Runs queued on it are admitted by the remaining limiters."""
        if limiter is None:
            return
        # A copy: entries are removed in the loop.
        for item in [item for item, queued_on in self._queued_on.items() if queued_on is limiter]:
            del self._queued_on[item]
        self._requeue(limiter.queue.take_all())

    def _new_slots(self, scope: LimitScope) -> Slots[E]:
        """Make a limiter in which each run that is already executing has a slot, even if none is free."""
        limiter: Slots[E] = Slots(WaitQueue(self._ready.weights))
        for permit in self._permits:
            if scope in scopes_of(permit.item.agent_id):
                permit.slots = (*permit.slots, limiter)
                limiter.acquire()
        return limiter

    def refresh(self) -> None:
        """Make claims due again: other hosts may have free slots, or want some."""
        for limiter in self._limiters():
            limiter.refresh(is_changed=False)
        self.on_change()

    def due_at(self) -> float | None:
        """Return when the next claim is due, by the clock, or None if no limit applies to an agent here."""
        if not self._limits:
            return None
        now = self._clock()
        instants = (limiter.due_at(now) for limiter in self._limiters())
        return min((at for at in instants if at is not None), default=None)

    def claims(self) -> list[Claim]:
        """Return what to report to the store now. Each has to be answered by `apply` or `mark_unanswered`."""
        now, claims = self._clock(), list[Claim]()
        for scope in self._limits:
            slots, bucket = self._slots.get(scope), self._buckets.get(scope)
            instants = [limiter.due_at(now) for limiter in (slots, bucket) if limiter is not None]
            if any(at is not None and at <= now for at in instants):
                slots_to_keep, useful_slots = (0, 0) if slots is None else slots.claim(now)
                starts = 0 if bucket is None else bucket.claim(now)
                claims.append(
                    Claim(scope=scope, held=slots_to_keep, wanted=useful_slots, starts=starts)
                )
        return claims

    def apply(self, grants: Iterable[Grant]) -> None:
        """Apply the store's grants; admitted runs are back in the ready queue."""
        now = self._clock()
        for grant in grants:
            for limiter in (self._slots.get(grant.scope), self._buckets.get(grant.scope)):
                if limiter is not None:
                    limiter.apply(grant, now)
                    self._notify(limiter)

    def mark_unanswered(self, claims: Iterable[Claim]) -> None:
        """Note that the store's handling of these claims is unknown."""
        for claim in claims:
            limiter = self._slots.get(claim.scope)
            if limiter is not None:
                limiter.mark_unanswered()

    def release_all(self) -> list[Claim]:
        """Return the claims that release all held slots; called when no run executes any more."""
        return [Claim(scope=scope) for scope, limiter in self._slots.items() if limiter.held]
