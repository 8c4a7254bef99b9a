"""Stores of graphs as rows: runs, ledgers, commands and their readers' positions, snapshots, artifacts."""

from __future__ import annotations

import json
import logging
import sqlite3
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from typing import Any, Final

from typing_extensions import override

from actors._kernel.json import Unreadable, read_or
from actors._kernel.workflow.artifacts import (
    Artifact,
    ArtifactMetadata,
    ArtifactShelf,
    checked_artifact_id,
)
from actors._kernel.workflow.durable import WRAPPED, durable_copy, row_text
from actors._kernel.workflow.effects import RunStatus, WaitReason
from actors._kernel.workflow.run_state import (
    RunState,
    Snapshot,
    chosen_snapshots,
    index_row,
    open_wait,
    open_waits,
)
from actors._kernel.workflow.step_record import StepRecord, chained
from actors._kernel.workflow.stores import CommandAppendResult, CommandRecord, LedgerShelf
from persistence._run_locks import TrailingRuns
from persistence._sqlite.database import SqliteDatabase
from persistence._sqlite.errors import LedgerForkError

_log = logging.getLogger("callboard.workflow")

SQL_SAVE_RUN: Final = """
insert into runs (
  run_id, workflow_id, status, wait_reason, wait_key, wait_until, parent_run_id, session_id, updated_at,
  state_json
) values (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
on conflict (run_id) do update set
  workflow_id = excluded.workflow_id, status = excluded.status, wait_reason = excluded.wait_reason,
  wait_key = excluded.wait_key, wait_until = excluded.wait_until, parent_run_id = excluded.parent_run_id,
  session_id = excluded.session_id, updated_at = excluded.updated_at, state_json = excluded.state_json
"""
SQL_CREATE_RUN: Final = """
insert or ignore into runs (
  run_id, workflow_id, status, wait_reason, wait_key, wait_until, parent_run_id, session_id, updated_at,
  state_json
) values (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
"""
SQL_FORGET_BRANCH_WAITS: Final = "delete from branch_waits where run_id = ?"
SQL_ADD_BRANCH_WAIT: Final = (
    "insert into branch_waits (run_id, place, reason, wait_key) values (?, ?, ?, ?)"
)
SQL_LOAD_RUN: Final = "select state_json from runs where run_id = ?"
SQL_DELETE_RUN: Final = "delete from runs where run_id = ?"
SQL_LIST_RUNS: Final = """
select state_json from runs
where (:status is null or status = :status)
  and (
    :reason is null or wait_reason = :reason
    or run_id in (select run_id from branch_waits where reason = :reason)
  )
  and (:workflow is null or workflow_id = :workflow) and (:session is null or session_id = :session)
  and (not :root or parent_run_id is null)
order by updated_at desc, place desc limit :limit
"""
SQL_LIST_DUE: Final = """
select state_json from runs where wait_until is not null and wait_until <= ? order by wait_until limit ?
"""
SQL_LIST_PAGE: Final = """
select state_json from runs
where run_id > :after and (:status is null or status = :status)
  and (
    :reason is null or wait_reason = :reason
    or run_id in (select run_id from branch_waits where reason = :reason)
  )
order by run_id limit :limit
"""
SQL_LIST_DUE_PAGE: Final = """
select state_json from runs
where run_id > :after and wait_until is not null and wait_until <= :due
  and (:status is null or status = :status) and (:reason is null or wait_reason = :reason)
order by run_id limit :limit
"""
SQL_LIST_CHILDREN: Final = """
select state_json from runs where parent_run_id = ? and (? is null or status = ?) order by place
"""
SQL_LIST_WAITERS: Final = """
select state_json from runs
where (wait_reason = 'event' and wait_key in (select value from json_each(:keys)))
  or run_id in (
    select run_id from branch_waits
    where reason = 'event' and wait_key in (select value from json_each(:keys))
  )
order by updated_at desc, place desc limit :limit
"""


