"""Snapshots as rows."""

from __future__ import annotations

import json
import logging
from typing import Any, Final

from actors.kernel.workflow.durable import WRAPPED, durable_copy
from actors.kernel.workflow.run_state import Snapshot, chosen_snapshots
from persistence.sqlite.database import SqliteDatabase

_log = logging.getLogger("callboard.workflow")

SQL_SAVE_SNAPSHOT: Final = """
insert into snapshots (snapshot_id, run_id, snapshot_json) values (?, ?, ?)
on conflict (snapshot_id) do update set run_id = excluded.run_id, snapshot_json = excluded.snapshot_json
"""
SQL_LOAD_SNAPSHOT: Final = "select snapshot_json from snapshots where snapshot_id = ?"
SQL_DELETE_SNAPSHOT: Final = "delete from snapshots where snapshot_id = ?"
SQL_LIST_SNAPSHOTS: Final = "select snapshot_json from snapshots where ? is null or run_id = ?"


class SqliteSnapshotStore:
    """The snapshots of a file; see `SnapshotStore`."""

    def __init__(self, database: SqliteDatabase) -> None:
        self._database = database

    def save(self, snapshot: Snapshot) -> None:
        """See `SnapshotStore.save`."""
        text = json.dumps(
            durable_copy(snapshot.to_dict(), "snapshot", deepest=WRAPPED), ensure_ascii=False
        )
        row = (snapshot.snapshot_id, snapshot.run_id, text)
        with self._database.transaction() as connection:
            connection.execute(SQL_SAVE_SNAPSHOT, row)

    def load(self, snapshot_id: str) -> Snapshot | None:
        """See `SnapshotStore.load`."""
        rows = self._database.read(SQL_LOAD_SNAPSHOT, (snapshot_id,))
        return _snapshot(rows[0]) if rows else None

    def delete(self, snapshot_id: str) -> bool:
        """See `SnapshotStore.delete`."""
        with self._database.transaction() as connection:
            return connection.execute(SQL_DELETE_SNAPSHOT, (snapshot_id,)).rowcount == 1

    def list(
        self,
        *,
        run_id: str | None = None,
        tag: str | None = None,
        query: str | None = None,
        limit: int = 100,
    ) -> list[Snapshot]:
        """See `SnapshotStore.list`."""
        rows = self._database.read(SQL_LIST_SNAPSHOTS, (run_id, run_id))
        found = [one for row in rows if (one := _listed(row)) is not None]
        return chosen_snapshots(found, run_id=run_id, tag=tag, query=query, limit=limit)


def _snapshot(row: Any) -> Snapshot:
    return Snapshot(**json.loads(row["snapshot_json"]))


def _listed(row: Any) -> Snapshot | None:
    """Return a snapshot for a list. A row that cannot be read is named in the log, and hides no other."""
    try:
        return _snapshot(row)
    except (ValueError, TypeError) as exc:
        facts = {"row": row["snapshot_json"][:200], "problem": str(exc)}
        _log.error("a snapshot cannot be read", extra=facts)
        return None
