"""The embedded runtime of graphs. It starts runs, executes them, and answers their waits.

The memory that runs share is in runs of the store that hold memory only, or in runs that a request names.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, Final, Protocol

from actors._kernel.basics import Clock
from actors._kernel.runtime.ids import derive_id
from actors._kernel.workflow.effects import EffectType, RunStatus
from actors._kernel.workflow.errors import (
    GraphError,
    NoSuchRunError,
    StaleResumeError,
    StoreBusyError,
)
from actors._kernel.workflow.run_state import RunState, open_waits
from actors._kernel.workflow.stores import (
    CreatingRunStore,
    Fault,
    LedgerStore,
    ObservableLedgerStoreProtocol,
    RunStore,
    Subscriber,
    no_fault,
)
from actors._runtime.loop.clock import SystemClock
from actors._workflow.embedded.driver import Change, Driver, GraphLookup, RunEffects, Wish, Wishes
from actors._workflow.embedded.held_run import HeldRun, RunLocks, create_run
from actors._workflow.embedded.registry import delete_tree
from actors._workflow.handlers import EffectHandlers, Handler
from actors._workflow.machine import records, variables, waits
from actors._workflow.machine.plans import NodeContext
from actors._workflow.machine.records import ANSWERS, TRACES, Transition
from actors._workflow.machine.spec import DefaultEffectPolicy, EffectPolicy, WorkflowSpec
from actors._workflow.machine.starting import check_graph, check_identity, new_run, start_record
from actors._workflow.machine.variables import (
    LIMITS,
    RUNTIME,
    LimitWarning,
    RuntimeConfig,
    ensure_namespaces,
    namespace,
    with_item,
)
from actors._workflow.notes.compaction import summarizing
from actors._workflow.notes.effects import MemoryEffects
from actors._workflow.notes.evidence import evidence_in, evidence_of
from actors._workflow.notes.spans import GLOBAL, SPAN_ID, SPANS, SPANS_PATH, Span, spans_of

GLOBAL_RUN: Final = "global_memory"
SESSION_RUN: Final = "session_memory_"
"""The prefix of the id of the run that holds the memory of a session."""
_NODE: Final = "memory"
"""The graph and the node of a run that holds memory only. No node is ever called for it."""
_SAFE: Final = re.compile(r"[A-Za-z0-9_-]{1,160}")


class WorkflowRuntime:
    """Runtime that executes graphs in this process. The stores decide if runs survive the process.

    The runtime has no thread of its own. `tick` executes a run in the caller's thread. A `Scheduler` calls it.

    Args:
        run_store: The store of checkpoints.
        ledger_store: The store of records.
        effect_handlers: The host's functions by type of effect. A function for a built-in effect replaces it.
        effect_policy: The policy that decides the number of attempts of effects. One attempt if it is None.
        workflow_registry: The graphs by name. Sub-graphs and the delivery of events need it.
        artifact_store: The store of artifacts. Nodes read it as `ctx.artifacts`, and the memory effects use it.
        chat_summarizer: The maker of summaries, see `summarizing`. The handler of LLM_CALL if it is None.
        config: Limits of new runs.
        clock: The clock. The system's clock if it is None.
        sleep: The function that waits between attempts. It gets seconds. `time.sleep` if it is None.
        fault: A hook of tests, called with the name of each point at which a process may die.
    """

    run_store: RunStore
    ledger_store: LedgerStore
    workflow_registry: GraphLookup | None
    artifact_store: Any

    def __init__(  # noqa: PLR0913 - the parts of a runtime
        self,
        *,
        run_store: RunStore,
        ledger_store: LedgerStore,
        effect_handlers: Mapping[EffectType, Handler] | None = None,
        effect_policy: EffectPolicy | None = None,
        workflow_registry: GraphLookup | None = None,
        artifact_store: Any = None,
        chat_summarizer: Any = None,
        config: RuntimeConfig | None = None,
        clock: Clock | None = None,
        sleep: Callable[[float], None] | None = None,
        fault: Fault = no_fault,
    ) -> None:
        self.run_store, self.ledger_store = run_store, ledger_store
        self.effect_policy: EffectPolicy | DefaultEffectPolicy = (
            effect_policy or DefaultEffectPolicy()
        )
        self.workflow_registry, self.artifact_store = workflow_registry, artifact_store
        self.config: RuntimeConfig = config or RuntimeConfig()
        self._locks, self._wishes = RunLocks(run_store), Wishes()
        self._held_runs: dict[str, HeldRun] = {}
        self._effects = RunEffects(
            runtime=self,
            runs=run_store,
            registry=lambda: self.workflow_registry,
            change=self._change,
        )
        clock, handlers = clock or SystemClock(), EffectHandlers(effect_handlers)
        self._driver = Driver(
            runs=run_store,
            clock=clock,
            policy=self.effect_policy,
            handlers=handlers,
            wishes=self._wishes,
            context=NodeContext(now=lambda: clock.now().isoformat(), artifacts=artifact_store),
            sleep=sleep,
            fault=fault,
            run_effects=self._effects,
            memory=memory_effects(self, self._change, handlers, chat_summarizer),
        )

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
        """Create a run whose entry node has not been called yet; return the run's id.

        With `run_id` it is created once. A later start with the same id, graph, session and parent returns it.

        Raises:
            NotSerializableError: A value in `vars` is not JSON data; the error has its path. No run is made.
            RunIdentityConflict: The run with this id has another graph, session or parent.
            GraphError: `run_id` is not letters, digits, ``_`` and ``-``, or the store lacks `create_if_absent`.
        """
        whose = {"actor_id": actor_id, "session_id": session_id, "parent_run_id": parent_run_id}
        inputs, now_iso = vars or {}, self.now()
        run = new_run(
            workflow, inputs, self.config, at=now_iso, run_id=run_id, with_memory=True, **whose
        )
        if run_id is not None and not isinstance(self.run_store, CreatingRunStore):
            raise GraphError(
                f"run_id {run_id!r}", "the store has no create_if_absent. Leave run_id out"
            )
        stored_run, _ = create_run(self.run_store, self.ledger_store, run, once=run_id is not None)
        check_identity(stored_run, run)
        return run.run_id

    def tick(
        self,
        workflow: WorkflowSpec,
        run_id: str,
        max_steps: int = 100,
        step_gate: Callable[[], bool] | None = None,
    ) -> RunState:
        """Execute a run until it waits, ends, is paused, or `max_steps` nodes were called; return its state.

        A run that has ended is returned as it is. If `step_gate` returns False before a step, this call ends.

        Raises:
            NoSuchRunError: The store has no run of this id.
            GraphError: The run belongs to another graph.
            StoreBusyError: A driver in another process holds the run.
        """
        with self._hold_run(run_id) as held_run:
            return self._drive(workflow, held_run, max_steps, step_gate)

    def try_tick(
        self, workflow: WorkflowSpec, run_id: str, max_steps: int = 100
    ) -> RunState | None:
        """Do the same as `tick`, but return None at once if another caller drives the run now."""
        with suppress(StoreBusyError), self._hold_run(run_id, wait=False) as held_run:
            return self._drive(workflow, held_run, max_steps, None)
        return None

    def resume(  # noqa: PLR0917 - AbstractRuntime's parameters
        self,
        workflow: WorkflowSpec,
        run_id: str,
        wait_key: str | None,
        payload: Any,
        max_steps: int = 100,
    ) -> RunState:
        """Answer the wait of a run once. Make the answer durable, then execute the run as `tick` does.

        Raises:
            StaleResumeError: The run does not wait, waits for another key, or another call answered first.
            NotSerializableError: A value in `payload` is not JSON data; the error has its path.
            NoSuchRunError: See `tick`.
        """
        with self._hold_run(run_id) as held_run:
            check_graph(workflow, held_run.state)
            held_run.take(waits.answer_wait(held_run.state, wait_key, payload, at=self.now()))
            self._driver.grant(held_run)
            held_run.save()
            self._driver.fault("resumed")
            self._driver.drive(workflow, held_run, max_steps, None)
            return held_run.state.cloned()

    def answer(self, run_id: str, wait_key: str, payload: Any) -> RunState:
        """Answer a wait that a run has or will have. An answer that comes before its wait is kept for it.

        The run is not executed.

        Raises:
            StaleResumeError: The run has ended, waits for another key, or has an answer of this key.
            NotSerializableError: See `resume`.
            NoSuchRunError: See `tick`.
        """
        with self._hold_run(run_id) as held_run:
            state, now_iso = held_run.state, self.now()
            waits_now = wait_key in {wait.wait_key for wait in open_waits(state)}
            if waits_now or state.status is not RunStatus.RUNNING:
                held_run.take(waits.answer_wait(state, wait_key, payload, at=now_iso))
            elif wait_key in namespace(namespace(state.vars, RUNTIME), ANSWERS):
                raise StaleResumeError(run_id, f"Run has an answer to {wait_key!r} already")
            else:
                waits.check_early(run_id, wait_key)
                path = [RUNTIME, ANSWERS, wait_key]
                held_run.take(records.note_value(state, "answer", path, payload, at=now_iso))
            held_run.save()
            return held_run.state.cloned()

    def pause_run(self, run_id: str, reason: str | None = None) -> RunState:
        """Pause a run until `resume_run`. An effect that is being executed runs to its end. Idempotent."""
        return self._wish(run_id, Wish("pause", reason))

    def resume_run(self, run_id: str) -> RunState:
        """Resume a paused run. The next `tick` executes it. Idempotent."""
        return self._wish(run_id, Wish("unpause"))

    def cancel_run(
        self, run_id: str, reason: str | None = None, cancelled_by: str = "api"
    ) -> RunState:
        """Cancel a run and all runs below it. A run that has ended stays as it is.

        An effect that is being executed is not interrupted. Its record has its outcome.
        """
        return self.cancel_tree(run_id, reason, cancelled_by)[0]

    def cancel_tree(
        self, run_id: str, reason: str | None = None, cancelled_by: str = "api"
    ) -> list[RunState]:
        """Do the same as `cancel_run`; return the states of the run and of the runs below it that were open."""
        states = [self._wish(run_id, Wish("cancel", reason, cancelled_by))]
        children = getattr(self.run_store, "list_children", None)
        for child in children(parent_run_id=run_id) if children is not None else ():
            if not child.status.is_terminal:
                states += self.cancel_tree(child.run_id, reason or f"run {run_id} was cancelled")
        return states

    def steer(self, run_id: str, message: Any) -> int:
        """Add a message to the inbox that a run's nodes read (`_runtime.inbox`); return the message's number.

        Raises:
            GraphError: The message is empty, or the run has ended.
        """
        if not message:
            raise GraphError(f"run {run_id}", "an empty message says nothing. Write one")
        with self._hold_run(run_id) as held_run:
            if held_run.state.status.is_terminal:
                raise GraphError(
                    f"run {run_id}", f"it is {held_run.state.status.value}: start a new run"
                )
            value, path = records.with_message(held_run.state, message), [RUNTIME, records.INBOX]
            held_run.take(records.note_value(held_run.state, "steer", path, value, at=self.now()))
            held_run.save()
            return int(value[-1]["seq"])

    def get_state(self, run_id: str) -> RunState:
        """Return the last checkpoint of a run.

        Raises:
            NoSuchRunError: The store has no run of this id.
        """
        if (run := self.run_store.load(run_id)) is None:
            raise NoSuchRunError(run_id)
        return run

    def get_ledger(self, run_id: str) -> list[dict[str, Any]]:
        """Return all records of a run, the first one first."""
        return self.ledger_store.list(run_id)

    def subscribe_ledger(
        self, callback: Subscriber, *, run_id: str | None = None
    ) -> Callable[[], None]:
        """Call `callback` with each record that is appended in this process; return a function that stops it.

        Raises:
            TypeError: The ledger is not an `ObservableLedgerStore`.
        """
        if not isinstance(self.ledger_store, ObservableLedgerStoreProtocol):
            raise TypeError(
                "subscribe_ledger needs a ledger_store like ObservableLedgerStore(inner)"
            )
        return self.ledger_store.subscribe(callback, run_id=run_id)

    def get_node_traces(self, run_id: str) -> dict[str, Any]:
        """Return the last attempts of effects, by node."""
        return namespace(namespace(self.get_state(run_id).vars, RUNTIME), TRACES)

    def get_node_trace(self, run_id: str, node_id: str) -> dict[str, Any]:
        """Return the last attempts of effects of one node."""
        return namespace(self.get_node_traces(run_id), node_id)

    def list_evidence(self, run_id: str) -> list[dict[str, Any]]:
        """Return the index of the evidence that tools brought to a run, in the order of the calls."""
        return evidence_of(self.get_state(run_id))

    def load_evidence(self, evidence_id: str) -> dict[str, Any] | None:
        """Return the evidence of a call, or None if there is no evidence of this id."""
        return evidence_in(self.artifact_store, evidence_id)

    def get_limit_status(self, run_id: str) -> dict[str, Any]:
        """Return the limits of a run and the counters' shares of them."""
        return variables.limit_status(self.get_state(run_id))

    def check_limits(self, run: RunState) -> list[LimitWarning]:
        """Return a warning for each limit that the run has nearly or fully used."""
        return variables.check_limits(run)

    def update_limits(self, run_id: str, updates: Mapping[str, Any]) -> None:
        """Change limits of a run durably. Names that are not limits are ignored."""
        with self._hold_run(run_id) as held_run:
            value = namespace(held_run.state.vars, LIMITS) | variables.known_updates(updates)
            held_run.take(
                records.note_value(held_run.state, "limits", [LIMITS], value, at=self.now())
            )
            held_run.save()

    def emit_event(
        self, name: str, payload: Any = None, *, event_id: str, **scope: str
    ) -> dict[str, Any]:
        """Answer all waits for an event from outside, see EMIT_EVENT. The runs are not executed.

        Args:
            name: The event's name.
            payload: JSON data.
            event_id: The event's id. An event of one id answers at most one wait of each run.
            scope: `scope`, and `session_id`, `workflow_id` or `run_id`. Without them the event is global.
        """
        event = {"name": name, "payload": payload, "scope": "global"} | scope
        return self._effects.emit(RunState("", "", RunStatus.RUNNING, ""), event, event_id)

    def now(self) -> str:
        """Return the instant by the runtime's clock, in ISO 8601 in UTC."""
        return self._driver.now()

    def set_artifact_store(self, store: Any) -> None:
        """Replace the artifact store that nodes get."""
        self.artifact_store = store
        self._driver.context = NodeContext(now=self._driver.now, artifacts=store)

    def delete_run(self, run_id: str, *, command_store: Any = None) -> int:
        """Delete a run, the runs below it, their records, artifacts and commands; return the number of runs.

        Raises:
            GraphError: A run of the tree has not ended. Cancel it first.
        """
        stores = (self.run_store, self.ledger_store, self.artifact_store)
        return delete_tree(*stores, run_id, commands=command_store)

    def _drive(
        self,
        workflow: WorkflowSpec,
        held_run: HeldRun,
        max_steps: int,
        gate: Callable[[], bool] | None,
    ) -> RunState:
        check_graph(workflow, held_run.state)
        self._driver.drive(workflow, held_run, max_steps, gate)
        return held_run.state.cloned()

    @contextmanager
    def _hold_run(self, run_id: str, *, wait: bool = True) -> Iterator[HeldRun]:
        with self._driving(run_id, wait=wait) as held_run:
            if held_run is None:
                raise StaleResumeError(run_id, "Run is not waiting: this thread drives it")
            yield held_run

    @contextmanager
    def _driving(self, run_id: str, *, wait: bool = True) -> Iterator[HeldRun | None]:
        """Hold a run, and apply wishes that arrive meanwhile. Yield None if this thread holds it already."""
        with self._locks.hold(run_id, wait=wait) as is_nested:
            if is_nested:
                yield None
                return
            held_run = self._held_runs[run_id] = HeldRun(self.run_store, self.ledger_store, run_id)
            try:
                yield held_run
                self._driver.grant_all(held_run)
            finally:
                del self._held_runs[run_id]

    def _wish(self, run_id: str, wish: Wish) -> RunState:
        """Apply a wish: the current driver of the run does it, or this call if there is none."""
        self.get_state(run_id)  # raises for an unknown run, whose wish would stay for ever
        self._wishes.add(run_id, wish)
        with self._driving(run_id) as held_run:
            if held_run is None:  # called in a step of this run, after which the wish is applied
                return self._held_runs[run_id].state.cloned()
            self._driver.grant_all(held_run)
            return held_run.state.cloned()

    def _change(
        self, run_id: str, decide: Callable[[RunState], Transition | None], *, wait: bool = True
    ) -> bool:
        with self._driving(run_id, wait=wait) as new_hold:
            # Without a new hold, a step of this run, or of a run below it, calls.
            held_run = new_hold or self._held_runs[run_id]
            if (transition := decide(held_run.state)) is None:
                return False
            held_run.take(transition)
            held_run.save()
            return True


