"""A run that a driver holds: its state, records that are not stored yet, and effects that have started.

A run has only one driver at a time: its lock holds among threads and, if the store has locks, among processes.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from typing import Any, cast
from weakref import WeakValueDictionary

from actors._kernel.workflow.effects import RunStatus
from actors._kernel.workflow.errors import LedgerBrokenError, NoSuchRunError, StoreBusyError
from actors._kernel.workflow.run_state import RunState, open_waits
from actors._kernel.workflow.step_record import StepRecord
from actors._kernel.workflow.stores import CreatingRunStore, GroupingRunStore, LedgerStore, RunStore
from actors._workflow.embedded.stores.ledgers import (
    append_all,
    append_unsynced,
    is_observed,
    mend_records,
    records_after,
    sync_records,
)
from actors._workflow.machine.branches import Path, find_branch_state, lift_to_run
from actors._workflow.machine.records import OpenStep, Transition
from actors._workflow.machine.recovery import fold_records
from actors._workflow.machine.starting import start_record
from actors._workflow.machine.variables import RECORDS, RUNTIME, SEQ, namespace, with_path

PAGE = 1000


def create_run(
    runs: RunStore, ledger: LedgerStore, run: RunState, *, once: bool
) -> tuple[RunState, bool]:
    """Write a new run and its first record, in one transaction if the stores can do that.

    If `once`, the run is made only if there is none of its id. Return the run, and whether this call made it.
    """
    with _as_one(runs, grouped=_can_group(runs, ledger)):
        if not once:
            ledger.append(start_record(run))
            runs.save(run)
            return run, True
        stored_run, is_new = cast("CreatingRunStore", runs).create_if_absent(run)
        if is_new:
            ledger.append(start_record(run))
        return stored_run, is_new


def _can_group(runs: RunStore, ledger: LedgerStore) -> bool:
    """Return True if records and states can be one write: the store does that, and nobody hears in between."""
    return hasattr(runs, "grouped") and not is_observed(ledger)


def _as_one(runs: RunStore, *, grouped: bool) -> AbstractContextManager[object]:
    return cast("GroupingRunStore", runs).grouped() if grouped else nullcontext()


class HeldRun:
    """A run that a driver holds: the last checkpoint plus the ledger's records after it.

    The caller holds the run's lock. Records are durable when `flush` returns, the state when `save` does.

    Attributes:
        state: The state now.
        open_steps: The effects that have started and have not ended, by branch.
        groups: True if records and state are written in one transaction.
        recovered_paths: The branches whose open effect was started by a driver that died.
        is_saved: True if the store's checkpoint is `state`.
        saved_at: The instant of the last save by a monotonic clock, as the driver noted it.

    Raises:
        NoSuchRunError: The store has no such run.
    """

    def __init__(self, runs: RunStore, ledger: LedgerStore, run_id: str) -> None:
        self._runs, self._ledger = runs, ledger
        saved_state = runs.load(run_id)
        if saved_state is None:
            raise NoSuchRunError(run_id)
        runtime = namespace(saved_state.vars, RUNTIME)
        self._count = int(runtime.get(RECORDS) or 0) if SEQ in runtime else 0
        checkpoint_count = self._count
        self.state, self.open_steps = self._read_on(saved_state)
        self.recovered_paths = {*self.open_steps}
        self._open_at = dict.fromkeys(self.open_steps, checkpoint_count)
        self._buffer: list[StepRecord] = []
        self.groups = _can_group(runs, ledger)
        self.is_saved, self._is_in_ledger = self.state is saved_state, True
        self._later = getattr(runs, "save_later", None)
        self.saved_at = -math.inf
        # A driver that died may have left records unsynced.
        self._is_synced = checkpoint_count == self._count

    def take(self, transition: Transition) -> None:
        """Apply a decision about the whole run. Effects stay open, unless the decision ends the run.

        Nothing is durable before `flush` or `save`.
        """
        self._buffer += transition.records
        if transition.state is not self.state:
            self.is_saved = False
            # A record without a delta does not bring its change back after a crash, so the checkpoint has to be
            # written with it.
            self._is_in_ledger &= any(record.delta for record in transition.records)
        self.state = transition.state
        if transition.opened is not None and transition.records:  # the decision answers a wait
            path = tuple((transition.records[-1].delta or {}).get("branch") or ())
            # The number of the record that opened the effect: after a crash the records are read again from
            # there.
            if path not in self.open_steps:
                self._open_at[path] = self._count + len(self._buffer) - 1
            self.open_steps[path] = transition.opened
        if self.state.status.is_terminal:
            self.open_steps.clear()

    def take_at(self, path: Path, transition: Transition) -> None:
        """Apply a decision about the branch that `find_branch_state` shows.

        Nothing is durable before `flush` or `save`.
        """
        previous_step, next_step = self.open_steps.pop(path, None), transition.opened
        if previous_step is None:
            self._open_at[path] = self._count + len(self._buffer)
        if previous_step is not next_step:
            self.recovered_paths.discard(path)
        if next_step is not None:
            self.open_steps[path] = next_step
        self.take(lift_to_run(self.state, path, transition))

    def branch_state(self, path: Path) -> RunState:
        """Return the open branch at a path as a run of its own."""
        state = find_branch_state(self.state, path)
        assert state is not None
        return state

    def flush(self, *, synced: bool = True) -> None:
        """Write the records of all decisions so far to the ledger.

        If not `synced`, a loss of power may lose them until the next flush or save; see `UnsyncedLedgerStore`.
        """
        if self._buffer:
            (append_all if synced else append_unsynced)(self._ledger, self._buffer)
            self._count += len(self._buffer)
            self._buffer = []
            self._is_synced = synced
        # Records that were appended unsynced before: a loss of power must not take them after this point.
        elif synced and not self._is_synced:
            sync_records(self._ledger, self.state.run_id)
            self._is_synced = True

    def save(self) -> None:
        """Write records and state.

        A store that can group writes gets both in one transaction, unless the ledger has subscribers.
        Subscribers get records only when these are durable.
        """
        is_behind = self._buffer or not self._is_synced
        together = self.groups and is_behind and not self.is_saved
        with _as_one(self._runs, grouped=bool(together)):
            self.flush()
            if not self.is_saved:
                self._save_state()

    @property
    def may_trail(self) -> bool:
        """True if the checkpoint may be written later.

        The store offers that, the ledger has all that the last one lacks, and there is no wait, for which other
        processes look in checkpoints.
        """
        is_running = self.state.status is RunStatus.RUNNING and not open_waits(self.state)
        return self._later is not None and self._is_in_ledger and is_running

    def save_later(self, *, synced: bool) -> None:
        """Write the records, see `flush`; show the state, see `TrailingRunStore.save_later`."""
        self.flush(synced=synced)
        if self._later is not None and not self.is_saved:
            self._later(self.state)

    def _save_state(self) -> None:
        # After a crash the records from the first open effect on are read again, to find what is open.
        count = min((self._open_at[path] for path in self.open_steps), default=self._count)
        variables = with_path(self.state.vars, [RUNTIME, RECORDS], count)
        state = self.state.moved(vars=variables, checked=True)
        offload = getattr(self._runs, "offloaded", None)
        self.state = state if offload is None else offload(state)
        self._runs.save(self.state)
        self.is_saved = self._is_in_ledger = True

    def _read_on(self, saved_state: RunState) -> tuple[RunState, dict[Path, OpenStep]]:
        checkpoint_count = self._count
        try:
            return self._read(saved_state)
        # A loss of power may have left a part of the records that were not synced.
        except LedgerBrokenError:
            if not mend_records(self._ledger, saved_state.run_id, synced_count=checkpoint_count):
                raise
            self._count = checkpoint_count
            return self._read(saved_state)

    def _read(self, saved_state: RunState) -> tuple[RunState, dict[Path, OpenStep]]:
        records: list[Any] = []
        while True:
            page, self._count = records_after(
                self._ledger, run_id=saved_state.run_id, after=self._count, limit=PAGE
            )
            records += page
            if len(page) < PAGE:
                break
        return fold_records(saved_state, records)


# By weak reference: otherwise the lock of each run that was ever driven would stay in memory.
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
        self._held_ids: set[str] = set()

    @contextmanager
    def hold(self, run_id: str, *, wait: bool = True) -> Iterator[bool]:
        """Hold the lock of a run. The context's value is True if this thread held it before.

        Raises:
            StoreBusyError: A driver in another process holds the lock for too long. If `wait` is false: any
                other driver holds the lock now.
        """
        # Before the lock of the store: this one is reentrant and guards `_held_ids`, so a nested hold is found.
        lock = run_mutation_lock(run_id)
        # Without `wait` at once: a caller that holds another run would wait for its driver, which may wait for
        # it.
        if not lock.acquire(blocking=wait):
            raise StoreBusyError(f"run {run_id}", 0.0)
        with ExitStack() as stack:
            stack.push(lock)
            if run_id in self._held_ids:
                yield True
                return
            if self._lock_of is not None:
                stack.enter_context(self._lock_of(run_id, wait=wait))
            self._held_ids.add(run_id)
            stack.callback(self._held_ids.remove, run_id)
            yield False
