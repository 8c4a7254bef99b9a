"""Ledgers as JSON lines."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Sequence
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import Any, Final, TypeAlias

from typing_extensions import override

from actors.kernel.workflow.step_record import StepRecord, chained
from actors.kernel.workflow.stores import Fault, LedgerShelf, no_fault
from persistence.files.atomic import (
    append_lines,
    appending,
    cut_hole,
    file_name,
    last_value,
    read_lines,
    removed,
)

_log = logging.getLogger("callboard.workflow")
PATHS: Final = 1024
"""Names of files that are kept at hand."""
Rows: TypeAlias = list[dict[str, Any]]


class JsonlLedgerStore(LedgerShelf):
    """A folder with a file for each run, a line for each record; see `PagedLedgerStore`.

    A line that a process did not finish is left out when it is read, and cut off before the next append.

    Args:
        folder: The folder; made if it does not exist.
        fault: A hook of tests.

    Raises:
        LedgerBrokenError: A line that others follow is no record.
    """

    def __init__(self, folder: str | Path, *, fault: Fault = no_fault) -> None:
        self._folder, self._fault = Path(folder), fault
        self._folder.mkdir(parents=True, exist_ok=True)
        self._places: dict[str, tuple[int, int]] = {}
        self._guard = threading.Lock()
        self._path = lru_cache(PATHS)(self._path_of)

    @override
    def append_many(self, records: Sequence[StepRecord]) -> None:
        self._append(records, synced=True)

    @override
    def append_unsynced(self, records: Sequence[StepRecord]) -> None:
        self._append(records, synced=False)

    @override
    def sync(self, run_id: str) -> None:
        with suppress(FileNotFoundError), self._path(run_id).open("rb") as file:
            os.fsync(file.fileno())

    @override
    def mend(self, run_id: str, *, kept: int) -> bool:
        path = self._path(run_id)
        with appending(path) as file:
            lost = cut_hole(file, kept)
        with self._guard:
            self._places.pop(run_id, None)
        if lost:
            _log.warning("#TRUNCATION a loss of power left %d bytes", lost, extra={"run": run_id})
        return bool(lost)

    def append_chained(self, record: StepRecord) -> None:
        """See `ChainableLedgerStore.append_chained`."""
        row, path = record.told(), self._path(record.run_id)
        with appending(path) as file:
            last = last_value(file, str(path))
            before = None if last is None else last.get("record_hash")
            append_lines(file, [chained(row, before)], fault=self._fault)

    @override
    def list(self, run_id: str) -> list[dict[str, Any]]:
        return self._read(run_id, 0)[0]

    @override
    def list_after(
        self, *, run_id: str, after: int, limit: int = 1000
    ) -> tuple[Sequence[dict[str, Any]], int]:
        with self._guard:
            known, offset = self._places.get(run_id, (0, 0))
        if known > after:
            known, offset = 0, 0
        rows, behind = self._read(run_id, offset)
        with self._guard:
            self._places[run_id] = known + len(rows), behind
        page = rows[after - known :][:limit]
        return page, after + len(page)

    @override
    def count(self, run_id: str) -> int:
        return len(self.list(run_id))

    def delete(self, run_id: str) -> int:
        """See `DeletableLedgerStore.delete`."""
        count = self.count(run_id)
        with self._guard:
            self._places.pop(run_id, None)
        return count if removed(self._path(run_id)) else 0

    def _append(self, records: Sequence[StepRecord], *, synced: bool) -> None:
        rows = [record.told() for record in records]
        if not rows:
            return
        with appending(self._path(records[0].run_id)) as file:
            append_lines(file, rows, fault=self._fault, synced=synced)

    def _path_of(self, run_id: str) -> Path:
        return self._folder / file_name("ledger_", run_id, ".jsonl")

    def _read(self, run_id: str, offset: int) -> tuple[Rows, int]:
        rows, behind, shared = read_lines(self._path(run_id), offset)
        if shared:
            _log.warning("#FALLBACK records of a ledger share a line", extra={"run": run_id})
        return rows, behind