class SqliteRunStore(TrailingRuns):
    """The runs of a file; see `actors._kernel.workflow.stores`.

    Attributes:
        grouped: Joins the writes of this thread in its block into one transaction of the file.
    """

    def __init__(self, database: SqliteDatabase) -> None:
        self._database = database
        self.grouped: Callable[[], AbstractContextManager[object]] = database.transaction
        path = database.path
        super().__init__(path.with_name(f"{path.name}.locks"), timeout_s=database.busy_s)

    def save(self, run: RunState) -> None:
        """Write the run's checkpoint, with the waits of its branches."""
        row = _row(run)
        with self._database.transaction() as connection:
            connection.execute(SQL_SAVE_RUN, row)
            _keep_branch_waits(connection, run)
        # After the commit: a reader in between still gets the newer state, not the checkpoint before it.
        self._unwritten_runs.pop(run.run_id, None)

    def load(self, run_id: str) -> RunState | None:
        """Return the last checkpoint of a run, or None if there is no such run."""
        try:
            rows = self._database.read(SQL_LOAD_RUN, (run_id,))
        except UnicodeEncodeError:  # half a surrogate pair, which is in no row
            return None
        return self._run_of(rows[0]["state_json"]) if rows else None

    def create_if_absent(self, run: RunState) -> tuple[RunState, bool]:
        """Return the run of this id, and True if this call made it. Of many calls at once, one does."""
        row = _row(run)
        with self._database.transaction() as connection:
            is_new = connection.execute(SQL_CREATE_RUN, row).rowcount == 1
            if is_new:
                _keep_branch_waits(connection, run)
        stored_run = self.load(run.run_id)
        assert stored_run is not None
        return stored_run, is_new

    def delete(self, run_id: str) -> bool:
        """Remove a run; return True if there was one."""
        with self._database.transaction() as connection:
            connection.execute(SQL_FORGET_BRANCH_WAITS, (run_id,))
            return connection.execute(SQL_DELETE_RUN, (run_id,)).rowcount == 1

    def list_runs(
        self,
        *,
        status: RunStatus | None = None,
        wait_reason: WaitReason | None = None,
        workflow_id: str | None = None,
        limit: int = 100,
    ) -> list[RunState]:
        """Return the runs that match every given filter, the last updated first."""
        return self._list(status=status, reason=wait_reason, workflow=workflow_id, limit=limit)

    def list_due_wait_until(self, *, now_iso: str, limit: int = 100) -> list[RunState]:
        """Return waiting runs whose instant or deadline is `now_iso` or earlier, the earliest first."""
        return self._read(SQL_LIST_DUE, (now_iso, limit))

    def list_page(
        self,
        *,
        after: str,
        limit: int,
        status: RunStatus | None = None,
        wait_reason: WaitReason | None = None,
        due_by: str | None = None,
    ) -> list[RunState]:
        """Return the runs that match every given filter and whose ids come after `after`, in order of ids.

        Args:
            after: An id; the empty text for the first page.
            limit: Maximum number of runs.
            status: Only runs with this status.
            wait_reason: Only runs that wait, or of which a branch waits, for this kind.
            due_by: An instant in ISO 8601; only waiting runs that are due then, or were before.
        """
        filters = {"status": status, "reason": wait_reason, "due": due_by}
        statement = SQL_LIST_PAGE if due_by is None else SQL_LIST_DUE_PAGE
        return self._read(statement, {**filters, "after": after, "limit": limit})

    def list_children(
        self, *, parent_run_id: str, status: RunStatus | None = None
    ) -> list[RunState]:
        """Return the runs that a run started, in the order in which they were made."""
        return self._read(SQL_LIST_CHILDREN, (parent_run_id, status, status))

    def list_run_index(
        self,
        *,
        status: RunStatus | None = None,
        workflow_id: str | None = None,
        session_id: str | None = None,
        root_only: bool = False,
        limit: int = 100,
    ) -> list[dict[str, Any]]:
        """Return rows of runs without their variables, the last updated first: see `index_row`."""
        runs = self._list(
            status=status, workflow=workflow_id, session=session_id, root=root_only, limit=limit
        )
        return [index_row(run) for run in runs]

    def list_event_waiters(
        self, *, wait_keys: Sequence[str], limit: int = 10_000
    ) -> list[RunState]:
        """Return runs that wait for one of these keys now, the last updated first."""
        return self._read(SQL_LIST_WAITERS, {"keys": json.dumps([*wait_keys]), "limit": limit})

    def _list(self, **filters: Any) -> list[RunState]:
        blank = dict.fromkeys(("status", "reason", "workflow", "session"))
        return self._read(SQL_LIST_RUNS, {**blank, "root": False, **filters})

    def _read(self, statement: str, parameters: Any) -> list[RunState]:
        rows = self._database.read(statement, parameters)
        return [run for row in rows if (run := self._run_for_list(row["state_json"])) is not None]

    def _run_for_list(self, text: str) -> RunState | None:
        """Return a run for a list. One that cannot be read is named in the log, and hides no other."""
        try:
            return self._run_of(text)
        except (ValueError, KeyError, TypeError) as exc:
            _log.error("a run cannot be read", extra={"row": text[:200], "problem": str(exc)})
            return None

    def _run_of(self, text: str) -> RunState:
        return self._newest_state(RunState.from_dict(json.loads(text)))


