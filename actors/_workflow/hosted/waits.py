"""The waits of a run that is an agent's run: answers, instants, sub-graphs, and control by signals.

Sub-graphs are child runs of the same app. A run takes signals between two of its steps: pause, resume, messages
and limits.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from functools import partial
from typing import Any, Final, cast

from actors._kernel.agent.agent import HistoryRetention, Supervision
from actors._kernel.runtime.communication import AskKind
from actors._kernel.runtime.ids import AgentId, RunId, derive_id
from actors._kernel.runtime.waits import EVENT, WaitKind, event_id
from actors._kernel.workflow.durable import durable_copy
from actors._kernel.workflow.effects import (
    ASKED,
    EffectOutcome,
    RunStatus,
    WaitReason,
    WaitState,
    check_answer,
    failed_calls,
    question_of,
)
from actors._kernel.workflow.errors import GraphError
from actors._kernel.workflow.run_state import RunState
from actors._runtime.verbs.run_context import RunContext
from actors._workflow.hosted.decisions import Decide, Decisions, Now
from actors._workflow.hosted.flow_address import flow_key
from actors._workflow.machine import records, waits
from actors._workflow.machine import variables as limits
from actors._workflow.machine.records import (
    CONTROL,
    INBOX,
    OpenStep,
    Transition,
    is_paused,
    with_message,
)
from actors._workflow.machine.spec import WorkflowSpec
from actors._workflow.machine.starting import child_id, child_vars
from actors._workflow.machine.variables import LIMITS, RUNTIME, namespace
from actors._workflow.machine.waits import waiting_for
from actors.errors import (
    BudgetExhaustedError,
    ContractError,
    NonDeterminismError,
    NotSerializableError,
    UnknownRunError,
    WaitCycleError,
)

WAIT: Final = "wait"
"""Name in the request of a wait. Its value is the wait of the graph."""
_KINDS: Final = {WaitReason.USER: "user", WaitReason.EVENT: "event", WaitReason.JOB: "job"}


class WaitEnds:
    """The waits of a run of a graph.

    Attributes:
        waited: The keys of the waits of earlier generations.
        waiting: The keys of the waits of this generation.
    """

    def __init__(self, ctx: RunContext, decisions: Decisions, sub_graphs: SubGraphs) -> None:
        self._ctx, self._decisions, self._sub_graphs = ctx, decisions, sub_graphs
        self.waited: set[str] = set()
        self.waiting: set[str] = set()

    async def end(self, wait: WaitState) -> Decide:
        """Wait until a wait has ended; return the decision on it."""
        if wait.reason is WaitReason.SUBWORKFLOW:
            child = await self._sub_graphs.join(str((wait.details or {}).get("sub_run_id")))
            return lambda state, now: _or_unchanged(
                waits.child_ended(state, child, at=now()), state
            )
        if wait.reason is WaitReason.UNTIL and wait.until is not None:
            await self._ctx.sleep_until(datetime.fromisoformat(wait.until))
            return _end_at_instant(wait.until)
        if wait.reason is WaitReason.JOB and ASKED in (wait.details or {}):
            return await self._answer_of_agent(wait)
        return await self._answer(wait)

    async def _answer_of_agent(self, wait: WaitState) -> Decide:
        """Ask the agent of a wait once. Without an answer, tool calls are unsuccessful, and LLM_CALL fails."""
        agent_request, ctx = (wait.details or {})[ASKED], self._ctx
        try:
            agent = AgentId(agent_request["type"], agent_request["key"], ctx.tenant_id)
            question, limit_s = question_of(wait, ctx.run_id), agent_request["timeout_s"]
            answer = await ctx.ask(agent, question, timeout=limit_s)
            if answer.kind is AskKind.REPLIED:
                check_answer(wait, answer.result)
                return partial(_end_with_reply, wait, answer.result)
            error: Any = answer.result or {}
            problem = f"agent {agent}: {answer.kind.value}: {error.get('message') or ''}"
            if answer.kind is AskKind.TIMED_OUT:
                problem = f"agent {agent} gave no answer within {limit_s:g} s"
        except NonDeterminismError:
            raise  # also a ContractError: as a failure of the effect it would hide that the log does not fit
        except ContractError as exc:
            problem = str(exc)
        results, error_text = failed_calls(wait, problem), problem
        if results is not None:
            return partial(_end_with_reply, wait, results)
        return lambda state, now: records.failed(state, error_text, at=now())

    async def _answer(self, wait: WaitState) -> Decide:
        kind, key = cast("WaitKind", _KINDS.get(wait.reason, "job")), wait.wait_key or ""
        until = None if wait.until is None else datetime.fromisoformat(wait.until)
        request: dict[str, Any] = {WAIT: wait.to_dict()}
        if wait.reason is WaitReason.EVENT:
            request[EVENT] = event_id(self._ctx.tenant_id, key)
        state_before = self._decisions.state
        verbs, first_key = self._ctx.graph, answer_key(self._ctx.run_id, key)
        while True:
            self.waiting.add(key)
            reply_key = verbs.wait_key(first_key, is_taken=key in self.waited)
            is_answered, answer = await verbs.wait(kind, reply_key, request, until)
            if not is_answered:
                return _end_at_instant(wait.until or "")
            event = _event_in(wait, answer)
            is_old = event is not None and waits.has_heard(state_before, event)
            # The log decides if it has this position: branches may replay in another order, so that the state
            # now may not have the event that it had then.
            is_wait_next = verbs.next_is_wait()
            if not (is_old if is_wait_next is None else is_wait_next):
                return partial(_end_with_reply, wait, answer)


def answer_key(run_id: RunId, wait_key: str) -> str:
    """Return the key of the answer to a run's first wait of this key."""
    return derive_id("wait", run_id, wait_key)


