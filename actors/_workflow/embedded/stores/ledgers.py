"""Ledgers that wrap other ledgers.

One notifies subscribers of each record, one links each record to the previous.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from typing import Any

from actors._kernel.workflow.step_record import StepRecord
from actors._kernel.workflow.stores import LedgerStore, ObservableLedgerStoreProtocol, Subscriber

_log = logging.getLogger("callboard.workflow")


class LedgerOver:
    """A ledger that wraps another ledger.

    It appends records in its own way. The other ledger reads and deletes them.

    Attributes:
        inner: The wrapped ledger.
    """

    def __init__(self, inner: LedgerStore) -> None:
        self.inner = inner

    def list(self, run_id: str) -> list[dict[str, Any]]:
        """See `LedgerStore.list`."""
        return self.inner.list(run_id)

    def list_after(
        self, *, run_id: str, after: int, limit: int = 1000
    ) -> tuple[Sequence[Any], int]:
        """See `PagedLedgerStore.list_after`."""
        return records_after(self.inner, run_id=run_id, after=after, limit=limit)

    def count(self, run_id: str) -> int:
        """See `PagedLedgerStore.count`."""
        counted = getattr(self.inner, "count", None)
        return len(self.inner.list(run_id)) if counted is None else int(counted(run_id))

    def delete(self, run_id: str) -> int:
        """See `DeletableLedgerStore.delete`."""
        return delete_records(self.inner, run_id)

    def sync(self, run_id: str) -> None:
        """See `UnsyncedLedgerStore.sync`."""
        sync_records(self.inner, run_id)

    def mend(self, run_id: str, *, synced_count: int) -> bool:
        """See `UnsyncedLedgerStore.mend`."""
        return mend_records(self.inner, run_id, synced_count=synced_count)


class ObservableLedgerStore(LedgerOver):
    """A ledger that notifies subscribers in this process of each record, after its append, which is synced.

    An exception of a subscriber is logged and not raised.
    """

    def __init__(self, inner: LedgerStore) -> None:
        super().__init__(inner)
        self._subscribers: dict[int, tuple[str | None, Subscriber]] = {}
        self._next, self._lock = 0, threading.Lock()

    def append(self, record: StepRecord) -> None:
        """See `LedgerStore.append`."""
        self.inner.append(record)
        self._tell(record)

    def append_many(self, records: Sequence[StepRecord]) -> None:
        """See `PagedLedgerStore.append_many`."""
        append_all(self.inner, records)
        for record in records:
            self._tell(record)

    def append_chained(self, record: StepRecord) -> None:
        """See `ChainableLedgerStore.append_chained`."""
        append_linked(self.inner, record)
        self._tell(record)

    def subscribe(self, callback: Subscriber, *, run_id: str | None = None) -> Callable[[], None]:
        """See `ObservableLedgerStoreProtocol.subscribe`."""
        with self._lock:
            token, self._next = self._next, self._next + 1
            self._subscribers[token] = run_id, callback

        def end() -> None:
            with self._lock:
                self._subscribers.pop(token, None)

        return end

    def _tell(self, record: StepRecord) -> None:
        with self._lock:
            told = [
                call for run, call in self._subscribers.values() if run in {None, record.run_id}
            ]
        for call in told:
            try:
                call(record.to_dict())
            except Exception:  # noqa: BLE001 - a subscriber is foreign code and must not fail the append
                _log.exception(
                    "a subscriber of a ledger raised an error", extra={"run": record.run_id}
                )


class HashChainedLedgerStore(LedgerOver):
    """A ledger whose records are linked by their hashes; see `verify_ledger_chain`.

    Each append reads the last hash from the wrapped ledger, so two of these over one ledger do not fork the
    chain. The wrapped ledger needs `append_chained`. If that is atomic across processes, this holds across
    processes. Each append is synced, so a head that was read names a record that no loss of power removes.
    """

    def append(self, record: StepRecord) -> None:
        """See `LedgerStore.append`."""
        append_linked(self.inner, record)

    def head(self, run_id: str) -> str | None:
        """Return the hash of the last record, to be stored elsewhere. None: there is no record."""
        records = self.inner.list(run_id)
        return records[-1].get("record_hash") if records else None


def is_observed(store: LedgerStore | None) -> bool:
    """Return True if the ledger may notify subscribers in this process of appends."""
    while store is not None:
        if isinstance(store, ObservableLedgerStoreProtocol):
            return True
        store = getattr(store, "inner", None)
    return False


def append_all(store: LedgerStore, records: Sequence[StepRecord]) -> None:
    """Append records of one run in order, with one call if the store has `append_many`."""
    many = getattr(store, "append_many", None)
    if many is not None and len(records) > 1:
        many(records)
        return
    for record in records:
        store.append(record)


def append_unsynced(store: LedgerStore, records: Sequence[StepRecord]) -> None:
    """Append records of one run in order; see `UnsyncedLedgerStore`. Other stores sync them."""
    unsynced = getattr(store, "append_unsynced", None)
    if unsynced is None:
        append_all(store, records)
    else:
        unsynced(records)


def sync_records(store: LedgerStore, run_id: str) -> None:
    """See `UnsyncedLedgerStore.sync`. Other stores have synced all records."""
    sync = getattr(store, "sync", None)
    if sync is not None:
        sync(run_id)


def mend_records(store: LedgerStore, run_id: str, *, synced_count: int) -> bool:
    """See `UnsyncedLedgerStore.mend`. Other stores have no unsynced records."""
    mend = getattr(store, "mend", None)
    return mend is not None and bool(mend(run_id, synced_count=synced_count))


def append_linked(store: LedgerStore, record: StepRecord) -> None:
    """Append a record as the next link of its run's chain.

    Raises:
        TypeError: The store has no `append_chained`.
    """
    linked = getattr(store, "append_chained", None)
    if linked is None:
        raise TypeError(f"{type(store).__name__} cannot chain records: it has no append_chained")
    linked(record)


def records_after(
    store: LedgerStore, *, run_id: str, after: int, limit: int = 1000
) -> tuple[Sequence[Any], int]:
    """Return a page of records; see `PagedLedgerStore.list_after`."""
    paged = getattr(store, "list_after", None)
    if paged is not None:
        page: tuple[Sequence[Any], int] = paged(run_id=run_id, after=after, limit=limit)
        return page
    rows = store.list(run_id)[after : after + limit]
    return rows, after + len(rows)


def delete_records(store: LedgerStore, run_id: str) -> int:
    """Delete the records of a run; return their number.

    Raises:
        TypeError: The store cannot delete records.
    """
    delete = getattr(store, "delete", None)
    if delete is None:
        raise TypeError(f"{type(store).__name__} cannot delete records")
    return int(delete(run_id))
