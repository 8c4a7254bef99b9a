"""Questions: to an agent by `ctx.ask`, to a person by `ctx.approval`. Each has an id and one end."""

from __future__ import annotations

from collections.abc import Awaitable
from datetime import datetime, timedelta
from typing import Any, Final

from typing_extensions import override

from actors._kernel.agent.message import Message, MessageKey, check_payload_size
from actors._kernel.basics import is_length
from actors._kernel.json import JsonValue, recordable
from actors._kernel.runtime.communication import Approval, ApprovalStatus, AskKind, AskOutcome
from actors._kernel.runtime.ids import AgentId, RunId, derive_id
from actors._kernel.runtime.log_entry import EntryKind as K
from actors._kernel.runtime.rows import RunRow
from actors._kernel.runtime.scheduler import RunStatus
from actors._kernel.runtime.sources import RunHandle
from actors._kernel.runtime.waits import Answer, Wait
from actors._kernel.stores.run_store import RunStore
from actors._kernel.text import check_name_of, check_text_of
from actors._runtime.journal.run_log import reading
from actors._runtime.replay.failures import raise_if_refused
from actors._runtime.replay.verdict import ANSWER_OF, answer_of_row
from actors._runtime.verbs.call import (
    Call,
    Entry,
    Payload,
    RunState,
    content_of,
    post,
    refuse_tenant,
)
from actors._runtime.verbs.waits import AnswerWait, Waits, instant_in
from actors.errors import ContractError, UnknownRunError, WaitCycleError

PERSON: Final = "person"
"""The target of a question to a person in the log."""
CLIENT: Final = "client"
"""The target of a call of a tool that the run's client executes."""
_KINDS: Final = (K.ASK_SENT, K.ASK_REPLIED, K.ASK_TIMEOUT, K.EFFECT_RESULT)
"""Entries of a question."""
_OUTCOMES: Final = {
    "replied": AskKind.REPLIED,
    "completed": AskKind.REPLIED,
    "failed": AskKind.TARGET_FAILED,
    "cancelled": AskKind.TARGET_CANCELLED,
}


class Question(AnswerWait):
    """A wait for an answer to something that was recorded as asked, with an id and a limit.

    Attributes:
        key: The question's id, and its answer's.
        at: The time limit, or None if it has none, or was not asked yet.
    """

    key: str

    def __init__(self, call: Call, target: str, timeout_s: float | None) -> None:
        super().__init__(call)
        self.target, self._timeout_s = target, timeout_s
        self.at: datetime | None = None
        self.is_asked = False

    def resume(self) -> bool:
        """Take over the question that an earlier execution recorded, and return True if there is one."""
        begin_entry = self.call.begin_entry
        if begin_entry is None:
            return False
        self.key, at = str(begin_entry.payload["message_id"]), begin_entry.payload.get("at")
        self.at = None if at is None else instant_in(at)
        self.is_asked = True
        # The answer may have come before this execution, which gets no hint of it.
        self.run.answers.invalidate()
        return True

    def ask(self, request: JsonValue = None, call_id: str = "") -> None:
        """Record that the question is asked. `request` and `call_id` describe one to a person or a client."""
        payload: Payload = {"target": self.target, "message_id": self.key}
        if call_id:
            payload["call"] = call_id
        if request is not None:
            payload["request"] = request
        if self._timeout_s is not None:
            self.at = self.run.clock.now() + timedelta(seconds=self._timeout_s)
            payload["timeout_s"] = self._timeout_s
        if self.at is not None:
            payload["at"] = self.at.isoformat()
        self.is_asked = True
        self.call.record(K.ASK_SENT, payload)

    @override
    def entry_of_answer(self, answer: Answer) -> Entry:
        payload: Payload = {"outcome": answer.status, "result": answer.result}
        return self.call.entry(K.ASK_REPLIED, payload)


