"""Verbs between runs: send, ask, reply, join, cancel, status; and topics, from a run and from outside.

What a run follows and publishes rides with its commit; an owner of each shard that has followers brings a
post to them (`delivery.fanout`). A follow graph or a fan-out that was handed to the runtime is used instead,
and what a run asks of it is a recorded effect.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Final

from typing_extensions import override

from actors._kernel.agent.message import Message, check_payload_size, payload_of
from actors._kernel.json import JsonValue, fresh, sized
from actors._kernel.runtime.commit import FollowChange
from actors._kernel.runtime.communication import FollowMode, RunStatusSummary
from actors._kernel.runtime.ids import AgentId, RunId, TopicId
from actors._kernel.runtime.log_entry import EntryKind as K
from actors._kernel.runtime.rows import RunRow
from actors._kernel.runtime.scheduler import RunStatus
from actors._kernel.runtime.sources import Inbox, RunHandle, RunResult
from actors._kernel.runtime.waits import Answer, Wait
from actors._kernel.stores.run_store import RunStore
from actors._kernel.stores.topics import (
    FanoutReport,
    FanoutStrategy,
    FollowGraph,
    Subscription,
    check_follow,
    check_mode,
)
from actors._kernel.text import check_message, check_name_of, check_text_of
from actors._runtime.journal.run_log import reading
from actors._runtime.replay.failures import raise_if_refused
from actors._runtime.replay.verdict import ANSWER_OF, known_id, summary_of
from actors._runtime.telemetry.span_attributes import with_traceparent
from actors._runtime.verbs.call import (
    Call,
    Entry,
    Payload,
    RunState,
    content_of,
    post,
    refuse_tenant,
)
from actors._runtime.verbs.effects import Effects, effect, idempotency_key
from actors._runtime.verbs.question import find
from actors._runtime.verbs.waits import AnswerWait, Waits
from actors.errors import ContractError, UnknownRunError

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
        """Record a message to an agent; it leaves with the next flush."""
        call = Call(self._run, "send")
        refuse_tenant(self._run, target)
        send(call, "send", target, payload, what=f"message to {target}")

    async def reply(self, to: Message, result: Any) -> None:
        """Record an answer; it leaves with the next flush, if the message is a question."""
        run, call = self._run, Call(self._run, "reply")
        check_name_of("id of the message to reply to", to.id)
        check_name_of("reply_to of the message to reply to", to.reply_to or "")
        what, asker = f"reply to {to.id}", to.reply_to
        value, size_bytes = sized(result, where=what)
        if call.meet((K.EFFECT_RESULT,), what, ["reply", to.id, value]) is not None:
            return
        check_payload_size(size_bytes, what=what)
        seq = call.record(K.EFFECT_RESULT, call.result_payload(asker is not None))
        if asker is not None:
            answer = Answer(asker, to.id, "replied", result=value, by=run.run_id, last_seq=seq)
            run.log.writes.answers.append(answer)

    async def join(self, target: RunHandle | str) -> RunResult:
        """Wait until a run has ended and return how."""
        call = Call(self._run, "join")
        joined_id = known_id(target)
        kinds = (K.CHILD_COMPLETED, K.EFFECT_RESULT)
        entry = call.meet(kinds, f"join {joined_id}", ["join", joined_id])
        if entry is not None:
            await call.in_order(entry)
            # A later join of this run returns the same.
            return _run_result(entry.seq, fresh(entry.payload))
        await call.begin()
        return _run_result(*await self._waits.answer(_Join(call, joined_id, self._store)))

    async def cancel(self, target: RunHandle | str, reason: str) -> None:
        """Ask a run, and all below it, to stop."""
        run_id = self._checked_id("cancel", target, reason)

        async def execute() -> None:
            await self._find_run(run_id)
            report = await reading(
                self._run.log, lambda: self._store.arrivals.request_cancel(run_id, reason=reason)
            )
            for cancelled_id, agent_id in report.runs:
                self._on_cancel(cancelled_id, agent_id, reason)

        await self._effects.perform(effect("cancel", run_id, ["cancel", run_id, reason], execute))

    async def status(self, target: RunHandle | str) -> RunStatusSummary:
        """Return how far a run is, as an effect."""
        run_id = self._checked_id("status", target)

        async def execute() -> JsonValue:
            row = await self._find_run(run_id)
            summary = await reading(self._run.log, lambda: summary_of(self._store, row))
            return summary.model_dump(mode="json")

        value = await self._effects.perform(effect("status", run_id, ["status", run_id], execute))
        return RunStatusSummary.model_validate(value)

    def _checked_id(self, verb: str, target: RunHandle | str, reason: str = "") -> RunId:
        """Return the run that an effect is about; what its arguments alone decide takes a position, too."""
        try:
            check_text_of(f"reason of ctx.{verb}", reason)
            return known_id(target)
        except ContractError:
            # The call takes its position although it fails: what follows has the same positions on a replay.
            Call(self._run, verb)
            raise

    async def _find_run(self, run_id: RunId) -> RunRow:
        row = await reading(self._run.log, lambda: self._store.reads.run(run_id))
        # The same error for both: a run of another tenant must not be seen to exist.
        if row is None or row.agent_id.tenant != self._run.agent_id.tenant:
            raise UnknownRunError(run_id)
        return row


class _Join(AnswerWait):
    """A wait for the end of a run."""

    def __init__(self, call: Call, joined_id: RunId, store: RunStore) -> None:
        super().__init__(call)
        self._joined_id, self._store = joined_id, store

    @override
    async def prepare(self) -> Wait | Answer | Exception:
        joined_id, history = self._joined_id, self.run.history
        agent = history.children.get(joined_id)
        if joined_id in history.joined_runs or agent is None:
            target = await find(self.call, self._store, joined_id)
            if not isinstance(target, RunRow):
                return target
            agent = str(target.agent_id)
        position = self.call.position
        return Wait(position, "join", joined_id, AgentId.parse(agent), target_run=joined_id)

    @override
    def entry_of_answer(self, answer: Answer) -> Entry:
        payload: Payload = {"child": self._joined_id, "status": _STATUS_OF[answer.status].value}
        if answer.result is not None:
            payload["output"] = answer.result
        if answer.error is not None:
            payload["error"] = answer.error
        self.run.history.joined_runs[self._joined_id] = payload
        return self.call.entry(K.CHILD_COMPLETED, payload)


def send(
    call: Call, span_name: str, target: AgentId | TopicId, payload: Message | Any, *, what: str
) -> None:
    """Let a payload leave with the next flush, unless it has.

    Args:
        call: The call that sends.
        span_name: What spans call it.
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
    post(call.run, span_name, call.run.message(message_id, target, content))


