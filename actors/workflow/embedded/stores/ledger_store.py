"""A ledger in memory."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence
from typing import Any

from actors.kernel.workflow.durable import WRAPPED, durable_copy
from actors.kernel.workflow.ledger_store import metrics_of
from actors.kernel.workflow.step_record import StepRecord, chained


class InMemoryLedgerStore:
    """See `PagedLedgerStore` and `ChainableLedgerStore`."""

    def __init__(self) -> None:
        self._records: dict[str, list[dict[str, Any]]] = {}
        self._lock = threading.Lock()

    def append(self, record: StepRecord) -> None:
        """See `LedgerStore.append`."""
        self.append_many([record])

    def append_many(self, records: Sequence[StepRecord]) -> None:
        """See `PagedLedgerStore.append_many`."""
        rows = [record.to_dict() for record in records]
        with self._lock:
            for row in rows:
                self._records.setdefault(row["run_id"], []).append(row)

    def append_chained(self, record: StepRecord) -> None:
        """See `ChainableLedgerStore.append_chained`."""
        row = record.to_dict()
        with self._lock:
            rows = self._records.setdefault(record.run_id, [])
            rows.append(chained(row, rows[-1]["record_hash"] if rows else None))

    def list(self, run_id: str) -> list[dict[str, Any]]:
        """See `LedgerStore.list`."""
        rows: list[dict[str, Any]] = _copies(self._of(run_id))
        return rows

    def list_after(
        self, *, run_id: str, after: int, limit: int = 1000
    ) -> tuple[Sequence[dict[str, Any]], int]:
        """See `PagedLedgerStore.list_after`."""
        page = _copies(self._of(run_id)[after : after + limit])
        return page, after + len(page)

    def count(self, run_id: str) -> int:
        """See `PagedLedgerStore.count`."""
        return len(self._of(run_id))

    def count_many(self, run_ids: Iterable[str]) -> dict[str, int]:
        """Return the numbers of records, by run; runs without any are left out."""
        return {one: n for one in run_ids if (n := self.count(one))}

    def metrics_many(self, run_ids: Iterable[str]) -> dict[str, dict[str, int]]:
        """Return `metrics_of` of each run that has records."""
        return {one: metrics_of(rows) for one in run_ids if (rows := self._of(one))}

    def delete(self, run_id: str) -> int:
        """See `DeletableLedgerStore.delete`."""
        with self._lock:
            return len(self._records.pop(run_id, ()))

    def _of(self, run_id: str) -> Sequence[dict[str, Any]]:
        with self._lock:
            return [*self._records.get(run_id, ())]


def _copies(rows: Sequence[dict[str, Any]]) -> Any:
    return durable_copy([*rows], "records", deepest=WRAPPED)
