"""The loop of one run of a graph. It records the decisions of the machine and carries them out.

The runs of an app share their terms: graphs, handlers, policies and stores.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from typing import Any, Final

from actors._kernel.workflow.effects import EffectOutcome, EffectType, RunStatus
from actors._kernel.workflow.errors import FlowMissingError, GraphError, GraphRunFailedError
from actors._kernel.workflow.run_state import RunState, Snapshot, open_wait
from actors._runtime.replay.failures import origin_of, text_of
from actors._runtime.verbs.graph import GraphVerbs
from actors._runtime.verbs.run_context import RunContext
from actors._workflow.handlers import EffectHandlers
from actors._workflow.hosted.decisions import NEXT, Decision, Decisions, Now
from actors._workflow.hosted.step_entry import (
    OPENED_STEP,
    STATE,
    continued_state,
    outcome_data,
    outcome_from,
)
from actors._workflow.hosted.waits import RunControl, SubGraphs, WaitEnds
from actors._workflow.machine import attempts
from actors._workflow.machine.branches import Path, keys_beside
from actors._workflow.machine.records import OpenStep, Transition, seen_by_handler
from actors._workflow.machine.spec import EffectPolicy, WorkflowSpec, event_from, key_of_payload
from actors._workflow.machine.starting import new_run, restored_run
from actors._workflow.machine.variables import BRANCH, RUNTIME, RuntimeConfig, namespace, with_path
from actors._workflow.machine.waits import ANSWERED, outcome_of
from actors._workflow.notes.effects import MEMORY_EFFECTS, MemoryEffects
from actors._workflow.notes.host_memory import HostMemory

_log = logging.getLogger("callboard.workflow")
ENTRIES_KEPT: Final = 200
"""Number of entries of decisions after which the run continues as new with its state."""
BYTES_KEPT: Final = 256 * 1024
"""Size of the records as JSON, in bytes, after which the run continues as new, too."""
RESTORED: Final = "restored"
"""Name in the start message of a run that begins with a snapshot.