def _keep_branch_waits(connection: sqlite3.Connection, run: RunState) -> None:
    connection.execute(SQL_FORGET_BRANCH_WAITS, (run.run_id,))
    if run.fork is not None:
        rows = [
            (run.run_id, index, wait.reason, wait.wait_key)
            for index, wait in enumerate(open_waits(run))
        ]
        connection.executemany(SQL_ADD_BRANCH_WAIT, rows)


def _row(run: RunState) -> tuple[Any, ...]:
    record = run.told()
    wait = open_wait(run)
    return (
        run.run_id,
        run.workflow_id,
        record["status"],
        wait and wait.reason,
        wait and wait.wait_key,
        wait and wait.until,
        run.parent_run_id,
        run.session_id,
        run.updated_at,
        row_text(record),
    )


SQL_NEXT_SEQ: Final = """
insert into ledger_heads (run_id, last_seq) values (?, ?)
on conflict (run_id) do update set last_seq = last_seq + excluded.last_seq
returning last_seq
"""
SQL_APPEND: Final = "insert into ledger (run_id, seq, record_json) values (?, ?, ?)"
SQL_REWRITE_HEAD: Final = "update ledger_heads set last_seq = last_seq where run_id = ?"
SQL_LAST: Final = "select record_json from ledger where run_id = ? order by seq desc limit 1"
SQL_LIST: Final = """
select record_json from ledger where run_id = ? order by seq limit ? offset ?
"""
SQL_COUNT: Final = "select count(*) as n from ledger where run_id = ?"
SQL_DELETE: Final = "delete from ledger where run_id = ?"
SQL_DELETE_HEAD: Final = "delete from ledger_heads where run_id = ?"
ALL: Final = -1


