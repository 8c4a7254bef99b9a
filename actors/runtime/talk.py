"""Verbs between runs: send, ask, reply, join, cancel, status."""

from __future__ import annotations

import functools
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final

from actors.errors import ContractError, UnknownRunError, WaitCycleError
from actors.kernel.agent.message import Message, MessageKey, check_payload_size
from actors.kernel.json import canonical_json, sized
from actors.kernel.runtime.commit import Answer, Outgoing, RunRow, Wait
from actors.kernel.runtime.communication import AskKind, AskOutcome, RunStatusSummary
from actors.kernel.runtime.effects import EffectMode, args_hash
from actors.kernel.runtime.ids import AgentId, RunId, derive_id, message_id_of_run
from actors.kernel.runtime.log_entry import EntryKind as K
from actors.kernel.runtime.scheduler import RunStatus
from actors.kernel.runtime.supervisor import RunHandle, RunResult
from actors.kernel.seconds import is_length
from actors.kernel.text import check_name_of, check_text_of
from actors.runtime.journaling import EffectCall
from actors.runtime.recorded import raise_if_refused
from actors.runtime.spawning import refuse_tenant
from actors.runtime.summary import ANSWER_OF, answer_of_row, known_id, summary_of
from actors.runtime.waits import AnswerWait, Payload

if TYPE_CHECKING:
    from collections.abc import Callable

    from actors.kernel.json import JsonValue
    from actors.kernel.runtime.store import RunStore
    from actors.runtime.branch import Branch
    from actors.runtime.history import Place
    from actors.runtime.journaling import Effects
    from actors.runtime.recorder import Recorder
    from actors.runtime.waits import Waits

_OUTCOMES: Final = {
    "replied": AskKind.REPLIED,
    "completed": AskKind.REPLIED,
    "failed": AskKind.TARGET_FAILED,
    "cancelled": AskKind.TARGET_CANCELLED,
}
_STATUS_OF: Final = {answer: status for status, answer in ANSWER_OF.items()}


