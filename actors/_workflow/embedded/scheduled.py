"""A runtime together with its scheduler."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from actors._kernel.workflow.effects import EffectType, WaitReason, WaitState
from actors._kernel.workflow.errors import StaleResumeError
from actors._kernel.workflow.run_state import RunState, open_waits
from actors._kernel.workflow.stores import LedgerStore, RunStore
from actors._workflow.embedded.registry import WorkflowRegistry
from actors._workflow.embedded.runtime import WorkflowRuntime
from actors._workflow.embedded.scheduler import Scheduler
from actors._workflow.embedded.stores.in_memory import InMemoryLedgerStore, InMemoryRunStore
from actors._workflow.embedded.stores.ledgers import ObservableLedgerStore
from actors._workflow.handlers import Handler
from actors._workflow.machine.spec import EffectPolicy, WorkflowSpec


class ScheduledRuntime:
    """A runtime, a registry and a scheduler as one object.

    Args:
        runtime: The runtime that starts and drives runs.
        registry: The graphs by name. `run` and `start` register their graph.
        scheduler: The scheduler that continues waiting runs.
    """

    runtime: WorkflowRuntime
    registry: WorkflowRegistry
    scheduler: Scheduler

    def __init__(
        self, *, runtime: WorkflowRuntime, registry: WorkflowRegistry, scheduler: Scheduler
    ) -> None:
        self.runtime, self.registry, self.scheduler = runtime, registry, scheduler

    @property
    def is_running(self) -> bool:
        """True while the scheduler's thread runs."""
        return self.scheduler.is_running

    def run(
        self, workflow: WorkflowSpec, *, max_steps: int = 100, **more: Any
    ) -> tuple[str, RunState]:
        """Start a run and execute it until it waits or ends.

        `more` are arguments of `WorkflowRuntime.start`.
        """
        run_id = self.start(workflow, **more)
        return run_id, self.tick(run_id, max_steps=max_steps)

    def start(self, workflow: WorkflowSpec, **more: Any) -> str:
        """Start a run; see `WorkflowRuntime.start`."""
        if workflow.workflow_id not in self.registry:
            self.registry.register(workflow)
        return self.runtime.start(workflow, **more)

    def tick(self, run_id: str, *, max_steps: int = 100) -> RunState:
        """Execute a run; see `WorkflowRuntime.tick`."""
        spec = self.registry.get_or_raise(self.runtime.get_state(run_id).workflow_id)
        return self.runtime.tick(spec, run_id, max_steps)

    def respond(self, run_id: str, payload: Any, *, max_steps: int = 100) -> RunState:
        """Answer a wait of a run, or of a run below it for which it waits; return the state of the run itself.

        If several branches wait, the first wait for a person is answered. If no branch waits for a person, the
        first wait is answered.

        Raises:
            StaleResumeError: The run does not wait.
        """
        run_waits = [*self._asking_waits(run_id)]
        if not run_waits:
            raise StaleResumeError(run_id, "Run is not waiting")
        user_waits = [pair for pair in run_waits if pair[1].reason is WaitReason.USER]
        asking_run_id, wait = (user_waits or run_waits)[0]
        self.scheduler.resume_event(
            run_id=asking_run_id, wait_key=wait.wait_key, payload=payload, max_steps=max_steps
        )
        return self.runtime.get_state(run_id)

    def resume_event(self, *, run_id: str, wait_key: str, payload: Any) -> RunState:
        """Answer the wait of a run; see `Scheduler.resume_event`."""
        return self.scheduler.resume_event(run_id=run_id, wait_key=wait_key, payload=payload)

    def resume_subworkflow_parent(
        self, *, child_run_id: str, child_output: Any = None
    ) -> RunState | None:
        """Execute the parent of a run that has ended; see `Scheduler.resume_subworkflow_parent`."""
        return self.scheduler.resume_subworkflow_parent(
            child_run_id=child_run_id, child_output=child_output
        )

    def cancel_with_children(self, run_id: str, reason: str | None = None) -> list[RunState]:
        """Cancel a run and all runs below it; return their states."""
        return self.runtime.cancel_tree(run_id, reason)

    def find_waiting_runs(
        self, *, wait_reason: WaitReason | None = None, limit: int = 100
    ) -> list[RunState]:
        """Return waiting runs; see `Scheduler.find_waiting_runs`."""
        return self.scheduler.find_waiting_runs(wait_reason=wait_reason, limit=limit)

    def get_state(self, run_id: str) -> RunState:
        """Return the last checkpoint of a run."""
        return self.runtime.get_state(run_id)

    def get_ledger(self, run_id: str) -> list[dict[str, Any]]:
        """Return all records of a run."""
        return self.runtime.get_ledger(run_id)

    def stop(self) -> None:
        """Stop the scheduler's thread. Idempotent."""
        self.scheduler.stop()

    def _asking_waits(self, run_id: str) -> Iterator[tuple[str, WaitState]]:
        for wait in open_waits(self.runtime.get_state(run_id)):
            if wait.reason is WaitReason.SUBWORKFLOW:
                yield from self._asking_waits(str((wait.details or {}).get("sub_run_id")))
            else:
                yield run_id, wait


def create_scheduled_runtime(
    *,
    run_store: RunStore | None = None,
    ledger_store: LedgerStore | None = None,
    workflows: Iterable[WorkflowSpec] = (),
    effect_handlers: Mapping[EffectType, Handler] | None = None,
    effect_policy: EffectPolicy | None = None,
    artifact_store: Any = None,
    poll_interval_s: float = 1.0,
    auto_start: bool = True,
    **more: Any,
) -> ScheduledRuntime:
    """Return a runtime with its scheduler. Without given stores, its data is in memory.

    The scheduler's thread is started unless `auto_start` is False. `more` are arguments of `WorkflowRuntime`.
    """
    registry = WorkflowRegistry()
    for workflow in workflows:
        registry.register(workflow)
    runtime = WorkflowRuntime(
        run_store=InMemoryRunStore() if run_store is None else run_store,
        ledger_store=ObservableLedgerStore(InMemoryLedgerStore())
        if ledger_store is None
        else ledger_store,
        effect_handlers=effect_handlers,
        effect_policy=effect_policy,
        workflow_registry=registry,
        artifact_store=artifact_store,
        **more,
    )
    scheduler = Scheduler(runtime=runtime, registry=registry, poll_interval_s=poll_interval_s)
    if auto_start:
        scheduler.start()
    return ScheduledRuntime(runtime=runtime, registry=registry, scheduler=scheduler)
