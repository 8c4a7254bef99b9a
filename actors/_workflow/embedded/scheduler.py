"""A thread that executes runs whose timer is due and open runs that no other caller drives."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from actors._kernel.workflow.durable import new_id, utc_now_iso
from actors._kernel.workflow.effects import RunStatus, WaitReason
from actors._kernel.workflow.errors import StaleResumeError
from actors._kernel.workflow.run_state import RunState, open_waits
from actors._kernel.workflow.stores import PagedRunStore, QueryableRunStore
from actors._workflow.embedded.registry import WorkflowRegistry
from actors._workflow.embedded.runtime import WorkflowRuntime
from actors._workflow.machine.records import is_paused
from actors._workflow.machine.waits import subworkflow_key

_log = logging.getLogger("callboard.workflow")
_PAGE = 1000
_MOST_PAGES = 10
"""Number of pages of due runs, and of runs without a driver, that one poll reads."""


@dataclass(slots=True)
class SchedulerStats:
    """Counts since the scheduler was made.

    Attributes:
        poll_cycles: Number of polls of the store.
        runs_resumed: Number of runs that the scheduler executed.
        runs_failed: Number of executions that raised. Such runs are tried again.
        last_poll_at: The instant of the last poll, in ISO 8601 in UTC.
    """

    poll_cycles: int = 0
    runs_resumed: int = 0
    runs_failed: int = 0
    last_poll_at: str | None = None


class Scheduler:
    """Scheduler that executes waiting runs that are due, parents of ended children, and runs whose driver died.

    Args:
        runtime: The runtime. Its run store must be a `QueryableRunStore`.
        registry: The graphs by name. Runs of other graphs stay as they are.
        poll_interval_s: The pause between two polls of the store, in seconds.
        max_steps: Maximum number of nodes that are called for one run in one poll.
        on_run_resumed: Called with the state of each run that was executed.
        on_run_failed: Called with the id of each run whose execution raised, and the exception.
    """

    def __init__(
        self,
        *,
        runtime: WorkflowRuntime,
        registry: WorkflowRegistry,
        poll_interval_s: float = 1.0,
        max_steps: int = 100,
        on_run_resumed: Callable[[RunState], None] | None = None,
        on_run_failed: Callable[[str, Exception], None] | None = None,
    ) -> None:
        if not isinstance(runtime.run_store, QueryableRunStore):
            msg = f"a Scheduler needs a QueryableRunStore, not a {type(runtime.run_store).__name__}"
            raise TypeError(msg)
        self._runs: Any = runtime.run_store
        self._runtime, self._registry = runtime, registry
        self._interval_s, self._max_steps = poll_interval_s, max_steps
        self._on_resumed, self._on_failed = on_run_resumed, on_run_failed
        self._thread: threading.Thread | None = None
        self._end = threading.Event()
        self._after = dict.fromkeys(("due", "left", "parents"), "")
        self.stats: SchedulerStats = SchedulerStats()

    @property
    def is_running(self) -> bool:
        """True while the scheduler's thread runs."""
        return self._thread is not None and self._thread.is_alive()

    def start(self) -> None:
        """Start the scheduler's thread.

        Raises:
            RuntimeError: The thread runs already.
        """
        if self.is_running:
            raise RuntimeError("this scheduler is already running")
        self._end.clear()
        self._thread = threading.Thread(target=self._loop, name="workflow-scheduler", daemon=True)
        self._thread.start()

    def stop(self, timeout: float = 5.0) -> None:
        """Stop the thread after the run that it executes now; wait at most `timeout` seconds. Idempotent."""
        self._end.set()
        if self._thread is not None:
            self._thread.join(timeout)
        self._thread = None

    def poll_once(self) -> int:
        """Poll the store once; return the number of runs that were executed."""
        self.stats.poll_cycles += 1
        self.stats.last_poll_at = utc_now_iso()
        return sum(self._continue_run(run) for run in self._ready())

    def resume_event(
        self, *, run_id: str, wait_key: str | None, payload: Any, max_steps: int | None = None
    ) -> RunState:
        """Answer the wait of a run and execute the run; see `WorkflowRuntime.resume`."""
        state = self._runtime.get_state(run_id)
        spec = self._registry.get_or_raise(state.workflow_id)
        steps = self._max_steps if max_steps is None else max_steps
        new_state = self._runtime.resume(spec, run_id, wait_key, payload, steps)
        if new_state.status.is_terminal:
            self.resume_subworkflow_parent(child_run_id=run_id)
        return new_state

    def emit_event(
        self, *, name: str, payload: Any = None, event_id: str | None = None, **scope: str
    ) -> list[RunState]:
        """Answer all waits for an event and execute their runs; see `WorkflowRuntime.emit_event`."""
        report = self._runtime.emit_event(name, payload, event_id=event_id or new_id(), **scope)
        for run_id in report["resumed"]:
            self._continue_run(self._runtime.get_state(run_id))
        return [self._runtime.get_state(run_id) for run_id in report["resumed"]]

    def resume_subworkflow_parent(
        self, *, child_run_id: str, child_output: Any = None
    ) -> RunState | None:
        """Execute the run that waits for the end of this run, and the runs above it.

        Return the state of the waiting run, or None if no run waits for this run. `child_output` is ignored,
        since the store has the output.
        """
        del child_output
        child = self._runtime.get_state(child_run_id)
        parent = self._runs.load(child.parent_run_id) if child.parent_run_id else None
        waits = [] if parent is None else open_waits(parent)
        key = subworkflow_key(child_run_id)
        if parent is None or key not in {wait.wait_key for wait in waits}:
            return None
        if not self._continue_run(parent):
            return None
        self.resume_subworkflow_parent(child_run_id=parent.run_id)
        return self._runtime.get_state(parent.run_id)

    def find_waiting_runs(
        self, *, wait_reason: WaitReason | None = None, limit: int = 100
    ) -> list[RunState]:
        """Return waiting runs, the last updated first."""
        runs: list[RunState] = self._runs.list_runs(
            status=RunStatus.WAITING, wait_reason=wait_reason, limit=limit
        )
        return runs

    def _ready(self) -> list[RunState]:
        now_iso = self._runtime.now()
        due_runs = self._runs.list_due_wait_until(now_iso=now_iso, limit=_PAGE)
        parents = self.find_waiting_runs(wait_reason=WaitReason.SUBWORKFLOW, limit=_PAGE)
        running = self._runs.list_runs(status=RunStatus.RUNNING, limit=_PAGE)
        # A full page may have only runs that are paused, of unknown graphs, or without news: these stay on it.
        if len(due_runs) == _PAGE:
            due_runs += self._more("due", _MOST_PAGES, due_by=now_iso)
        if len(running) == _PAGE:
            running += self._more("left", _MOST_PAGES, status=RunStatus.RUNNING)
        if len(parents) == _PAGE:
            reason = WaitReason.SUBWORKFLOW
            parents += self._more("parents", 1, status=RunStatus.WAITING, wait_reason=reason)
        runs_by_id = {run.run_id: run for run in (*running, *due_runs)}
        runs_by_id |= {run.run_id: run for run in parents if self._has_news(run)}
        return [run for run in runs_by_id.values() if not is_paused(run)]

    def _more(self, name: str, pages: int, **choice: Any) -> list[RunState]:
        """Return the next pages of runs, so that a few polls come to all; empty if the store has no pages."""
        runs: list[RunState] = []
        if isinstance(self._runs, PagedRunStore):
            for _ in range(pages):
                page = self._runs.list_page(after=self._after[name], limit=_PAGE, **choice)
                runs += page
                self._after[name] = page[-1].run_id if len(page) == _PAGE else ""
                if not self._after[name]:
                    break
        return runs

    def _has_news(self, parent: RunState) -> bool:
        for wait in open_waits(parent):
            if wait.reason is WaitReason.SUBWORKFLOW:
                child = self._runs.load(str((wait.details or {}).get("sub_run_id")))
                if child is None or child.status.is_terminal:
                    return True
        return False

    def _continue_run(self, run: RunState) -> int:
        spec = self._registry.get(run.workflow_id)
        if spec is None:
            return 0
        try:
            state = self._runtime.try_tick(spec, run.run_id, self._max_steps)
        except StaleResumeError:
            # This thread drives the run already, for example if a handler of the run polls.
            return 0
        # One run that cannot be executed must not stop the others. It is tried again at the next poll.
        except Exception as exc:  # noqa: BLE001 - the error is logged
            _log.exception("the scheduler failed to execute a run", extra={"run": run.run_id})
            self.stats.runs_failed += 1
            if self._on_failed is not None:
                self._on_failed(run.run_id, exc)
            return 0
        if state is None:
            return 0
        self.stats.runs_resumed += 1
        if self._on_resumed is not None:
            self._on_resumed(state)
        return 1

    def _loop(self) -> None:
        while not self._end.wait(self._interval_s):
            try:
                self.poll_once()
            # The thread must not end: the store may be reachable at the next poll.
            except Exception:  # noqa: BLE001 - the error is logged
                _log.exception("the scheduler failed to poll the store")
