"""Snapshots as JSON files."""

from __future__ import annotations

import json
import logging
from pathlib import Path

from actors.kernel.workflow.durable import WRAPPED, durable_copy, row_text
from actors.kernel.workflow.run_state import Snapshot, chosen_snapshots
from persistence.files.atomic import file_name, removed, write_whole

_log = logging.getLogger("callboard.workflow")


class JsonSnapshotStore:
    """A folder with a file for each snapshot; see `SnapshotStore`."""

    def __init__(self, folder: str | Path) -> None:
        self._folder = Path(folder)
        self._folder.mkdir(parents=True, exist_ok=True)

    def save(self, snapshot: Snapshot) -> None:
        """See `SnapshotStore.save`."""
        text = row_text(durable_copy(snapshot.to_dict(), "snapshot", deepest=WRAPPED))
        write_whole(self._path(snapshot.snapshot_id), text.encode())

    def load(self, snapshot_id: str) -> Snapshot | None:
        """See `SnapshotStore.load`."""
        return _read(self._path(snapshot_id))

    def delete(self, snapshot_id: str) -> bool:
        """See `SnapshotStore.delete`."""
        return removed(self._path(snapshot_id))

    def list(
        self,
        *,
        run_id: str | None = None,
        tag: str | None = None,
        query: str | None = None,
        limit: int = 100,
    ) -> list[Snapshot]:
        """See `SnapshotStore.list`."""
        found = [one for path in self._folder.glob("snapshot_*.json") if (one := _listed(path))]
        return chosen_snapshots(found, run_id=run_id, tag=tag, query=query, limit=limit)

    def _path(self, snapshot_id: str) -> Path:
        return self._folder / file_name("snapshot_", snapshot_id, ".json")


def _listed(path: Path) -> Snapshot | None:
    """Return a snapshot for a list. A file that is none is named in the log, and hides no other."""
    try:
        return _read(path)
    except (ValueError, TypeError) as exc:
        _log.error("a snapshot cannot be read", extra={"file": str(path), "problem": str(exc)})
        return None


def _read(path: Path) -> Snapshot | None:
    try:
        return Snapshot(**json.loads(path.read_bytes()))
    except FileNotFoundError:
        return None
