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
        """Return all records of the run, the first one first."""
        return self.inner.list(run_id)

    def list_after(
        self, *, run_id: str, after: int, limit: int = 1000
    ) -> tuple[Sequence[Any], int]:
        """Return at most `limit` records after the first `after` ones, and the next `after`."""
        return records_after(self.inner, run_id=run_id, after=after, limit=limit)

    def count(self, run_id: str) -> int:
        """Return the number of records of the run."""
        count_records = getattr(self.inner, "count", None)
        return len(self.inner.list(run_id)) if count_records is None else int(count_records(run_id))

    def delete(self, run_id: str) -> int:
        """Remove the records of the run; return their number."""
        return delete_records(self.inner, run_id)

    def sync(self, run_id: str) -> None:
        """Return when no loss of power can lose a record of the run."""
        sync_records(self.inner, run_id)

    def mend(self, run_id: str, *, synced_count: int) -> bool:
        """Remove the remains of unsynced records that a loss of power left; return True if there were any."""
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
        """Append a record, then notify the subscribers."""
        self.inner.append(record)
        self._notify(record)

    def append_many(self, records: Sequence[StepRecord]) -> None:
        """Append records of one run in order, then notify the subscribers of each."""
        append_all(self.inner, records)
        for record in records:
            self._notify(record)

    def append_chained(self, record: StepRecord) -> None:
        """Append a record, linked to the last one of its run, then notify the subscribers."""
        append_linked(self.inner, record)
        self._notify(record)

    def subscribe(self, callback: Subscriber, *, run_id: str | None = None) -> Callable[[], None]:
        """Call `callback` after each append to a run, or to any; return a function that ends the calls."""
        with self._lock:
            token, self._next = self._next, self._next + 1
            self._subscribers[token] = run_id, callback

        def end() -> None:
            with self._lock:
                self._subscribers.pop(token, None)

        return end

    def _notify(self, record: StepRecord) -> None:
        with self._lock:
            callbacks = [
                callback
                for run, callback in self._subscribers.values()
                if run in {None, record.run_id}
            ]
        # Without the lock: a subscriber may subscribe or end its calls.
        for callback in callbacks:
            try:
                callback(record.to_dict())
            # A subscriber may be any code. The record is durable, so its append must not seem to have failed.
            except Exception:  # noqa: BLE001 - the error is logged
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
        """Append a record, linked to the last one of its run by its hash."""
        append_linked(self.inner, record)

    def head(self, run_id: str) -> str | None:
        """Return the hash of the last record, to be stored elsewhere, or None if there is no record."""
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
    append_many = getattr(store, "append_many", None)
    if append_many is not None and len(records) > 1:
        append_many(records)
        return
    for record in records:
        store.append(record)


def append_unsynced(store: LedgerStore, records: Sequence[StepRecord]) -> None:
    """Append records of one run in order; see `UnsyncedLedgerStore`. Other stores sync them."""
    append = getattr(store, "append_unsynced", None)
    if append is None:
        append_all(store, records)
    else:
        append(records)


def sync_records(store: LedgerStore, run_id: str) -> None:
    """Sync the records of a run, if the store is an `UnsyncedLedgerStore`. Other stores have synced them."""
    sync = getattr(store, "sync", None)
    if sync is not None:
        sync(run_id)


def mend_records(store: LedgerStore, run_id: str, *, synced_count: int) -> bool:
    """Remove the remains of unsynced records, if the store is an `UnsyncedLedgerStore`.

    Return True if there were any. The first `synced_count` records are synced, and are not removed.
    """
    mend = getattr(store, "mend", None)
    return mend is not None and bool(mend(run_id, synced_count=synced_count))


def append_linked(store: LedgerStore, record: StepRecord) -> None:
    """Append a record as the next link of its run's chain.

    Raises:
        TypeError: The store has no `append_chained`.
    """
    append_chained = getattr(store, "append_chained", None)
    if append_chained is None:
        raise TypeError(f"{type(store).__name__} cannot chain records: it has no append_chained")
    append_chained(record)


def records_after(
    store: LedgerStore, *, run_id: str, after: int, limit: int = 1000
) -> tuple[Sequence[Any], int]:
    """Return a page of records; see `PagedLedgerStore.list_after`."""
    list_after = getattr(store, "list_after", None)
    if list_after is not None:
        page: tuple[Sequence[Any], int] = list_after(run_id=run_id, after=after, limit=limit)
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