class Ask(Question):
    """A call of `ctx.ask`.

    Args:
        call: The call, met.
        target: The agent or run that is asked.
        content: The question.
        timeout_s: Its limit.
        key: Questions of the run with the same key are one question; None for a question of its own.
        store: The store in which runs are looked up.
    """

    def __init__(
        self,
        call: Call,
        target: AgentId | RunHandle,
        content: JsonValue,
        *,
        timeout_s: float,
        key: str | None,
        store: RunStore,
    ) -> None:
        super().__init__(call, _target_text(target), timeout_s)
        self._handle = target if isinstance(target, RunHandle) else None
        self._agent_id = target.agent_id if isinstance(target, RunHandle) else target
        self._content, self._key, self._store = content, key, store
        self.keep = key is not None
        if key is None:
            self.key = call.message_id
        else:
            # A question that was refused was taken back: the next one with its key is another one.
            refusal_count = self.run.history.refusal_counts.get(key, 0)
            self.key = derive_id(
                "ask", self.run.run_id, key, *([refusal_count] if refusal_count else [])
            )

    def open(self, size_bytes: int) -> None:
        """Go on with what was asked, or ask; a run is looked up before.

        Raises:
            MessageTooLargeError: The question, of this size, is too large to be sent, and was not.
        """
        if self.resume():
            return
        check_payload_size(size_bytes, what=f"question to {self._agent_id}")
        # A call that this execution refuses sends no question, which would have to be taken back.
        if self._handle is None and self.call.position not in self.run.refusals:
            self.ask()

    @override
    def ask(self, request: JsonValue = None, call_id: str = "") -> None:
        """Record the question; it leaves with the next flush."""
        super().ask(request, call_id)
        run = self.run
        post(run, "ask", run.message(self.key, self._agent_id, self._content, is_question=True))

    @override
    def take_back(self) -> None:
        """A refused question has no effect, unless it was begun."""
        if self._key is not None:
            self.run.count_refusal(self._key)
        if self.is_asked:
            key = MessageKey(self._agent_id, self.run.sender, self.key)
            self.run.log.writes.withdraw.append(key)

    @override
    async def prepare(self) -> Wait | Answer | Exception:
        target_run = None
        if self._handle is not None:
            target_run = self._handle.run_id
            if not self.is_asked:
                target = await find(self.call, self._store, target_run)
                if not isinstance(target, RunRow):
                    return target
                if target.agent_id != self._agent_id:
                    return UnknownRunError(target_run)
                self.ask()
        return Wait(
            self.call.position,
            "ask",
            self.key,
            self._agent_id,
            expires_at=self.at,
            target_run=target_run,
        )

    @override
    def entry_of_answer(self, answer: Answer) -> Entry:
        outcome = _OUTCOMES[answer.status]
        is_reply = outcome is AskKind.REPLIED
        payload: Payload = {
            "outcome": outcome.value,
            "result": answer.result if is_reply else answer.error,
            "handle": answer.by,
            "last_seq": answer.last_seq,
        }
        return self.call.entry(K.ASK_REPLIED, payload)

    @override
    async def entry_of_timeout(self) -> Entry:
        """Return the end of its time; a run that has ended is not reported as one that lives."""
        run, handle, store = self.run, self._handle, self._store

        def look_up() -> Awaitable[RunRow | None]:
            if handle is not None:
                return store.reads.run(handle.run_id)
            return store.lists.run_of_message(self._agent_id, run.sender, self.key)

        row = await reading(run.log, look_up)
        # The run has ended, and the time was over before its answer came: its end counts.
        if row is not None and row.status.is_terminal:
            return self.entry_of_answer(answer_of_row(run.run_id, self.key, row))
        payload: Payload = {
            "outcome": AskKind.TIMED_OUT.value,
            "handle": row.run_id if row is not None else None,
            "last_seq": row.last_seq if row is not None else -1,
        }
        return self.call.entry(K.ASK_TIMEOUT, payload)


class ApprovalQuestion(Question):
    """A call of `ctx.approval`. Its id depends on the arguments: a decision counts for nothing else."""

    def __init__(self, call: Call, request: JsonValue, timeout_s: float | None) -> None:
        super().__init__(call, PERSON, timeout_s)
        self._request = request
        run, position = call.run, call.position
        n = run.history.next_number_at(position)
        self.key = derive_id("approval", run.run_id, position, n, call.digest)

    @override
    async def prepare(self) -> Wait:
        position = self.call.position
        return Wait(position, "approval", self.key, request=self._request, expires_at=self.at)

    @override
    async def entry_of_timeout(self) -> Entry:
        return self.call.entry(K.ASK_TIMEOUT, {"outcome": ApprovalStatus.EXPIRED.value})


class ClientQuestion(Question):
    """A call of a tool that the run's client executes; it has no limit."""

    def __init__(self, call: Call, request: JsonValue) -> None:
        super().__init__(call, CLIENT, None)
        self._request = request
        n = call.run.history.next_number_at(call.position)
        self.key = derive_id("tool", call.run.run_id, call.position, n, call.digest)

    @override
    async def prepare(self) -> Wait:
        return Wait(self.call.position, "tool", self.key, request=self._request)


