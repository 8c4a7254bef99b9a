"""Who follows what."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, Protocol, TypeAlias

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from actors.kernel.runtime.ids import AgentId, TopicId

FollowMode: TypeAlias = Literal["eager", "lazy"]
"""eager: a post wakes the follower. lazy: it gets the row but is not woken."""


@dataclass(frozen=True, slots=True)
class Subscription:
    """One agent follows one topic.

    `since` grows with every follow in the store: only later posts reach the follower.
    """

    follower: AgentId
    topic: TopicId
    mode: FollowMode = "eager"
    since: int = 0


class FollowGraph(Protocol):
    """Subscriptions, by topic and by follower. Never crosses tenants."""

    async def follow(
        self, follower: AgentId, topic: TopicId, *, mode: FollowMode = "eager"
    ) -> Subscription:
        """Subscribe; following again changes the mode at most and keeps `since`.

        Raises:
            ContractError: Follower and topic are of two tenants.
        """
        ...

    async def unfollow(self, follower: AgentId, topic: TopicId) -> bool:
        """End the subscription; False when there was none, which is no error."""
        ...

    def followers_of(self, topic: TopicId) -> AsyncIterator[Subscription]:
        """Yield the topic's subscriptions; changes meanwhile may or may not be seen."""
        ...

    async def following(self, agent_id: AgentId) -> list[TopicId]:
        """Return the topics the agent follows, sorted."""
        ...
