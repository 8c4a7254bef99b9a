"""Stores of graphs in a folder: runs, ledgers, commands, snapshots and artifacts.

Runs and snapshots are JSON files. Ledgers and commands are JSON lines. Artifacts are files of bytes, with a
description each.
"""

from __future__ import annotations

import fcntl
import json
import logging
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from functools import lru_cache
from pathlib import Path
from typing import Any, Final, TypeAlias

from typing_extensions import override

from actors._kernel.json import Unreadable, read_or
from actors._kernel.workflow.artifacts import (
    Artifact,
    ArtifactMetadata,
    ArtifactShelf,
    checked_artifact_id,
)
from actors._kernel.workflow.durable import WRAPPED, durable_copy, row_text
from actors._kernel.workflow.errors import GraphError, LedgerBrokenError
from actors._kernel.workflow.run_state import (
    RunChoice,
    RunState,
    Snapshot,
    chosen_snapshots,
    event_keys,
)
from actors._kernel.workflow.step_record import StepRecord, chained
from actors._kernel.workflow.stores import (
    CommandAppendResult,
    CommandRecord,
    Fault,
    LedgerShelf,
    RunShelf,
    no_fault,
)
from persistence._files.atomic import (
    append_lines,
    appending,
    cut_hole,
    file_name,
    last_value,
    read_lines,
    remove_file,
    sync_folder,
    write_whole,
)
from persistence._run_locks import TrailingRuns

_log = logging.getLogger("callboard.workflow")

BUSY_S: Final = 30.0
PATHS: Final = 1024
"""Names of files that are kept at hand."""
Rows: TypeAlias = list[dict[str, Any]]


