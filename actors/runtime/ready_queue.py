"""The ready queue: lower priority number first, then tenants in rotation, then order of arrival."""

from __future__ import annotations

from collections import OrderedDict, deque
from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Iterator

T = TypeVar("T")


class ReadyQueue(Generic[T]):
    """What can go on. Each item is in it once, however often it is offered.

    Of one priority every tenant with something to do has its turn before any has its next one, so a
    tenant with thousands of items delays another's single item by one of its own. Higher numbers
    wait as long as there are lower ones, for ever if those never end.
    """

    def __init__(self) -> None:
        self._lanes: dict[int, OrderedDict[str, deque[T]]] = {}
        self._places: dict[T, tuple[int, str]] = {}
        self.weights: dict[str, int] = {}
        """How many items a tenant takes at its turn, where that is not one."""
        self._taken = 0
        """How many of those the tenant whose turn it is has had."""
        self._turn: tuple[int, str] | None = None

    def __len__(self) -> int:
        return len(self._places)

    def __contains__(self, item: T) -> bool:
        return item in self._places

    def offer(self, item: T, *, priority: int, tenant: str, first: bool = False) -> bool:
        """Put an item at the end of its lane; False (and no change) when it is there already.

        `first` is for an item that had its turn and could not use it: it is the next of its lane.
        """
        if item in self._places:
            return False
        self._places[item] = (priority, tenant)
        lane = self._lanes.setdefault(priority, OrderedDict())
        items = lane.setdefault(tenant, deque())
        if first:
            items.appendleft(item)
            lane.move_to_end(tenant, last=False)
        else:
            items.append(item)
        return True

    def take(self, capacity: int) -> list[T]:
        """Remove and return up to `capacity` items, the next one first."""
        taken: list[T] = []
        while self._lanes and len(taken) < capacity:
            priority = min(self._lanes)
            lane = self._lanes[priority]
            tenant, items = next(iter(lane.items()))
            taken.append(items.popleft())
            del self._places[taken[-1]]
            if not self.weights or self._has_had_its_turn(priority, tenant):
                lane.move_to_end(tenant)
            self._drop_empty(priority, tenant)
        return taken

    def _has_had_its_turn(self, priority: int, tenant: str) -> bool:
        if self._turn != (priority, tenant):
            self._turn, self._taken = (priority, tenant), 0
        self._taken += 1
        if self._taken < self.weights.get(tenant, 1):
            return False
        self._turn = None
        return True

    def discard(self, item: T) -> None:
        """Take an item out, if it is in it."""
        place = self._places.pop(item, None)
        if place is not None:
            self._lanes[place[0]][place[1]].remove(item)
            self._drop_empty(*place)

    def waiting(self, *, tenant: str | None = None) -> list[T]:
        """Return the items in the order `take` would; of one tenant only, if one is given."""
        return [i for i in self._in_order() if tenant is None or self._places[i][1] == tenant]

    def clear(self) -> None:
        """Forget everything."""
        self._lanes.clear()
        self._places.clear()

    def _in_order(self) -> Iterator[T]:
        for priority in sorted(self._lanes):
            rest = [list(items) for items in self._lanes[priority].values()]
            for turn in range(max(len(items) for items in rest)):
                yield from (items[turn] for items in rest if turn < len(items))

    def _drop_empty(self, priority: int, tenant: str) -> None:
        lane = self._lanes[priority]
        if not lane[tenant]:
            del lane[tenant]
        if not lane:
            del self._lanes[priority]
