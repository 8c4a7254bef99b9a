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

    def __init__(self, ctx: RunContext, decided: Decisions, subs: SubGraphs) -> None:
        self._ctx, self._decided, self._subs = ctx, decided, subs
        self.waited: set[str] = set()
        self.waiting: set[str] = set()

    async def end(self, wait: WaitState) -> Decide:
        """Wait until a wait has ended; return the decision on it."""
        if wait.reason is WaitReason.SUBWORKFLOW:
            child = await self._subs.ended(str((wait.details or {}).get("sub_run_id")))
            return lambda state, now: _or_same(waits.child_ended(state, child, at=now()), state)
        if wait.reason is WaitReason.UNTIL and wait.until is not None:
            await self._ctx.sleep_until(datetime.fromisoformat(wait.until))
            return _fallen_due(wait.until)
        if wait.reason is WaitReason.JOB and ASKED in (wait.details or {}):
            return await self._answer_of_agent(wait)
        return await self._answer(wait)

    async def _answer_of_agent(self, wait: WaitState) -> Decide:
        """Ask the agent of a wait once. Without an answer, tool calls are unsuccessful, and LLM_CALL fails."""
        asked, ctx = (wait.details or {})[ASKED], self._ctx
        try:
            agent = AgentId(asked["type"], asked["key"], ctx.tenant_id)
            question, limit_s = question_of(wait, ctx.run_id), asked["timeout_s"]
            found = await ctx.ask(agent, question, timeout=limit_s)
            if found.kind is AskKind.REPLIED:
                check_answer(wait, found.result)
                return partial(_replied, wait, found.result)
            error: Any = found.result or {}
            problem = f"agent {agent}: {found.kind.value}: {error.get('message') or ''}"
            if found.kind is AskKind.TIMED_OUT:
                problem = f"agent {agent} gave no answer within {limit_s:g} s"
        except NonDeterminismError:
            raise
        except ContractError as exc:
            problem = str(exc)
        rows, said = failed_calls(wait, problem), problem
        if rows is not None:
            return partial(_replied, wait, rows)
        return lambda state, now: records.failed(state, said, at=now())

    async def _answer(self, wait: WaitState) -> Decide:
        kind, key = cast("WaitKind", _KINDS.get(wait.reason, "job")), wait.wait_key or ""
        until = None if wait.until is None else datetime.fromisoformat(wait.until)
        request: dict[str, Any] = {WAIT: wait.to_dict()}
        if wait.reason is WaitReason.EVENT:
            request[EVENT] = event_id(self._ctx.tenant_id, key)
        before = self._decided.state
        verbs, first = self._ctx.graph, answer_key(self._ctx.run_id, key)
        while True:
            self.waiting.add(key)
            place = verbs.wait_key(first, is_taken=key in self.waited)
            is_answered, answer = await verbs.wait(kind, place, request, until)
            if not is_answered:
                return _fallen_due(wait.until or "")
            event = _event_in(wait, answer)
            is_old = event is not None and waits.has_heard(before, event)
            again = (
                verbs.next_is_wait()
            )  # the log decides, since branches may replay in another order
            if not (is_old if again is None else again):
                return partial(_replied, wait, answer)


def answer_key(run_id: RunId, wait_key: str) -> str:
    """Return the key of the answer to a run's first wait of this key."""
    return derive_id("wait", run_id, wait_key)


def _event_in(wait: WaitState, answer: Any) -> Any:
    """Return the id of the event in an answer. None: the answer is not an event."""
    is_event = wait.reason is WaitReason.EVENT and isinstance(answer, dict)
    return answer.get("event_id") if is_event else None


def _replied(wait: WaitState, answer: Any, state: RunState, now: Now) -> Transition:
    at = now()
    try:
        payload = durable_copy(answer, "payload", deepest=waits.room_at(wait.result_key))
    except NotSerializableError as exc:
        return records.failed(state, f"answer to {wait.wait_key!r}: {exc}", at=at)
    event = _event_in(wait, answer)
    is_new = event is not None and not waits.has_heard(state, event)
    more = waits.note_of(state, answer) if is_new else None
    return waits.reply(state, wait, payload, at=at, more=more)


