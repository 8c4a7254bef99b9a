"""Topics: which ones agents follow, and the delivery of a post to all followers."""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace
from typing import Protocol, TypeAlias, get_args

from actors._kernel.agent.message import Message
from actors._kernel.runtime.commit import Commit
from actors._kernel.runtime.communication import FollowMode
from actors._kernel.runtime.hints import Nudge
from actors._kernel.runtime.ids import AgentId, ShardId, TopicId, message_id_of_post
from actors._kernel.runtime.rows import Arrived
from actors._kernel.runtime.scheduler import ShardLease
from actors._kernel.runtime.sources import Inbox
from actors.errors import ContractError, OtherTenantError


@dataclass(frozen=True, slots=True)
class FanoutReport:
    """The result of a publish. `failed` followers can be reached by publishing the same post again.

    Attributes:
        delivered: Followers that got it now.
        known: Followers that had it before.
        failed: Followers whose inbox refused, with the error's text.
        is_under_way: Followers get it after this: it is durable, and no follower was counted.
    """

    delivered: int
    known: int = 0
    failed: tuple[tuple[AgentId, str], ...] = ()
    is_under_way: bool = False


def check_post(post: Message) -> tuple[TopicId, str]:
    """Return where a message is published, and by whom.

    Raises:
        ContractError: It goes to an agent, or has no sender.
    """
    if not isinstance(post.target, TopicId) or post.sender is None:
        msg = f"message {post.id} to {post.target} is no post: it needs a topic and a sender"
        raise ContractError(msg)
    return post.target, post.sender


def as_followed(post: Message, follower: AgentId) -> Message:
    """Return a post as a follower gets it: from the topic, its publisher in the metadata.

    Raises:
        ContractError: It is no post.
    """
    topic, publisher = check_post(post)
    return replace(
        post,
        id=message_id_of_post(publisher, post.id),
        target=follower,
        sender=f"topic:{topic}",
        metadata={**post.metadata, "publisher": publisher},
    )


class FanoutStrategy(Protocol):
    """A strategy that delivers posts to followers."""

    async def publish(
        self, topic: TopicId, msg: Message, *, graph: FollowGraph, inbox: Inbox
    ) -> FanoutReport:
        """Bring `msg` to every follower once, however often it is published (by message id).

        One follower that cannot be reached does not keep the post from the others.
        """


LazyAgents: TypeAlias = Mapping[ShardId, Collection[str] | None]
"""Agents, as text, with waiting rows that are not announced, by shard. None if any of its may have some."""


@dataclass(frozen=True, slots=True)
class Expanded:
    """Some followers of some shards have posts in their inboxes now.

    Attributes:
        woken: The rows of eager followers by shard, of each in the order of their arrival; lazy ones are
            not named. They may share one payload: it is for reading.
        lazy: Lazy followers who have some of it.
        more: Shards with followers who have not got a post.
        lost: Shards that are not the caller's any more.
    """

    woken: Mapping[ShardId, Sequence[Arrived]]
    lazy: LazyAgents = field(default_factory=dict)
    more: AbstractSet[ShardId] = frozenset()
    lost: AbstractSet[ShardId] = frozenset()


class PostStore(Protocol):
    """Posts as rows: written once, then brought to the followers by the owners of their shards.

    A follower's row has sender ``topic:<topic>`` and an id derived from the publisher and the post's
    id, so a post is known however often it is written.
    """

    async def publish(self, post: Message) -> tuple[bool, tuple[Nudge, ...]]:
        """Write a post, with its topic as target and its publisher as sender, in one commit.

        Costs the same for ten and for 100,000 followers. Returns whether (topic, sender, id) was not
        known before, and whom of this host's shards to look after; other owners are notified.
        """

    async def behind(self, shards: Sequence[ShardId]) -> set[ShardId]:
        """Return those of the shards with followers who have not got a post."""

    async def expand(self, leases: Sequence[ShardLease], *, limit: int = 2000) -> Expanded:
        """Write the rows of the next followers in these shards, about `limit`, and remember how far that is.

        One commit, fenced by each shard's owner and epoch. Each follower of a post's moment gets it
        once, whichever host goes on after a crash. A shard's posts come in their order: none begins before all
        followers have the one before it. Shards are served alike, so that none waits for a large one.
        """

    async def lazy(self, shards: Sequence[ShardId]) -> LazyAgents:
        """Return lazy followers in these shards with posts that wait; of a shard with many such posts None."""

    async def sweep(self, *, limit: int = 1000) -> int:
        """Remove ended follows and old posts that no follower needs; return how many, of `limit` each.

        Ids of posts are kept for 8 days. Safe to call from several hosts at once.
        """


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
