"""Snapshots in memory."""

from __future__ import annotations

from typing import Any

from actors.kernel.workflow.durable import WRAPPED, durable_copy
from actors.kernel.workflow.run_state import Snapshot, chosen_snapshots


class InMemorySnapshotStore:
    """See `SnapshotStore`."""

    def __init__(self) -> None:
        self._rows: dict[str, dict[str, Any]] = {}

    def save(self, snapshot: Snapshot) -> None:
        """See `SnapshotStore.save`."""
        self._rows[snapshot.snapshot_id] = durable_copy(
            snapshot.to_dict(), "snapshot", deepest=WRAPPED
        )

    def load(self, snapshot_id: str) -> Snapshot | None:
        """See `SnapshotStore.load`."""
        row = self._rows.get(snapshot_id)
        return None if row is None else Snapshot(**durable_copy(row, "snapshot", deepest=WRAPPED))

    def delete(self, snapshot_id: str) -> bool:
        """See `SnapshotStore.delete`."""
        return self._rows.pop(snapshot_id, None) is not None

    def list(
        self,
        *,
        run_id: str | None = None,
        tag: str | None = None,
        query: str | None = None,
        limit: int = 100,
    ) -> list[Snapshot]:
        """See `SnapshotStore.list`."""
        all_of_them = [
            Snapshot(**durable_copy(row, "snapshot", deepest=WRAPPED))
            for row in self._rows.values()
        ]
        return chosen_snapshots(all_of_them, run_id=run_id, tag=tag, query=query, limit=limit)