def _fallen_due(until: str) -> Decide:
    return lambda state, now: _or_same(waits.fell_due(state, at=max(now(), until)), state)


def _or_same(decided: Transition | None, state: RunState) -> Transition:
    return Transition(state) if decided is None else decided


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

    async def begun(self, run: RunState, opened: OpenStep) -> EffectOutcome:
        """Start a sub-graph; return the wait for its end, or its id if the run does not wait."""
        payload, name = opened.effect.payload, str(opened.effect.payload.get("workflow_id") or "")
        agent = self._agents.get(name)
        id_ = str(payload.get("run_id") or child_id(run, opened))
        try:
            variables = child_vars(run, payload)
            boot: Any = payload.get("vars") or {}
            key = id_
            if agent is None:
                key = flow_key(self._spec_of(name).workflow_id, id_)
                boot = {
                    "vars": variables,
                    "actor_id": run.actor_id,
                    "session_id": payload.get("session_id") or run.session_id,
                    "parent_run_id": run.run_id,
                }
            child = await self._ctx.spawn(
                agent or self._ctx.agent_id.type, boot, key=key, supervision=_TERMS
            )
        except NonDeterminismError:
            raise
        except (BudgetExhaustedError, ContractError, GraphError) as exc:
            return EffectOutcome.failed(str(exc), retryable=False)
        is_async = bool(payload.get("async"))
        if is_async and not payload.get("wait"):
            return EffectOutcome.completed({"sub_run_id": child.run_id, "async": True})
        more = ({"async": True} if is_async else {}) | ({"agent": agent} if agent else {})
        return waiting_for(name, child.run_id, more)

    async def ended(self, run_id: str) -> RunState | None:
        """Wait for the end of a sub-graph; return its terminal state.

        None: the sub-graph's run does not exist any more.
        """
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

    def __init__(self, ctx: RunContext, decided: Decisions) -> None:
        self._ctx, self._decided = ctx, decided
        self._is_awaited = False

    @property
    def is_paused(self) -> bool:
        """True while the run is paused."""
        return is_paused(self._decided.state)

    async def look(self) -> None:
        """Apply pending control signals; return when the calling branch may continue.

        If the log has an entry at this position, the entry decides. Otherwise the signals of now decide. So a
        replay continues at the positions at which the run continued.
        """
        verbs = self._ctx.graph.boundaries
        while self.is_paused or not verbs.is_clear(SIGNAL):
            known = await verbs.boundary()
            if known.is_known and not known.is_held:
                return
            told = known.signal
            if not known.is_known:
                told = None if self._is_awaited else await verbs.take_signal(SIGNAL)
                if told is None and not self.is_paused:
                    return
                if told is None:
                    told = await self._hold()
            if told is not None:
                change = wanted(self._decided.state, told, self._decided.now())
                if change is not None:
                    self._decided.note(*change)
                if not self.is_paused:
                    verbs.release()

    async def _hold(self) -> Any:
        verbs, is_first = self._ctx.graph.boundaries, not self._is_awaited
        self._is_awaited = True
        try:
            return await verbs.hold(lambda: not self.is_paused, SIGNAL if is_first else None)
        finally:
            self._is_awaited = self._is_awaited and not is_first


def wanted(state: RunState, told: Any, at: str) -> tuple[str, list[str], Any] | None:
    """Return the change of the vars that a signal asks for: the record's kind, the path and the value.

    None: the signal changes nothing.
    """
    if not isinstance(told, Mapping):
        return None
    kind = told.get("kind")
    if kind in {"pause", "unpause"} and is_paused(state) is not (kind == "pause"):
        return (
            kind,
            [RUNTIME, CONTROL],
            {"paused": kind == "pause", "reason": told.get("reason"), "at": at},
        )
    if kind == "steer":
        return kind, [RUNTIME, INBOX], with_message(state, told.get("message"))
    if kind == "limits" and isinstance(told.get("updates"), Mapping):
        return kind, [LIMITS], namespace(state.vars, LIMITS) | limits.known_updates(told["updates"])
    return None