class Talk:
    """The verbs between runs, of one execution of a run.

    Args:
        recorder: The execution.
        waits: Its waiting verbs.
        effects: Its effects.
        store: Where other runs are looked up.
        on_cancel: Told of every run that was asked to stop.
    """

    def __init__(
        self,
        recorder: Recorder,
        waits: Waits,
        effects: Effects,
        *,
        store: RunStore,
        on_cancel: Callable[[RunId, AgentId, str], None],
    ) -> None:
        self.run = recorder
        self._waits = waits
        self._effects = effects
        self.store = store
        self._on_cancel = on_cancel

    # --- one way --------------------------------------------------------------------------------

    async def send(self, target: AgentId, payload: Message | Any) -> None:
        """See `RunContext.send`."""
        run = self.run
        position = run.turnstile.enter("send").take_position()
        refuse_tenant(target, run.agent_id.tenant)
        content, size_bytes = _content(payload, target)
        digest = args_hash([str(target), content])
        place = run.meet(position, (K.MSG_SENT,), f"send {target}", digest)
        if place is not None and place.end is not None:
            return
        check_payload_size(size_bytes, what=f"message to {target}")
        message_id = message_id_of_run(run.run_id, position, run.history.sent_at(position))
        entry: Payload = {"message_id": message_id, "target": str(target), "hash": digest}
        run.log.record(K.MSG_SENT, position, entry)
        self.deliver(Message(message_id, target, content))

    def deliver(self, message: Message) -> None:
        """Let a message leave with the next flush, stamped as this run's."""
        run, target = self.run, message.target
        sender = f"agent:{run.agent_id}"
        stamped = Message(
            message.id, target, message.payload, sender, created_at=run.clock.now(),
            reply_to=message.reply_to, correlation_id=message.correlation_id,
            causation_id=run.run_id, metadata=run.carrier,
        )  # fmt: skip
        if run.spans is not None:
            verb, kind = "send" if message.reply_to is None else "ask", target.type
            run.spans.point(
                verb, kind, target=str(target), message_id=message.id, payload=message.payload
            )
        run.log.send(Outgoing(stamped, sender, target))

    async def reply(self, to: Message, result: Any) -> None:
        """See `RunContext.reply`."""
        run = self.run
        position = run.turnstile.enter("reply").take_position()
        check_name_of("id of the message to reply to", to.id)
        check_name_of("reply_to of the message to reply to", to.reply_to or "")
        value, size_bytes = sized(result, where=f"reply to {to.id}")
        digest = args_hash(["reply", to.id, value])
        place = run.meet(position, (K.EFFECT_RESULT,), f"reply to {to.id}", digest)
        if place is not None and place.end is not None:
            return
        check_payload_size(size_bytes, what=f"reply to {to.id}")
        asker = to.reply_to
        entry: Payload = {
            "effect": "reply", "hash": digest, "status": "ok", "value": asker is not None,
        }  # fmt: skip
        seq = run.log.record(K.EFFECT_RESULT, position, entry)
        if asker is not None:
            answer = Answer(asker, to.id, "replied", result=value, by=run.run_id, last_seq=seq)
            run.log.answer(answer)

    # --- the ends of other runs ---------------------------------------------------------------------

    async def join(self, target: RunHandle | str) -> RunResult:
        """See `RunContext.join`."""
        run, verb = self.run, "join"
        branch = run.turnstile.enter(verb)
        position = branch.take_position()
        joined = known_id(target)
        digest = args_hash(["join", joined])
        place = run.meet(position, (K.CHILD_COMPLETED, K.EFFECT_RESULT), f"join {joined}", digest)
        known = place.result if place is not None else None
        if known is not None:
            await run.turnstile.turn_for(branch, known.seq, verb)
            return _run_result(known.seq, known.payload)

        async def prepare() -> Wait | Answer | Exception:
            agent = run.history.children.get(joined)
            if joined in run.history.joined or agent is None:
                found = await self.find(branch, joined)
                if not isinstance(found, RunRow):
                    return found
                agent = str(found.agent_id)
            return Wait(position, "join", joined, AgentId.parse(agent), target_run=joined)

        def entry_of(answer: Answer) -> tuple[K, str, Payload]:
            status = _STATUS_OF[answer.status].value
            entry: Payload = {"child": joined, "status": status, "hash": digest}
            if answer.result is not None:
                entry["output"] = answer.result
            if answer.error is not None:
                entry["error"] = answer.error
            run.history.joined[joined] = entry
            return K.CHILD_COMPLETED, position, entry

        await run.turnstile.begin(branch, verb)
        wanted = AnswerWait(verb, digest, prepare, entry_of)
        return _run_result(*await self._waits.answer(branch, position, wanted))

    async def find(self, branch: Branch, run_id: RunId) -> RunRow | Answer | Exception:
        """Return an open run, or how it ended, or why this run may not know it."""
        run = self.run
        if run_id == run.run_id:
            return WaitCycleError([str(run.agent_id)])
        joined = run.history.joined.get(run_id)
        if joined is not None:
            return _answer_of(run.run_id, joined)
        await run.log.durable(branch, run.log.seq)
        row = await run.log.reading(lambda: self.store.run(run_id))
        if row is None or row.agent_id.tenant != run.agent_id.tenant:
            return UnknownRunError(run_id)
        return answer_of_row(run.run_id, run_id, row) if row.status.is_terminal else row

    # --- questions ------------------------------------------------------------------------------

    async def ask(
        self, target: AgentId | RunHandle, msg: Message | Any, *, timeout: float, key: str | None
    ) -> AskOutcome:
        """See `RunContext.ask`."""
        run, verb = self.run, "ask"
        branch = run.turnstile.enter(verb)
        position = branch.take_position()
        question = self._question(branch, position, target, msg, timeout=timeout, key=key)
        kinds = (K.ASK_SENT, K.ASK_REPLIED, K.ASK_TIMEOUT, K.EFFECT_RESULT)
        place = run.meet(position, kinds, f"ask {question.target}", question.digest)
        known = place.result if place is not None else None
        if known is not None:
            await run.turnstile.turn_for(branch, known.seq, verb)
            if key is not None and known.kind == K.EFFECT_RESULT:
                run.refused_keys[key] += 1
            return _ask_outcome(known.seq, known.payload)
        question.meet(place)
        if question.handle is None and position not in run.refusals:
            question.send()
        await run.turnstile.begin(branch, verb)
        wanted = AnswerWait(
            verb, question.digest, question.prepare, question.answered, question.timed_out,
            question.take_back, question.id, keep=key is not None,
        )  # fmt: skip
        return _ask_outcome(*await self._waits.answer(branch, position, wanted))

    def _question(
        self,
        branch: Branch,
        position: str,
        target: AgentId | RunHandle,
        msg: Message | Any,
        *,
        timeout: float,
        key: str | None,
    ) -> _Question:
        agent_id = target.agent_id if isinstance(target, RunHandle) else target
        refuse_tenant(agent_id, self.run.agent_id.tenant)
        if not (is_length(timeout) and timeout > 0):
            text = f"ctx.ask needs a time limit in seconds, above 0 and up to ten years: {str(timeout)[:40]}"
            raise ContractError(text)
        if key is not None:
            check_name_of("idempotency_key of ctx.ask", key)
        content, size_bytes = _content(msg, agent_id)
        return _Question(
            self, branch, position, target, content=content, size_bytes=size_bytes,
            timeout_s=float(timeout), key=key,
        )  # fmt: skip

    # --- effects --------------------------------------------------------------------------------

    async def cancel(self, target: RunHandle | str, reason: str) -> None:
        """See `RunContext.cancel`."""
        run_id = self._named("cancel", target, reason)

        async def execute() -> None:
            await self._known(run_id)
            report = await self.run.log.reading(
                lambda: self.store.request_cancel(run_id, reason=reason)
            )
            for asked, agent_id in report.runs:
                self._on_cancel(asked, agent_id, reason)

        await self._effects.perform(_effect("cancel", run_id, [run_id, reason], execute))

    async def status(self, target: RunHandle | str) -> RunStatusSummary:
        """See `RunContext.status`."""
        run_id = self._named("status", target)

        async def execute() -> JsonValue:
            row = await self._known(run_id)
            summary = await self.run.log.reading(lambda: summary_of(self.store, row))
            return summary.model_dump(mode="json")

        value = await self._effects.perform(_effect("status", run_id, [run_id], execute))
        return RunStatusSummary.model_validate(value)

    def _named(self, verb: str, target: RunHandle | str, reason: str = "") -> RunId:
        """Return the run that an effect is about; what its arguments alone decide takes a position, too."""
        try:
            check_text_of(f"reason of ctx.{verb}", reason)
            return known_id(target)
        except ContractError:
            self.run.turnstile.enter(verb).take_position()
            raise

    async def _known(self, run_id: RunId) -> RunRow:
        row = await self.run.log.reading(lambda: self.store.run(run_id))
        if row is None or row.agent_id.tenant != self.run.agent_id.tenant:
            raise UnknownRunError(run_id)
        return row


