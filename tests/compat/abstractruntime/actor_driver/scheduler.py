"""The source's `Scheduler` and `ScheduledRuntime` over the actor driver: a host does what they do."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NoReturn

from actors.workflow import (
    RunState,
    RunStatus,
    StaleResumeError,
    WaitReason,
    WorkflowRegistry,
    WorkflowSpec,
    open_waits,
)
from tests.compat.abstractruntime.actor_driver.runtime import Runtime
from tests.compat.abstractruntime.actor_driver.views import (
    InMemoryLedgerStore,
    InMemoryRunStore,
    NotApplicableError,
)


class Scheduler:
    """Answers runs and lists them. It has no loop and no counts: runs go on by themselves where a host is."""

    def __init__(self, *, runtime: Runtime, registry: WorkflowRegistry, **more: Any) -> None:
        del more
        self._runtime, self._registry = runtime, registry
        runtime.workflow_registry = registry

    def resume_event(self, *, run_id: str, wait_key: str | None, payload: Any) -> RunState:
        """Answer the wait of a run."""
        spec = self._registry.get_or_raise(self._runtime.get_state(run_id).workflow_id)
        return self._runtime.resume(spec, run_id, wait_key, payload)

    def resume_subworkflow_parent(
        self, *, child_run_id: str, child_output: Any = None
    ) -> RunState | None:
        """Let a host go on with the run above; it does so by itself."""
        del child_output
        above = self._runtime.get_state(child_run_id).parent_run_id
        return None if above is None else self._runtime.hosted(above)

    def find_waiting_runs(
        self, *, wait_reason: WaitReason | None = None, limit: int = 100
    ) -> list[RunState]:
        """Return waiting runs."""
        runs = [run for run in self._runtime.list_runs() if run.status is RunStatus.WAITING]
        reasons = [{wait.reason for wait in open_waits(run)} for run in runs]
        both = zip(runs, reasons, strict=True)
        return [run for run, why in both if wait_reason is None or wait_reason in why][:limit]

    def __getattr__(self, name: str) -> NoReturn:
        raise NotApplicableError(f"a host has no scheduler: nothing of it is {name}")


class ScheduledRuntime:
    """A runtime and its scheduler as one."""

    def __init__(
        self, *, runtime: Runtime, registry: WorkflowRegistry, scheduler: Scheduler
    ) -> None:
        self.runtime, self.registry, self.scheduler = runtime, registry, scheduler

    def run(self, workflow: WorkflowSpec, **more: Any) -> tuple[str, RunState]:
        """Start a run and go on with it."""
        run_id = self.start(workflow, **more)
        return run_id, self.tick(run_id)

    def start(self, workflow: WorkflowSpec, **more: Any) -> str:
        """Start a run."""
        if workflow.workflow_id not in self.registry:
            self.registry.register(workflow)
        return self.runtime.start(workflow, **more)

    def tick(self, run_id: str) -> RunState:
        """Go on with a run."""
        return self.runtime.hosted(run_id)

    def respond(self, run_id: str, payload: Any) -> RunState:
        """Answer what a run waits for."""
        waits = open_waits(self.runtime.get_state(run_id))
        if not waits:
            raise StaleResumeError(run_id, "Run is not waiting")
        return self.resume_event(run_id=run_id, wait_key=waits[0].wait_key, payload=payload)

    def resume_event(self, *, run_id: str, wait_key: str | None, payload: Any) -> RunState:
        """Answer the wait of a run."""
        return self.scheduler.resume_event(run_id=run_id, wait_key=wait_key, payload=payload)

    def resume_subworkflow_parent(self, **arguments: Any) -> RunState | None:
        """Go on with the run above."""
        return self.scheduler.resume_subworkflow_parent(**arguments)

    def cancel_with_children(self, run_id: str, reason: str | None = None) -> list[RunState]:
        """Cancel a run and all that it started."""
        return self.runtime.cancel_tree(run_id, reason)

    def find_waiting_runs(self, **arguments: Any) -> list[RunState]:
        """Return waiting runs."""
        return self.scheduler.find_waiting_runs(**arguments)

    def get_state(self, run_id: str) -> RunState:
        """Return a run."""
        return self.runtime.get_state(run_id)

    def get_ledger(self, run_id: str) -> list[dict[str, Any]]:
        """Return its records."""
        return self.runtime.get_ledger(run_id)

    def __getattr__(self, name: str) -> NoReturn:
        raise NotApplicableError(f"a host has no scheduler: nothing of it is {name}")


def create_scheduled_runtime(
    *,
    run_store: Any = None,
    ledger_store: Any = None,
    workflows: Iterable[WorkflowSpec] = (),
    auto_start: bool = True,
    **more: Any,
) -> ScheduledRuntime:
    """Return a runtime with its scheduler. `auto_start` is nothing here: hosts come with calls."""
    del auto_start
    registry = WorkflowRegistry()
    for workflow in workflows:
        registry.register(workflow)
    runtime = Runtime(
        run_store=run_store or InMemoryRunStore(),
        ledger_store=ledger_store or InMemoryLedgerStore(),
        workflow_registry=registry,
        **more,
    )
    scheduler = Scheduler(runtime=runtime, registry=registry)
    return ScheduledRuntime(runtime=runtime, registry=registry, scheduler=scheduler)
