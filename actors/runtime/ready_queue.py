"""The host's ready queue: priority first, tenants in rotation within one priority."""

from __future__ import annotations

from collections import deque
from typing import Generic, TypeVar

T = TypeVar("T")


class ReadyQueue(Generic[T]):
    """Items that can go on. Lower priority numbers first; tenants take turns; else order of arrival."""

    def __init__(self) -> None:
        self._levels: dict[int, dict[str, deque[T]]] = {}
        self._size = 0

    def __len__(self) -> int:
        return self._size

    def push(self, item: T, *, priority: int, tenant: str) -> None:
        """Put an item at the end of its tenant's line."""
        tenants = self._levels.setdefault(priority, {})
        line = tenants.get(tenant)
        if line is None:
            line = tenants[tenant] = deque()
        line.append(item)
        self._size += 1

    def pop(self) -> T:
        """Remove and return the next item; its tenant goes behind the others.

        Raises:
            IndexError: The queue is empty.
        """
        if not self._levels:
            msg = "the ready queue is empty"
            raise IndexError(msg)
        priority = min(self._levels)
        tenants = self._levels[priority]
        tenant, line = next(iter(tenants.items()))
        item = line.popleft()
        del tenants[tenant]
        if line:
            tenants[tenant] = line
        elif not tenants:
            del self._levels[priority]
        self._size -= 1
        return item

    def clear(self) -> None:
        """Forget everything."""
        self._levels.clear()
        self._size = 0