class _Question:
    """One call of ask: what was sent, and what ends it."""

    def __init__(
        self,
        talk: Talk,
        branch: Branch,
        position: str,
        target: AgentId | RunHandle,
        *,
        content: JsonValue,
        size_bytes: int,
        timeout_s: float,
        key: str | None,
    ) -> None:
        self._talk, self._run, self._store = talk, talk.run, talk.store
        self._branch, self._position = branch, position
        self._content, self._timeout_s = content, timeout_s
        self._size_bytes = size_bytes
        self.handle = target if isinstance(target, RunHandle) else None
        self.agent_id = target.agent_id if isinstance(target, RunHandle) else target
        self.target = self.handle.run_id if self.handle is not None else str(self.agent_id)
        self.digest = args_hash(["ask", self.target, content, timeout_s])
        run = self._run
        n = run.history.sent_at(position)
        self.id = message_id_of_run(run.run_id, position, n)
        self._key = key
        if key is not None:
            # A question that was refused was taken back: the next one with its key is another one.
            again = run.refused_keys[key]
            self.id = derive_id("ask", run.run_id, key, *([again] if again else []))
        self._is_sent = False
        self._at: datetime | None = None

    def meet(self, place: Place | None) -> None:
        """Take over what an execution before this one has sent.

        Raises:
            MessageTooLargeError: None has, and the question is too large to be sent.
        """
        begun = place.begin if place is not None else None
        if begun is not None:
            self.id = str(begun.payload["message_id"])
            self._at = datetime.fromisoformat(str(begun.payload["at"])).astimezone(UTC)
            self._is_sent = True
            self._run.answers.poke()
        else:
            check_payload_size(self._size_bytes, what=f"question to {self.agent_id}")

    def send(self) -> None:
        """Record the question; it leaves with the next flush."""
        run = self._run
        if self._is_sent:
            return
        self._is_sent = True
        self._at = run.clock.now() + timedelta(seconds=self._timeout_s)
        run.log.record(
            K.ASK_SENT, self._position,
            {
                "target": self.target, "message_id": self.id, "timeout_s": self._timeout_s,
                "at": self._at.isoformat(), "hash": self.digest,
            },
        )  # fmt: skip
        self._talk.deliver(
            Message(
                self.id, self.agent_id, self._content, reply_to=run.run_id, correlation_id=self.id
            )
        )

    def take_back(self) -> None:
        """See `AnswerWait.take_back`: a refused question has no effect, unless it was begun."""
        if self._key is not None:
            self._run.refused_keys[self._key] += 1
        if self._is_sent:
            sender = f"agent:{self._run.agent_id}"
            self._run.log.withdraw(MessageKey(self.agent_id, sender, self.id))

    async def prepare(self) -> Wait | Answer | Exception:
        """See `AnswerWait.prepare`."""
        if self.handle is not None and not self._is_sent:
            found = await self._talk.find(self._branch, self.handle.run_id)
            if not isinstance(found, RunRow):
                return found
            if found.agent_id != self.agent_id:
                return UnknownRunError(self.handle.run_id)
            self.send()
        return Wait(
            self._position, "ask", self.id, self.agent_id, expires_at=self._at,
            target_run=self.handle.run_id if self.handle is not None else None,
        )  # fmt: skip

    def answered(self, answer: Answer) -> tuple[K, str, Payload]:
        """See `AnswerWait.entry_of`."""
        outcome = _OUTCOMES[answer.status]
        is_reply = outcome is AskKind.REPLIED
        entry: Payload = {
            "outcome": outcome.value, "result": answer.result if is_reply else answer.error,
            "handle": answer.by, "last_seq": answer.last_seq, "hash": self.digest,
        }  # fmt: skip
        return K.ASK_REPLIED, self._position, entry

    async def timed_out(self) -> tuple[K, str, Payload]:
        """See `AnswerWait.late`: a run that has ended is not reported as one that lives."""
        run = self._run
        if (handle := self.handle) is not None:
            row = await run.log.reading(lambda: self._store.run(handle.run_id))
        else:
            sender = f"agent:{run.agent_id}"
            row = await run.log.reading(
                lambda: self._store.run_of_message(self.agent_id, sender, self.id)
            )
        if row is not None and row.status.is_terminal:
            return self.answered(answer_of_row(run.run_id, self.id, row))
        entry: Payload = {
            "outcome": AskKind.TIMED_OUT.value, "hash": self.digest,
            "handle": row.run_id if row is not None else None,
            "last_seq": row.last_seq if row is not None else -1,
        }  # fmt: skip
        return K.ASK_TIMEOUT, self._position, entry


