"""The ready queue: lower priority number first, then tenants in rotation, then order of arrival."""

from __future__ import annotations

from collections import OrderedDict, deque
from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Iterator

T = TypeVar("T")


class ReadyQueue(Generic[T]):
    """What can go on. Each item is in it once, however often it is offered."""

    def __init__(self) -> None:
        self._lanes: dict[int, OrderedDict[str, deque[T]]] = {}
        self._places: dict[T, tuple[int, str]] = {}

    def __len__(self) -> int:
        return len(self._places)

    def __contains__(self, item: T) -> bool:
        return item in self._places

    def offer(self, item: T, *, priority: int, tenant: str) -> bool:
        """Put an item at the end of its lane; False (and no change) when it is there already."""
        if item in self._places:
            return False
        self._places[item] = (priority, tenant)
        self._lanes.setdefault(priority, OrderedDict()).setdefault(tenant, deque()).append(item)
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
            lane.move_to_end(tenant)
            self._drop_empty(priority, tenant)
        return taken

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
