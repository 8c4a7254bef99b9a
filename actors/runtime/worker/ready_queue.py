"""The ready queue: tenants in rotation, then lower priority number first, then order of arrival."""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Iterator
from itertools import chain
from typing import Generic, TypeVar

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
        self._taken = 0
        """Number of those that the current tenant has had."""
        self._current: str | None = None

    def __len__(self) -> int:
        return len(self._lane_of)

    def __contains__(self, item: T) -> bool:
        return item in self._lane_of

    def offer(self, item: T, *, priority: int, tenant: str, first: bool = False) -> bool:
        """Put an item at the end of its lane; False (and no change) when it is there already.

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
        taken: list[T] = []
        while self._tenants and len(taken) < capacity:
            tenant, lanes = next(iter(self._tenants.items()))
            priority = min(lanes)
            taken.append(lanes[priority].popleft())
            del self._lane_of[taken[-1]]
            if not self.weights or self._has_had_its_share(tenant):
                self._tenants.move_to_end(tenant)
            self._drop_empty(tenant, priority)
        return taken

    def _has_had_its_share(self, tenant: str) -> bool:
        if self._current != tenant:
            self._current, self._taken = tenant, 0
        self._taken += 1
        if self._taken < self.weights.get(tenant, 1):
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
        rest = [
            list(chain.from_iterable(lanes[priority] for priority in sorted(lanes)))
            for lanes in self._tenants.values()
        ]
        for n in range(max(map(len, rest), default=0)):
            yield from (items[n] for items in rest if n < len(items))

    def _drop_empty(self, tenant: str, priority: int) -> None:
        lanes = self._tenants[tenant]
        if not lanes[priority]:
            del lanes[priority]
        if not lanes:
            del self._tenants[tenant]
