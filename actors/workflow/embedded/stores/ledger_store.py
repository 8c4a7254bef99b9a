"""A ledger in memory."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

from typing_extensions import override

from actors.kernel.workflow.durable import WRAPPED, durable_copy
from actors.kernel.workflow.step_record import StepRecord, chained
from actors.kernel.workflow.stores import LedgerShelf


class InMemoryLedgerStore(LedgerShelf):
    """See `PagedLedgerStore` and `ChainableLedgerStore`."""

    def __init__(self) -> None:
        self._records: dict[str, list[dict[str, Any]]] = {}
        self._lock = threading.Lock()

    @override
    def append_many(self, records: Sequence[StepRecord]) -> None:
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

    @override
    def list(self, run_id: str) -> list[dict[str, Any]]:
        rows: list[dict[str, Any]] = _copies(self._of(run_id))
        return rows

    @override
    def list_after(
        self, *, run_id: str, after: int, limit: int = 1000
    ) -> tuple[Sequence[dict[str, Any]], int]:
        page = _copies(self._of(run_id)[after : after + limit])
        return page, after + len(page)

    @override
    def count(self, run_id: str) -> int:
        return len(self._of(run_id))

    def delete(self, run_id: str) -> int:
        """See `DeletableLedgerStore.delete`."""
        with self._lock:
            return len(self._records.pop(run_id, ()))

    def _of(self, run_id: str) -> Sequence[dict[str, Any]]:
        with self._lock:
            return [*self._records.get(run_id, ())]


def _copies(rows: Sequence[dict[str, Any]]) -> Any:
    return durable_copy([*rows], "records", deepest=WRAPPED)
