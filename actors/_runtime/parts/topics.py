"""Topics: strategies of fan-out, and subscriptions in memory.

A post is delivered to each follower at once, or by one write that owners expand, or by both.
`InMemoryFollowGraph` keeps two maps that agree.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from itertools import count

from actors._kernel.agent.message import Message, sender_of
from actors._kernel.runtime.communication import FollowMode
from actors._kernel.runtime.hints import Nudge
from actors._kernel.runtime.ids import AgentId, TopicId
from actors._kernel.runtime.sources import Inbox
from actors._kernel.stores.topics import (
    FanoutReport,
    FanoutStrategy,
    FollowGraph,
    PostStore,
    Subscription,
    as_followed,
    check_follow,
)
from actors.errors import ActorsError

_log = logging.getLogger("callboard.parts")


class PushAllFanout:
    """The `FanoutStrategy` with one delivery per follower, all by the publisher."""

    async def publish(
        self, topic: TopicId, msg: Message, *, graph: FollowGraph, inbox: Inbox
    ) -> FanoutReport:
        """Bring a post to the followers of a topic. Lazy followers get the post without being woken."""
        new_count = repeated_count = 0
        failures: list[tuple[AgentId, str]] = []
        post = replace(msg, target=topic, sender=msg.sender or sender_of("topic", topic))
        async for subscription in graph.followers_of(topic):
            follower = subscription.follower
            mail, is_eager = as_followed(post, follower), subscription.mode == "eager"
            try:
                is_new = await inbox.deliver(follower, mail, notify=is_eager)
            except (ActorsError, OSError) as exc:
                # Publishing the same post again reaches those that are left out now.
                _log.warning("post not delivered", extra={"follower": str(follower)}, exc_info=exc)
                failures.append((follower, str(exc)))
                continue
            new_count += is_new
            repeated_count += not is_new
        return FanoutReport(new_count, repeated_count, tuple(failures))


class StoreFanout:
    """The `FanoutStrategy` of a store. One write, however many follow: owners of followers' shards do the rest.

    Who follows is what the store says in that moment, so the graph and the inbox are not asked.

    Args:
        posts: The posts of the store that has the followers' rows.
        on_nudge: Called with shards of this host that have followers.
    """

    def __init__(
        self, posts: PostStore, *, on_nudge: Callable[[Nudge], None] | None = None
    ) -> None:
        self._posts, self._on_nudge = posts, on_nudge

    async def publish(
        self, topic: TopicId, msg: Message, *, graph: FollowGraph, inbox: Inbox
    ) -> FanoutReport:
        """Bring a post to the followers of a topic. Followers get it after this returns."""
        del graph, inbox
        post = replace(msg, target=topic, sender=msg.sender or sender_of("topic", topic))
        _, nudges = await self._posts.publish(post)
        if self._on_nudge is not None:
            for nudge in nudges:
                self._on_nudge(nudge)
        return FanoutReport(0, is_under_way=True)


class HybridFanout:
    """A `FanoutStrategy` of two: topics with few followers use one, topics with many the other.

    If a post is published again and the number of followers has crossed the threshold meanwhile, each
    follower still gets it once.

    Args:
        threshold: Largest number of followers for the strategy `few`.
        many: The strategy for more followers.
        few: The strategy for at most `threshold` followers; by default `PushAllFanout`.
    """

    def __init__(
        self, threshold: int, *, many: FanoutStrategy, few: FanoutStrategy | None = None
    ) -> None:
        self._threshold, self._few, self._many = threshold, few or PushAllFanout(), many

    async def publish(
        self, topic: TopicId, msg: Message, *, graph: FollowGraph, inbox: Inbox
    ) -> FanoutReport:
        """Bring a post to the followers of a topic."""
        strategy = self._few
        count = 0
        async for _ in graph.followers_of(topic):
            count += 1
            if count > self._threshold:
                strategy = self._many
                break
        return await strategy.publish(topic, msg, graph=graph, inbox=inbox)


class InMemoryFollowGraph:
    """A `FollowGraph` in memory. Nothing survives the process; topics of two tenants are two topics."""

    def __init__(self) -> None:
        self._by_topic: dict[TopicId, dict[AgentId, Subscription]] = {}
        self._by_follower: dict[AgentId, set[TopicId]] = {}
        self._numbers = count(1)

    async def follow(
        self, follower: AgentId, topic: TopicId, *, mode: FollowMode = "eager"
    ) -> Subscription:
        """Let an agent follow a topic, or change the mode in which it does."""
        check_follow(follower, topic)
        subscriptions = self._by_topic.setdefault(topic, {})
        previous = subscriptions.get(follower)
        since = previous.since if previous else next(self._numbers)
        subscriptions[follower] = Subscription(follower, topic, mode, since)
        self._by_follower.setdefault(follower, set()).add(topic)
        return subscriptions[follower]

    async def unfollow(self, follower: AgentId, topic: TopicId) -> bool:
        """End a subscription; return False if there is none."""
        subscriptions = self._by_topic.get(topic, {})
        if subscriptions.pop(follower, None) is None:
            return False
        if not subscriptions:
            del self._by_topic[topic]
        topics = self._by_follower[follower]
        topics.discard(topic)
        if not topics:
            del self._by_follower[follower]
        return True

    async def followers_of(self, topic: TopicId) -> AsyncIterator[Subscription]:
        """Yield the subscriptions to a topic. In the order they followed, as it is at the call."""
        for subscription in list(self._by_topic.get(topic, {}).values()):
            yield subscription

    async def following(self, agent_id: AgentId) -> list[TopicId]:
        """Return the topics that an agent follows, sorted."""
        return sorted(self._by_follower.get(agent_id, ()))
