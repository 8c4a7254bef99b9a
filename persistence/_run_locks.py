"""Locks of runs over processes of one machine, and the states of runs that their holder writes later.

The operating system lets the locks of a process go when it ends.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from typing import Final

from actors._kernel.workflow.errors import StoreBusyError
from actors._kernel.workflow.run_state import RunState

PAUSE_S: Final = 0.01
_FILE_NAME: Final = re.compile(r"[A-Za-z0-9_.:@-]{1,200}")
"""Ids that name their lock's file themselves. Other ids have a file that is named by their hash."""


class RunFileLocks:
    """A lock of each run: a file in a folder, which is there while it is held.

    Args:
        folder: The folder; made if it does not exist.
        timeout_s: Seconds to wait for another process.
    """

    def __init__(self, folder: Path, *, timeout_s: float) -> None:
        self._folder, self._timeout_s = folder, timeout_s

    @contextmanager
    def hold(self, run_id: str, *, wait: bool = True) -> Iterator[None]:
        """Hold the lock of a run; without `wait`, raise StoreBusyError at once if another process has it."""
        path = self._folder / lock_name(run_id)
        descriptor = self._acquire(path, self._timeout_s if wait else 0.0)
        try:
            yield
        finally:
            with suppress(FileNotFoundError):
                path.unlink()  # still held: a process that has opened it sees that, and opens a new one
            os.close(descriptor)

    def _acquire(self, path: Path, timeout_s: float) -> int:
        """Return the descriptor of the lock's file, which stays open as long as the lock is held."""
        ends_at = time.monotonic() + timeout_s
        while True:
            self._folder.mkdir(parents=True, exist_ok=True)
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                # Polled: `flock` has no time limit of its own.
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                os.close(descriptor)
                if time.monotonic() >= ends_at:
                    raise StoreBusyError(str(path), timeout_s) from None
                time.sleep(PAUSE_S)
                continue
            # The holder before may have removed the file: a lock of a removed file excludes nobody.
            if _is_at(descriptor, path):
                return descriptor
            os.close(descriptor)


def lock_name(run_id: str) -> str:
    """Return the name of the file of a run's lock. It is never a path, whatever the id is.

    An id may come from a client or from a bundle, and the file is removed when the lock is released: the id
    ``../x/poetry`` would remove ``poetry.lock`` of another project.
    """
    if _FILE_NAME.fullmatch(run_id) is None:
        run_id = hashlib.sha256(run_id.encode(errors="surrogatepass")).hexdigest()
    return f"{run_id}.lock"


class TrailingRuns:
    """The part of a run store that has the locks, and the states that are not written yet.

    Args:
        folder: The folder of the locks; made if it does not exist.
        timeout_s: Seconds to wait for another process that holds a run.
    """

    def __init__(self, folder: Path, *, timeout_s: float) -> None:
        self._locks = RunFileLocks(folder, timeout_s=timeout_s)
        self._unwritten_runs: dict[str, RunState] = {}

    def save_later(self, run: RunState) -> None:
        """Show a run in this process as it is now. A later `save` writes it, or nothing does."""
        self._unwritten_runs[run.run_id] = run

    def lock(self, run_id: str, *, wait: bool = True) -> AbstractContextManager[None]:
        """Hold the run against drivers in other processes, and drop its unwritten state at the end.

        Args:
            run_id: The run.
            wait: False: raise at once if another process holds it.

        Raises:
            StoreBusyError: Another process holds the run for too long.
        """
        return self._hold(run_id, wait=wait)

    @contextmanager
    def _hold(self, run_id: str, *, wait: bool) -> Iterator[None]:
        with self._locks.hold(run_id, wait=wait):
            try:
                yield
            finally:
                self._unwritten_runs.pop(run_id, None)

    def _newest_state(self, run: RunState) -> RunState:
        """Return the state of a run that was read, or a copy of the one that is not written yet."""
        unwritten_run = self._unwritten_runs.get(run.run_id)
        return run if unwritten_run is None else unwritten_run.cloned()


def _is_at(descriptor: int, path: Path) -> bool:
    """Return whether the file that was opened is the one that is there now."""
    try:
        stat = path.stat()
    except FileNotFoundError:
        return False
    own_stat = os.fstat(descriptor)
    return (own_stat.st_dev, own_stat.st_ino) == (stat.st_dev, stat.st_ino)