Its value has the snapshot and `force`, which allows another graph.
"""
SCHEDULED_AT: Final = "scheduled_at"
"""Name in the metadata of a schedule's message and in `_runtime` of its run. Its value is the tick."""
BUNDLE: Final = "bundle"
"""Name in `_runtime` of a run of an installed flow.

Its value is the bundle's hash; a run refuses another bundle.
"""
MAX_NAMED_RUNS: Final = 1000
"""Maximum number of runs that the record of an emission names. The record counts all of them."""
HEAD: Final = "head"
WAITED: Final = "waited"
"""Names beside the state of a run that continues: the hash of its last record, and the keys of its waits."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FlowTerms:
    """The parts that the runs of an app share.

    Attributes:
        specs: The graphs by name.
        handlers: The host's handlers.
        policy: The policy that decides the number of attempts of effects.
        config: Limits of new runs.
        artifacts: The store of artifacts. Nodes read it as `ctx.artifacts`, and the memory effects use it.
        memory: The effects of memory.
        agents: Types of agents by the names of the graphs in whose place they are started.
    """

    specs: Mapping[str, WorkflowSpec]
    handlers: EffectHandlers
    policy: EffectPolicy
    memory: MemoryEffects
    config: RuntimeConfig = field(default_factory=RuntimeConfig)
    artifacts: Any = None
    agents: Mapping[str, str] = field(default_factory=dict)


class GraphRun:
    """An execution of a run of a graph.

    Decisions that the log has are applied from their records, without a call of a node or a handler.

    Args:
        ctx: The run's context.
        terms: The parts that the runs of the app share.
        spec: The graph.
    """

    def __init__(self, ctx: RunContext, terms: FlowTerms, spec: WorkflowSpec) -> None:
        self._ctx, self._verbs, self._terms, self._spec = ctx, ctx.graph, terms, spec
        self._decisions = Decisions(ctx.graph, spec, terms.artifacts)
        self._sub_graphs = SubGraphs(ctx, terms.specs, terms.agents)
        self._wait_ends = WaitEnds(ctx, self._decisions, self._sub_graphs)
        self._control = RunControl(ctx, self._decisions)

    async def run(self, payload: Any) -> Any:
        """Execute the run to its end; return its output.

        Raises:
            GraphError: `payload` is not a start message.
            GraphRunFailedError: The graph's run failed.
        """
        start_message = payload if isinstance(payload, dict) else {}
        self._start(start_message)
        self._check_bundle(start_message.get(BUNDLE))
        await self._execute_branch(())
        state = self._decisions.state
        if state.status is RunStatus.COMPLETED:
            return state.output
        raise GraphRunFailedError(state.workflow_id, state.error or state.status.value)

    def _start(self, start_message: dict[str, Any]) -> None:
        if STATE in start_message and not self._verbs.is_continued:
            # A client could write a state whose open effect is approved.
            problem = f"{STATE!r} in its start message is the runtime's: leave it out"
            raise GraphRunFailedError(self._spec.workflow_id, problem)
        if STATE in start_message:
            self._decisions.continue_from(*continued_state(start_message), start_message[HEAD])
            self._wait_ends.waited = {*start_message[WAITED]}
            return
        if RESTORED in start_message:
            snapshot, is_forced = _requested_snapshot(start_message[RESTORED])
            run_id = self._ctx.run_id
            self._decisions.begin(
                lambda at: restored_run(
                    snapshot, self._spec, run_id=run_id, at=at, force=is_forced
                ),
                restored_from=snapshot.snapshot_id,
            )
        else:
            self._decisions.begin(partial(self._new, start_message))

    def _check_bundle(self, bundle: str | None) -> None:
        state = self._decisions.state
        first_bundle = state.vars.get(RUNTIME, {}).get(BUNDLE)
        if bundle is not None and first_bundle not in {None, bundle}:
            problem = f"the run began with bundle {first_bundle}, but bundle {bundle} is installed"
            raise FlowMissingError("", state.workflow_id, problem)

    def _new(self, start_message: dict[str, Any], at: str) -> RunState:
        variables = start_message.get("vars") or {}
        if not isinstance(variables, dict):
            raise GraphError("vars", f"they are a {type(variables).__name__}. Give an object")
        related_ids = {
            name: start_message.get(name) for name in ("actor_id", "session_id", "parent_run_id")
        }
        config, run_id = self._terms.config, self._ctx.run_id
        run = new_run(
            self._spec, variables, config, run_id=run_id, at=at, with_memory=False, **related_ids
        )
        for name in (SCHEDULED_AT, BUNDLE):
            if name in start_message:
                run.vars = with_path(run.vars, [RUNTIME, name], start_message[name])
        return run

    async def _execute_branch(self, path: Path) -> None:
        """Execute a branch to its end."""
        while not self._decisions.has_ended(path):
            branch = self._decisions.branch(path)
            assert branch is not None
            wait, open_step = open_wait(branch), self._decisions.opened.get(path)
            decision, fork = NEXT, branch.fork
            if fork is not None and fork.has_open:  # its branches execute at the same time
                branches = [b for b in fork.branches if fork.is_open(b)]
                await self._ctx.gather(
                    *[self._execute_branch((*path, fork.key(b))) for b in branches]
                )
            elif wait is not None:
                decision = Decision(await self._wait_ends.end(wait))
            elif open_step is not None:
                decision = await self._attempt(branch, open_step)
            await self._control.poll()
            await self._decisions.advance(path, decision)
            # A graph of nodes without effects never awaits: without this line it would stop all other runs.
            await self._verbs.rest()
            if not path:
                await self._checkpoint()

    async def _checkpoint(self) -> None:
        """Continue as new if the log of this generation is long and the run has no branches.

        An effect that a node asked for has not started at this point, and a wait has not, either. Both start in
        the next generation.
        """
        decisions, state = self._decisions, self._decisions.state
        is_long = decisions.entries >= ENTRIES_KEPT or decisions.size_bytes >= BYTES_KEPT
        has_no_next_step = state.fork is not None or state.status.is_terminal
        # While the log has entries that the run has not met again, to continue would leave them out.
        if is_long and not has_no_next_step and not self._verbs.is_replaying:
            open_step = decisions.opened.get(())
            wait_keys = sorted(self._wait_ends.waited | self._wait_ends.waiting)
            next_input = {STATE: state.to_dict(), HEAD: decisions.head, WAITED: wait_keys}
            next_input[OPENED_STEP] = None if open_step is None else open_step.to_dict()
            await self._ctx.continue_as_new(next_input)

    async def _attempt(self, branch: RunState, open_step: OpenStep) -> Decision:
        """Make one attempt of an effect; return the decision that records its outcome."""
        if open_step.due is not None:
            await self._ctx.sleep_until(datetime.fromisoformat(open_step.due))
            return Decision(
                lambda state, now: attempts.begin_next_attempt(state, open_step, at=now())
            )
        kind, policy = open_step.effect.type, self._terms.policy
        is_own = kind not in self._terms.handlers
        if is_own and kind in ANSWERED:

            def end_with_answer(state: RunState, now: Now) -> Transition:
                now_iso = now()
                outcome = outcome_of(seen_by_handler(state, open_step), open_step, now_iso)
                other_keys = self._other_wait_keys(state)
                return attempts.apply_outcome(
                    state, open_step, outcome, policy, at=now_iso, used_keys=other_keys
                )

            return Decision(end_with_answer)
        view, position = seen_by_handler(branch, open_step), ""
        if is_own and kind is EffectType.START_SUBWORKFLOW:
            outcome = attempts.sound(await self._sub_graphs.start(view, open_step), open_step)
        else:
            position, outcome = await self._execute_effect(view, open_step)
        return Decision(
            lambda state, now: attempts.apply_sound_outcome(
                state, open_step, outcome, policy, at=now(), used_keys=self._other_wait_keys(state)
            ),
            position,
            outcome.result,
        )

    def _other_wait_keys(self, branch: RunState) -> frozenset[str]:
        """Return the keys of the waits of the run's other branches."""
        path = tuple(namespace(branch.vars, RUNTIME).get(BRANCH) or ())
        return keys_beside(self._decisions.state, path)

    async def _execute_effect(
        self, view: RunState, open_step: OpenStep
    ) -> tuple[str, EffectOutcome]:
        """Execute an effect once with its handler; return its position and its sound outcome.

        The outcome is a failure if an operator decided so or if the handler raised SystemExit.
        """
        sound_outcome: EffectOutcome | None = None

        async def execute() -> dict[str, Any]:
            nonlocal sound_outcome
            handlers, effect = self._terms.handlers, open_step.effect
            if effect.type is EffectType.EMIT_EVENT and effect.type not in handlers:
                answer = await emit_event(self._verbs, view, open_step)
            elif effect.type in MEMORY_EFFECTS and effect.type not in handlers:
                host_memory = HostMemory(
                    rows=self._verbs.store.data.memories.of(self._ctx.tenant_id),
                    app=self._ctx.agent_id.type,
                    root_id=str(self._ctx.meta.supervision.root_id),
                )
                answer = await self._verbs.shown(
                    self._terms.memory.outcome_async(
                        view, open_step, self._decisions.now(), host_memory
                    )
                )
            else:
                answer = await handlers.call_async(
                    view, effect, open_step.next_node, waiter=self._verbs.shown
                )
                answer = self._terms.memory.evidenced(answer, view, open_step, self._decisions.now)
            sound_outcome = attempts.sound(answer, open_step)
            return outcome_data(sound_outcome)

        async def reconcile(_key: str) -> dict[str, Any]:
            outcome = await self._terms.handlers.reconcile_effect_async(view, open_step)
            if outcome.wait is not None:
                extra = {"run": view.run_id, "node": open_step.node_id, "effect": open_step.key}
                _log.warning("an effect is in doubt: its run waits for a decision", extra=extra)
            return outcome_data(outcome)

        kind, mode = open_step.effect.type, open_step.effect.mode
        # Other runs receive an event, so the entries before it have to be durable first.
        rides, model_call = kind is not EffectType.EMIT_EVENT, None
        if kind is EffectType.LLM_CALL:
            model_call = {"node_id": open_step.node_id, "step_id": open_step.step_id}
        try:
            position, value = await self._verbs.effect(
                kind.value,
                open_step.key,
                open_step.attempt,
                mode,
                execute,
                rides=rides,
                reconcile=reconcile,
                model_call=model_call,
            )
        # An error with an origin is the effect's result in the log; any other one is a fault of the host, and
        # to record it as an outcome would fail the run instead of its attempt.
        except Exception as exc:
            if origin_of(exc) is None:
                raise
            return "", EffectOutcome.failed(text_of(exc), retryable=False)
        # On a replay nothing was executed here, so the outcome is that of the log.
        return position, sound_outcome or attempts.sound(outcome_from(value), open_step)


async def emit_event(verbs: GraphVerbs, run: RunState, open_step: OpenStep) -> EffectOutcome:
    """Answer all waits for an event; return the outcome of the effect that emitted it."""
    payload = open_step.effect.payload
    try:
        key = key_of_payload(run, payload)
    except GraphError as exc:
        return EffectOutcome.failed(str(exc), retryable=False)
    id_ = str(payload.get("event_id") or payload.get("id") or open_step.key)
    event = event_from(payload, id_, run.run_id)
    return EffectOutcome.completed(report(id_, key, await verbs.emit(key, event)))


def report(id_: str, key: str, run_ids: Sequence[str]) -> dict[str, Any]:
    """Return the report of an emission."""
    return {
        "event_id": id_,
        "wait_key": key,
        "delivered": len(run_ids),
        "resumed": [*run_ids[:MAX_NAMED_RUNS]],
    }


def _requested_snapshot(restore_request: Any) -> tuple[Snapshot, bool]:
    try:
        return Snapshot(**restore_request["snapshot"]), bool(restore_request.get("force"))
    except (KeyError, TypeError, AttributeError) as exc:
        raise GraphError("snapshot", f"the message has no valid snapshot: {exc}") from exc
