"""Runs as rows."""

from __future__ import annotations

import json
import logging
import sqlite3
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any, Final

from actors.kernel.workflow.durable import row_text
from actors.kernel.workflow.effects import RunStatus, WaitReason
from actors.kernel.workflow.run_state import RunState, index_row, open_wait, open_waits
from persistence.run_locks import TrailingRuns
from persistence.sqlite.database import SqliteDatabase

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
    """The runs of a file; see `actors.kernel.workflow.stores`.

    Attributes:
        grouped: See `GroupingRunStore.grouped`: one transaction of the file.
    """

    def __init__(self, database: SqliteDatabase) -> None:
        self._database = database
        self.grouped: Callable[[], AbstractContextManager[object]] = database.transaction
        path = database.path
        super().__init__(path.with_name(f"{path.name}.locks"), timeout_s=database.busy_s)

    def save(self, run: RunState) -> None:
        """See `RunStore.save`."""
        row = _row(run)
        with self._database.transaction() as connection:
            connection.execute(SQL_SAVE_RUN, row)
            _keep_branch_waits(connection, run)
        self._later.pop(run.run_id, None)

    def load(self, run_id: str) -> RunState | None:
        """See `RunStore.load`."""
        try:
            rows = self._database.read(SQL_LOAD_RUN, (run_id,))
        except UnicodeEncodeError:  # half a surrogate pair, which is in no row
            return None
        return self._run_of(rows[0]["state_json"]) if rows else None

    def create_if_absent(self, run: RunState) -> tuple[RunState, bool]:
        """See `CreatingRunStore.create_if_absent`."""
        row = _row(run)
        with self._database.transaction() as connection:
            made = connection.execute(SQL_CREATE_RUN, row).rowcount == 1
            if made:
                _keep_branch_waits(connection, run)
        found = self.load(run.run_id)
        assert found is not None
        return found, made

    def delete(self, run_id: str) -> bool:
        """See `DeletableRunStore.delete`."""
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
        """See `QueryableRunStore.list_runs`."""
        return self._listed(status=status, reason=wait_reason, workflow=workflow_id, limit=limit)

    def list_due_wait_until(self, *, now_iso: str, limit: int = 100) -> list[RunState]:
        """See `QueryableRunStore.list_due_wait_until`."""
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
        """See `PagedRunStore.list_page`."""
        filters = {"status": status, "reason": wait_reason, "due": due_by}
        statement = SQL_LIST_PAGE if due_by is None else SQL_LIST_DUE_PAGE
        return self._read(statement, {**filters, "after": after, "limit": limit})

    def list_children(
        self, *, parent_run_id: str, status: RunStatus | None = None
    ) -> list[RunState]:
        """See `QueryableRunStore.list_children`."""
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
        """See `QueryableRunIndexStore.list_run_index`."""
        found = self._listed(
            status=status, workflow=workflow_id, session=session_id, root=root_only, limit=limit
        )
        return [index_row(run) for run in found]

    def list_event_waiters(
        self, *, wait_keys: Sequence[str], limit: int = 10_000
    ) -> list[RunState]:
        """See `EventWaitStore.list_event_waiters`."""
        return self._read(SQL_LIST_WAITERS, {"keys": json.dumps([*wait_keys]), "limit": limit})

    def _listed(self, **chosen: Any) -> list[RunState]:
        blank = dict.fromkeys(("status", "reason", "workflow", "session"))
        return self._read(SQL_LIST_RUNS, {**blank, "root": False, **chosen})

    def _read(self, statement: str, parameters: Any) -> list[RunState]:
        rows = self._database.read(statement, parameters)
        return [run for row in rows if (run := self._listed_row(row["state_json"])) is not None]

    def _listed_row(self, text: str) -> RunState | None:
        """Return a run for a list. One that cannot be read is named in the log, and hides no other."""
        try:
            return self._run_of(text)
        except (ValueError, KeyError, TypeError) as exc:
            _log.error("a run cannot be read", extra={"row": text[:200], "problem": str(exc)})
            return None

    def _run_of(self, text: str) -> RunState:
        return self._shown(RunState.from_dict(json.loads(text)))


def _keep_branch_waits(connection: sqlite3.Connection, run: RunState) -> None:
    connection.execute(SQL_FORGET_BRANCH_WAITS, (run.run_id,))
    if run.fork is not None:
        rows = [
            (run.run_id, place, wait.reason, wait.wait_key)
            for place, wait in enumerate(open_waits(run))
        ]
        connection.executemany(SQL_ADD_BRANCH_WAIT, rows)


def _row(run: RunState) -> tuple[Any, ...]:
    told = run.told()
    wait = open_wait(run)
    return (
        run.run_id,
        run.workflow_id,
        told["status"],
        wait and wait.reason,
        wait and wait.wait_key,
        wait and wait.until,
        run.parent_run_id,
        run.session_id,
        run.updated_at,
        row_text(told),
    )
