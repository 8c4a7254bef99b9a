"""Verbs between runs: send, ask, reply, join, cancel, status."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from typing_extensions import override

from actors.errors import ContractError, UnknownRunError
from actors.kernel.agent.message import Message, check_payload_size
from actors.kernel.json import JsonValue, fresh, sized
from actors.kernel.runtime.communication import RunStatusSummary
from actors.kernel.runtime.ids import AgentId, RunId, TopicId
from actors.kernel.runtime.log_entry import EntryKind as K
from actors.kernel.runtime.rows import RunRow
from actors.kernel.runtime.scheduler import RunStatus
from actors.kernel.runtime.sources import RunHandle, RunResult
from actors.kernel.runtime.waits import Answer, Wait
from actors.kernel.stores.run_store import RunStore
from actors.kernel.text import check_name_of, check_text_of
from actors.runtime.context.call import (
    Call,
    Entry,
    Payload,
    RunState,
    content_of,
    post,
    refuse_tenant,
)
from actors.runtime.context.effects import Effects, effect
from actors.runtime.context.open_waits import AnswerWait
from actors.runtime.context.question import find
from actors.runtime.context.waits import Waits
from actors.runtime.journal.reading import reading
from actors.runtime.replay.failures import raise_if_refused
from actors.runtime.replay.summary import ANSWER_OF, known_id, summary_of

_STATUS_OF: Final = {answer: status for status, answer in ANSWER_OF.items()}


class Messaging:
    """The verbs between runs, of one execution of a run.

    Args:
        run: What its verbs share.
        waits: Its waiting verbs.
        effects: Its effects.
        store: The store in which other runs are looked up.
        on_cancel: Called with every run that was asked to stop.
    """

    def __init__(
        self,
        run: RunState,
        waits: Waits,
        effects: Effects,
        *,
        store: RunStore,
        on_cancel: Callable[[RunId, AgentId, str], None],
    ) -> None:
        self._run = run
        self._waits = waits
        self._effects = effects
        self._store = store
        self._on_cancel = on_cancel

    async def send(self, target: AgentId, payload: Message | Any) -> None:
        """See `RunContext.send`."""
        call = Call(self._run, "send")
        refuse_tenant(self._run, target)
        send(call, "send", target, payload, what=f"message to {target}")

    async def reply(self, to: Message, result: Any) -> None:
        """See `RunContext.reply`."""
        run, call = self._run, Call(self._run, "reply")
        check_name_of("id of the message to reply to", to.id)
        check_name_of("reply_to of the message to reply to", to.reply_to or "")
        what, asker = f"reply to {to.id}", to.reply_to
        value, size_bytes = sized(result, where=what)
        if call.meet((K.EFFECT_RESULT,), what, ["reply", to.id, value]) is not None:
            return
        check_payload_size(size_bytes, what=what)
        seq = call.record(K.EFFECT_RESULT, call.returned(asker is not None))
        if asker is not None:
            answer = Answer(asker, to.id, "replied", result=value, by=run.run_id, last_seq=seq)
            run.log.writes.answers.append(answer)

    async def join(self, target: RunHandle | str) -> RunResult:
        """See `RunContext.join`."""
        call = Call(self._run, "join")
        joined = known_id(target)
        kinds = (K.CHILD_COMPLETED, K.EFFECT_RESULT)
        known = call.meet(kinds, f"join {joined}", ["join", joined])
        if known is not None:
            await call.in_order(known)
            # A later join of this run returns the same.
            return _run_result(known.seq, fresh(known.payload))
        await call.begin()
        return _run_result(*await self._waits.answer(_Join(call, joined, self._store)))

    async def cancel(self, target: RunHandle | str, reason: str) -> None:
        """See `RunContext.cancel`."""
        run_id = self._named("cancel", target, reason)

        async def execute() -> None:
            await self._known(run_id)
            report = await reading(
                self._run.log, lambda: self._store.arrivals.request_cancel(run_id, reason=reason)
            )
            for asked, agent_id in report.runs:
                self._on_cancel(asked, agent_id, reason)

        await self._effects.perform(effect("cancel", run_id, ["cancel", run_id, reason], execute))

    async def status(self, target: RunHandle | str) -> RunStatusSummary:
        """See `RunContext.status`."""
        run_id = self._named("status", target)

        async def execute() -> JsonValue:
            row = await self._known(run_id)
            summary = await reading(self._run.log, lambda: summary_of(self._store, row))
            return summary.model_dump(mode="json")

        value = await self._effects.perform(effect("status", run_id, ["status", run_id], execute))
        return RunStatusSummary.model_validate(value)

    def _named(self, verb: str, target: RunHandle | str, reason: str = "") -> RunId:
        """Return the run that an effect is about; what its arguments alone decide takes a position, too."""
        try:
            check_text_of(f"reason of ctx.{verb}", reason)
            return known_id(target)
        except ContractError:
            Call(self._run, verb)
            raise

    async def _known(self, run_id: RunId) -> RunRow:
        row = await reading(self._run.log, lambda: self._store.reads.run(run_id))
        if row is None or row.agent_id.tenant != self._run.agent_id.tenant:
            raise UnknownRunError(run_id)
        return row


class _Join(AnswerWait):
    """A wait for the end of a run."""

    def __init__(self, call: Call, joined: RunId, store: RunStore) -> None:
        super().__init__(call)
        self._joined, self._store = joined, store

    @override
    async def prepare(self) -> Wait | Answer | Exception:
        joined, history = self._joined, self.run.history
        agent = history.children.get(joined)
        if joined in history.joined or agent is None:
            found = await find(self.call, self._store, joined)
            if not isinstance(found, RunRow):
                return found
            agent = str(found.agent_id)
        position = self.call.position
        return Wait(position, "join", joined, AgentId.parse(agent), target_run=joined)

    @override
    def answered(self, answer: Answer) -> Entry:
        entry: Payload = {"child": self._joined, "status": _STATUS_OF[answer.status].value}
        if answer.result is not None:
            entry["output"] = answer.result
        if answer.error is not None:
            entry["error"] = answer.error
        self.run.history.joined[self._joined] = entry
        return self.call.entry(K.CHILD_COMPLETED, entry)


def send(
    call: Call, spoken: str, target: AgentId | TopicId, payload: Message | Any, *, what: str
) -> None:
    """Let a payload leave with the next flush, unless it has.

    Args:
        call: The call that sends.
        spoken: What spans call it.
        target: The receiver: an agent, or a topic.
        payload: JSON data, or a message that has it.
        what: The message in words, for errors.
    """
    content, size_bytes = content_of(payload, what)
    if call.meet((K.MSG_SENT,), f"{call.verb} {target}", [str(target), content]) is not None:
        return
    # Checked only before the message is recorded: replay accepts a recorded message of any size.
    check_payload_size(size_bytes, what=what)
    message_id = call.message_id
    call.record(K.MSG_SENT, {"message_id": message_id, "target": str(target)})
    post(call.run, spoken, call.run.message(message_id, target, content))


def _run_result(seq: int, payload: Payload) -> RunResult:
    raise_if_refused(seq, payload)
    error = payload.get("error")
    return RunResult(
        run_id=str(payload["child"]),
        status=RunStatus(str(payload["status"])),
        output=payload.get("output"),
        error=error if isinstance(error, dict) else None,
    )