def _run_result(seq: int, payload: Payload) -> RunResult:
    raise_if_refused(seq, payload)
    error = payload.get("error")
    return RunResult(
        run_id=str(payload["child"]),
        status=RunStatus(str(payload["status"])),
        output=payload.get("output"),
        error=error if isinstance(error, dict) else None,
    )


def topic_of(topic: TopicId | str, tenant: str) -> TopicId:
    """Return a topic written ``type/source``, or ``type`` for its default source, of this tenant.

    Raises:
        InvalidNameError: It is not written so.
    """
    if isinstance(topic, TopicId):
        return topic
    head, slash, source = topic.partition("/")
    named_tenant, colon, type_ = head.rpartition(":")
    topic_tenant = named_tenant if colon else tenant
    return TopicId(type_, source, topic_tenant) if slash else TopicId(type_, tenant=topic_tenant)


class Topics:
    """Following and publishing for one runtime.

    Args:
        graph: The graph of followers and topics.
        fanout: The strategy by which posts reach followers.
        inbox: The inbox to which a fan-out may deliver.
        is_foreign_graph: Whether the graph was handed in, and is no view of the store's rows.
        is_foreign_fanout: Whether the fan-out was.
    """

    is_foreign_graph: bool
    is_foreign_fanout: bool

    def __init__(
        self,
        graph: FollowGraph,
        fanout: FanoutStrategy,
        inbox: Inbox,
        *,
        is_foreign_graph: bool,
        is_foreign_fanout: bool,
    ) -> None:
        self._graph, self._fanout, self._inbox = graph, fanout, inbox
        self.is_foreign_graph, self.is_foreign_fanout = is_foreign_graph, is_foreign_fanout

    async def follow(self, follower: AgentId, topic: TopicId, mode: FollowMode) -> Subscription:
        """Subscribe; see `FollowGraph.follow`."""
        check_follow(follower, topic)
        check_mode(mode)
        return await self._graph.follow(follower, topic, mode=mode)

    async def unfollow(self, follower: AgentId, topic: TopicId) -> bool:
        """End a subscription; see `FollowGraph.unfollow`."""
        check_follow(follower, topic)
        return await self._graph.unfollow(follower, topic)

    async def publish(self, topic: TopicId, msg: Message | Any, sender: str) -> FanoutReport:
        """Bring a message, or JSON data, to all followers of this moment; see `FanoutStrategy`."""
        is_message = isinstance(msg, Message)
        post = replace(msg, target=topic).checked() if is_message else Message.of(topic, msg)
        post = post.sent_by(sender)
        check_message(post)
        return await self._fanout.publish(
            topic, with_traceparent(post), graph=self._graph, inbox=self._inbox
        )


