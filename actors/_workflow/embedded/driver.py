"""The loop of one run. It calls nodes, executes effects, appends records and saves checkpoints.

Two effects touch other runs: START_SUBWORKFLOW and EMIT_EVENT.

A wish is a request to pause, continue or cancel a run. The thread that drives the run applies it between two
steps.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import defaultdict
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, Literal, Protocol

from actors._kernel.basics import Clock
from actors._kernel.runtime.effects import EffectMode
from actors._kernel.workflow.effects import EffectOutcome, EffectType, RunStatus, WaitReason
from actors._kernel.workflow.errors import GraphError
from actors._kernel.workflow.run_state import RunState, event_keys, open_wait
from actors._kernel.workflow.stores import EventWaitStore, Fault, QueryableRunStore, RunStore
from actors._workflow.embedded.held_run import HeldRun
from actors._workflow.handlers import EffectHandlers
from actors._workflow.machine import attempts, records, waits
from actors._workflow.machine.branches import (
    Leaf,
    Path,
    find_branch_state,
    join_branches,
    keys_beside,
    leaves,
)
from actors._workflow.machine.plans import LoopWatch, NodeContext, call_node, fail_endless_loop
from actors._workflow.machine.records import (
    CONTROL,
    OpenStep,
    Transition,
    is_paused,
    seen_by_handler,
)
from actors._workflow.machine.spec import EffectPolicy, WorkflowSpec, event_from, key_of_payload
from actors._workflow.machine.starting import child_id, child_vars
from actors._workflow.machine.variables import RUNTIME
from actors._workflow.machine.waits import deliver_event, outcome_of, waiting_for
from actors._workflow.notes.effects import MEMORY_EFFECTS, MemoryEffects
from actors.errors import ContractError, EffectDidNotHappen

_log = logging.getLogger("callboard.workflow")
TRAILS_S: Final = 1.0
"""Seconds by which the written checkpoint of a run that executes may be behind its ledger."""
MOST_LISTENERS: Final = 100_000
CHILD_STEPS: Final = 1000
MOST_INNER: Final = 6
"""Number of waits within each other that the wait of a parent shows. A checkpoint takes 96 levels at most."""


@dataclass(slots=True, kw_only=True)
class Driver:
    """The driver of runs in this process.

    Attributes:
        runs: The store of checkpoints.
        clock: The clock.
        policy: The policy that decides the number of attempts of effects.
        handlers: The host's handlers.
        wishes: The wishes for the runs that are driven.
        context: The context that nodes get.
        sleep: The function that waits until the next attempt. It gets seconds. `time.sleep` if it is None.
        fault: A hook of tests.
        run_effects: The effects that touch other runs.
        memory: The effects of memory.
    """

    runs: RunStore
    clock: Clock
    policy: EffectPolicy
    handlers: EffectHandlers
    wishes: Wishes
    context: NodeContext
    sleep: Callable[[float], None] | None
    fault: Fault
    run_effects: RunEffects
    memory: MemoryEffects

    def now(self) -> str:
        """Return the instant in ISO 8601, in UTC."""
        return self.clock.now().isoformat()

    def drive(
        self, spec: WorkflowSpec, held_run: HeldRun, max_steps: int, gate: Callable[[], bool] | None
    ) -> None:
        """Execute a run until it waits, ends, is paused, or `max_steps` nodes were called; then save it.

        Its branches are executed alternately. A branch executes until an effect of it was tried, or it waits or
        ends.
        """
        watch, steps = LoopWatch(), 0
        if held_run.is_saved:
            held_run.saved_at = self.clock.monotonic()
        last_path: Path = ()
        while self._may_continue(held_run, gate):
            leaf = self._next(held_run, last_path)
            if leaf is None:
                if not self._wake(held_run):
                    break
                continue
            path = leaf.path
            if path not in held_run.open_steps and leaf.wait is None and not leaf.joins:
                if steps >= max_steps:
                    break
                steps += 1
            if not self._execute_step(spec, held_run, leaf):
                branch_state = find_branch_state(held_run.state, path)
                if branch_state is not None and watch.is_endless(branch_state):
                    held_run.take_at(path, fail_endless_loop(branch_state, at=self.now()))
                continue
            watch.forget()
            last_path = path
        self._save(held_run)

    def _next(self, held_run: HeldRun, last_path: Path) -> Leaf | None:
        """Return the next branch after `last_path` that can execute now, or None if no branch can."""
        if held_run.state.fork is None:
            leaf = Leaf((), open_wait(held_run.state))
            return leaf if self._is_able(held_run, leaf) else None
        cursors = [*leaves(held_run.state)]
        start = next(
            (index + 1 for index, cursor in enumerate(cursors) if cursor.path == last_path), 0
        )
        turns = (*cursors[start:], *cursors[:start])
        return next((cursor for cursor in turns if self._is_able(held_run, cursor)), None)

    def _is_able(self, held_run: HeldRun, leaf: Leaf) -> bool:
        if leaf.wait is not None:
            return leaf.wait.until is not None and leaf.wait.until <= self.now()
        open_step = held_run.open_steps.get(leaf.path)
        return open_step is None or open_step.due is None or open_step.due <= self.now()

    def _execute_step(self, spec: WorkflowSpec, held_run: HeldRun, leaf: Leaf) -> bool:
        """Execute one step of a branch; return True if the step was more than the call of a node."""
        path, branch_state = leaf.path, held_run.branch_state(leaf.path)
        if leaf.wait is not None:
            transition = waits.fell_due(branch_state, at=self.now())
            assert transition is not None
            held_run.take_at(path, transition)
            self._save(held_run)  # a poll for due runs does not find the run any more
            return True
        if leaf.joins:
            held_run.take_at(path, join_branches(spec, branch_state, at=self.now()))
            return False
        if path not in held_run.open_steps:
            held_run.take_at(path, call_node(spec, branch_state, self.context, self.now))
            if path not in held_run.open_steps:
                return False
        open_step = held_run.open_steps[path]
        self._try(held_run, path)
        if path not in held_run.open_steps:
            # Without a sync a loss of power would leave an at-most-once effect in doubt.
            self._commit(held_run, synced=open_step.effect.mode is EffectMode.AT_MOST_ONCE)
        return True

    def grant(self, held_run: HeldRun) -> bool:
        """Apply the wishes for a run between two of its steps; return True if there were any."""
        wishes = self.wishes.take(held_run.state.run_id)
        for wish in wishes:
            held_run.take(self._apply_wish(held_run.state, wish))
        return bool(wishes)

    def grant_all(self, held_run: HeldRun) -> None:
        """Apply all wishes durably, including wishes that ledger subscribers make during a save."""
        while self.grant(held_run):
            held_run.save()

    def _apply_wish(self, state: RunState, wish: Wish) -> Transition:
        if wish.kind == "cancel":
            return records.cancelled(state, wish.reason, wish.by, at=self.now())
        is_pause = wish.kind == "pause"
        if state.status.is_terminal or is_paused(state) is is_pause:
            return Transition(state)
        value = {"paused": is_pause, "reason": wish.reason, "at": self.now()}
        return records.note_value(state, wish.kind, [RUNTIME, CONTROL], value, at=self.now())

    def _may_continue(self, held_run: HeldRun, gate: Callable[[], bool] | None) -> bool:
        self.grant(held_run)
        # The step gate decides between two steps. An effect that has started is within a step, and so are its
        # next attempts.
        gate = None if held_run.open_steps else gate
        if held_run.state.status.is_terminal or is_paused(held_run.state):
            return False
        try:
            return gate is None or bool(gate())
        # A step gate is a host's function and may raise anything. The run continues as if there were none.
        except Exception:  # noqa: BLE001 - the error is logged
            _log.exception("a step gate raised an error", extra={"run": held_run.state.run_id})
            return True

    def _wake(self, held_run: HeldRun) -> bool:
        """End a wait for a child that ended, or wait until the next attempt is due.

        Return False if there is neither.
        """
        for leaf in leaves(held_run.state):
            if leaf.wait is not None and leaf.wait.reason is WaitReason.SUBWORKFLOW:
                branch_state = held_run.branch_state(leaf.path)
                transition = waits.child_ended(
                    branch_state, self.run_effects.child_of(branch_state), at=self.now()
                )
                if transition is not None:
                    held_run.take_at(leaf.path, transition)
                    self._save(held_run)
                    return True
        due_attempts = [
            (open_step.due, path)
            for path, open_step in held_run.open_steps.items()
            if open_step.due is not None
        ]
        if not due_attempts:
            return False
        # The failed attempts have to be durable before a pause that may take minutes.
        held_run.flush()
        due_at, path = min(due_attempts)
        wait_s = (datetime.fromisoformat(due_at) - self.clock.now()).total_seconds()
        if wait_s > 0:
            (self.sleep or time.sleep)(wait_s)
        # A pause or a cancel may have come during the sleep.
        self.grant(held_run)
        if path in held_run.open_steps and not is_paused(held_run.state):
            next_attempt = attempts.begin_next_attempt(
                held_run.branch_state(path), held_run.open_steps[path], at=self.now()
            )
            held_run.take_at(path, next_attempt)
        return True

    def _try(self, held_run: HeldRun, path: Path) -> None:
        """Make one attempt of the open effect of a branch."""
        open_step, branch_state = held_run.open_steps[path], held_run.branch_state(path)
        is_in_doubt = open_step.due is None and open_step.effect.mode is EffectMode.AT_MOST_ONCE
        if path in held_run.recovered_paths and is_in_doubt:
            with suppress(EffectDidNotHappen):
                reconciled_outcome = self.handlers.reconcile_effect(
                    seen_by_handler(branch_state, open_step), open_step
                )
                held_run.take_at(path, self._decide(held_run, path, open_step, reconciled_outcome))
                return
        if open_step.due is not None:
            held_run.take_at(
                path, attempts.begin_next_attempt(branch_state, open_step, at=self.now())
            )
            open_step = held_run.open_steps[path]
        # The start is durable before the handler is called. If a crash during the handler lost it, the node
        # would be called again, and might ask for an effect with another key.
        held_run.flush()
        self.fault("started")
        outcome = self._execute_effect(branch_state, open_step)
        self.fault("executed")
        held_run.take_at(path, self._decide(held_run, path, open_step, outcome))
        # Another attempt follows: the record has to be durable, but no checkpoint.
        if path in held_run.open_steps:
            held_run.flush()
            self.fault("ended")

    def _decide(
        self, held_run: HeldRun, path: Path, open_step: OpenStep, outcome: Any
    ) -> Transition:
        state, wish = held_run.branch_state(path), self.wishes.find_cancel(held_run.state.run_id)
        if wish is None:
            used_keys = keys_beside(held_run.state, path)
            return attempts.apply_outcome(
                state, open_step, outcome, self.policy, at=self.now(), used_keys=used_keys
            )
        cancellation = {"cancelled_by": wish.by, "reason": wish.reason}
        return attempts.aborted(state, open_step, outcome, cancellation, at=self.now())

    def _execute_effect(self, state: RunState, open_step: OpenStep) -> Any:
        """Return the outcome of one attempt, from the host's handler if there is one, else from a built-in."""
        run_copy = seen_by_handler(state, open_step)
        kind = open_step.effect.type
        if kind not in self.handlers:
            answer = outcome_of(run_copy, open_step, self.now())
            if answer is not None:
                return answer
            if kind in {EffectType.EMIT_EVENT, EffectType.START_SUBWORKFLOW}:
                return self.run_effects.outcome(run_copy, open_step)
            if kind in MEMORY_EFFECTS:
                return self.memory.outcome(run_copy, open_step, self.now())
        answer = self.handlers.call(run_copy, open_step.effect, open_step.next_node)
        return self.memory.evidenced(answer, run_copy, open_step, self.now)

    def _commit(self, held_run: HeldRun, *, synced: bool) -> None:
        """Write the records of a step, and its checkpoint unless that may be written a little later.

        Records without a checkpoint and not `synced` are synced before the next effect starts.
        """
        now = self.clock.monotonic()
        if held_run.may_trail and now < held_run.saved_at + TRAILS_S:
            held_run.save_later(synced=synced)
            self.fault("ended")
            return
        self._save(held_run)
        held_run.saved_at = now

    def _save(self, held_run: HeldRun) -> None:
        if not held_run.groups:
            held_run.flush()
            self.fault("ended")
        held_run.save()
        self.fault("saved")