class SqliteLedgerStore(LedgerShelf):
    """The ledgers of a file; see `PagedLedgerStore` and `ChainableLedgerStore`."""

    def __init__(self, database: SqliteDatabase) -> None:
        self._database = database

    @override
    def append_many(self, records: Sequence[StepRecord]) -> None:
        """Append all records in one transaction."""
        self._keep(records, synced=True)

    @override
    def append_unsynced(self, records: Sequence[StepRecord]) -> None:
        self._keep(records, synced=False)

    @override
    def sync(self, run_id: str) -> None:
        # A commit that writes syncs what came before it.
        with self._database.transaction() as connection:
            connection.execute(SQL_REWRITE_HEAD, (run_id,))

    def append_chained(self, record: StepRecord) -> None:
        """Append a record, linked by its hash to the last one of its run."""
        row = record.told()
        with self._database.transaction() as connection:
            last = connection.execute(SQL_LAST, (record.run_id,)).fetchone()
            previous_hash = json.loads(last["record_json"]).get("record_hash") if last else None
            _append(connection, record.run_id, [row_text(chained(row, previous_hash))])

    @override
    def list(self, run_id: str) -> list[dict[str, Any]]:
        rows: list[dict[str, Any]] = self._read(run_id, ALL, 0)
        return rows

    @override
    def list_after(
        self, *, run_id: str, after: int, limit: int = 1000
    ) -> tuple[Sequence[dict[str, Any]], int]:
        page = self._read(run_id, limit, after)
        return page, after + len(page)

    @override
    def count(self, run_id: str) -> int:
        return int(self._database.read(SQL_COUNT, (run_id,))[0]["n"])

    def delete(self, run_id: str) -> int:
        """Remove the records of a run; return their number."""
        with self._database.transaction() as connection:
            connection.execute(SQL_DELETE_HEAD, (run_id,))
            return connection.execute(SQL_DELETE, (run_id,)).rowcount

    def _keep(self, records: Sequence[StepRecord], *, synced: bool) -> None:
        texts = [row_text(record.told()) for record in records]
        if texts:
            with self._database.transaction(synced=synced) as connection:
                _append(connection, records[0].run_id, texts)

    def _read(self, run_id: str, limit: int, after: int) -> Any:
        rows = self._database.read(SQL_LIST, (run_id, limit, after))
        return [json.loads(row["record_json"]) for row in rows]


def _append(connection: sqlite3.Connection, run_id: str, texts: Sequence[str]) -> None:
    last = int(connection.execute(SQL_NEXT_SEQ, (run_id, len(texts))).fetchone()["last_seq"])
    for seq, text in enumerate(texts, last - len(texts) + 1):
        try:
            connection.execute(SQL_APPEND, (run_id, seq, text))
        # The head says that this number is free, so the table was changed by hand.
        except sqlite3.IntegrityError as exc:
            raise LedgerForkError(f"ledger of run_id={run_id!r} at seq={seq}", str(exc)) from exc


SQL_APPEND_COMMAND: Final = """
insert or ignore into commands (seq, command_id, record_json)
select coalesce(max(seq), 0) + 1, ?, ? from commands
"""
SQL_PLACE_OF_COMMAND: Final = "select seq from commands where command_id = ?"
SQL_LIST_COMMANDS: Final = """
select seq, record_json from commands where seq > ? and record_json <> 'null' order by seq limit ?
"""
SQL_BLANK_COMMANDS: Final = """
update commands set record_json = 'null' where json_extract(record_json, '$.run_id') = ?
"""
SQL_LAST_COMMAND: Final = "select coalesce(max(seq), 0) as seq from commands"
SQL_LOAD_CURSOR: Final = "select cursor from command_cursors where consumer_id = ?"
SQL_SAVE_CURSOR: Final = """
insert into command_cursors (consumer_id, cursor) values (?, ?)
on conflict (consumer_id) do update set cursor = excluded.cursor
"""


