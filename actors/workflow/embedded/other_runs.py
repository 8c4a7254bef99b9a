"""The effects of a graph that touch other runs: START_SUBWORKFLOW and EMIT_EVENT."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, Protocol

from actors.errors import ContractError
from actors.kernel.workflow.effects import EffectOutcome, EffectType, RunStatus, WaitReason
from actors.kernel.workflow.errors import GraphError
from actors.kernel.workflow.run_state import RunState, event_keys
from actors.kernel.workflow.stores import EventWaitStore, QueryableRunStore
from actors.workflow.machine.records import OpenStep, Transition
from actors.workflow.machine.spec import WorkflowSpec, event_from, key_of_payload
from actors.workflow.machine.starting import child_id, child_vars
from actors.workflow.machine.waits import heard, waiting_for

MOST_LISTENERS: Final = 100_000
CHILD_STEPS: Final = 1000
MOST_INNER: Final = 6
"""Number of waits within each other that the wait of a parent shows. A checkpoint takes 96 levels at most."""


class GraphLookup(Protocol):
    """Graphs by name."""

    def get(self, workflow_id: str) -> WorkflowSpec | None:
        """Return a graph; None: there is none of this name."""


class Starter(Protocol):
    """The parts of the runtime that these effects need."""

    def start(
        self,
        workflow: WorkflowSpec,
        *,
        vars: dict[str, Any] | None = None,  # noqa: A002
        actor_id: str | None = None,
        session_id: str | None = None,
        parent_run_id: str | None = None,
        run_id: str | None = None,
    ) -> str:
        """See `WorkflowRuntime.start`."""

    def tick(self, workflow: WorkflowSpec, run_id: str, max_steps: int = 100) -> RunState:
        """See `WorkflowRuntime.tick`."""

    def now(self) -> str:
        """See `WorkflowRuntime.now`."""


class Change(Protocol):
    """The runtime's method that changes a run from outside."""

    def __call__(
        self, run_id: str, decide: Callable[[RunState], Transition | None], *, wait: bool = True
    ) -> bool:
        """Record durably the transition that `decide` returns for a run; return True if it returned one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunEffects:
    """The effects START_SUBWORKFLOW and EMIT_EVENT.

    Attributes:
        runtime: The runtime that starts and drives children.
        runs: The store of the runs.
        registry: Function that returns the registry of graphs, or None.
        change: See `Change`.
    """

    runtime: Starter
    runs: Any
    registry: Callable[[], GraphLookup | None]
    change: Change

    def outcome(self, run: RunState, opened: OpenStep) -> EffectOutcome:
        """See `OtherRuns.outcome`."""
        try:
            if opened.effect.type is EffectType.EMIT_EVENT:
                return self._emitted(run, opened)
            return self._begun(run, opened)
        except ContractError as exc:
            return EffectOutcome.failed(str(exc), retryable=False)

    def child_of(self, run: RunState) -> RunState | None:
        """See `OtherRuns.child_of`."""
        details = (run.waiting.details if run.waiting else None) or {}
        child: RunState | None = self.runs.load(str(details.get("sub_run_id")))
        if child is None or child.status.is_terminal:
            return child
        spec = self._spec(child.workflow_id)
        if spec is None or details.get("async"):
            return child
        return self.runtime.tick(workflow=spec, run_id=child.run_id, max_steps=CHILD_STEPS)

    def emit(self, run: RunState, payload: dict[str, Any], event_id: str) -> dict[str, Any]:
        """Answer all waits for an event; return the report, which names the resumed runs.

        Raises:
            GraphError: The event has no name, its scope does not exist, or the store cannot list the waiting
                runs.
        """
        if not isinstance(self.runs, QueryableRunStore):
            raise GraphError("emit_event", "the run store must be a QueryableRunStore")
        key = key_of_payload(run, payload)
        event = event_from(payload, event_id, run.run_id)
        listeners = self._waiting_for(key)
        if listeners and self.registry() is None:
            raise GraphError(
                "emit_event",
                f"{len(listeners)} runs wait, but the runtime has no workflow_registry",
            )

        def answered(state: RunState) -> Transition | None:
            return heard(state, key, event, at=self.runtime.now())

        resumed = [one.run_id for one in listeners if self.change(one.run_id, answered)]
        told: dict[str, Any] = {
            "event_id": event_id,
            "wait_key": key,
            "delivered": len(resumed),
            "resumed": resumed,
        }
        if not resumed:
            told["available_listeners_in_session"] = self._names_in_session(key)
        return told

    def _emitted(self, run: RunState, opened: OpenStep) -> EffectOutcome:
        payload = opened.effect.payload
        event_id = str(payload.get("event_id") or payload.get("id") or opened.key)
        return EffectOutcome.completed(self.emit(run, payload, event_id))

    def _waiting_for(self, key: str) -> list[RunState]:
        if isinstance(self.runs, EventWaitStore):
            return self.runs.list_event_waiters(wait_keys=[key], limit=MOST_LISTENERS)
        found: list[RunState] = self.runs.list_runs(
            status=RunStatus.WAITING, wait_reason=WaitReason.EVENT, limit=MOST_LISTENERS
        )
        return [one for one in found if key in event_keys(one)]

    def _names_in_session(self, key: str) -> list[str]:
        """Return the names of the scope's events that runs wait for, as a help to find a misspelt name."""
        prefix = key.rpartition(":")[0] + ":"
        found = self.runs.list_runs(
            status=RunStatus.WAITING, wait_reason=WaitReason.EVENT, limit=200
        )
        keys = {key for one in found for key in event_keys(one)}
        return sorted(one.removeprefix(prefix) for one in keys if one.startswith(prefix))

    def _begun(self, run: RunState, opened: OpenStep) -> EffectOutcome:
        payload = opened.effect.payload
        spec = self._spec_of(payload)
        variables = child_vars(run, payload)
        name = self.runtime.start(
            workflow=spec,
            vars=variables,
            run_id=str(payload.get("run_id") or child_id(run, opened)),
            actor_id=run.actor_id,
            session_id=payload.get("session_id") or run.session_id,
            parent_run_id=run.run_id,
        )
        if payload.get("async"):
            if payload.get("wait"):
                return waiting_for(spec.workflow_id, name, {"async": True})
            return EffectOutcome.completed({"sub_run_id": name, "async": True})
        child = self.runtime.tick(workflow=spec, run_id=name, max_steps=CHILD_STEPS)
        if child.status is RunStatus.COMPLETED:
            return EffectOutcome.completed({"sub_run_id": name, "output": child.output})
        if child.status.is_terminal:
            problem = (
                f"subworkflow {spec.workflow_id!r} (run {name}) {child.status.value}: {child.error}"
            )
            return EffectOutcome.failed(problem, retryable=False)
        wait = None if child.waiting is None else _inner(child.waiting.to_dict(), MOST_INNER)
        return waiting_for(spec.workflow_id, name, {"sub_waiting": wait})

    def _spec_of(self, payload: dict[str, Any]) -> WorkflowSpec:
        name = payload.get("workflow_id")
        if not name:
            raise GraphError("start_subworkflow", "it needs payload.workflow_id")
        if self.registry() is None:
            raise GraphError(
                "start_subworkflow", "the runtime has no workflow_registry. Pass one to it"
            )
        spec = self._spec(str(name))
        if spec is None:
            raise GraphError("start_subworkflow", f"graph {name!r} was not found in the registry")
        return spec

    def _spec(self, workflow_id: str) -> WorkflowSpec | None:
        registry = self.registry()
        return None if registry is None else registry.get(workflow_id)


def _inner(wait: Any, levels: int) -> Any:
    """Return a wait with the waits within it down to a level; None stands for the deeper ones."""
    details = wait.get("details") if isinstance(wait, dict) else None
    if not isinstance(details, dict) or details.get("sub_waiting") is None:
        return wait
    below = _inner(details["sub_waiting"], levels - 1) if levels else None
    return {**wait, "details": {**details, "sub_waiting": below}}
