"""The topics that agents follow."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Protocol, get_args

from actors.errors import ContractError, OtherTenantError
from actors.kernel.runtime.commit import Commit
from actors.kernel.runtime.communication import FollowMode
from actors.kernel.runtime.ids import AgentId, TopicId


@dataclass(frozen=True, slots=True)
class Subscription:
    """The subscription of one agent to one topic.

    `since` grows with every follow in the store: only later posts reach the follower.
    """

    follower: AgentId
    topic: TopicId
    mode: FollowMode = "eager"
    since: int = 0


def check_follow(follower: AgentId, topic: TopicId) -> None:
    """Check that the agent may follow the topic.

    Raises:
        OtherTenantError: They are of two tenants.
    """
    if follower.tenant != topic.tenant:
        raise OtherTenantError(f"topic {topic}", follower.tenant)


def check_mode(mode: object) -> None:
    """Check that this is a way to follow, or None for none.

    Raises:
        ContractError: It is not.
    """
    if mode not in (None, *get_args(FollowMode)):
        raise ContractError(f"mode of following is 'eager' or 'lazy', not {str(mode)[:40]!r}")


def check_topics(commit: Commit) -> None:
    """Check that the commit follows and posts within its tenant.

    Raises:
        OtherTenantError: It does not.
    """
    agent = commit.lease.agent_id
    for change in commit.follows:
        check_follow(agent, change.topic)
    for out in commit.outgoing:
        if isinstance(out.target, TopicId):
            check_follow(agent, out.target)


class FollowGraph(Protocol):
    """Subscriptions, by topic and by follower. Never crosses tenants."""

    async def follow(
        self, follower: AgentId, topic: TopicId, *, mode: FollowMode = "eager"
    ) -> Subscription:
        """Subscribe; following again changes the mode at most and keeps `since`.

        Raises:
            OtherTenantError: Follower and topic are of two tenants.
        """

    async def unfollow(self, follower: AgentId, topic: TopicId) -> bool:
        """End the subscription; False when there was none, which is no error."""

    def followers_of(self, topic: TopicId) -> AsyncIterator[Subscription]:
        """Yield the topic's subscriptions; changes meanwhile may or may not be seen."""

    async def following(self, agent_id: AgentId) -> list[TopicId]:
        """Return the topics the agent follows, sorted."""
