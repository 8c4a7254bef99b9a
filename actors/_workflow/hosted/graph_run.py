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
from actors._workflow.hosted.step_entry import OPENED_STEP, STATE, carried, outcome_in, told_of
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
MOST_NAMED: Final = 1000
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
        terms: See `FlowTerms`.
        spec: The graph.
    """

    def __init__(self, ctx: RunContext, terms: FlowTerms, spec: WorkflowSpec) -> None:
        self._ctx, self._verbs, self._terms, self._spec = ctx, ctx.graph, terms, spec
        self._decided = Decisions(ctx.graph, spec, terms.artifacts)
        self._subs = SubGraphs(ctx, terms.specs, terms.agents)
        self._wait_ends = WaitEnds(ctx, self._decided, self._subs)
        self._control = RunControl(ctx, self._decided)

    async def run(self, given: Any) -> Any:
        """Execute the run to its end; return its output.

        Raises:
            GraphError: `given` is not a start message.
            GraphRunFailedError: The graph's run failed.
        """
        told = given if isinstance(given, dict) else {}
        self._begin(told)
        self._check_bundle(told.get(BUNDLE))
        await self._go(())
        state = self._decided.state
        if state.status is RunStatus.COMPLETED:
            return state.output
        raise GraphRunFailedError(state.workflow_id, state.error or state.status.value)

    def _begin(self, given: dict[str, Any]) -> None:
        if STATE in given and not self._verbs.is_continued:
            # A client could write a state whose open effect is approved.
            problem = f"{STATE!r} in its start message is the runtime's: leave it out"
            raise GraphRunFailedError(self._spec.workflow_id, problem)
        if STATE in given:
            self._decided.go_on(*carried(given), given[HEAD])
            self._wait_ends.waited = {*given[WAITED]}
            return
        if RESTORED in given:
            snapshot, is_forced = _snapshot_in(given[RESTORED])
            run_id = self._ctx.run_id
            self._decided.begin(
                lambda at: restored_run(
                    snapshot, self._spec, run_id=run_id, at=at, force=is_forced
                ),
                restored_from=snapshot.snapshot_id,
            )
        else:
            self._decided.begin(partial(self._new, given))

    def _check_bundle(self, bundle: str | None) -> None:
        state = self._decided.state
        begun_with = state.vars.get(RUNTIME, {}).get(BUNDLE)
        if bundle is not None and begun_with not in {None, bundle}:
            found = f"the run began with bundle {begun_with}, but bundle {bundle} is installed"
            raise FlowMissingError("", state.workflow_id, found)

    def _new(self, given: dict[str, Any], at: str) -> RunState:
        variables = given.get("vars") or {}
        if not isinstance(variables, dict):
            raise GraphError("vars", f"they are a {type(variables).__name__}. Give an object")
        whose = {name: given.get(name) for name in ("actor_id", "session_id", "parent_run_id")}
        config, run_id = self._terms.config, self._ctx.run_id
        run = new_run(
            self._spec, variables, config, run_id=run_id, at=at, with_memory=False, **whose
        )
        for name in (SCHEDULED_AT, BUNDLE):
            if name in given:
                run.vars = with_path(run.vars, [RUNTIME, name], given[name])
        return run

    async def _go(self, path: Path) -> None:
        """Execute a branch to its end."""
        while not self._decided.is_over(path):
            seen = self._decided.seen(path)
            assert seen is not None
            wait, opened = open_wait(seen), self._decided.opened.get(path)
            decision, fork = NEXT, seen.fork
            if fork is not None and fork.has_open:  # its branches execute at the same time
                branches = [branch for branch in fork.branches if fork.is_open(branch)]
                await self._ctx.gather(
                    *[self._go((*path, fork.key(branch))) for branch in branches]
                )
            elif wait is not None:
                decision = Decision(await self._wait_ends.end(wait))
            elif opened is not None:
                decision = await self._attempt(seen, opened)
            await self._control.look()
            await self._decided.advance(path, decision)
            await self._verbs.rest()
            if not path:
                await self._checkpoint()

    async def _checkpoint(self) -> None:
        """Continue as new if the log of this generation is long and the run has no branches.

        An effect that a node asked for has not started at this point, and a wait has not, either. Both start in
        the next generation.
        """
        made, state = self._decided, self._decided.state
        is_long = made.entries >= ENTRIES_KEPT or made.size_bytes >= BYTES_KEPT
        is_over = state.fork is not None or state.status.is_terminal
        if is_long and not is_over and not self._verbs.is_replaying:
            opened = made.opened.get(())
            waited = sorted(self._wait_ends.waited | self._wait_ends.waiting)
            kept = {STATE: state.to_dict(), HEAD: made.head, WAITED: waited}
            kept[OPENED_STEP] = None if opened is None else opened.to_dict()
            await self._ctx.continue_as_new(kept)

    async def _attempt(self, seen: RunState, opened: OpenStep) -> Decision:
        """Make one attempt of an effect; return the decision that records its outcome."""
        if opened.due is not None:
            await self._ctx.sleep_until(datetime.fromisoformat(opened.due))
            return Decision(lambda state, now: attempts.retried(state, opened, at=now()))
        kind, policy = opened.effect.type, self._terms.policy
        is_own = kind not in self._terms.handlers
        if is_own and kind in ANSWERED:

            def answered(state: RunState, now: Now) -> Transition:
                at = now()
                outcome = outcome_of(seen_by_handler(state, opened), opened, at)
                taken = self._taken(state)
                return attempts.ended(state, opened, outcome, policy, at=at, used_keys=taken)

            return Decision(answered)
        shown, place = seen_by_handler(seen, opened), ""
        if is_own and kind is EffectType.START_SUBWORKFLOW:
            found = attempts.sound(await self._subs.begun(shown, opened), opened)
        else:
            place, found = await self._executed(shown, opened)
        return Decision(
            lambda state, now: attempts.ended_soundly(
                state, opened, found, policy, at=now(), used_keys=self._taken(state)
            ),
            place,
            found.result,
        )

    def _taken(self, branch: RunState) -> frozenset[str]:
        """Return the keys of the waits of the run's other branches."""
        path = tuple(namespace(branch.vars, RUNTIME).get(BRANCH) or ())
        return keys_beside(self._decided.state, path)

    async def _executed(self, shown: RunState, opened: OpenStep) -> tuple[str, EffectOutcome]:
        """Execute an effect once with its handler; return its position and its sound outcome.

        The outcome is a failure if an operator decided so or if the handler raised SystemExit.
        """
        made: EffectOutcome | None = None

        async def execute() -> dict[str, Any]:
            nonlocal made
            handlers, wanted = self._terms.handlers, opened.effect
            if wanted.type is EffectType.EMIT_EVENT and wanted.type not in handlers:
                answer = await emitted(self._verbs, shown, opened)
            elif wanted.type in MEMORY_EFFECTS and wanted.type not in handlers:
                shared = HostMemory(
                    rows=self._verbs.store.data.memories.of(self._ctx.tenant_id),
                    app=self._ctx.agent_id.type,
                    root_id=str(self._ctx.meta.supervision.root_id),
                )
                answer = await self._verbs.shown(
                    self._terms.memory.awaited(shown, opened, self._decided.now(), shared)
                )
            else:
                answer = await handlers.awaited(
                    shown, wanted, opened.next_node, waiting=self._verbs.shown
                )
                answer = self._terms.memory.evidenced(answer, shown, opened, self._decided.now)
            made = attempts.sound(answer, opened)
            return told_of(made)

        async def reconcile(_key: str) -> dict[str, Any]:
            found = await self._terms.handlers.reconciled_awaited(shown, opened)
            if found.wait is not None:
                where = {"run": shown.run_id, "node": opened.node_id, "effect": opened.key}
                _log.warning("an effect is in doubt: its run waits for a decision", extra=where)
            return told_of(found)

        kind, mode = opened.effect.type, opened.effect.mode
        # Other runs receive an event, so the entries before it have to be durable first.
        rides, asker = kind is not EffectType.EMIT_EVENT, None
        if kind is EffectType.LLM_CALL:
            asker = {"node_id": opened.node_id, "step_id": opened.step_id}
        try:
            place, told = await self._verbs.effect(
                kind.value,
                opened.key,
                opened.attempt,
                mode,
                execute,
                rides=rides,
                reconcile=reconcile,
                told=asker,
            )
        except Exception as exc:
            if origin_of(exc) is None:
                raise
            return "", EffectOutcome.failed(text_of(exc), retryable=False)
        return place, made or attempts.sound(outcome_in(told), opened)


async def emitted(verbs: GraphVerbs, run: RunState, opened: OpenStep) -> EffectOutcome:
    """Answer all waits for an event; return the outcome of the effect that emitted it."""
    payload = opened.effect.payload
    try:
        key = key_of_payload(run, payload)
    except GraphError as exc:
        return EffectOutcome.failed(str(exc), retryable=False)
    id_ = str(payload.get("event_id") or payload.get("id") or opened.key)
    event = event_from(payload, id_, run.run_id)
    return EffectOutcome.completed(report(id_, key, await verbs.emit(key, event)))


def report(id_: str, key: str, heard: Sequence[str]) -> dict[str, Any]:
    """Return the report of an emission."""
    return {
        "event_id": id_,
        "wait_key": key,
        "delivered": len(heard),
        "resumed": [*heard[:MOST_NAMED]],
    }


def _snapshot_in(told: Any) -> tuple[Snapshot, bool]:
    try:
        return Snapshot(**told["snapshot"]), bool(told.get("force"))
    except (KeyError, TypeError, AttributeError) as exc:
        raise GraphError("snapshot", f"the message has no valid snapshot: {exc}") from exc