@dataclass(slots=True)
class ForeignTopics:
    """Parts that were handed in, as runs use them; set once they are made.

    Attributes:
        graph: Used instead of the store's follows.
        fanout: Used instead of the store's posts.
    """

    graph: Topics | None = None
    fanout: Topics | None = None

    def use(self, topics: Topics) -> None:
        """Take what is foreign of these."""
        self.graph = topics if topics.is_foreign_graph else None
        self.fanout = topics if topics.is_foreign_fanout else None


class Following:
    """The verbs about topics, of one execution of a run."""

    def __init__(self, run: RunState, effects: Effects, foreign: ForeignTopics) -> None:
        self._run, self._effects, self._foreign = run, effects, foreign

    async def change(self, verb: str, topic: TopicId | str, mode: FollowMode | None) -> None:
        """Follow a topic in a mode, or with None unfollow it; return when that is durable."""
        run = self._run
        me = run.agent_id
        if self._foreign.graph is not None:
            await self._change_abroad(self._foreign.graph, topic_of(topic, me.tenant), mode)
            return
        call = Call(run, verb)
        topic = topic_of(topic, me.tenant)
        check_follow(me, topic)
        check_mode(mode)
        arguments: list[JsonValue] = [verb, str(topic), *([] if mode is None else [mode])]
        if call.meet((K.FOLLOW_CHANGED,), f"{verb} {topic}", arguments) is not None:
            return
        payload: Payload = {"topic": str(topic), "following": mode is not None}
        if mode is not None:
            payload["mode"] = mode
        seq = call.record(K.FOLLOW_CHANGED, payload)
        run.log.writes.follows.append(FollowChange(topic, mode))
        await run.scheduler.live.hold(call.branch, run.log.durable(call.branch, seq))

    async def _change_abroad(self, topics: Topics, topic: TopicId, mode: FollowMode | None) -> None:
        me = self._run.agent_id

        async def execute() -> None:
            if mode is None:
                await topics.unfollow(me, topic)
            else:
                await topics.follow(me, topic, mode)

        # Following twice and publishing the same id twice change nothing: a crash may repeat them.
        name = f"{'unfollow' if mode is None else 'follow'} {topic}"
        await self._effects.perform(effect("step", name, [name, mode], execute))

    async def emit(self, topic: TopicId | str, payload: Message | Any) -> None:
        """Record a post; it leaves with the next flush."""
        if self._foreign.fanout is not None:
            content = payload.payload if isinstance(payload, Message) else payload
            await self._emit_abroad(self._foreign.fanout, topic, content)
            return
        call = Call(self._run, "emit")
        topic = topic_of(topic, self._run.agent_id.tenant)
        refuse_tenant(self._run, topic)
        send(call, "publish", topic, payload, what=f"post to {topic}")

    async def _emit_abroad(self, topics: Topics, topic: TopicId | str, content: Any) -> None:
        run = self._run
        topic = topic_of(topic, run.agent_id.tenant)
        refuse_tenant(run, topic)
        content = payload_of(content, what=f"post to {topic}")

        async def execute() -> None:
            post = run.message(idempotency_key(), topic, content)
            await topics.publish(topic, post, run.sender)

        name = f"emit {topic}"
        await self._effects.perform(effect("step", name, [name, content], execute))
