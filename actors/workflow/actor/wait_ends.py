"""The ends of a run's waits: an answer from outside or of an agent, an instant, the end of a sub-graph."""

from __future__ import annotations

from datetime import datetime
from functools import partial
from typing import Any, Final, cast

from actors.errors import ContractError, NonDeterminismError, NotSerializableError
from actors.kernel.runtime.communication import AskKind
from actors.kernel.runtime.ids import AgentId, RunId, derive_id
from actors.kernel.runtime.waits import EVENT, WaitKind, event_id
from actors.kernel.workflow.durable import durable_copy
from actors.kernel.workflow.effects import (
    ASKED,
    WaitReason,
    WaitState,
    check_answer,
    failed_calls,
    question_of,
)
from actors.kernel.workflow.run_state import RunState
from actors.runtime.verbs.run_context import RunContext
from actors.workflow.actor.decisions import Decide, Decisions, Now
from actors.workflow.actor.sub_graphs import SubGraphs
from actors.workflow.machine import records, waits
from actors.workflow.machine.records import Transition

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
