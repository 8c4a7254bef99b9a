"""Locks of runs: a run has only one driver at a time.

The locks hold among threads and, if the store has locks, among processes.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from weakref import WeakValueDictionary

from actors.kernel.workflow.errors import StoreBusyError

_locks: WeakValueDictionary[str, threading.RLock] = WeakValueDictionary()
_guard = threading.Lock()


def run_mutation_lock(run_id: str) -> threading.RLock:
    """Return the lock that a driver holds while it works on a run.

    All callers in this process get the same lock.

    Hold it around a load, change and save of the run outside of a driver.
    """
    with _guard:
        lock = _locks.get(run_id)
        if lock is None:
            lock = _locks[run_id] = threading.RLock()
        return lock


class RunLocks:
    """The locks of the runs of one store: the locks of this process, and the locks of the store if it has some.

    Args:
        store: A `LockingRunStore`, or a store that only this process uses.
    """

    def __init__(self, store: Any) -> None:
        self._lock_of = getattr(store, "lock", None)
        self._held: set[str] = set()

    @contextmanager
    def hold(self, run_id: str, *, wait: bool = True) -> Iterator[bool]:
        """Hold the lock of a run. The context's value is True if this thread held it before.

        Raises:
            StoreBusyError: A driver in another process holds the lock for too long. If `wait` is false: any
                other driver holds the lock now.
        """
        own = run_mutation_lock(run_id)
        if not own.acquire(blocking=wait):
            raise StoreBusyError(f"run {run_id}", 0.0)
        with ExitStack() as stack:
            stack.push(own)
            if run_id in self._held:
                yield True
                return
            if self._lock_of is not None:
                stack.enter_context(self._lock_of(run_id, wait=wait))
            self._held.add(run_id)
            stack.callback(self._held.remove, run_id)
            yield False