@dataclass(frozen=True, slots=True, kw_only=True)
class RunEffects:
    """The effects START_SUBWORKFLOW and EMIT_EVENT.

    Attributes:
        runtime: The runtime that starts and drives children.
        runs: The store of the runs.
        registry: Function that returns the registry of graphs, or None.
        change: The runtime's method that changes a run from outside.
    """

    runtime: Starter
    runs: Any
    registry: Callable[[], GraphLookup | None]
    change: Change

    def outcome(self, run: RunState, open_step: OpenStep) -> EffectOutcome:
        """Return the outcome of EMIT_EVENT or START_SUBWORKFLOW."""
        try:
            if open_step.effect.type is EffectType.EMIT_EVENT:
                payload = open_step.effect.payload
                event_id = str(payload.get("event_id") or payload.get("id") or open_step.key)
                return EffectOutcome.completed(self.emit(run, payload, event_id))
            return self._start_child(run, open_step)
        except ContractError as exc:
            return EffectOutcome.failed(str(exc), retryable=False)

    def child_of(self, run: RunState) -> RunState | None:
        """Drive the child that the run waits for as far as possible; return it.

        Return None if it does not exist any more.
        """
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

        def answer(state: RunState) -> Transition | None:
            return deliver_event(state, key, event, at=self.runtime.now())

        resumed_ids = [
            listener.run_id for listener in listeners if self.change(listener.run_id, answer)
        ]
        report: dict[str, Any] = {
            "event_id": event_id,
            "wait_key": key,
            "delivered": len(resumed_ids),
            "resumed": resumed_ids,
        }
        if not resumed_ids:
            report["available_listeners_in_session"] = self._names_in_session(key)
        return report

    def _waiting_for(self, key: str) -> list[RunState]:
        if isinstance(self.runs, EventWaitStore):
            return self.runs.list_event_waiters(wait_keys=[key], limit=MOST_LISTENERS)
        runs: list[RunState] = self.runs.list_runs(
            status=RunStatus.WAITING, wait_reason=WaitReason.EVENT, limit=MOST_LISTENERS
        )
        return [run for run in runs if key in event_keys(run)]

    def _names_in_session(self, key: str) -> list[str]:
        """Return the names of the scope's events that runs wait for, as a help to find a misspelt name."""
        prefix = key.rpartition(":")[0] + ":"
        runs = self.runs.list_runs(
            status=RunStatus.WAITING, wait_reason=WaitReason.EVENT, limit=200
        )
        keys = {key for run in runs for key in event_keys(run)}
        return sorted(k.removeprefix(prefix) for k in keys if k.startswith(prefix))

    def _start_child(self, run: RunState, open_step: OpenStep) -> EffectOutcome:
        payload = open_step.effect.payload
        spec = self._spec_of(payload)
        variables = child_vars(run, payload)
        child_run_id = self.runtime.start(
            workflow=spec,
            vars=variables,
            run_id=str(payload.get("run_id") or child_id(run, open_step)),
            actor_id=run.actor_id,
            session_id=payload.get("session_id") or run.session_id,
            parent_run_id=run.run_id,
        )
        if payload.get("async"):
            if payload.get("wait"):
                return waiting_for(spec.workflow_id, child_run_id, {"async": True})
            return EffectOutcome.completed({"sub_run_id": child_run_id, "async": True})
        child = self.runtime.tick(workflow=spec, run_id=child_run_id, max_steps=CHILD_STEPS)
        if child.status is RunStatus.COMPLETED:
            return EffectOutcome.completed({"sub_run_id": child_run_id, "output": child.output})
        if child.status.is_terminal:
            problem = (
                f"subworkflow {spec.workflow_id!r} (run {child_run_id}) {child.status.value}: "
                f"{child.error}"
            )
            return EffectOutcome.failed(problem, retryable=False)
        wait = None if child.waiting is None else _inner(child.waiting.to_dict(), MOST_INNER)
        return waiting_for(spec.workflow_id, child_run_id, {"sub_waiting": wait})

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
    inner_wait = _inner(details["sub_waiting"], levels - 1) if levels else None
    return {**wait, "details": {**details, "sub_waiting": inner_wait}}


