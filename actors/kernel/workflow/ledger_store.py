"""Stores of records: append-only, in order, by run."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Protocol, TypeAlias, runtime_checkable

from typing_extensions import override

from actors.kernel.workflow.step_record import StepRecord

Subscriber: TypeAlias = Callable[[dict[str, Any]], None]


@runtime_checkable
class LedgerStore(Protocol):
    """Records by run. There is no way to change one."""

    def append(self, record: StepRecord) -> None:
        """Append a record to those of its run; durable when this returns.

        Raises:
            NotSerializableError: The path of what is not JSON data. Nothing is kept.
        """

    def list(self, run_id: str) -> list[dict[str, Any]]:
        """Return all records of the run, the first one first."""


@runtime_checkable
class PagedLedgerStore(LedgerStore, Protocol):
    """A ledger that can be read from a position on, and written in groups."""

    def append_many(self, records: Sequence[StepRecord]) -> None:
        """Keep records of one run in order: a beginning of them if the process dies, all if this returns."""

    def list_after(
        self, *, run_id: str, after: int, limit: int = 1000
    ) -> tuple[Sequence[Mapping[str, Any]], int]:
        """Return at most `limit` records after the first `after` ones, and the next `after`."""

    def count(self, run_id: str) -> int:
        """Return the number of records."""


@runtime_checkable
class UnsyncedLedgerStore(LedgerStore, Protocol):
    """A ledger that can leave the sync of records to a later write."""

    def append_unsynced(self, records: Sequence[StepRecord]) -> None:
        """Keep records of one run in order. Then the death of a process cannot lose them.

        A loss of power can, until a later append to the ledger or `sync` returns. If it loses a record, it
        loses all records after it, too.
        """

    def sync(self, run_id: str) -> None:
        """Return when no loss of power can lose a record of the run, whichever process appended it."""

    def mend(self, run_id: str, *, kept: int) -> bool:
        """Remove the remains of unsynced records that a loss of power left; return whether there were any.

        The first `kept` records are synced, and damage to them is not removed.
        """


@runtime_checkable
class ChainableLedgerStore(LedgerStore, Protocol):
    """A ledger that links a record to the last one in one step, so that writers never fork the chain."""

    def append_chained(self, record: StepRecord) -> None:
        """Keep the record, linked to the last one of its run by its hash."""


@runtime_checkable
class DeletableLedgerStore(Protocol):
    """A ledger that can remove all records of a run."""

    def delete(self, run_id: str) -> int:
        """Remove them; return how many."""


@runtime_checkable
class ObservableLedgerStoreProtocol(Protocol):
    """A ledger that notifies subscribers in this process of each record."""

    def subscribe(self, callback: Subscriber, *, run_id: str | None = None) -> Callable[[], None]:
        """Call `callback` after each append, to one run or to any; return a function that ends the calls."""


class LedgerShelf(PagedLedgerStore):
    """The verbs of a ledger that follow from the others."""

    @override
    def append(self, record: StepRecord) -> None:
        self.append_many([record])

    def append_unsynced(self, records: Sequence[StepRecord]) -> None:
        """See `UnsyncedLedgerStore.append_unsynced`."""
        self.append_many(records)

    def sync(self, run_id: str) -> None:
        """See `UnsyncedLedgerStore.sync`."""

    def mend(self, run_id: str, *, kept: int) -> bool:
        """See `UnsyncedLedgerStore.mend`."""
        del run_id, kept
        return False

    def count_many(self, run_ids: Iterable[str]) -> dict[str, int]:
        """Return the numbers of records, by run; runs without any are left out."""
        return {one: n for one in run_ids if (n := self.count(one))}

    def metrics_many(self, run_ids: Iterable[str]) -> dict[str, dict[str, int]]:
        """Return `metrics_of` of each run that has records."""
        return {one: metrics_of(rows) for one in run_ids if (rows := self.list(one))}


def metrics_of(records: Sequence[Mapping[str, Any]]) -> dict[str, int]:
    """Return the counts of what ended well: ``steps``, ``llm_calls``, ``tool_calls``, ``tokens_total``."""
    counts = {"steps": 0, "llm_calls": 0, "tool_calls": 0, "tokens_total": 0}
    for record in records:
        if record.get("status") != "completed":
            continue
        counts["steps"] += 1
        effect, result = record.get("effect") or {}, record.get("result")
        if effect.get("type") == "llm_call":
            counts["llm_calls"] += 1
            usage = result.get("usage") if isinstance(result, dict) else None
            total = usage.get("total_tokens") if isinstance(usage, dict) else None
            counts["tokens_total"] += total if type(total) is int else 0
        elif effect.get("type") == "tool_calls":
            calls = (effect.get("payload") or {}).get("tool_calls")
            counts["tool_calls"] += len(calls) if isinstance(calls, list) else 0
    return counts