def _event_in(wait: WaitState, answer: Any) -> Any:
    """Return the id of the event in an answer, or None if the answer is not an event."""
    is_event = wait.reason is WaitReason.EVENT and isinstance(answer, dict)
    return answer.get("event_id") if is_event else None


def _end_with_reply(wait: WaitState, answer: Any, state: RunState, now: Now) -> Transition:
    now_iso = now()
    try:
        payload = durable_copy(answer, "payload", deepest=waits.max_depth_at(wait.result_key))
    except NotSerializableError as exc:
        return records.failed(state, f"answer to {wait.wait_key!r}: {exc}", at=now_iso)
    event = _event_in(wait, answer)
    is_new = event is not None and not waits.has_heard(state, event)
    event_note = waits.note_of(state, answer) if is_new else None
    return waits.reply(state, wait, payload, at=now_iso, more=event_note)


def _end_at_instant(until_iso: str) -> Decide:
    # The timer has fired, even if this host's clock is behind: at an earlier instant the wait would stay open.
    return lambda state, now: _or_unchanged(waits.fell_due(state, at=max(now(), until_iso)), state)


def _or_unchanged(transition: Transition | None, state: RunState) -> Transition:
    return Transition(state) if transition is None else transition


_ERROR: Final = "message"
_TERMS: Final = Supervision(run_id="-", root_id="-", retention=HistoryRetention.PERMANENT)
"""Supervision of sub-graphs. The child runs of a sub-graph are not cancelled when it ends."""