class GraphLookup(Protocol):
    """Graphs by name."""

    def get(self, workflow_id: str) -> WorkflowSpec | None:
        """Return a graph, or None if there is none of this name."""


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
        """Create a run, or find the run of this id; return its id."""

    def tick(self, workflow: WorkflowSpec, run_id: str, max_steps: int = 100) -> RunState:
        """Execute a run until it waits or ends, or `max_steps` nodes were called; return its state."""

    def now(self) -> str:
        """Return the instant in ISO 8601, in UTC."""


class Change(Protocol):
    """The runtime's method that changes a run from outside."""

    def __call__(
        self, run_id: str, decide: Callable[[RunState], Transition | None], *, wait: bool = True
    ) -> bool:
        """Record durably the transition that `decide` returns for a run; return True if it returned one."""


@dataclass(frozen=True, slots=True)
class Wish:
    """A request to pause, continue or cancel a run."""

    kind: Literal["pause", "unpause", "cancel"]
    reason: str | None = None
    by: str = "api"


class Wishes:
    """Requests of this process that were not applied yet, by run. Other processes wait for the run's lock."""

    def __init__(self) -> None:
        self._open: defaultdict[str, list[Wish]] = defaultdict(list)
        self._lock = threading.Lock()

    def add(self, run_id: str, wish: Wish) -> None:
        """Keep a wish until it is taken."""
        with self._lock:
            self._open[run_id].append(wish)

    def take(self, run_id: str) -> list[Wish]:
        """Return the wishes for a run in order, and remove them."""
        # Called before each step, so without the lock if there is no wish. The caller that adds one waits until
        # the run is free, and applies it then if the driver did not.
        if run_id not in self._open:
            return []
        with self._lock:
            return self._open.pop(run_id, [])

    def find_cancel(self, run_id: str) -> Wish | None:
        """Return a wish to cancel the run, or None. The wish is not removed."""
        with self._lock:
            return next(
                (wish for wish in self._open.get(run_id, ()) if wish.kind == "cancel"), None
            )
