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
from actors._workflow.machine.branches import Leaf, Path, joined, keys_beside, leaves, seen_at
from actors._workflow.machine.plans import LoopWatch, NodeContext, asked, endless
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
        sleep: The function that waits until the next attempt. None: `time.sleep`.
        fault: A hook of tests.
        others: The effects that touch other runs.
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
    others: RunEffects
    memory: MemoryEffects

    def now(self) -> str:
        """Return the instant in ISO 8601, in UTC."""
        return self.clock.now().isoformat()

    def drive(
        self, spec: WorkflowSpec, held: HeldRun, max_steps: int, gate: Callable[[], bool] | None
    ) -> None:
        """Execute a run until it waits, ends, is paused, or `max_steps` nodes were called; then save it.

        Its branches are executed alternately. A branch executes until an effect of it was tried, or it waits or
        ends.
        """
        watch, steps = LoopWatch(), 0
        if held.is_saved:
            held.saved_at = self.clock.monotonic()
        last: Path = ()
        while self._may_go_on(held, gate):
            leaf = self._next(held, last)
            if leaf is None:
                if not self._woken(held):
                    break
                continue
            path = leaf.path
            if path not in held.opened and leaf.wait is None and not leaf.joins:
                if steps >= max_steps:
                    break
                steps += 1
            if not self._stepped(spec, held, leaf):
                seen = seen_at(held.state, path)
                if seen is not None and watch.is_endless(seen):
                    held.take_at(path, endless(seen, at=self.now()))
                continue
            watch.forget()
            last = path
        self._save(held)

    def _next(self, held: HeldRun, last: Path) -> Leaf | None:
        """Return the next branch after `last` that can execute now. None: no branch can."""
        if held.state.fork is None:
            leaf = Leaf((), open_wait(held.state))
            return leaf if self._is_able(held, leaf) else None
        cursors = [*leaves(held.state)]
        start = next((place + 1 for place, one in enumerate(cursors) if one.path == last), 0)
        turns = (*cursors[start:], *cursors[:start])
        return next((one for one in turns if self._is_able(held, one)), None)

    def _is_able(self, held: HeldRun, leaf: Leaf) -> bool:
        if leaf.wait is not None:
            return leaf.wait.until is not None and leaf.wait.until <= self.now()
        opened = held.opened.get(leaf.path)
        return opened is None or opened.due is None or opened.due <= self.now()

    def _stepped(self, spec: WorkflowSpec, held: HeldRun, leaf: Leaf) -> bool:
        """Execute one step of a branch; return True if the step was more than the call of a node."""
        path, seen = leaf.path, held.seen(leaf.path)
        if leaf.wait is not None:
            decided = waits.fell_due(seen, at=self.now())
            assert decided is not None
            held.take_at(path, decided)
            self._save(held)  # a poll for due runs does not find the run any more
            return True
        if leaf.joins:
            held.take_at(path, joined(spec, seen, at=self.now()))
            return False
        if path not in held.opened:
            held.take_at(path, asked(spec, seen, self.context, self.now))
            if path not in held.opened:
                return False
        opened = held.opened[path]
        self._try(held, path)
        if path not in held.opened:
            self._commit(held, synced=opened.effect.mode is EffectMode.AT_MOST_ONCE)
        return True

    def grant(self, held: HeldRun) -> bool:
        """Apply the wishes for a run between two of its steps; return True if there were any."""
        wishes = self.wishes.take(held.state.run_id)
        for wish in wishes:
            held.take(self._granted(held.state, wish))
        return bool(wishes)

    def grant_all(self, held: HeldRun) -> None:
        """Apply all wishes durably, including wishes that ledger subscribers make during a save."""
        while self.grant(held):
            held.save()

    def _granted(self, state: RunState, wish: Wish) -> Transition:
        if wish.kind == "cancel":
            return records.cancelled(state, wish.reason, wish.by, at=self.now())
        paused = wish.kind == "pause"
        if state.status.is_terminal or is_paused(state) is paused:
            return Transition(state)
        value = {"paused": paused, "reason": wish.reason, "at": self.now()}
        return records.noted(state, wish.kind, [RUNTIME, CONTROL], value, at=self.now())

    def _may_go_on(self, held: HeldRun, gate: Callable[[], bool] | None) -> bool:
        self.grant(held)
        gate = None if held.opened else gate
        if held.state.status.is_terminal or is_paused(held.state):
            return False
        try:
            return gate is None or bool(gate())
        except Exception:  # noqa: BLE001 - the failure is logged, and the run continues
            _log.exception("a step gate raised an error", extra={"run": held.state.run_id})
            return True

    def _woken(self, held: HeldRun) -> bool:
        """End a wait for a child that ended, or wait until the next attempt is due.

        Return False if there is neither.
        """
        for leaf in leaves(held.state):
            if leaf.wait is not None and leaf.wait.reason is WaitReason.SUBWORKFLOW:
                seen = held.seen(leaf.path)
                decided = waits.child_ended(seen, self.others.child_of(seen), at=self.now())
                if decided is not None:
                    held.take_at(leaf.path, decided)
                    self._save(held)
                    return True
        resting = [(one.due, path) for path, one in held.opened.items() if one.due is not None]
        if not resting:
            return False
        held.flush()
        due, path = min(resting)
        left_s = (datetime.fromisoformat(due) - self.clock.now()).total_seconds()
        if left_s > 0:
            (self.sleep or time.sleep)(left_s)
        self.grant(held)
        if path in held.opened and not is_paused(held.state):
            again = attempts.retried(held.seen(path), held.opened[path], at=self.now())
            held.take_at(path, again)
        return True

    def _try(self, held: HeldRun, path: Path) -> None:
        """Make one attempt of the open effect of a branch."""
        opened, seen = held.opened[path], held.seen(path)
        is_in_doubt = opened.due is None and opened.effect.mode is EffectMode.AT_MOST_ONCE
        if path in held.recovered and is_in_doubt:
            with suppress(EffectDidNotHappen):
                found = self.handlers.reconciled(seen_by_handler(seen, opened), opened)
                held.take_at(path, self._decided(held, path, opened, found))
                return
        if opened.due is not None:
            held.take_at(path, attempts.retried(seen, opened, at=self.now()))
            opened = held.opened[path]
        held.flush()
        self.fault("started")
        outcome = self._executed(seen, opened)
        self.fault("executed")
        held.take_at(path, self._decided(held, path, opened, outcome))
        if path in held.opened:  # another attempt follows: only the record has to be durable
            held.flush()
            self.fault("ended")

    def _decided(self, held: HeldRun, path: Path, opened: OpenStep, outcome: Any) -> Transition:
        state, wish = held.seen(path), self.wishes.cancelled(held.state.run_id)
        if wish is None:
            taken = keys_beside(held.state, path)
            return attempts.ended(
                state, opened, outcome, self.policy, at=self.now(), used_keys=taken
            )
        how = {"cancelled_by": wish.by, "reason": wish.reason}
        return attempts.aborted(state, opened, outcome, how, at=self.now())

    def _executed(self, state: RunState, opened: OpenStep) -> Any:
        """Return the outcome of one attempt, from the host's handler if there is one, else from a built-in."""
        seen = seen_by_handler(state, opened)
        kind = opened.effect.type
        if kind not in self.handlers:
            answer = outcome_of(seen, opened, self.now())
            if answer is not None:
                return answer
            if kind in {EffectType.EMIT_EVENT, EffectType.START_SUBWORKFLOW}:
                return self.others.outcome(seen, opened)
            if kind in MEMORY_EFFECTS:
                return self.memory.outcome(seen, opened, self.now())
        answer = self.handlers.call(seen, opened.effect, opened.next_node)
        return self.memory.evidenced(answer, seen, opened, self.now)

    def _commit(self, held: HeldRun, *, synced: bool) -> None:
        """Write the records of a step, and its checkpoint unless that may be written a little later.

        Records without a checkpoint and not `synced` are synced before the next effect starts.
        """
        now = self.clock.monotonic()
        if held.may_trail and now < held.saved_at + TRAILS_S:
            held.save_later(synced=synced)
            self.fault("ended")
            return
        self._save(held)
        held.saved_at = now

    def _save(self, held: HeldRun) -> None:
        if not held.groups:
            held.flush()
            self.fault("ended")
        held.save()
        self.fault("saved")


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
        """Return the outcome of EMIT_EVENT or START_SUBWORKFLOW."""
        try:
            if opened.effect.type is EffectType.EMIT_EVENT:
                payload = opened.effect.payload
                event_id = str(payload.get("event_id") or payload.get("id") or opened.key)
                return EffectOutcome.completed(self.emit(run, payload, event_id))
            return self._begun(run, opened)
        except ContractError as exc:
            return EffectOutcome.failed(str(exc), retryable=False)

    def child_of(self, run: RunState) -> RunState | None:
        """Drive the child that the run waits for as far as possible; return it.

        None: it does not exist any more.
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

        def answered(state: RunState) -> Transition | None:
            return deliver_event(state, key, event, at=self.runtime.now())

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
        if run_id not in self._open:
            return []
        with self._lock:
            return self._open.pop(run_id, [])

    def cancelled(self, run_id: str) -> Wish | None:
        """Return a wish to cancel the run, or None. The wish is not removed."""
        with self._lock:
            return next((one for one in self._open.get(run_id, ()) if one.kind == "cancel"), None)