class JsonFileRunStore(RunShelf, TrailingRuns):
    """A folder with a file for each run; see `actors._kernel.workflow.stores`.

    Lists look at the folder each time, and read again only the files that are others than before: so they see
    what other processes wrote.

    Args:
        folder: The folder; made if it does not exist.
        busy_s: Seconds to wait for a run that another process drives.
        fault: A hook of tests.
    """

    def __init__(
        self, folder: str | Path, *, busy_s: float = BUSY_S, fault: Fault = no_fault
    ) -> None:
        self._folder, self._fault = Path(folder), fault
        self._folder.mkdir(parents=True, exist_ok=True)
        TrailingRuns.__init__(self, self._folder / "locks", timeout_s=busy_s)
        self._cache: dict[str, tuple[tuple[int, ...], dict[str, Any]]] = {}
        self._guard = threading.Lock()

    def save(self, run: RunState) -> None:
        """Write the run's checkpoint to its file, as a whole and synced."""
        text = row_text(run.told())
        self._fault("run encoded")
        write_whole(self._path(run.run_id), text.encode(), fault=self._fault)
        self._unwritten_runs.pop(run.run_id, None)

    def load(self, run_id: str) -> RunState | None:
        """Return the last checkpoint of a run, or None if there is no such run.

        Raises:
            LedgerBrokenError: The file holds no run.
            GraphError: The file is that of a run whose id differs in upper and lower case.
        """
        path = self._path(run_id)
        try:
            run = RunState.from_dict(json.loads(path.read_bytes()))
        except FileNotFoundError:
            return None
        except (ValueError, KeyError) as exc:
            raise LedgerBrokenError(str(path), f"it is no run: {exc}") from exc
        if run.run_id != run_id:  # a file system that takes upper and lower case for the same
            problem = f"the folder has run {run.run_id!r} under this name. Use another id"
            raise GraphError(f"run {run_id!r}", problem)
        return self._newest_state(run)

    def create_if_absent(self, run: RunState) -> tuple[RunState, bool]:
        """Return the run of this id, and True if this call made it. Of many calls at once, one does."""
        content = row_text(run.told()).encode()
        is_new = write_whole(self._path(run.run_id), content, fault=self._fault, create_only=True)
        stored_run = self.load(run.run_id)
        assert stored_run is not None
        return stored_run, is_new

    def delete(self, run_id: str) -> bool:
        """Remove the run's file; return True if there was one."""
        return remove_file(self._path(run_id))

    @override
    def lock(self, run_id: str, *, wait: bool = True) -> AbstractContextManager[None]:
        file_name("", run_id, "")
        return super().lock(run_id, wait=wait)

    def list_event_waiters(
        self, *, wait_keys: Sequence[str], limit: int = 10_000
    ) -> list[RunState]:
        """Return runs that wait for one of these keys now, the last updated first."""
        keys = {*wait_keys}
        runs = [run for run in self._all() if keys & event_keys(run)]
        return [r.copied() for r in RunChoice().chosen(runs, limit)]

    def _path(self, run_id: str) -> Path:
        return self._folder / file_name("run_", run_id, ".json")

    @override
    def _all(self) -> list[RunState]:
        cache: dict[str, tuple[tuple[int, ...], dict[str, Any]]] = {}
        with self._guard:
            for entry in os.scandir(self._folder):
                if entry.name.startswith("run_") and entry.name.endswith(".json"):
                    marked_row = self._read(entry)
                    if marked_row is not None:
                        cache[entry.name] = marked_row
            self._cache = cache
        runs = [run for name, (_, row) in cache.items() if (run := self._run_for_list(name, row))]
        return sorted(runs, key=lambda run: run.created_at)

    def _run_for_list(self, name: str, row: dict[str, Any]) -> RunState | None:
        try:
            return self._newest_state(RunState.from_dict(row))
        except (KeyError, TypeError, ValueError) as exc:
            _log_unreadable_run(name, exc)
            return None

    def _read(self, entry: os.DirEntry[str]) -> tuple[tuple[int, ...], dict[str, Any]] | None:
        try:
            stat = entry.stat()
            # Each write makes a new file, so two writes of one instant and one size differ in the inode.
            mark = (stat.st_ino, stat.st_mtime_ns, stat.st_size)
            cached_row = self._cache.get(entry.name)
            if cached_row is not None and cached_row[0] == mark:
                return cached_row
            return mark, json.loads(Path(entry.path).read_bytes())
        except FileNotFoundError:
            return None  # deleted meanwhile
        except ValueError as exc:
            _log_unreadable_run(entry.path, exc)
            return None


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
        self._read_positions: dict[str, tuple[int, int]] = {}
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
    def mend(self, run_id: str, *, synced_count: int) -> bool:
        path = self._path(run_id)
        with appending(path) as file:
            lost = cut_hole(file, synced_count)
        with self._guard:
            self._read_positions.pop(run_id, None)
        if lost:
            _log.warning("#TRUNCATION a loss of power left %d bytes", lost, extra={"run": run_id})
        return bool(lost)

    def append_chained(self, record: StepRecord) -> None:
        """Append a record, linked by its hash to the last one of its run. Synced on return."""
        row, path = record.told(), self._path(record.run_id)
        with appending(path) as file:
            last = last_value(file, str(path))
            previous_hash = None if last is None else last.get("record_hash")
            append_lines(file, [chained(row, previous_hash)], fault=self._fault)

    @override
    def list(self, run_id: str) -> list[dict[str, Any]]:
        return self._read(run_id, 0)[0]

    @override
    def list_after(
        self, *, run_id: str, after: int, limit: int = 1000
    ) -> tuple[Sequence[dict[str, Any]], int]:
        with self._guard:
            row_count, offset = self._read_positions.get(run_id, (0, 0))
        if row_count > after:
            row_count, offset = 0, 0
        rows, behind = self._read(run_id, offset)
        with self._guard:
            self._read_positions[run_id] = row_count + len(rows), behind
        page = rows[after - row_count :][:limit]
        return page, after + len(page)

    @override
    def count(self, run_id: str) -> int:
        return len(self.list(run_id))

    def delete(self, run_id: str) -> int:
        """Remove the records of a run; return their number."""
        count = self.count(run_id)
        with self._guard:
            self._read_positions.pop(run_id, None)
        return count if remove_file(self._path(run_id)) else 0

    def _append(self, records: Sequence[StepRecord], *, synced: bool) -> None:
        rows = [record.told() for record in records]
        if not rows:
            return
        with appending(self._path(records[0].run_id)) as file:
            append_lines(file, rows, fault=self._fault, synced=synced)

    def _path_of(self, run_id: str) -> Path:
        return self._folder / file_name("ledger_", run_id, ".jsonl")

    def _read(self, run_id: str, offset: int) -> tuple[Rows, int]:
        rows, behind, is_line_shared = read_lines(self._path(run_id), offset)
        if is_line_shared:
            _log.warning("#FALLBACK records of a ledger share a line", extra={"run": run_id})
        return rows, behind


