"""Ledgers as rows."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Sequence
from typing import Any, Final

from typing_extensions import override

from actors.kernel.workflow.durable import row_text
from actors.kernel.workflow.step_record import StepRecord, chained
from actors.kernel.workflow.stores import LedgerShelf
from persistence.sqlite.database import SqliteDatabase
from persistence.sqlite.errors import LedgerForkError

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
        """See `PagedLedgerStore.append_many`: all of them in one transaction."""
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
        """See `ChainableLedgerStore.append_chained`."""
        row = record.told()
        with self._database.transaction() as connection:
            last = connection.execute(SQL_LAST, (record.run_id,)).fetchone()
            before = json.loads(last["record_json"]).get("record_hash") if last else None
            _append(connection, record.run_id, [row_text(chained(row, before))])

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
        """See `DeletableLedgerStore.delete`."""
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
        except sqlite3.IntegrityError as exc:
            raise LedgerForkError(f"ledger of run_id={run_id!r} at seq={seq}", str(exc)) from exc