class MemoryHost(Protocol):
    """The parts of the runtime that memory needs; see `WorkflowRuntime`."""

    run_store: Any
    ledger_store: LedgerStore
    artifact_store: Any

    def now(self) -> str:
        """Return the instant."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryRuns:
    """The memory that runs of one store share; an implementation of `SharedMemory`.

    Attributes:
        host: The runtime.
        change: The runtime's method that changes a run from outside.
    """

    host: MemoryHost
    change: Change

    def owner(self, run: RunState, scope: str) -> RunState:
        """Return the run whose memory a scope of `run` names: without a session, the root of its tree."""
        if scope == GLOBAL:
            return self._memory_run(GLOBAL_RUN, None)
        if not run.session_id:
            return self._root(run)
        session_id = run.session_id
        safe = session_id if _SAFE.fullmatch(session_id) else derive_id("session", session_id)
        return self._memory_run(SESSION_RUN + safe, session_id)

    def named(self, run: RunState, run_id: str) -> RunState:
        """Return the run of this id, whose memory a request names.

        Raises:
            GraphError: The store has no such run.
        """
        del run
        run_of_memory: RunState | None = self.host.run_store.load(run_id)
        if run_of_memory is None:
            raise GraphError(f"run {run_id!r}", "the store has no such run for the memory")
        return run_of_memory

    def put(self, owner: RunState, span: Span) -> None:
        """Add a span to the memory of a run, unless it has the span already.

        Raises:
            StoreBusyError: Another caller drives the owner now, and the owner is not a run that holds memory
                only.
        """

        def decide(state: RunState) -> Transition | None:
            if span in spans_of(state.vars):
                return None
            variables = with_item(state.vars, SPANS_PATH, SPAN_ID, span)
            return records.note_value(
                state, "memory", SPANS_PATH, variables[RUNTIME][SPANS], at=self.host.now()
            )

        # The caller holds a run. If it waited for a run that another driver holds, two drivers could wait for
        # each other. A run that holds memory only has no driver.
        is_memory = owner.current_node == _NODE
        self.change(owner.run_id, decide, wait=is_memory)

    def _root(self, run: RunState) -> RunState:
        # An imported run may have any parent, so the chain of parents may be a circle.
        visited_ids = {run.run_id}
        while run.parent_run_id and run.parent_run_id not in visited_ids:
            parent: RunState | None = self.host.run_store.load(run.parent_run_id)
            if parent is None:
                break
            run = parent
            visited_ids.add(run.run_id)
        return run

    def _memory_run(self, run_id: str, session_id: str | None) -> RunState:
        """Return a run that holds memory only. If it does not exist, create it with status COMPLETED."""
        run: RunState | None = self.host.run_store.load(run_id)
        if run is not None:
            return run
        memory_run = RunState.new(
            workflow_id=_NODE,
            entry_node=_NODE,
            vars=ensure_namespaces({}),
            run_id=run_id,
            session_id=session_id,
            at=self.host.now(),
        )
        memory_run.status = RunStatus.COMPLETED
        create = getattr(self.host.run_store, "create_if_absent", None)
        run, is_new = create(memory_run) if create is not None else (memory_run, True)
        if is_new:
            if create is None:
                self.host.run_store.save(memory_run)
            self.host.ledger_store.append(start_record(memory_run))
        return run


def memory_effects(
    host: MemoryHost, change: Change, handlers: EffectHandlers, chat_summarizer: Any
) -> MemoryEffects:
    """Return the effects of memory of a runtime."""
    return MemoryEffects(
        store=lambda: host.artifact_store,
        shared=MemoryRuns(host=host, change=change),
        handlers=handlers,
        summarizer=None if chat_summarizer is None else summarizing(chat_summarizer),
    )