def _content(payload: Message | Any, target: AgentId) -> tuple[JsonValue, int]:
    """Return what is to be sent, and its size; whether it is too large matters only to what was not yet."""
    content = payload.payload if isinstance(payload, Message) else payload
    return sized(content, where=f"message to {target}")


def _effect(verb: str, run_id: RunId, args: list[JsonValue], execute: Any) -> EffectCall:
    return EffectCall(
        verb, K.EFFECT_INTENT, K.EFFECT_RESULT, run_id, canonical_json([verb, *args]),
        EffectMode.IDEMPOTENT, functools.partial(execute),
    )  # fmt: skip


def _answer_of(waiter: RunId, payload: Payload) -> Answer:
    """Return the answer that ended an earlier join, from its entry."""
    error = payload.get("error")
    return Answer(
        waiter, str(payload["child"]), ANSWER_OF[RunStatus(str(payload["status"]))],
        result=payload.get("output"), error=error if isinstance(error, dict) else None,
        by=RunId(str(payload["child"])),
    )  # fmt: skip


def _run_result(seq: int, payload: Payload) -> RunResult:
    raise_if_refused(seq, payload)
    error = payload.get("error")
    return RunResult(
        run_id=str(payload["child"]), status=RunStatus(str(payload["status"])),
        output=payload.get("output"), error=error if isinstance(error, dict) else None,
    )  # fmt: skip


def _ask_outcome(seq: int, payload: Payload) -> AskOutcome:
    raise_if_refused(seq, payload)
    handle = payload.get("handle")
    return AskOutcome(
        kind=AskKind(str(payload["outcome"])), result=payload.get("result"),
        handle=str(handle) if handle is not None else None,
        last_seq=int(str(payload.get("last_seq", -1))),
    )  # fmt: skip
