"""How one post reaches all followers of a topic."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Protocol

from actors.errors import ContractError
from actors.kernel.runtime.ids import AgentId, TopicId, message_id_of_post

if TYPE_CHECKING:
    from collections.abc import Sequence

    from actors.kernel.agent.message import Message
    from actors.kernel.runtime.commit import Arrived, LeaseLost
    from actors.kernel.runtime.follow_graph import FollowGraph
    from actors.kernel.runtime.ids import ShardId
    from actors.kernel.runtime.inbox import Inbox
    from actors.kernel.runtime.scheduler import ShardLease
    from actors.kernel.runtime.store import Nudge


@dataclass(frozen=True, slots=True)
class FanoutReport:
    """What a publish did. `failed` followers can be reached by publishing the same post again.

    Attributes:
        delivered: Followers that got it now.
        known: Followers that had it before.
        failed: Followers whose inbox refused, with the error's text.
        is_under_way: Followers get it after this: it is durable, and nobody was counted.
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
    """One way to bring posts to followers."""

    async def publish(
        self, topic: TopicId, msg: Message, *, graph: FollowGraph, inbox: Inbox
    ) -> FanoutReport:
        """Bring `msg` to every follower once, however often it is published (by message id).

        One follower that cannot be reached does not keep the post from the others.
        """
        ...


# --- posts as rows ------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Fanout:
    """One post that a shard's followers have to get.

    Attributes:
        shard: Whose followers.
        seq: The post's number: those get it who followed before it was drawn and did not stop before.
        topic: Where it was published.
    """

    shard: ShardId
    seq: int
    topic: TopicId


@dataclass(frozen=True, slots=True)
class Expanded:
    """Some followers of a shard have a post in their inbox now.

    Attributes:
        woken: The rows of eager followers, in the order of their arrival; lazy ones are not named.
            They may share one payload: it is for reading.
        lazy: How many rows of lazy followers were written.
        is_done: Whether all followers of the shard have it.
    """

    woken: tuple[Arrived, ...]
    lazy: int
    is_done: bool


class PostStore(Protocol):
    """Posts as rows: written once, then brought to the followers by the owners of their shards.

    A follower's row has sender ``topic:<topic>`` and an id derived from the publisher and the post's
    id, so a post is known however often it is written.
    """

    async def publish(self, post: Message) -> tuple[bool, tuple[Nudge, ...]]:
        """Write a post, with its topic as target and its publisher as sender, in one commit.

        Costs the same for ten and for 100,000 followers. Returns whether (topic, sender, id) was not
        known before, and whom of this host's shards to look after; other owners are told.
        """
        ...

    async def fanouts(self, shards: Sequence[ShardId], *, limit: int = 1000) -> list[Fanout]:
        """Return what is left to do for followers in these shards, by `seq`."""
        ...

    async def expand(
        self, lease: ShardLease, fanout: Fanout, *, limit: int = 2000
    ) -> Expanded | LeaseLost:
        """Write the rows of the next followers, at most `limit`, and remember how far that is.

        One commit, fenced by the shard's owner and epoch. Each follower of the post's moment gets it
        once, whoever goes on after a crash. Posts of a shard are expanded in the order of `seq`.
        """
        ...

    async def lazy(self, shards: Sequence[ShardId]) -> set[ShardId]:
        """Return those of the shards that have waiting rows of lazy followers."""
        ...

    async def sweep(self, *, limit: int = 1000) -> int:
        """Take away ended follows and old posts that nobody needs; return how many, of `limit` each.

        Ids of posts are kept for 8 days. Safe to call from several hosts at once.
        """
        ...