class SqliteCommandStore:
    """The commands of a file; see `CommandStore`."""

    def __init__(self, database: SqliteDatabase) -> None:
        self._database = database

    def append(self, record: CommandRecord) -> CommandAppendResult:
        """Write a command, unless one with its id is there."""
        text = json.dumps(durable_copy(record.to_dict(), "command"), ensure_ascii=False)
        with self._database.transaction() as connection:
            is_new = connection.execute(SQL_APPEND_COMMAND, (record.command_id, text)).rowcount == 1
            row = connection.execute(SQL_PLACE_OF_COMMAND, (record.command_id,)).fetchone()
        return CommandAppendResult(accepted=is_new, duplicate=not is_new, seq=row["seq"])

    def list_after(self, *, after: int, limit: int = 1000) -> tuple[list[CommandRecord], int]:
        """Return at most `limit` commands after `after`, and the cursor for the next call."""
        rows = self._database.read(SQL_LIST_COMMANDS, (after, limit))
        page = [
            CommandRecord(**json.loads(row["record_json"]) | {"seq": row["seq"]}) for row in rows
        ]
        return page, page[-1].seq if page else after

    def delete(self, run_id: str) -> int:
        """Remove the commands to a run; return their number. Their ids and positions stay taken."""
        with self._database.transaction() as connection:
            return connection.execute(SQL_BLANK_COMMANDS, (run_id,)).rowcount

    def get_last_seq(self) -> int:
        """Return the position of the last command; 0 if there is none."""
        return int(self._database.read(SQL_LAST_COMMAND)[0]["seq"])


class SqliteCommandCursorStore:
    """The position of one reader of a file; see `CommandCursorStore`."""

    def __init__(self, database: SqliteDatabase, *, consumer_id: str = "default") -> None:
        self._database, self._consumer_id = database, consumer_id

    def load(self) -> int:
        """Return the position up to which the reader has carried out commands; 0 at first."""
        rows = self._database.read(SQL_LOAD_CURSOR, (self._consumer_id,))
        return int(rows[0]["cursor"]) if rows else 0

    def save(self, cursor: int) -> None:
        """Write the position of the reader."""
        with self._database.transaction() as connection:
            connection.execute(SQL_SAVE_CURSOR, (self._consumer_id, cursor))


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
        """Write a snapshot. It replaces one with its id."""
        text = json.dumps(
            durable_copy(snapshot.to_dict(), "snapshot", deepest=WRAPPED), ensure_ascii=False
        )
        row = (snapshot.snapshot_id, snapshot.run_id, text)
        with self._database.transaction() as connection:
            connection.execute(SQL_SAVE_SNAPSHOT, row)

    def load(self, snapshot_id: str) -> Snapshot | None:
        """Return a snapshot, or None if there is none with this id."""
        rows = self._database.read(SQL_LOAD_SNAPSHOT, (snapshot_id,))
        return _snapshot(rows[0]) if rows else None

    def delete(self, snapshot_id: str) -> bool:
        """Remove a snapshot; return True if there was one."""
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
        """Return the snapshots that match every given filter, the newest first.

        Args:
            run_id: Only of this run.
            tag: Only with this tag.
            query: Only with this text in the name or the description.
            limit: Maximum number of snapshots.
        """
        rows = self._database.read(SQL_LIST_SNAPSHOTS, (run_id, run_id))
        snapshots = [snapshot for row in rows if (snapshot := _snapshot_for_list(row)) is not None]
        return chosen_snapshots(snapshots, run_id=run_id, tag=tag, query=query, limit=limit)


def _snapshot(row: Any) -> Snapshot:
    return Snapshot(**json.loads(row["snapshot_json"]))


def _snapshot_for_list(row: Any) -> Snapshot | None:
    """Return a snapshot for a list. A row that cannot be read is named in the log, and hides no other."""
    try:
        return _snapshot(row)
    except (ValueError, TypeError) as exc:
        facts = {"row": row["snapshot_json"][:200], "problem": str(exc)}
        _log.error("a snapshot cannot be read", extra=facts)
        return None


SQL_KEEP: Final = """
insert or ignore into artifacts (artifact_id, run_id, metadata_json, content) values (?, ?, ?, ?)
"""
SQL_LOAD: Final = "select metadata_json, content from artifacts where artifact_id = ?"
SQL_DESCRIBE: Final = "select metadata_json from artifacts where artifact_id = ?"
SQL_CHANGE: Final = "update artifacts set metadata_json = ? where artifact_id = ?"
SQL_DELETE_ARTIFACTS: Final = "delete from artifacts where artifact_id = ?"
SQL_DELETE_OF_RUN: Final = "delete from artifacts where run_id = ?"
SQL_LIST_ARTIFACTS: Final = """
select metadata_json from artifacts where ? is null or run_id = ? order by place desc limit ?
"""
EVERY_ROW: Final = -1


