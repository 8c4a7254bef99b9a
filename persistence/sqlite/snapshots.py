"""Snapshots as rows."""

from __future__ import annotations

import json
from typing import Any, Final

from actors.kernel.workflow.durable import WRAPPED, durable_copy
from actors.kernel.workflow.snapshots import Snapshot, chosen_snapshots
from persistence.sqlite.database import SqliteDatabase

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
        found = self._read(SQL_LOAD_SNAPSHOT, snapshot_id)
        return found[0] if found else None

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
        found = self._read(SQL_LIST_SNAPSHOTS, run_id, run_id)
        return chosen_snapshots(found, run_id=run_id, tag=tag, query=query, limit=limit)

    def _read(self, statement: str, *parameters: Any) -> Any:
        rows = self._database.read(statement, parameters)
        return [Snapshot(**json.loads(row["snapshot_json"])) for row in rows]
