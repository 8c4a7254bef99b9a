"""The file: its tables, a connection for each thread, and transactions."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any, Final

from actors._kernel.workflow.stores import Fault, no_fault
from persistence._sqlite.errors import translated

BUSY_S: Final = 30.0
TABLES: Final = """
create table if not exists runs (
  place integer primary key autoincrement, run_id text not null unique, workflow_id text not null,
  status text not null, wait_reason text, wait_key text, wait_until text, parent_run_id text,
  session_id text, updated_at text not null, state_json text not null
);
create index if not exists runs_by_status on runs (status, wait_reason, updated_at);
create index if not exists runs_by_due on runs (wait_until) where wait_until is not null;
create index if not exists runs_by_key on runs (wait_key) where wait_key is not null;
create index if not exists runs_by_parent on runs (parent_run_id) where parent_run_id is not null;
create index if not exists runs_by_session on runs (session_id) where session_id is not null;
create table if not exists branch_waits (
  run_id text not null, reason text not null, wait_key text, place integer not null, primary key (run_id, place)
);
create index if not exists branch_waits_by_key on branch_waits (wait_key);
create table if not exists ledger (
  run_id text not null, seq integer not null, record_json text not null, primary key (run_id, seq)
);
create table if not exists ledger_heads (run_id text primary key, last_seq integer not null);
create table if not exists commands (
  seq integer primary key autoincrement, command_id text not null unique, record_json text not null
);
create table if not exists command_cursors (consumer_id text primary key, cursor integer not null);
create table if not exists artifacts (
  place integer primary key autoincrement, artifact_id text not null unique, run_id text,
  metadata_json text not null, content blob not null
);
create index if not exists artifacts_by_run on artifacts (run_id) where run_id is not null;
create table if not exists snapshots (
  snapshot_id text primary key, run_id text not null, snapshot_json text not null
);
"""
SYNCED: Final = "pragma synchronous = full"
UNSYNCED: Final = "pragma synchronous = normal"
"""Settings of a connection, outside of a transaction only.

They need `executescript`: `execute` keeps statements prepared, and a setting takes effect when it is prepared.
"""
SQL_HEADS_OF_AN_OLDER_FILE: Final = """
insert or ignore into ledger_heads select run_id, max(seq) from ledger group by run_id
"""


class SqliteDatabase:
    """A file with the tables of graphs; made if it is not there.

    Args:
        path: The file.
        busy_s: Seconds to wait for another writer.
        fault: A hook of tests.

    Raises:
        StoreBusyError: Another writer holds the file for too long.
        LedgerBrokenError: The file is no database.
    """

    path: Path
    busy_s: float
    fault: Fault

    def __init__(
        self, path: str | Path, *, busy_s: float = BUSY_S, fault: Fault = no_fault
    ) -> None:
        self.path, self.busy_s, self.fault = Path(path), busy_s, fault
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self._thread_local = threading.local()
        self._connections: list[sqlite3.Connection] = []
        with translated(self.path, busy_s):
            connection = self.connection()
            connection.executescript(TABLES)
            connection.execute(SQL_HEADS_OF_AN_OLDER_FILE)

    def connection(self) -> sqlite3.Connection:
        """Return the connection of this thread. Outside of `transaction` each statement is its own."""
        connection: sqlite3.Connection | None = getattr(self._thread_local, "connection", None)
        if connection is None:
            # Without implicit transactions. Other threads: `close` closes the connections of all of them.
            connection = sqlite3.connect(
                self.path, timeout=self.busy_s, isolation_level=None, check_same_thread=False
            )
            connection.row_factory = sqlite3.Row
            connection.execute("pragma journal_mode = wal")
            connection.execute(SYNCED)
            self._thread_local.connection = connection
            self._connections.append(connection)
        return connection

    def read(self, statement: str, parameters: Any = ()) -> list[sqlite3.Row]:
        """Return the rows of one statement.

        Raises:
            StoreBusyError: Another writer held the file for too long.
            LedgerBrokenError: The file is no database.
        """
        with translated(self.path, self.busy_s):
            return self.connection().execute(statement, parameters).fetchall()

    def transaction(self, *, synced: bool = True) -> AbstractContextManager[sqlite3.Connection]:
        """Yield this thread's connection as the file's only writer; all that it writes is kept, or nothing.

        Within another one of this thread it is a part of that. If not `synced`, a loss of power may lose it
        until a later transaction of any process is synced.

        Raises:
            StoreBusyError: Another writer held the file for too long.
            LedgerBrokenError: The file is full, or no database.
        """
        with translated(self.path, self.busy_s):
            connection = self.connection()
        if connection.in_transaction:
            return nullcontext(connection)
        return self._begin(connection) if synced else self._begin_unsynced(connection)

    @contextmanager
    def _begin_unsynced(self, connection: sqlite3.Connection) -> Iterator[sqlite3.Connection]:
        connection.executescript(UNSYNCED)
        try:
            with self._begin(connection):
                yield connection
        finally:
            connection.executescript(SYNCED)

    @contextmanager
    def _begin(self, connection: sqlite3.Connection) -> Iterator[sqlite3.Connection]:
        with translated(self.path, self.busy_s):
            # Not deferred: one that reads first and writes later is refused if another has written meanwhile.
            connection.execute("begin immediate")
            try:
                yield connection
                self.fault("transaction written")
            # Also an interrupt: the transaction would stay open, and lock the file for every other writer.
            except BaseException:
                connection.execute("rollback")
                raise
            connection.execute("commit")
            self.fault("transaction committed")

    def close(self) -> None:
        """Close the connections of all threads, which use this no more."""
        for connection in self._connections:
            connection.close()
        self._connections.clear()
        self._thread_local = threading.local()
