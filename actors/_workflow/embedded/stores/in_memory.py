"""Stores of graphs in memory, for tests and for programs whose runs may end with the process."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from typing_extensions import override

from actors._kernel.workflow.artifacts import Artifact, ArtifactMetadata, ArtifactShelf
from actors._kernel.workflow.durable import WRAPPED, durable_copy, plain_copy
from actors._kernel.workflow.run_state import (
    RunChoice,
    RunState,
    Snapshot,
    chosen_snapshots,
    event_keys,
)
from actors._kernel.workflow.step_record import StepRecord, chained
from actors._kernel.workflow.stores import CommandAppendResult, CommandRecord, LedgerShelf, RunShelf


class InMemoryArtifactStore(ArtifactShelf):
    """See `actors._kernel.workflow.artifacts.ArtifactStore`."""

    def __init__(self) -> None:
        self._kept: dict[str, Artifact] = {}
        self._lock = threading.Lock()

    @override
    def _keep(self, metadata: ArtifactMetadata, content: bytes) -> ArtifactMetadata:
        kept = self._kept.setdefault(metadata.artifact_id, Artifact(metadata, bytes(content)))
        return kept.metadata

    @override
    def _change(
        self, artifact_id: str, change: Callable[[ArtifactMetadata], ArtifactMetadata]
    ) -> ArtifactMetadata | None:
        with self._lock:
            found = self._kept.get(artifact_id)
            if found is None:
                return None
            self._kept[artifact_id] = Artifact(change(found.metadata), found.content)
            return self._kept[artifact_id].metadata

    @override
    def load(self, artifact_id: str) -> Artifact | None:
        return self._kept.get(artifact_id)

    @override
    def get_metadata(self, artifact_id: str) -> ArtifactMetadata | None:
        found = self._kept.get(artifact_id)
        return None if found is None else found.metadata

    @override
    def exists(self, artifact_id: str) -> bool:
        return artifact_id in self._kept

    @override
    def delete(self, artifact_id: str) -> bool:
        with self._lock:
            return self._kept.pop(artifact_id, None) is not None

    def content_path(self, artifact_id: str) -> None:
        """Return None, since the bytes are in no file."""
        del artifact_id

    @override
    def list_all(self, limit: int = 1000) -> list[ArtifactMetadata]:
        newest = [one.metadata for one in reversed([*self._kept.values()])]
        return newest[: limit if limit > 0 else None]


class InMemoryCommandStore:
    """See `CommandStore`."""

    def __init__(self) -> None:
        self._records: list[CommandRecord | None] = []
        self._seq_of: dict[str, int] = {}
        self._lock = threading.Lock()

    def append(self, record: CommandRecord) -> CommandAppendResult:
        """See `CommandStore.append`."""
        payload = durable_copy(record.payload, "payload")
        with self._lock:
            known = self._seq_of.get(record.command_id)
            if known is not None:
                return CommandAppendResult(accepted=False, duplicate=True, seq=known)
            seq = len(self._records) + 1
            self._records.append(replace(record, seq=seq, payload=payload))
            self._seq_of[record.command_id] = seq
        return CommandAppendResult(accepted=True, duplicate=False, seq=seq)

    def list_after(self, *, after: int, limit: int = 1000) -> tuple[list[CommandRecord], int]:
        """See `CommandStore.list_after`."""
        with self._lock:
            page = [one for one in self._records[after:] if one is not None][:limit]
        return page, page[-1].seq if page else after

    def get_last_seq(self) -> int:
        """See `CommandStore.get_last_seq`."""
        with self._lock:
            return len(self._records)

    def delete(self, run_id: str) -> int:
        """See `DeletableCommandStore.delete`."""
        with self._lock:
            kept = [None if one is None or one.run_id == run_id else one for one in self._records]
            count = self._records.count(None)
            self._records = kept
        return kept.count(None) - count


class InMemoryCommandCursorStore:
    """See `CommandCursorStore`."""

    def __init__(self) -> None:
        self._cursor = 0

    def load(self) -> int:
        """See `CommandCursorStore.load`."""
        return self._cursor

    def save(self, cursor: int) -> None:
        """See `CommandCursorStore.save`."""
        self._cursor = cursor


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


class InMemoryRunStore(RunShelf):
    """See `RunStore`, `QueryableRunStore` and the other protocols of `actors._kernel.workflow.stores`."""

    def __init__(self) -> None:
        self._rows: dict[str, dict[str, Any]] = {}
        self._waiting_for: dict[str, dict[str, None]] = {}
        self._keys_of: dict[str, set[str]] = {}
        self._lock = threading.RLock()

    def save(self, run: RunState) -> None:
        """See `RunStore.save`."""
        row = run.to_dict()
        with self._lock:
            self._keep(run.run_id, row)

    def load(self, run_id: str) -> RunState | None:
        """See `RunStore.load`."""
        with self._lock:
            row = self._rows.get(run_id)
        return None if row is None else _state(row)

    def create_if_absent(self, run: RunState) -> tuple[RunState, bool]:
        """See `CreatingRunStore.create_if_absent`."""
        row = run.to_dict()
        with self._lock:
            found = self._rows.get(run.run_id)
            if found is None:
                self._keep(run.run_id, row)
        return _state(found or row), found is None

    def delete(self, run_id: str) -> bool:
        """See `DeletableRunStore.delete`."""
        with self._lock:
            self._unfile(run_id)
            return self._rows.pop(run_id, None) is not None

    def list_event_waiters(
        self, *, wait_keys: Sequence[str], limit: int = 10_000
    ) -> list[RunState]:
        """See `EventWaitStore.list_event_waiters`."""
        with self._lock:
            ids = {one for key in wait_keys for one in self._waiting_for.get(key, ())}
            rows = [self._rows[one] for one in ids]
        return RunChoice().chosen((_state(row) for row in rows), limit)

    @override
    def _all(self) -> Iterator[RunState]:
        with self._lock:
            rows = [*self._rows.values()]
        return (RunState.from_dict(row) for row in rows)

    def _keep(self, run_id: str, row: dict[str, Any]) -> None:
        self._unfile(run_id)
        self._rows[run_id] = row
        keys = event_keys(RunState.from_dict(row))
        if keys:
            self._keys_of[run_id] = keys
        for key in keys:
            self._waiting_for.setdefault(key, {})[run_id] = None

    def _unfile(self, run_id: str) -> None:
        for key in self._keys_of.pop(run_id, ()):
            waiting = self._waiting_for[key]
            waiting.pop(run_id, None)
            if not waiting:
                del self._waiting_for[key]


def _state(row: dict[str, Any]) -> RunState:
    return RunState.from_dict(plain_copy(row))


class InMemorySnapshotStore:
    """See `SnapshotStore`."""

    def __init__(self) -> None:
        self._rows: dict[str, dict[str, Any]] = {}

    def save(self, snapshot: Snapshot) -> None:
        """See `SnapshotStore.save`."""
        self._rows[snapshot.snapshot_id] = durable_copy(
            snapshot.to_dict(), "snapshot", deepest=WRAPPED
        )

    def load(self, snapshot_id: str) -> Snapshot | None:
        """See `SnapshotStore.load`."""
        row = self._rows.get(snapshot_id)
        return None if row is None else Snapshot(**durable_copy(row, "snapshot", deepest=WRAPPED))

    def delete(self, snapshot_id: str) -> bool:
        """See `SnapshotStore.delete`."""
        return self._rows.pop(snapshot_id, None) is not None

    def list(
        self,
        *,
        run_id: str | None = None,
        tag: str | None = None,
        query: str | None = None,
        limit: int = 100,
    ) -> list[Snapshot]:
        """See `SnapshotStore.list`."""
        all_of_them = [
            Snapshot(**durable_copy(row, "snapshot", deepest=WRAPPED))
            for row in self._rows.values()
        ]
        return chosen_snapshots(all_of_them, run_id=run_id, tag=tag, query=query, limit=limit)
