"""InMemoryFollowGraph: subscriptions in two maps that agree."""

from __future__ import annotations

from collections.abc import AsyncIterator
from itertools import count

from actors.kernel.runtime.communication import FollowMode
from actors.kernel.runtime.ids import AgentId, TopicId
from actors.kernel.stores.topics import Subscription, check_follow


class InMemoryFollowGraph:
    """See `FollowGraph`. Nothing survives the process; topics of two tenants are two topics."""

    def __init__(self) -> None:
        self._by_topic: dict[TopicId, dict[AgentId, Subscription]] = {}
        self._by_follower: dict[AgentId, set[TopicId]] = {}
        self._numbers = count(1)

    async def follow(
        self, follower: AgentId, topic: TopicId, *, mode: FollowMode = "eager"
    ) -> Subscription:
        """See `FollowGraph.follow`."""
        check_follow(follower, topic)
        subscriptions = self._by_topic.setdefault(topic, {})
        known = subscriptions.get(follower)
        since = known.since if known else next(self._numbers)
        subscriptions[follower] = Subscription(follower, topic, mode, since)
        self._by_follower.setdefault(follower, set()).add(topic)
        return subscriptions[follower]

    async def unfollow(self, follower: AgentId, topic: TopicId) -> bool:
        """See `FollowGraph.unfollow`."""
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
        """See `FollowGraph.followers_of`. In the order they followed, as it is at the call."""
        for subscription in list(self._by_topic.get(topic, {}).values()):
            yield subscription

    async def following(self, agent_id: AgentId) -> list[TopicId]:
        """See `FollowGraph.following`."""
        return sorted(self._by_follower.get(agent_id, ()))
