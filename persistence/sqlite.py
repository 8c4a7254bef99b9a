"""Workflow graphs in one SQLite file, by the standard library: no server.

Every write is one transaction, and on the disk when it returns (WAL, full synchronisation). Processes of one
machine may share a file; SQLite lets one of them write at a time.
"""

from persistence._sqlite.database import SqliteDatabase
from persistence._sqlite.stores import (
    SqliteArtifactStore,
    SqliteCommandCursorStore,
    SqliteCommandStore,
    SqliteLedgerStore,
    SqliteRunStore,
    SqliteSnapshotStore,
)

__all__ = [
    "SqliteArtifactStore",
    "SqliteCommandCursorStore",
    "SqliteCommandStore",
    "SqliteDatabase",
    "SqliteLedgerStore",
    "SqliteRunStore",
    "SqliteSnapshotStore",
]

__path__: list[str] = []  # modules of the release before were below this one
