"""Topics: following and publishing, from a run and from outside.

What a run follows and publishes rides with its commit; an owner of each shard that has followers brings
a post to them (`delivery.fanout`). A follow graph or a fan-out that was handed to the runtime is used
instead, and what a run asks of it is a recorded effect.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from actors.kernel.agent.message import Message, payload_of
from actors.kernel.json import JsonValue
from actors.kernel.runtime.commit import FollowChange
from actors.kernel.runtime.communication import FollowMode
from actors.kernel.runtime.ids import AgentId, TopicId
from actors.kernel.runtime.log_entry import EntryKind as K
from actors.kernel.runtime.sources import Inbox
from actors.kernel.stores.topics import (
    FanoutReport,
    FanoutStrategy,
    FollowGraph,
    Subscription,
    check_follow,
    check_mode,
)
from actors.kernel.text import check_message
from actors.runtime.context.call import Call, Payload, RunState, refuse_tenant
from actors.runtime.context.effects import Effects, effect, idempotency_key
from actors.runtime.context.messaging import send
from actors.runtime.telemetry.trace_context import with_traceparent


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
        graph: The graph of followers and topics.
        fanout: The strategy by which posts reach followers.
        inbox: The inbox to which a fan-out may deliver.
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

    def __init__(self, run: RunState, effects: Effects, foreign: ForeignTopics) -> None:
        self._run, self._effects, self._foreign = run, effects, foreign

    async def change(self, verb: str, topic: TopicId | str, mode: FollowMode | None) -> None:
        """See `RunContext.follow`, and `RunContext.unfollow`: there is no mode."""
        run = self._run
        me = run.agent_id
        if self._foreign.graph is not None:
            await self._change_abroad(self._foreign.graph, topic_of(topic, me.tenant), mode)
            return
        call = Call(run, verb)
        topic = topic_of(topic, me.tenant)
        check_follow(me, topic)
        check_mode(mode)
        words: list[JsonValue] = [verb, str(topic), *([] if mode is None else [mode])]
        if call.meet((K.FOLLOW_CHANGED,), f"{verb} {topic}", words) is not None:
            return
        entry: Payload = {"topic": str(topic), "following": mode is not None}
        if mode is not None:
            entry["mode"] = mode
        seq = call.record(K.FOLLOW_CHANGED, entry)
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
        """See `RunContext.emit`."""
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
