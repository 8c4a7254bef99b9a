"""Answers from outside: to approvals, to calls of tools that a run's client executes, to waits of graphs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from actors._kernel.agent.message import payload_of
from actors._kernel.agent.tools import InvocationResult
from actors._kernel.basics import check_number
from actors._kernel.json import JsonValue
from actors._kernel.runtime.communication import ApprovalRequest
from actors._kernel.runtime.ids import AgentId, RunId
from actors._kernel.runtime.waits import GRAPH_WAITS, Answer, AnswerStatus, OpenWait
from actors._kernel.stores.run_store import RunStore
from actors._kernel.stores.runs import ApprovalFilter, emit_to_all
from actors._kernel.text import check_name_of, check_text_of, is_name
from actors.errors import UnknownApprovalError

MOST: Final = 10_000
"""Number of waits of a run that are searched for calls of tools."""


class Approvals:
    """The open requests of all runs, to people and to clients.

    Args:
        store: The store of the approvals.
        on_answer: Function that gets the runs that can go on after a decision.
    """

    def __init__(self, store: RunStore, on_answer: Callable[[RunId, AgentId], None]) -> None:
        self._store = store
        self._on_answer = on_answer

    async def open(self, *, run_id: RunId | None = None, limit: int = 100) -> list[ApprovalRequest]:
        """Return pending approvals, oldest first."""
        check_number("limit", limit, low=0)
        if run_id is not None and not is_name(run_id):
            return []
        waits = await self._store.lists.approvals(ApprovalFilter(run_id=run_id), limit=limit)
        return [request_of(wait) for wait in waits]

    async def open_calls(self, run_id: RunId) -> dict[str, str]:
        """Return the calls of tools that a run waits for its client to execute: key by the model's id."""
        if not is_name(run_id):
            return {}
        keys_by_call_id: dict[str, str] = {}
        for row in await self._store.lists.waits(run_id, limit=MOST):
            wait = row.wait
            if wait.kind == "tool":
                call_id = wait.request.get("call") if isinstance(wait.request, dict) else ""
                keys_by_call_id[str(call_id)] = wait.key
        return keys_by_call_id

    async def give(self, run_id: RunId, call_id: str, result: InvocationResult) -> bool:
        """Give the result of a tool's call that a run waits for; its run goes on. The first one counts.

        Returns False if the run does not wait for it, or has the result already.

        Raises:
            MessageTooLargeError: It has more than 256 KiB.
        """
        key = (await self.open_calls(run_id)).get(call_id)
        if key is None:
            return False
        data = payload_of(result.model_dump(mode="json"), what=f"result of call {call_id}")
        outcome = await self._store.arrivals.answer(Answer(run_id, key, "replied", result=data))
        if outcome.accepted and outcome.agent_id is not None:
            self._on_answer(run_id, outcome.agent_id)
        return outcome.accepted

    async def open_waits(self, run_id: RunId) -> list[OpenWait]:
        """Return the waits of a graph's run; the request of each is an object that says what it is for."""
        if not is_name(run_id):
            return []
        waits = await self._store.lists.waits(run_id, limit=MOST)
        graph_waits = [w for w in waits if w.wait.kind in GRAPH_WAITS]
        return [w for w in graph_waits if isinstance(w.wait.request, dict)]

    async def answer(self, run_id: RunId, key: str, payload: JsonValue, *, early: bool) -> bool:
        """Answer a wait of a graph's run, which goes on. The first answer counts; return False for another.

        With `early` the answer is kept until the run waits; else it must wait now.

        Raises:
            MessageTooLargeError: It has more than 256 KiB.
            UnknownRunError: There is no such run.
        """
        data = payload_of(payload, what=f"answer to run {run_id}")
        status: AnswerStatus = "replied" if early else "resumed"
        outcome = await self._store.arrivals.answer(Answer(run_id, key, status, result=data))
        if outcome.accepted and outcome.agent_id is not None:
            self._on_answer(run_id, outcome.agent_id)
        return outcome.accepted

    async def emit(self, event: str, payload: JsonValue) -> list[RunId]:
        """Answer all open waits of graphs for an event (`event_id`), once each; return their runs.

        In steps, each durable when it is done: a call that dies half-way is made again. A run that begins to
        wait meanwhile may get the event, too.

        Raises:
            MessageTooLargeError: It has more than 256 KiB.
        """
        data, run_ids = payload_of(payload, what="an event"), list[RunId]()
        async for answered_runs in emit_to_all(self._store.arrivals, event, data):
            for run_id, agent_id in answered_runs:
                self._on_answer(run_id, agent_id)
            run_ids += [run_id for run_id, _ in answered_runs]
        return run_ids

    async def decide(
        self, approval_id: str, *, approve: bool, by: str, comment: str = ""
    ) -> ApprovalRequest:
        """Approve or deny one request, once, and return it. Its run goes on.

        Args:
            approval_id: Its id, or the beginning of it if no other open one begins so.
            approve: Whether it may be done.
            by: The person who decides; kept in the run's log.
            comment: Kept with it.

        Raises:
            UnknownApprovalError: It is not open (any more), or the id is shortened too much.
        """
        check_name_of("who decides", by)
        check_text_of("comment of a decision", comment)
        request = await self._find(approval_id)
        run_id = RunId(request.run_id)
        outcome = await self._store.arrivals.answer(
            Answer(
                run_id,
                request.id,
                "approved" if approve else "denied",
                result={"by": by, "comment": comment},
            )
        )
        if not outcome.accepted:
            raise UnknownApprovalError(approval_id, "it was decided already, or is over")
        if outcome.agent_id is not None:
            self._on_answer(run_id, outcome.agent_id)
        return request

    async def _find(self, approval_id: str) -> ApprovalRequest:
        waits: list[OpenWait] = []
        if is_name(approval_id):
            waits = await self._store.lists.approvals(ApprovalFilter(key=approval_id), limit=2)
        if not waits:
            raise UnknownApprovalError(approval_id, "no run waits for it")
        if len(waits) > 1:
            raise UnknownApprovalError(approval_id, "several open ones begin so")
        return request_of(waits[0])


def request_of(open_wait: OpenWait) -> ApprovalRequest:
    """Return an open wait as people see it."""
    request = open_wait.wait.request
    details = request if isinstance(request, dict) else {"what": request or ""}
    return ApprovalRequest(
        id=open_wait.wait.key,
        run_id=open_wait.run_id,
        agent_id=str(open_wait.agent_id),
        what=str(details.get("what", "")),
        args=details.get("args"),
        since=open_wait.since,
        expires_at=open_wait.wait.expires_at,
    )