class SubGraphs:
    """The effect START_SUBWORKFLOW.

    Args:
        ctx: The context of the run.
        specs: The graphs of the app by name.
        agents: Types of agents by the names of graphs. Their runs get the vars as payload.
    """

    def __init__(
        self, ctx: RunContext, specs: Mapping[str, WorkflowSpec], agents: Mapping[str, str]
    ) -> None:
        self._ctx, self._specs, self._agents = ctx, specs, agents

    async def start(self, run: RunState, open_step: OpenStep) -> EffectOutcome:
        """Start a sub-graph; return the wait for its end, or its id if the run does not wait."""
        payload, name = (
            open_step.effect.payload,
            str(open_step.effect.payload.get("workflow_id") or ""),
        )
        agent = self._agents.get(name)
        id_ = str(payload.get("run_id") or child_id(run, open_step))
        try:
            variables = child_vars(run, payload)
            start_payload: Any = payload.get("vars") or {}
            key = id_
            if agent is None:
                key = flow_key(self._spec_of(name).workflow_id, id_)
                start_payload = {
                    "vars": variables,
                    "actor_id": run.actor_id,
                    "session_id": payload.get("session_id") or run.session_id,
                    "parent_run_id": run.run_id,
                }
            child = await self._ctx.spawn(
                agent or self._ctx.agent_id.type, start_payload, key=key, supervision=_TERMS
            )
        except NonDeterminismError:
            raise  # also a ContractError, see `_answer_of_agent`
        except (BudgetExhaustedError, ContractError, GraphError) as exc:
            return EffectOutcome.failed(str(exc), retryable=False)
        is_async = bool(payload.get("async"))
        if is_async and not payload.get("wait"):
            return EffectOutcome.completed({"sub_run_id": child.run_id, "async": True})
        details = ({"async": True} if is_async else {}) | ({"agent": agent} if agent else {})
        return waiting_for(name, child.run_id, details)

    async def join(self, run_id: str) -> RunState | None:
        """Wait for the end of a sub-graph; return its terminal state, or None if its run was deleted."""
        try:
            result = await self._ctx.join(run_id)
        except UnknownRunError:
            return None
        except WaitCycleError as exc:
            return RunState(run_id, "", RunStatus.FAILED, "", error=str(exc))
        status = RunStatus(result.status.value.lower())
        error = str((result.error or {}).get(_ERROR) or status.value)
        return RunState(run_id, "", status, "", output=result.output, error=error)

    def _spec_of(self, name: str) -> WorkflowSpec:
        if not name:
            raise GraphError("start_subworkflow", "it needs payload.workflow_id")
        spec = self._specs.get(name)
        if spec is None:
            raise GraphError("start_subworkflow", f"graph {name!r} was not found in the app")
        return spec


SIGNAL: Final = "graph.control"
"""Name of the signals that control a run."""


class RunControl:
    """The signals that control a run. The run takes them at the boundaries of its steps.

    While the run is paused, one branch waits for signals. The other branches wait until that branch releases
    them.
    """

    def __init__(self, ctx: RunContext, decisions: Decisions) -> None:
        self._ctx, self._decisions = ctx, decisions
        self._is_awaited = False

    @property
    def is_paused(self) -> bool:
        """True while the run is paused."""
        return is_paused(self._decisions.state)

    async def poll(self) -> None:
        """Apply pending control signals; return when the calling branch may continue.

        If the log has an entry at this position, the entry decides. Otherwise the signals of now decide. So a
        replay continues at the positions at which the run continued.
        """
        verbs = self._ctx.graph.boundaries
        while self.is_paused or not verbs.is_clear(SIGNAL):
            boundary = await verbs.boundary()
            if boundary.is_known and not boundary.is_held:
                return
            signal = boundary.signal
            if not boundary.is_known:
                # One branch at a time takes signals: two would wait for the same signal.
                signal = None if self._is_awaited else await verbs.take_signal(SIGNAL)
                if signal is None and not self.is_paused:
                    return
                if signal is None:
                    signal = await self._hold()
            if signal is not None:
                change = requested_change(self._decisions.state, signal, self._decisions.now())
                if change is not None:
                    self._decisions.note(*change)
                if not self.is_paused:
                    verbs.release()

    async def _hold(self) -> Any:
        verbs, is_first = self._ctx.graph.boundaries, not self._is_awaited
        self._is_awaited = True
        try:
            return await verbs.hold(lambda: not self.is_paused, SIGNAL if is_first else None)
        finally:
            self._is_awaited = self._is_awaited and not is_first


def requested_change(state: RunState, signal: Any, at: str) -> tuple[str, list[str], Any] | None:
    """Return the change of the vars that a signal asks for: the record's kind, the path and the value.

    None if the signal changes nothing.
    """
    if not isinstance(signal, Mapping):
        return None
    kind = signal.get("kind")
    if kind in {"pause", "unpause"} and is_paused(state) is not (kind == "pause"):
        return (
            kind,
            [RUNTIME, CONTROL],
            {"paused": kind == "pause", "reason": signal.get("reason"), "at": at},
        )
    if kind == "steer":
        return kind, [RUNTIME, INBOX], with_message(state, signal.get("message"))
    if kind == "limits" and isinstance(signal.get("updates"), Mapping):
        return (
            kind,
            [LIMITS],
            namespace(state.vars, LIMITS) | limits.known_updates(signal["updates"]),
        )
    return None
