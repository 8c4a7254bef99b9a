"""Runs as JSON files."""

from __future__ import annotations

import json
import logging
import os
import threading
from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Final

from typing_extensions import override

from actors.kernel.workflow.durable import row_text
from actors.kernel.workflow.errors import GraphError, LedgerBrokenError
from actors.kernel.workflow.run_state import RunChoice, RunState, event_keys
from actors.kernel.workflow.stores import Fault, RunShelf, no_fault
from persistence.files.atomic import file_name, removed, write_whole
from persistence.run_locks import TrailingRuns

_log = logging.getLogger("callboard.workflow")

BUSY_S: Final = 30.0


class JsonFileRunStore(RunShelf, TrailingRuns):
    """A folder with a file for each run; see `actors.kernel.workflow.stores`.

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
        self._known: dict[str, tuple[tuple[int, ...], dict[str, Any]]] = {}
        self._guard = threading.Lock()

    def save(self, run: RunState) -> None:
        """See `RunStore.save`."""
        text = row_text(run.told())
        self._fault("run encoded")
        write_whole(self._path(run.run_id), text.encode(), fault=self._fault)
        self._later.pop(run.run_id, None)

    def load(self, run_id: str) -> RunState | None:
        """See `RunStore.load`."""
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
        return self._shown(run)

    def create_if_absent(self, run: RunState) -> tuple[RunState, bool]:
        """See `CreatingRunStore.create_if_absent`."""
        content = row_text(run.told()).encode()
        made = write_whole(self._path(run.run_id), content, fault=self._fault, create_only=True)
        found = self.load(run.run_id)
        assert found is not None
        return found, made

    def delete(self, run_id: str) -> bool:
        """See `DeletableRunStore.delete`."""
        return removed(self._path(run_id))

    @override
    def lock(self, run_id: str, *, wait: bool = True) -> AbstractContextManager[None]:
        file_name("", run_id, "")
        return super().lock(run_id, wait=wait)

    def list_event_waiters(
        self, *, wait_keys: Sequence[str], limit: int = 10_000
    ) -> list[RunState]:
        """See `EventWaitStore.list_event_waiters`."""
        keys = {*wait_keys}
        found = [run for run in self._all() if keys & event_keys(run)]
        return [one.copied() for one in RunChoice().chosen(found, limit)]

    def _path(self, run_id: str) -> Path:
        return self._folder / file_name("run_", run_id, ".json")

    @override
    def _all(self) -> list[RunState]:
        seen: dict[str, tuple[tuple[int, ...], dict[str, Any]]] = {}
        with self._guard:
            for entry in os.scandir(self._folder):
                if entry.name.startswith("run_") and entry.name.endswith(".json"):
                    found = self._read(entry)
                    if found is not None:
                        seen[entry.name] = found
            self._known = seen
        runs = [run for name, (_, row) in seen.items() if (run := self._listed(name, row))]
        return sorted(runs, key=lambda run: run.created_at)

    def _listed(self, name: str, row: dict[str, Any]) -> RunState | None:
        try:
            return self._shown(RunState.from_dict(row))
        except (KeyError, TypeError, ValueError) as exc:
            _complain(name, exc)
            return None

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
            _complain(entry.path, exc)
            return None


def _complain(name: str, exc: Exception) -> None:
    """Name a file that is no run: it hides no other run from a list."""
    _log.error("a run cannot be read", extra={"file": name, "problem": str(exc)})