class JsonlCommandStore:
    """A file with a line for each command; see `CommandStore`.

    Args:
        folder: Its file is ``commands.jsonl``.
    """

    def __init__(self, folder: str | Path) -> None:
        self._path = Path(folder) / "commands.jsonl"

    def append(self, record: CommandRecord) -> CommandAppendResult:
        """Append a command, unless one with its id is there. Synced on return."""
        row: dict[str, Any] = durable_copy(record.to_dict(), "command")
        with appending(self._path) as file:
            rows = self._rows()
            for existing in rows:
                if existing["command_id"] == record.command_id:
                    return CommandAppendResult(accepted=False, duplicate=True, seq=existing["seq"])
            seq = len(rows) + 1
            append_lines(file, [row | {"seq": seq}])
        return CommandAppendResult(accepted=True, duplicate=False, seq=seq)

    def list_after(self, *, after: int, limit: int = 1000) -> tuple[list[CommandRecord], int]:
        """Return at most `limit` commands after `after`, and the cursor for the next call."""
        rows = [row for row in self._rows()[after:] if "run_id" in row][: max(limit, 0)]
        page = [CommandRecord(**row) for row in rows]
        return page, page[-1].seq if page else after

    def get_last_seq(self) -> int:
        """Return the position of the last command; 0 if there is none."""
        return len(self._rows())

    def delete(self, run_id: str) -> int:
        """Remove the commands to a run; return their number. The file is replaced as a whole."""
        if not self._path.exists():
            return 0
        # Under the lock of appends: a command that is added during the rewrite would be lost with the old file.
        with appending(self._path):
            rows = self._rows()
            seqs = [row["seq"] for row in rows if row.get("run_id") == run_id]
            # A line with number and id stays for each: numbers are positions in the file, and the id of a
            # removed command is still a duplicate.
            if seqs:
                rows = [
                    {"seq": row["seq"], "command_id": row["command_id"]}
                    if row["seq"] in seqs
                    else row
                    for row in rows
                ]
                write_whole(self._path, "".join(f"{row_text(row)}\n" for row in rows).encode())
        return len(seqs)

    def _rows(self) -> list[dict[str, Any]]:
        return read_lines(self._path)[0]


class JsonFileCommandCursorStore:
    """A file with a number; see `CommandCursorStore`."""

    def __init__(self, path: str | Path) -> None:
        self._path = Path(path)

    def load(self) -> int:
        """Return the position up to which the reader has carried out commands; 0 at first."""
        rows = read_lines(self._path)[0]
        return int(rows[0]["cursor"]) if rows else 0

    def save(self, cursor: int) -> None:
        """Write the position of the reader. Synced on return."""
        write_whole(self._path, f"{row_text({'cursor': cursor})}\n".encode())


class JsonSnapshotStore:
    """A folder with a file for each snapshot; see `SnapshotStore`."""

    def __init__(self, folder: str | Path) -> None:
        self._folder = Path(folder)
        self._folder.mkdir(parents=True, exist_ok=True)

    def save(self, snapshot: Snapshot) -> None:
        """Write a snapshot to its file. It replaces one with its id."""
        text = row_text(durable_copy(snapshot.to_dict(), "snapshot", deepest=WRAPPED))
        write_whole(self._path(snapshot.snapshot_id), text.encode())

    def load(self, snapshot_id: str) -> Snapshot | None:
        """Return a snapshot, or None if there is none with this id."""
        return _read(self._path(snapshot_id))

    def delete(self, snapshot_id: str) -> bool:
        """Remove a snapshot; return True if there was one."""
        return remove_file(self._path(snapshot_id))

    def list(
        self,
        *,
        run_id: str | None = None,
        tag: str | None = None,
        query: str | None = None,
        limit: int = 100,
    ) -> list[Snapshot]:
        """Return the snapshots that match every given filter, the newest first.

        Args:
            run_id: Only of this run.
            tag: Only with this tag.
            query: Only with this text in the name or the description.
            limit: Maximum number of snapshots.
        """
        snapshots = [
            snapshot
            for path in self._folder.glob("snapshot_*.json")
            if (snapshot := _snapshot_for_list(path))
        ]
        return chosen_snapshots(snapshots, run_id=run_id, tag=tag, query=query, limit=limit)

    def _path(self, snapshot_id: str) -> Path:
        return self._folder / file_name("snapshot_", snapshot_id, ".json")