class Questions:
    """The verbs that ask, of one execution of a run."""

    def __init__(self, run: RunState, waits: Waits, store: RunStore) -> None:
        self._run, self._waits, self._store = run, waits, store

    async def ask(
        self, target: AgentId | RunHandle, msg: Message | Any, *, timeout: float, key: str | None
    ) -> AskOutcome:
        """Send a question and return its one end."""
        run, call = self._run, Call(self._run, "ask")
        agent_id = target.agent_id if isinstance(target, RunHandle) else target
        refuse_tenant(run, agent_id)
        if not _is_limit(timeout):
            problem = f"ctx.ask needs a time limit in seconds, above 0 and up to ten years: {str(timeout)[:40]}"
            raise ContractError(problem)
        if key is not None:
            check_name_of("idempotency_key of ctx.ask", key)
        content, size_bytes = content_of(msg, f"message to {agent_id}")
        name, limit_s = _target_text(target), float(timeout)
        entry = call.meet(_KINDS, f"ask {name}", ["ask", name, content, limit_s])
        if entry is not None:
            await call.in_order(entry)
            if key is not None and entry.kind == K.EFFECT_RESULT:
                run.count_refusal(key)
            return _outcome_of(entry.seq, entry.payload)
        question = Ask(call, target, content, timeout_s=limit_s, key=key, store=self._store)
        question.open(size_bytes)
        await call.begin()
        return _outcome_of(*await self._waits.answer(question))

    async def approval(
        self, what: str, args: Any, timeout: float | None, call_id: str = ""
    ) -> Approval:
        """Ask a person and return the decision. `call_id` is the model's id of the call that it is about."""
        call = Call(self._run, "approval")
        check_text_of("what ctx.approval asks for", what)
        request: JsonValue = {"what": what, "args": recordable(args, where=f"approval {what!r}")}
        if timeout is not None and not _is_limit(timeout):
            timeout_text = str(timeout)[:40]
            msg = f"ctx.approval: timeout={timeout_text} is no time in seconds up to ten years; None: none"
            raise ContractError(msg)
        entry = call.meet(_KINDS, f"approval {what}", [call.verb, request, timeout])
        if entry is not None:
            await call.in_order(entry)
            return _approval_of(entry.seq, entry.payload)
        question = ApprovalQuestion(call, request, timeout)
        if not question.resume():
            question.ask(request, call_id)
        # An answer may be stored before the wait begins, without a hint for this execution.
        self._run.answers.invalidate()
        await call.begin()
        return _approval_of(*await self._waits.answer(question))

    async def client_tool(self, call_id: str, name: str, arguments: dict[str, Any]) -> JsonValue:
        """Return what the run's client gave as the result of a tool's call."""
        call = Call(self._run, "client_tool")
        request: JsonValue = {"call": call_id, "name": name, "arguments": arguments}
        entry = call.meet(_KINDS, f"client's tool {name}", [call.verb, request])
        if entry is not None:
            await call.in_order(entry)
            return entry.payload.get("result")
        question = ClientQuestion(call, request)
        if not question.resume():
            question.ask(request)
        # An answer may be stored before the wait begins, without a hint for this execution.
        self._run.answers.invalidate()
        await call.begin()
        return (await self._waits.answer(question))[1].get("result")


def _target_text(target: AgentId | RunHandle) -> str:
    """Return the text by which a question names its target."""
    return target.run_id if isinstance(target, RunHandle) else str(target)


def _is_limit(timeout: float) -> bool:
    return is_length(timeout) and timeout > 0


async def find(call: Call, store: RunStore, run_id: RunId) -> RunRow | Answer | Exception:
    """Return an open run, or how it ended, or why this run may not know it."""
    run = call.run
    if run_id == run.run_id:
        return WaitCycleError([str(run.agent_id)])
    join_payload = run.history.joined_runs.get(run_id)
    if join_payload is not None:
        return _answer_of(run.run_id, join_payload)
    # A run that this one has just spawned is in the store only then, and would count as unknown.
    await run.log.durable(call.branch, run.log.last_seq)
    row = await reading(run.log, lambda: store.reads.run(run_id))
    if row is None or row.agent_id.tenant != run.agent_id.tenant:
        return UnknownRunError(run_id)
    return answer_of_row(run.run_id, run_id, row) if row.status.is_terminal else row


def _answer_of(waiter: RunId, payload: Payload) -> Answer:
    """Return the answer that ended an earlier join, from its entry."""
    error = payload.get("error")
    return Answer(
        waiter,
        str(payload["child"]),
        ANSWER_OF[RunStatus(str(payload["status"]))],
        result=payload.get("output"),
        error=error if isinstance(error, dict) else None,
        by=RunId(str(payload["child"])),
    )


def _outcome_of(seq: int, payload: Payload) -> AskOutcome:
    """Return how a question ended, from its entry; raise what it was refused with."""
    raise_if_refused(seq, payload)
    handle = payload.get("handle")
    return AskOutcome(
        kind=AskKind(str(payload["outcome"])),
        result=payload.get("result"),
        handle=str(handle) if handle is not None else None,
        last_seq=int(str(payload.get("last_seq", -1))),
    )


def _approval_of(seq: int, payload: Payload) -> Approval:
    raise_if_refused(seq, payload)
    result = payload.get("result")
    decision = result if isinstance(result, dict) else {}
    by = decision.get("by")
    return Approval(
        status=ApprovalStatus(str(payload["outcome"])),
        by=None if by is None else str(by),
        comment=str(decision.get("comment") or ""),
    )