class SqliteArtifactStore(ArtifactShelf):
    """The artifacts of a file, bytes and all; see the Protocol `ArtifactStore` of graphs.

    SQLite holds 1 GB a row at most, and a row is read whole: larger bytes belong into a `FileArtifactStore`.
    """

    def __init__(self, database: SqliteDatabase) -> None:
        self._database = database

    @override
    def _keep(self, metadata: ArtifactMetadata, content: bytes) -> ArtifactMetadata:
        name = metadata.artifact_id
        with self._database.transaction() as connection:
            connection.execute(SQL_KEEP, (name, metadata.run_id, _text(metadata), content))
        stored_metadata = self.get_metadata(name)
        assert stored_metadata is not None
        return stored_metadata

    @override
    def _change(
        self, artifact_id: str, change: Callable[[ArtifactMetadata], ArtifactMetadata]
    ) -> ArtifactMetadata | None:
        with self._database.transaction() as connection:
            metadata = self.get_metadata(artifact_id)
            if metadata is None:
                return None
            new_metadata = change(metadata)
            connection.execute(SQL_CHANGE, (_text(new_metadata), artifact_id))
        return new_metadata

    @override
    def load(self, artifact_id: str) -> Artifact | None:
        rows = self._database.read(SQL_LOAD, (checked_artifact_id(artifact_id),))
        return Artifact(_metadata(rows[0]), bytes(rows[0]["content"])) if rows else None

    @override
    def get_metadata(self, artifact_id: str) -> ArtifactMetadata | None:
        rows = self._database.read(SQL_DESCRIBE, (checked_artifact_id(artifact_id),))
        return _metadata(rows[0]) if rows else None

    @override
    def exists(self, artifact_id: str) -> bool:
        return self.get_metadata(artifact_id) is not None

    @override
    def delete(self, artifact_id: str) -> bool:
        with self._database.transaction() as connection:
            return (
                connection.execute(
                    SQL_DELETE_ARTIFACTS, (checked_artifact_id(artifact_id),)
                ).rowcount
                == 1
            )

    @override
    def delete_by_run(self, run_id: str) -> int:
        with self._database.transaction() as connection:
            return connection.execute(SQL_DELETE_OF_RUN, (run_id,)).rowcount

    @override
    def list_all(self, limit: int = 1000) -> list[ArtifactMetadata]:
        most = limit if limit > 0 else EVERY_ROW
        return _artifacts_of(self._database.read(SQL_LIST_ARTIFACTS, (None, None, most)))

    @override
    def list_by_run(self, run_id: str) -> list[ArtifactMetadata]:
        return _artifacts_of(self._database.read(SQL_LIST_ARTIFACTS, (run_id, run_id, EVERY_ROW)))

    def content_path(self, artifact_id: str) -> None:
        """Return None, because the bytes are in no file of their own."""
        del artifact_id


def _artifacts_of(rows: Iterable[Any]) -> list[ArtifactMetadata]:
    descriptions = [_description(row) for row in rows]
    return [metadata for metadata in descriptions if metadata is not None]


def _description(row: Any) -> ArtifactMetadata | None:
    """Return a description for a list. One that cannot be read is named in the log, and hides no other."""

    def log(unreadable: Unreadable) -> None:
        details = {"row": row["metadata_json"][:200], "problem": str(unreadable)}
        _log.error("the description of an artifact cannot be read", extra=details)

    return read_or(row, _metadata, log)


def _metadata(row: Any) -> ArtifactMetadata:
    return ArtifactMetadata.from_dict(json.loads(row["metadata_json"]))


def _text(metadata: ArtifactMetadata) -> str:
    return json.dumps(metadata.to_dict(), ensure_ascii=False)
