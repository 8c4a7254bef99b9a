"""Admission: the decision which ready agents may execute now, and what to ask the store for. Pure.

A limit has a limiter of slots, one of starts, or both. An agent executes if all limiters that apply to it
admit it. If one of them does not, the agent takes nothing from the others and waits in the queue of that one.
Agents behind it in the ready queue continue: a limited agent delays only agents of the same limit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Generic

from actors.kernel.runtime.ids import AgentId
from actors.kernel.stores.limits import Claim, Grant, Limit, LimitScope, ScopeKind, scopes_of
from actors.runtime.worker.limiters import E, Limiter, Slots, TokenBucket, WaitQueue
from actors.runtime.worker.ready_queue import ReadyQueue


class Permit(Generic[E]):
    """An execution, with the slots that it uses until it ends."""

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
        """Return the permit to execute an item; None if a limiter queued it for later."""
        if not self._limits:
            permit = Permit(item)
            self._permits.add(permit)
            return permit
        slots, buckets = self._limiters_of(item)
        limiters: tuple[Limiter[E], ...] = (*slots, *buckets)
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

    def _limiters_of(self, item: E) -> tuple[tuple[Slots[E], ...], tuple[TokenBucket[E], ...]]:
        scopes = [scope for scope in scopes_of(item.agent_id) if scope in self._limits]
        slots = tuple(self._slots[scope] for scope in scopes if scope in self._slots)
        if item.run_id is not None:
            return slots, ()  # it goes on
        return slots, tuple(self._buckets[scope] for scope in scopes if scope in self._buckets)

    def _enqueue(self, item: E, limiter: Limiter[E]) -> None:
        known = self._queued_on.get(item)
        if known is not None and known is not limiter:
            known.queue.remove(item)
            self._notify(known)
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
        for item in reversed(items):
            self._ready.offer(item, priority=item.priority, tenant=item.agent_id.tenant, first=True)

    def _limiters(self) -> Iterator[Limiter[E]]:
        yield from self._slots.values()
        yield from self._buckets.values()

    def define(self, limits: Iterable[Limit]) -> None:
        """Replace all limits. Agents that waited for a removed limit are tried again."""
        known, self._limits = self._limits, {limit.scope: limit for limit in limits}
        weights = {
            scope.name: limit.weight
            for scope, limit in self._limits.items()
            if scope.kind is ScopeKind.TENANT and limit.weight != 1
        }
        if weights != self._ready.weights:
            self._ready.weights = weights
            for limiter in self._limiters():
                limiter.queue.waiting.weights = weights
        for scope in {*known, *self._limits}:
            if known.get(scope) != self._limits.get(scope):
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
        for item in [item for item, at in self._queued_on.items() if at is limiter]:
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
        """Return when the next claim is due, by the clock; None: no limit applies to an agent here."""
        if not self._limits:
            return None
        now = self._clock()
        due = (limiter.due_at(now) for limiter in self._limiters())
        return min((at for at in due if at is not None), default=None)

    def claims(self) -> list[Claim]:
        """Return what to report to the store now. Each has to be answered by `apply` or `mark_unanswered`."""
        now = self._clock()
        return [self._claim(scope, now) for scope in self._limits if self._is_due(scope, now)]

    def _is_due(self, scope: LimitScope, now: float) -> bool:
        limiters = (self._slots.get(scope), self._buckets.get(scope))
        due = [limiter.due_at(now) for limiter in limiters if limiter is not None]
        return any(at is not None and at <= now for at in due)

    def _claim(self, scope: LimitScope, now: float) -> Claim:
        slots, buckets = self._slots.get(scope), self._buckets.get(scope)
        held, wanted = (0, 0) if slots is None else slots.claim(now)
        asked = 0 if buckets is None else buckets.claim(now)
        return Claim(scope=scope, held=held, wanted=wanted, starts=asked)

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
