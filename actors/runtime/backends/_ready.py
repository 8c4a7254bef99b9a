"""FairQueue: which run is next. Lower priority number first, then tenants in rotation, then age."""

from __future__ import annotations

from collections import OrderedDict, deque
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from actors.kernel.runtime.ids import RunId


class FairQueue:
    """Runs that can go on. Each is in it once, however often it is offered."""

    def __init__(self) -> None:
        self._lanes: dict[int, OrderedDict[str, deque[RunId]]] = {}
        self._places: dict[RunId, tuple[int, str]] = {}

    def __len__(self) -> int:
        return len(self._places)

    def __contains__(self, run_id: RunId) -> bool:
        return run_id in self._places

    def offer(self, run_id: RunId, *, priority: int, tenant: str) -> bool:
        """Put a run at the end of its lane; False (and no change) when it is there already."""
        if run_id in self._places:
            return False
        self._places[run_id] = (priority, tenant)
        self._lanes.setdefault(priority, OrderedDict()).setdefault(tenant, deque()).append(run_id)
        return True

    def take(self, capacity: int) -> list[RunId]:
        """Remove and return up to `capacity` runs, the next one first."""
        taken: list[RunId] = []
        while self._lanes and len(taken) < capacity:
            priority = min(self._lanes)
            lane = self._lanes[priority]
            tenant, runs = next(iter(lane.items()))
            taken.append(runs.popleft())
            del self._places[taken[-1]]
            lane.move_to_end(tenant)
            self._drop_empty(priority, tenant)
        return taken

    def discard(self, run_id: RunId) -> None:
        """Take a run out, if it is in it."""
        place = self._places.pop(run_id, None)
        if place is not None:
            self._lanes[place[0]][place[1]].remove(run_id)
            self._drop_empty(*place)

    def waiting(self, *, tenant: str | None = None) -> list[RunId]:
        """Return the runs in the order `take` would; of one tenant only, if one is given."""
        return [
            run_id
            for run_id in self._in_order()
            if tenant is None or self._places[run_id][1] == tenant
        ]

    def _in_order(self) -> Iterator[RunId]:
        for priority in sorted(self._lanes):
            rest = [list(runs) for runs in self._lanes[priority].values()]
            for turn in range(max(len(runs) for runs in rest)):
                yield from (runs[turn] for runs in rest if turn < len(runs))

    def _drop_empty(self, priority: int, tenant: str) -> None:
        lane = self._lanes[priority]
        if not lane[tenant]:
            del lane[tenant]
        if not lane:
            del self._lanes[priority]
