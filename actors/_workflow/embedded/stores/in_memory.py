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
    """Artifacts in memory."""

    def __init__(self) -> None:
        self._artifacts: dict[str, Artifact] = {}
        self._lock = threading.Lock()

    @override
    def _keep(self, metadata: ArtifactMetadata, content: bytes) -> ArtifactMetadata:
        artifact = self._artifacts.setdefault(
            metadata.artifact_id, Artifact(metadata, bytes(content))
        )
        return artifact.metadata

    @override
    def _change(
        self, artifact_id: str, change: Callable[[ArtifactMetadata], ArtifactMetadata]
    ) -> ArtifactMetadata | None:
        with self._lock:
            artifact = self._artifacts.get(artifact_id)
            if artifact is None:
                return None
            self._artifacts[artifact_id] = Artifact(change(artifact.metadata), artifact.content)
            return self._artifacts[artifact_id].metadata

    @override
    def load(self, artifact_id: str) -> Artifact | None:
        return self._artifacts.get(artifact_id)

    @override
    def get_metadata(self, artifact_id: str) -> ArtifactMetadata | None:
        artifact = self._artifacts.get(artifact_id)
        return None if artifact is None else artifact.metadata

    @override
    def exists(self, artifact_id: str) -> bool:
        return artifact_id in self._artifacts

    @override
    def delete(self, artifact_id: str) -> bool:
        with self._lock:
            return self._artifacts.pop(artifact_id, None) is not None

    def content_path(self, artifact_id: str) -> None:
        """Return None, since the bytes are in no file."""
        del artifact_id

    @override
    def list_all(self, limit: int = 1000) -> list[ArtifactMetadata]:
        newest = [artifact.metadata for artifact in reversed([*self._artifacts.values()])]
        return newest[: limit if limit > 0 else None]


class InMemoryCommandStore:
    """Commands in memory, in the order in which they came."""

    def __init__(self) -> None:
        self._records: list[CommandRecord | None] = []
        self._seq_of: dict[str, int] = {}
        self._lock = threading.Lock()

    def append(self, record: CommandRecord) -> CommandAppendResult:
        """Keep the command, unless one of its id was kept before; return its position."""
        payload = durable_copy(record.payload, "payload")
        with self._lock:
            existing_seq = self._seq_of.get(record.command_id)
            if existing_seq is not None:
                return CommandAppendResult(accepted=False, duplicate=True, seq=existing_seq)
            seq = len(self._records) + 1
            self._records.append(replace(record, seq=seq, payload=payload))
            self._seq_of[record.command_id] = seq
        return CommandAppendResult(accepted=True, duplicate=False, seq=seq)

    def list_after(self, *, after: int, limit: int = 1000) -> tuple[list[CommandRecord], int]:
        """Return at most `limit` commands after the position `after`, and the cursor for the next call."""
        with self._lock:
            page = [record for record in self._records[after:] if record is not None][:limit]
        return page, page[-1].seq if page else after

    def get_last_seq(self) -> int:
        """Return the position of the last command, or 0 if there was none."""
        with self._lock:
            return len(self._records)

    def delete(self, run_id: str) -> int:
        """Remove the commands to a run; return their number. Their ids and positions stay in use."""
        with self._lock:
            # None keeps the position, which is an index of this list: a reader's cursor stays right.
            new_records = [
                None if record is None or record.run_id == run_id else record
                for record in self._records
            ]
            old_count = self._records.count(None)
            self._records = new_records
        return new_records.count(None) - old_count


class InMemoryCommandCursorStore:
    """The position up to which a reader has carried out commands, in memory."""

    def __init__(self) -> None:
        self._cursor = 0

    def load(self) -> int:
        """Return the position, which is 0 at first."""
        return self._cursor

    def save(self, cursor: int) -> None:
        """Keep the position."""
        self._cursor = cursor


class InMemoryLedgerStore(LedgerShelf):
    """Records in memory, by run."""

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
        """Append a record, linked to the last one of its run by its hash."""
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
        """Remove the records of a run; return their number."""
        with self._lock:
            return len(self._records.pop(run_id, ()))

    def _of(self, run_id: str) -> Sequence[dict[str, Any]]:
        with self._lock:
            return [*self._records.get(run_id, ())]


def _copies(rows: Sequence[dict[str, Any]]) -> Any:
    return durable_copy([*rows], "records", deepest=WRAPPED)


class InMemoryRunStore(RunShelf):
    """Checkpoints in memory. It has all roles of run stores but locks, groups and later writes."""

    def __init__(self) -> None:
        self._rows: dict[str, dict[str, Any]] = {}
        self._waiting_for: dict[str, dict[str, None]] = {}
        self._keys_of: dict[str, set[str]] = {}
        self._lock = threading.RLock()

    def save(self, run: RunState) -> None:
        """Keep a copy of the run. It replaces an earlier checkpoint."""
        row = run.to_dict()
        with self._lock:
            self._keep(run.run_id, row)

    def load(self, run_id: str) -> RunState | None:
        """Return a copy of the last checkpoint, or None if there is no such run."""
        with self._lock:
            row = self._rows.get(run_id)
        return None if row is None else _state(row)

    def create_if_absent(self, run: RunState) -> tuple[RunState, bool]:
        """Return the run of this id, and True if this call made it."""
        row = run.to_dict()
        with self._lock:
            existing_row = self._rows.get(run.run_id)
            if existing_row is None:
                self._keep(run.run_id, row)
        return _state(existing_row or row), existing_row is None

    def delete(self, run_id: str) -> bool:
        """Remove the run; return True if there was one."""
        with self._lock:
            self._unfile(run_id)
            return self._rows.pop(run_id, None) is not None

    def list_event_waiters(
        self, *, wait_keys: Sequence[str], limit: int = 10_000
    ) -> list[RunState]:
        """Return runs that wait for an event of one of these keys now, the last updated first."""
        with self._lock:
            ids = {run_id for key in wait_keys for run_id in self._waiting_for.get(key, ())}
            rows = [self._rows[run_id] for run_id in ids]
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
            waiting_ids = self._waiting_for[key]
            waiting_ids.pop(run_id, None)
            if not waiting_ids:
                del self._waiting_for[key]


def _state(row: dict[str, Any]) -> RunState:
    return RunState.from_dict(plain_copy(row))


class InMemorySnapshotStore:
    """Snapshots in memory, by id."""

    def __init__(self) -> None:
        self._rows: dict[str, dict[str, Any]] = {}

    def save(self, snapshot: Snapshot) -> None:
        """Keep a copy of the snapshot. It replaces one of its id."""
        self._rows[snapshot.snapshot_id] = durable_copy(
            snapshot.to_dict(), "snapshot", deepest=WRAPPED
        )

    def load(self, snapshot_id: str) -> Snapshot | None:
        """Return a copy of the snapshot, or None if there is none of this id."""
        row = self._rows.get(snapshot_id)
        return None if row is None else Snapshot(**durable_copy(row, "snapshot", deepest=WRAPPED))

    def delete(self, snapshot_id: str) -> bool:
        """Remove the snapshot; return True if there was one."""
        return self._rows.pop(snapshot_id, None) is not None

    def list(
        self,
        *,
        run_id: str | None = None,
        tag: str | None = None,
        query: str | None = None,
        limit: int = 100,
    ) -> list[Snapshot]:
        """Return the snapshots that fit all filters, newest first. `query` is part of name or description."""
        snapshots = [
            Snapshot(**durable_copy(row, "snapshot", deepest=WRAPPED))
            for row in self._rows.values()
        ]
        return chosen_snapshots(snapshots, run_id=run_id, tag=tag, query=query, limit=limit)
