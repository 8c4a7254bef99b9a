"""Topics: following and publishing, from a run and from outside.

What a run follows and publishes rides with its commit; an owner of each shard that has followers brings
a post to them (`actors.runtime.postman`). A follow graph or a fan-out that was handed to the runtime is
used instead, and what a run asks of it is a recorded effect.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from actors.errors import OtherTenantError
from actors.kernel.agent.message import Message, check_payload_size, payload_of
from actors.kernel.json import canonical_json, sized
from actors.kernel.runtime.commit import FollowChange, Outgoing
from actors.kernel.runtime.effects import EffectMode, args_hash
from actors.kernel.runtime.follow_graph import check_follow, check_mode
from actors.kernel.runtime.ids import TopicId, message_id_of_run
from actors.kernel.runtime.log_entry import EntryKind
from actors.kernel.text import check_message
from actors.runtime.journaling import EffectCall, idempotency_key
from actors.runtime.trace_context import with_traceparent

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from actors.kernel.json import JsonValue
    from actors.kernel.runtime.fanout import FanoutReport, FanoutStrategy
    from actors.kernel.runtime.follow_graph import FollowGraph, FollowMode, Subscription
    from actors.kernel.runtime.ids import AgentId
    from actors.kernel.runtime.inbox import Inbox
    from actors.runtime.journaling import Effects
    from actors.runtime.recorder import Recorder


def topic_of(topic: TopicId | str, tenant: str) -> TopicId:
    """Return a topic written ``type/source``, or ``type`` for its default source, of this tenant.

    Raises:
        InvalidNameError: It is not written so.
    """
    if isinstance(topic, TopicId):
        return topic
    head, slash, source = topic.partition("/")
    named, colon, type_ = head.rpartition(":")
    of = named if colon else tenant
    return TopicId(type_, source, of) if slash else TopicId(type_, tenant=of)


class Topics:
    """Following and publishing for one runtime.

    Args:
        graph: Who follows what.
        fanout: How posts reach followers.
        inbox: Where a fan-out may deliver.
        is_foreign_graph: Whether the graph was handed in, and is no view of the store's rows.
        is_foreign_fanout: Whether the fan-out was.
    """

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

    def __init__(self, recorder: Recorder, effects: Effects, foreign: ForeignTopics) -> None:
        self._run, self._effects, self._foreign = recorder, effects, foreign

    async def follow(self, topic: TopicId | str, mode: FollowMode) -> None:
        """See `RunContext.follow`."""
        await self._change("follow", topic, mode)

    async def unfollow(self, topic: TopicId | str) -> None:
        """See `RunContext.unfollow`."""
        await self._change("unfollow", topic, None)

    async def _change(self, verb: str, topic: TopicId | str, mode: FollowMode | None) -> None:
        run = self._run
        me = run.agent_id
        if self._foreign.graph is not None:
            await self._change_abroad(self._foreign.graph, topic_of(topic, me.tenant), mode)
            return
        branch = run.turnstile.enter(verb)
        position = branch.take_position()
        topic = topic_of(topic, me.tenant)
        check_follow(me, topic)
        check_mode(mode)
        words: list[JsonValue] = [verb, str(topic), *([] if mode is None else [mode])]
        digest = args_hash(words)
        place = run.meet(position, (EntryKind.FOLLOW_CHANGED,), f"{verb} {topic}", digest)
        if place is not None and place.end is not None:
            return
        entry: dict[str, JsonValue] = {
            "topic": str(topic), "following": mode is not None, "hash": digest,
        }  # fmt: skip
        if mode is not None:
            entry["mode"] = mode
        seq = run.log.record(EntryKind.FOLLOW_CHANGED, position, entry)
        run.log.follow(FollowChange(topic, mode))
        await run.turnstile.hold(branch, run.log.durable(branch, seq))

    async def _change_abroad(self, topics: Topics, topic: TopicId, mode: FollowMode | None) -> None:
        me = self._run.agent_id

        async def execute() -> None:
            if mode is None:
                await topics.unfollow(me, topic)
            else:
                await topics.follow(me, topic, mode)

        verb = "unfollow" if mode is None else "follow"
        await self._effects.perform(_effect(f"{verb} {topic}", [mode], execute))

    async def emit(self, topic: TopicId | str, payload: Message | Any) -> None:
        """See `RunContext.emit`."""
        run = self._run
        content = payload.payload if isinstance(payload, Message) else payload
        if self._foreign.fanout is not None:
            await self._emit_abroad(self._foreign.fanout, topic, content)
            return
        position = run.turnstile.enter("emit").take_position()
        topic = self._own(topic)
        content, size_bytes = sized(content, where=f"post to {topic}")
        digest = args_hash([str(topic), content])
        place = run.meet(position, (EntryKind.MSG_SENT,), f"emit {topic}", digest)
        if place is not None and place.end is not None:
            return
        check_payload_size(size_bytes, what=f"post to {topic}")
        message_id = message_id_of_run(run.run_id, position, run.history.sent_at(position))
        entry: dict[str, JsonValue] = {
            "message_id": message_id, "target": str(topic), "hash": digest,
        }  # fmt: skip
        run.log.record(EntryKind.MSG_SENT, position, entry)
        post = self._post(message_id, topic, content)
        if run.spans is not None:
            run.spans.point(
                "publish", topic.type, target=str(topic), message_id=message_id, payload=content
            )
        run.log.send(Outgoing(post, f"agent:{run.agent_id}", topic))

    def _own(self, topic: TopicId | str) -> TopicId:
        tenant = self._run.agent_id.tenant
        found = topic_of(topic, tenant)
        if found.tenant != tenant:
            raise OtherTenantError(f"topic {found}", tenant)
        return found

    def _post(self, message_id: str, topic: TopicId, content: JsonValue) -> Message:
        run = self._run
        return Message(
            id=message_id, target=topic, payload=content, sender=f"agent:{run.agent_id}",
            created_at=run.clock.now(), causation_id=run.run_id, metadata=run.carrier,
        )  # fmt: skip

    async def _emit_abroad(self, topics: Topics, topic: TopicId | str, content: Any) -> None:
        run = self._run
        topic = self._own(topic)
        content = payload_of(content, what=f"post to {topic}")

        async def execute() -> None:
            post = self._post(idempotency_key(), topic, content)
            await topics.publish(topic, post, f"agent:{run.agent_id}")

        await self._effects.perform(_effect(f"emit {topic}", [content], execute))


def _effect(
    name: str, words: list[JsonValue], execute: Callable[[], Awaitable[None]]
) -> EffectCall:
    # Following twice and publishing the same id twice change nothing, so a crash may repeat them.
    return EffectCall(
        "step", EntryKind.EFFECT_INTENT, EntryKind.EFFECT_RESULT, name,
        canonical_json([name, *words]), EffectMode.IDEMPOTENT, execute,
    )  # fmt: skip
