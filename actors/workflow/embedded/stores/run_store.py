"""Runs in memory, for tests and for programs whose runs may end with the process."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from typing import Any

from typing_extensions import override

from actors.kernel.workflow.durable import plain_copy
from actors.kernel.workflow.run_state import RunChoice, RunState, event_keys
from actors.kernel.workflow.stores import RunShelf


class InMemoryRunStore(RunShelf):
    """See `RunStore`, `QueryableRunStore` and the other protocols of `actors.kernel.workflow.stores`."""

    def __init__(self) -> None:
        self._rows: dict[str, dict[str, Any]] = {}
        self._waiting_for: dict[str, dict[str, None]] = {}
        self._keys_of: dict[str, set[str]] = {}
        self._lock = threading.RLock()

    def save(self, run: RunState) -> None:
        """See `RunStore.save`."""
        row = run.to_dict()
        with self._lock:
            self._keep(run.run_id, row)

    def load(self, run_id: str) -> RunState | None:
        """See `RunStore.load`."""
        with self._lock:
            row = self._rows.get(run_id)
        return None if row is None else _state(row)

    def create_if_absent(self, run: RunState) -> tuple[RunState, bool]:
        """See `CreatingRunStore.create_if_absent`."""
        row = run.to_dict()
        with self._lock:
            found = self._rows.get(run.run_id)
            if found is None:
                self._keep(run.run_id, row)
        return _state(found or row), found is None

    def delete(self, run_id: str) -> bool:
        """See `DeletableRunStore.delete`."""
        with self._lock:
            self._unfile(run_id)
            return self._rows.pop(run_id, None) is not None

    def list_event_waiters(
        self, *, wait_keys: Sequence[str], limit: int = 10_000
    ) -> list[RunState]:
        """See `EventWaitStore.list_event_waiters`."""
        with self._lock:
            ids = {one for key in wait_keys for one in self._waiting_for.get(key, ())}
            rows = [self._rows[one] for one in ids]
        return RunChoice().chosen((_state(row) for row in rows), limit)

    @override
    def _all(self) -> Iterator[RunState]:
        with self._lock:
            rows = [*self._rows.values()]
        return (RunState.from_dict(row) for row in rows)

    def _keep(self, run_id: str, row: dict[str, Any]) -> None:
        self._unfile(run_id)
        self._rows[run_id] = row
        keys = event_keys(RunState.from_dict(row))
        if keys:
            self._keys_of[run_id] = keys
        for key in keys:
            self._waiting_for.setdefault(key, {})[run_id] = None

    def _unfile(self, run_id: str) -> None:
        for key in self._keys_of.pop(run_id, ()):
            waiting = self._waiting_for[key]
            waiting.pop(run_id, None)
            if not waiting:
                del self._waiting_for[key]


def _state(row: dict[str, Any]) -> RunState:
    return RunState.from_dict(plain_copy(row))
