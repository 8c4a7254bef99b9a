"""Runs as JSON files."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Final

from actors.kernel.workflow.effects import RunStatus, WaitReason
from actors.kernel.workflow.errors import LedgerBrokenError
from actors.kernel.workflow.run_state import RunChoice, RunState, due_runs, index_row, open_wait
from actors.kernel.workflow.run_store import Fault, no_fault
from persistence.files.atomic import file_name, json_text, write_whole
from persistence.run_locks import RunFileLocks

BUSY_S: Final = 30.0


class JsonFileRunStore:
    """A folder with a file for each run; see `actors.kernel.workflow.run_store`.

    Lists look at the folder each time, and read again only the files that are others than before: so they see
    what other processes wrote.

    Args:
        folder: Made if it is not there.
        busy_s: How long to wait for a run that another process drives, in seconds.
        fault: A hook of tests.
    """

    def __init__(
        self, folder: str | Path, *, busy_s: float = BUSY_S, fault: Fault = no_fault
    ) -> None:
        self._folder, self._fault = Path(folder), fault
        self._folder.mkdir(parents=True, exist_ok=True)
        self._locks = RunFileLocks(self._folder / "locks", timeout_s=busy_s)
        self._known: dict[str, tuple[tuple[int, ...], dict[str, Any]]] = {}
        self._guard = threading.Lock()

    def save(self, run: RunState) -> None:
        """See `RunStore.save`."""
        text = json_text(run.to_dict())
        self._fault("run encoded")
        write_whole(self._path(run.run_id), text.encode(), fault=self._fault)

    def load(self, run_id: str) -> RunState | None:
        """See `RunStore.load`."""
        path = self._path(run_id)
        try:
            return RunState.from_dict(json.loads(path.read_bytes()))
        except FileNotFoundError:
            return None
        except (ValueError, KeyError) as exc:
            raise LedgerBrokenError(str(path), f"it is no run: {exc}") from exc

    def create_if_absent(self, run: RunState) -> tuple[RunState, bool]:
        """See `CreatingRunStore.create_if_absent`."""
        content = json_text(run.to_dict()).encode()
        made = write_whole(self._path(run.run_id), content, fault=self._fault, create_only=True)
        found = self.load(run.run_id)
        assert found is not None
        return found, made

    def delete(self, run_id: str) -> bool:
        """See `DeletableRunStore.delete`."""
        try:
            self._path(run_id).unlink()
        except FileNotFoundError:
            return False
        return True

    def lock(self, run_id: str, *, wait: bool = True) -> AbstractContextManager[None]:
        """See `LockingRunStore.lock`."""
        file_name("", run_id, "")
        return self._locks.hold(run_id, wait=wait)

    def list_runs(
        self,
        *,
        status: RunStatus | None = None,
        wait_reason: WaitReason | None = None,
        workflow_id: str | None = None,
        limit: int = 100,
    ) -> list[RunState]:
        """See `QueryableRunStore.list_runs`."""
        wanted = RunChoice(status=status, wait_reason=wait_reason, workflow_id=workflow_id)
        return [one.copied() for one in wanted.chosen(self._all(), limit)]

    def list_due_wait_until(self, *, now_iso: str, limit: int = 100) -> list[RunState]:
        """See `QueryableRunStore.list_due_wait_until`."""
        return [one.copied() for one in due_runs(self._all(), now_iso, limit)]

    def list_children(
        self, *, parent_run_id: str, status: RunStatus | None = None
    ) -> list[RunState]:
        """See `QueryableRunStore.list_children`."""
        found = [
            one.copied()
            for one in self._all()
            if one.parent_run_id == parent_run_id and status in {None, one.status}
        ]
        return sorted(found, key=lambda run: run.created_at)

    def list_run_index(
        self,
        *,
        status: RunStatus | None = None,
        workflow_id: str | None = None,
        session_id: str | None = None,
        root_only: bool = False,
        limit: int = 100,
    ) -> list[dict[str, Any]]:
        """See `QueryableRunIndexStore.list_run_index`."""
        wanted = RunChoice(
            status=status, workflow_id=workflow_id, session_id=session_id, root_only=root_only
        )
        return [index_row(one) for one in wanted.chosen(self._all(), limit)]

    def list_event_waiters(
        self, *, wait_keys: Sequence[str], limit: int = 10_000
    ) -> list[RunState]:
        """See `EventWaitStore.list_event_waiters`."""
        keys = {*wait_keys}
        found = [
            run
            for run in self._all()
            if (wait := open_wait(run))
            and wait.reason is WaitReason.EVENT
            and wait.wait_key in keys
        ]
        return [one.copied() for one in RunChoice().chosen(found, limit)]

    def _path(self, run_id: str) -> Path:
        return self._folder / file_name("run_", run_id, ".json")

    def _all(self) -> list[RunState]:
        """Return all runs; they share what they hold with this store."""
        seen: dict[str, tuple[tuple[int, ...], dict[str, Any]]] = {}
        with self._guard:
            for entry in os.scandir(self._folder):
                if entry.name.startswith("run_") and entry.name.endswith(".json"):
                    found = self._read(entry)
                    if found is not None:
                        seen[entry.name] = found
            self._known = seen
        return [RunState.from_dict(row) for _, row in seen.values()]

    def _read(self, entry: os.DirEntry[str]) -> tuple[tuple[int, ...], dict[str, Any]] | None:
        try:
            stat = entry.stat()
            mark = (stat.st_ino, stat.st_mtime_ns, stat.st_size)
            known = self._known.get(entry.name)
            if known is not None and known[0] == mark:
                return known
            return mark, json.loads(Path(entry.path).read_bytes())
        except FileNotFoundError:
            return None  # deleted meanwhile
        except ValueError as exc:
            raise LedgerBrokenError(entry.path, f"it is no run: {exc}") from exc