class FileArtifactStore(ArtifactShelf):
    """A folder ``artifacts``; see the Protocol `ArtifactStore` of graphs.

    ``refs`` has a description of each artifact, ``blobs`` the bytes: equal ones of all artifacts are one file.
    An artifact is there when its description is. Bytes that no description names are the rest of a store that
    died, or of an artifact that was deleted: `gc` removes them. So does the removal of a run by a runtime.

    Args:
        folder: Holds the folder ``artifacts``, which is made if it is not there.
        fault: A hook of tests.
    """

    def __init__(self, folder: str | Path, *, fault: Fault = no_fault) -> None:
        self._folder = Path(folder) / "artifacts"
        self._refs, self._blobs = self._folder / "refs", self._folder / "blobs"
        self._fault = fault
        for subfolder in (self._refs, self._blobs):
            subfolder.mkdir(parents=True, exist_ok=True)
        self._take_over_older()

    @override
    def _keep(self, metadata: ArtifactMetadata, content: bytes) -> ArtifactMetadata:
        # Shared: stores wait only for `gc` and changes. `gc` would remove bytes whose description is not
        # written yet.
        with self._lock(fcntl.LOCK_SH):
            existing = self.get_metadata(metadata.artifact_id)
            # The first description stays: equal bytes may be stored by several calls at once.
            if existing is not None:
                return existing
            blob = self._blob(metadata.blob_id)
            if blob.exists():
                sync_folder(self._blobs)  # its writer may not have come to that
            else:
                write_whole(blob, content, fault=self._fault, create_only=True)
            # Bytes first: a crash in between leaves bytes that `gc` removes, not a description without bytes.
            if self._write_ref(metadata, create_only=True):
                return metadata
            return self.get_metadata(metadata.artifact_id) or metadata

    @override
    def _change(
        self, artifact_id: str, change: Callable[[ArtifactMetadata], ArtifactMetadata]
    ) -> ArtifactMetadata | None:
        with self._lock(fcntl.LOCK_EX):
            metadata = self.get_metadata(artifact_id)
            if metadata is None:
                return None
            new_metadata = change(metadata)
            self._write_ref(new_metadata)
        return new_metadata

    @override
    def load(self, artifact_id: str) -> Artifact | None:
        metadata = self.get_metadata(artifact_id)
        if metadata is None:
            return None
        try:
            return Artifact(metadata, self._blob(metadata.blob_id).read_bytes())
        except FileNotFoundError:
            return None

    @override
    def get_metadata(self, artifact_id: str) -> ArtifactMetadata | None:
        try:
            return ArtifactMetadata.from_dict(json.loads(self._ref(artifact_id).read_bytes()))
        except FileNotFoundError:
            return None

    @override
    def exists(self, artifact_id: str) -> bool:
        return self._ref(artifact_id).exists()

    @override
    def delete(self, artifact_id: str) -> bool:
        """Remove the description. The bytes stay until `gc`: another artifact may have the same ones."""
        with self._lock(fcntl.LOCK_EX):
            return remove_file(self._ref(artifact_id))

    def gc(self, *, dry_run: bool = True) -> dict[str, Any]:
        """Remove the bytes that no artifact names, and return numbers and sizes. Meanwhile, nothing is stored.

        Args:
            dry_run: Only count them.
        """
        with self._lock(fcntl.LOCK_EX):
            descriptions = [self._metadata_for_list(path) for path in self._refs.glob("*.meta")]
            used_blobs = {metadata.blob_id for metadata in descriptions if metadata is not None}
            blobs = [*self._blobs.glob("*.bin")]
            unused_blobs = [
                (blob, blob.stat().st_size) for blob in blobs if blob.stem not in used_blobs
            ]
            if (
                None in descriptions
            ):  # any of the bytes may belong to a description that cannot be read
                unused_blobs = []
            partial_files = [*self._blobs.glob("*.tmp"), *self._refs.glob("*.tmp")]
            if not dry_run:
                for file in (*partial_files, *(blob for blob, _ in unused_blobs)):
                    remove_file(file)
        return {
            "dry_run": dry_run,
            "blobs_total": len(blobs),
            "blobs_referenced": len(used_blobs),
            "blobs_deleted": len(unused_blobs),
            "bytes_reclaimed": sum(size for _, size in unused_blobs),
        }

    @override
    def list_all(self, limit: int = 1000) -> list[ArtifactMetadata]:
        descriptions = [self._metadata_for_list(path) for path in self._refs.glob("*.meta")]
        newest = sorted(
            (metadata for metadata in descriptions if metadata),
            key=lambda m: (m.created_at, m.artifact_id),
            reverse=True,
        )
        return newest[: limit if limit > 0 else None]

    def content_path(self, artifact_id: str) -> Path | None:
        """Return the file of the bytes, which is not to be changed, or None if they are not there."""
        metadata = self.get_metadata(artifact_id)
        blob = None if metadata is None else self._blob(metadata.blob_id)
        return blob if blob is not None and blob.exists() else None

    def _metadata_for_list(self, path: Path) -> ArtifactMetadata | None:
        """Return a description for a list. One that cannot be read is named in the log, and hides no other."""

        def log(unreadable: Unreadable) -> None:
            details = {"file": path.name, "problem": str(unreadable)}
            _log.error("the description of an artifact cannot be read", extra=details)

        return read_or(path.stem, self.get_metadata, log)

    def _take_over_older(self) -> None:
        """Put the artifacts of a folder of an older release, two files each, into their places."""
        if not any(self._folder.glob("*.json")):
            return
        with self._lock(fcntl.LOCK_EX):
            for about in self._folder.glob("*.json"):
                metadata = ArtifactMetadata.from_dict(json.loads(about.read_bytes()))
                content = about.with_suffix(".bin")
                if content.exists():
                    # The bytes first: after a crash the old description is still there, and the next opening
                    # goes on with it.
                    content.replace(self._blob(metadata.blob_id))
                    sync_folder(self._blobs)
                self._write_ref(metadata, create_only=True)
                about.unlink()

    def _write_ref(self, metadata: ArtifactMetadata, *, create_only: bool = False) -> bool:
        path, text = self._ref(metadata.artifact_id), row_text(metadata.to_dict())
        return write_whole(path, text.encode(), fault=self._fault, create_only=create_only)

    @contextmanager
    def _lock(self, how: int) -> Iterator[None]:
        """Keep other processes and threads away: all of them, or those that do not share."""
        with (self._folder / "lock").open("ab") as file:
            fcntl.flock(file, how)
            yield

    def _ref(self, artifact_id: str) -> Path:
        return self._refs / f"{checked_artifact_id(artifact_id)}.meta"

    def _blob(self, blob_id: str) -> Path:
        return self._blobs / f"{checked_artifact_id(blob_id)}.bin"


def _log_unreadable_run(name: str, exc: Exception) -> None:
    """Name a file that is no run: it hides no other run from a list."""
    _log.error("a run cannot be read", extra={"file": name, "problem": str(exc)})


def _snapshot_for_list(path: Path) -> Snapshot | None:
    """Return a snapshot for a list. A file that is none is named in the log, and hides no other."""
    try:
        return _read(path)
    except (ValueError, TypeError) as exc:
        _log.error("a snapshot cannot be read", extra={"file": str(path), "problem": str(exc)})
        return None


def _read(path: Path) -> Snapshot | None:
    try:
        return Snapshot(**json.loads(path.read_bytes()))
    except FileNotFoundError:
        return None
