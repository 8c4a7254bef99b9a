"""Admission: who of those that are ready may execute now, and what to ask the store for. Pure.

A limit is a gate for places, one for starts, or both. An agent executes when all gates that concern
it are open; it takes nothing from those that are while another is closed. It then waits at the closed
one, and those behind it in the ready queue go on: who is limited delays only who shares the limit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Generic

from actors.kernel.runtime.ids import AgentId
from actors.kernel.store.limits import Claim, Grant, Limit, LimitScope, ScopeKind, scopes_of
from actors.runtime.worker.limiters import E, Gate, Slots, TokenBucket, WaitQueue
from actors.runtime.worker.ready_queue import ReadyQueue


class Entry(Generic[E]):
    """An execution, with the slots that it uses until it ends."""

    __slots__ = ("item", "places")

    def __init__(self, item: E, places: tuple[Slots[E], ...] = ()) -> None:
        self.item, self.places = item, places


class Admission(Generic[E]):
    """The gates of one host.

    Args:
        ready: Where those go back to that may try again.
        clock: Seconds since an arbitrary start.
    """

    def __init__(self, ready: ReadyQueue[E], *, clock: Callable[[], float]) -> None:
        self._ready, self._clock = ready, clock
        self._limits: dict[LimitScope, Limit] = {}
        self._places: dict[LimitScope, Slots[E]] = {}
        self._starts: dict[LimitScope, TokenBucket[E]] = {}
        self._waits_at: dict[E, Gate[E]] = {}
        self._inside: set[Entry[E]] = set()
        self.on_change: Callable[[], None] = lambda: None
        """Called when there may be something to ask the store for."""

    def concerns(self, agent_id: AgentId) -> bool:
        """Return True if any limit applies to this agent."""
        return bool(self._limits) and any(scope in self._limits for scope in scopes_of(agent_id))

    def admit(self, item: E) -> Entry[E] | None:
        """Let an item execute, until it leaves; None: it waits at a gate, and comes back to the queue."""
        if not self._limits:
            entry = Entry(item)
            self._inside.add(entry)
            return entry
        places, starts = self._gates_of(item)
        gates: tuple[Gate[E], ...] = (*places, *starts)
        for gate in gates:
            if not gate.line.lets(item, free=gate.free):
                self._set_aside(item, gate)
                return None
        self._pass(item)
        for gate in gates:
            gate.enter()
        entry = Entry(item, places)
        self._inside.add(entry)
        return entry

    def leave(self, entry: Entry[E]) -> None:
        """The execution is over, or out of memory."""
        self._inside.discard(entry)
        if entry.places:
            now = self._clock()
            for gate in entry.places:
                gate.leave(now)
                self._call(gate)
            self.on_change()

    def forget(self, item: E) -> None:
        """The item does not want to execute any more."""
        gate = self._pass(item)
        if gate is not None:
            self._call(gate)
            self.on_change()

    def clear(self) -> None:
        """Forget everything that waits."""
        for gate in self._gates():
            gate.line.dissolve()
        self._waits_at.clear()

    def _gates_of(self, item: E) -> tuple[tuple[Slots[E], ...], tuple[TokenBucket[E], ...]]:
        scopes = [scope for scope in scopes_of(item.agent_id) if scope in self._limits]
        places = tuple(self._places[scope] for scope in scopes if scope in self._places)
        if item.run_id is not None:
            return places, ()  # it goes on
        return places, tuple(self._starts[scope] for scope in scopes if scope in self._starts)

    def _set_aside(self, item: E, gate: Gate[E]) -> None:
        known = self._waits_at.get(item)
        if known is not None and known is not gate:
            known.line.remove(item)
            self._call(known)
        self._waits_at[item] = gate
        gate.line.put(item)
        self._call(gate)
        self.on_change()

    def _pass(self, item: E) -> Gate[E] | None:
        gate = self._waits_at.pop(item, None)
        if gate is not None:
            gate.line.remove(item)
        return gate

    def _call(self, gate: Gate[E]) -> None:
        """Put as many items back into the ready queue as the limiter has free slots or starts for."""
        self._offer(gate.line.call(free=gate.free))

    def _offer(self, items: Sequence[E]) -> None:
        for item in reversed(items):
            self._ready.offer(item, priority=item.priority, tenant=item.agent_id.tenant, first=True)

    def _gates(self) -> Iterator[Gate[E]]:
        yield from self._places.values()
        yield from self._starts.values()

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
            for gate in self._gates():
                gate.line.waiting.weights = weights
        for scope in {*known, *self._limits}:
            if known.get(scope) != self._limits.get(scope):
                self._redefine(scope)

    def _redefine(self, scope: LimitScope) -> None:
        limit = self._limits.get(scope)
        if limit is None or limit.max_concurrent is None:
            self._open(self._places.pop(scope, None))
        elif scope not in self._places:
            self._places[scope] = self._new_places(scope)
        if limit is None or limit.rate_per_s is None:
            self._open(self._starts.pop(scope, None))
        elif scope not in self._starts:
            self._starts[scope] = TokenBucket(WaitQueue(self._ready.weights))
        for gate in (self._places.get(scope), self._starts.get(scope)):
            if gate is not None:
                gate.look_again(is_changed=True)
        self.on_change()

    def _open(self, gate: Gate[E] | None) -> None:
        """Remove a limiter. Runs queued on it are admitted by the remaining limiters."""
        if gate is None:
            return
        for item in [item for item, at in self._waits_at.items() if at is gate]:
            del self._waits_at[item]
        self._offer(gate.line.dissolve())

    def _new_places(self, scope: LimitScope) -> Slots[E]:
        """Make a limiter in which each run that is already executing has a slot, even if none is free."""
        gate: Slots[E] = Slots(WaitQueue(self._ready.weights))
        for entry in self._inside:
            if scope in scopes_of(entry.item.agent_id):
                entry.places = (*entry.places, gate)
                gate.enter()
        return gate

    def look_again(self) -> None:
        """Make claims due again: other hosts may have free slots, or want some."""
        for gate in self._gates():
            gate.look_again(is_changed=False)
        self.on_change()

    def due_at(self) -> float | None:
        """Return when the next claim is due, by the clock; None: no limit applies to an agent here."""
        if not self._limits:
            return None
        now = self._clock()
        due = (gate.due_at(now) for gate in self._gates())
        return min((at for at in due if at is not None), default=None)

    def claims(self) -> list[Claim]:
        """Return what to tell the store now. Each has to be answered by `apply` or `doubt`."""
        now = self._clock()
        return [self._claim(scope, now) for scope in self._limits if self._is_due(scope, now)]

    def _is_due(self, scope: LimitScope, now: float) -> bool:
        gates = (self._places.get(scope), self._starts.get(scope))
        due = [gate.due_at(now) for gate in gates if gate is not None]
        return any(at is not None and at <= now for at in due)

    def _claim(self, scope: LimitScope, now: float) -> Claim:
        places, starts = self._places.get(scope), self._starts.get(scope)
        held, wanted = (0, 0) if places is None else places.claim(now)
        asked = 0 if starts is None else starts.claim(now)
        return Claim(scope=scope, held=held, wanted=wanted, starts=asked)

    def apply(self, grants: Iterable[Grant]) -> None:
        """Apply the store's grants; admitted runs are back in the ready queue."""
        now = self._clock()
        for grant in grants:
            for gate in (self._places.get(grant.scope), self._starts.get(grant.scope)):
                if gate is not None:
                    gate.apply(grant, now)
                    self._call(gate)

    def doubt(self, claims: Iterable[Claim]) -> None:
        """Note that the store's handling of these claims is unknown."""
        for claim in claims:
            gate = self._places.get(claim.scope)
            if gate is not None:
                gate.doubt()

    def farewell(self) -> list[Claim]:
        """Return the claims that give everything back, when nothing executes any more."""
        return [Claim(scope=scope) for scope, gate in self._places.items() if gate.held]
