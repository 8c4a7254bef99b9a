"""Subscriptions, and posts on their way to followers, in the rows of the in-memory store."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import AsyncIterator, Iterable, Sequence
from dataclasses import replace
from datetime import timedelta
from itertools import islice
from typing import Final

from typing_extensions import override

from actors._inmemory.runs.follow_rows import FollowedTopic
from actors._inmemory.runs.records import InboxRow
from actors._inmemory.runs.rows import MemoryRows
from actors._kernel.agent.message import Message
from actors._kernel.runtime.commit import Commit
from actors._kernel.runtime.communication import FollowMode
from actors._kernel.runtime.hints import Nudge
from actors._kernel.runtime.ids import AgentId, ShardId, TopicId
from actors._kernel.runtime.scheduler import ShardLease
from actors._kernel.runtime.sources import Inbox
from actors._kernel.stores.topics import (
    Expanded,
    FollowGraph,
    LazyAgents,
    PostStore,
    Subscription,
    as_followed,
    check_follow,
)

_KEPT: Final = timedelta(days=8)
"""Time for which the id of a post is known."""


class MemoryFollows(FollowGraph, PostStore):
    """Follows and posts in memory.

    Args:
        rows: The rows in memory.
        source: The runtime whose siblings are notified of new posts.
        inbox: Gets each follower's message too, or None if the rows are enough.
    """

    def __init__(self, rows: MemoryRows, source: object, inbox: Inbox | None = None) -> None:
        self._rows, self._source, self._inbox = rows, source, inbox

    @override
    async def follow(
        self, follower: AgentId, topic: TopicId, *, mode: FollowMode = "eager"
    ) -> Subscription:
        check_follow(follower, topic)
        since = self._rows.follows.follow(follower, topic, mode)
        return Subscription(follower, topic, mode, since)

    @override
    async def unfollow(self, follower: AgentId, topic: TopicId) -> bool:
        return self._rows.follows.unfollow(follower, topic)

    @override
    async def followers_of(self, topic: TopicId) -> AsyncIterator[Subscription]:
        """Sorted, as it is at the call."""
        followers = self._rows.follows.topics.get(topic, FollowedTopic())
        for follower in list(followers.order):
            if (current := followers.current(follower)) is not None:
                yield Subscription(follower, topic, current.mode, current.since)

    @override
    async def following(self, agent_id: AgentId) -> list[TopicId]:
        return sorted(self._rows.follows.by_follower.get(agent_id, ()))

    @override
    async def publish(self, post: Message) -> tuple[bool, tuple[Nudge, ...]]:
        is_new, is_followed = self._rows.follows.publish(post, self._rows.clock.now())
        if not is_followed:
            return is_new, ()
        nudge = Nudge("fanout", shard=self._rows.home)
        self._rows.nudge(self._source, nudge)
        return is_new, (nudge,)

    @override
    async def behind(self, shards: Sequence[ShardId]) -> set[ShardId]:
        home = self._rows.home
        return {home} if home in shards and self._rows.follows.work else set()

    @override
    async def expand(self, leases: Sequence[ShardLease], *, limit: int = 2000) -> Expanded:
        home, shard = self._rows.home, self._rows.shard
        lost_shards = {
            lease.shard
            for lease in leases
            if (lease.shard, lease.owner, lease.epoch) != (home, shard.owner, shard.epoch)
        }
        if len(lost_shards) == len(leases):
            return Expanded({}, lost=lost_shards)
        new_rows = expand_rows(self._rows, limit)
        if self._inbox is not None:
            for row in new_rows:
                await self._inbox.deliver(row.key.agent, row.message(), notify=False)
        arrivals = [row.arrived() for row in new_rows if not row.is_lazy]
        home_set = {home}
        return Expanded(
            {home: arrivals} if arrivals else {},
            self._lazy(new_rows),
            home_set if self._rows.follows.work else frozenset(),
            lost_shards,
        )

    @override
    async def lazy(self, shards: Sequence[ShardId]) -> LazyAgents:
        if self._rows.home not in shards:
            return {}
        inbox_rows = (
            row
            for rows_by_arrival in self._rows.pending.values()
            for row in rows_by_arrival.values()
        )
        return self._lazy(inbox_rows)

    def _lazy(self, rows: Iterable[InboxRow]) -> LazyAgents:
        agents = {str(row.key.agent) for row in rows if row.is_lazy}
        return {self._rows.home: agents} if agents else {}

    @override
    async def sweep(self, *, limit: int = 1000) -> int:
        return self._rows.follows.forget(self._rows.clock.now() - _KEPT, limit)


def expand_rows(rows: MemoryRows, limit: int) -> list[InboxRow]:
    """Write the rows of the next followers, of the oldest posts first; return them."""
    new_rows: list[InboxRow] = []
    delivery_count = 0
    while rows.follows.work and delivery_count < limit:
        seq, work = next(iter(rows.follows.work.items()))
        followers = rows.follows.topics[work.topic]
        start = 0 if work.after is None else bisect_right(followers.order, work.after)
        for follower in islice(followers.order, start, None):
            for interval in followers.intervals[follower]:
                if interval.has(seq):
                    mail = as_followed(work.shell.message(), follower)
                    row = rows.put_mail(
                        mail, mail.sender or "", follower, is_lazy=interval.mode == "lazy"
                    )
                    new_rows += [row] if row is not None else []
                    delivery_count += 1
            work.after = follower
            if delivery_count >= limit:
                break
        else:
            del rows.follows.work[seq]
    return new_rows


def change_and_post(rows: MemoryRows, commit: Commit) -> list[Nudge]:
    """Do what a commit does to follows and topics; return whom of its host to look after."""
    agent = commit.lease.agent_id
    for change in commit.follows:
        if change.mode is None:
            rows.follows.unfollow(agent, change.topic)
        else:
            rows.follows.follow(agent, change.topic, change.mode)
    nudges: list[Nudge] = []
    for out in commit.outgoing:
        if isinstance(out.target, TopicId):
            post = replace(out.message, sender=out.sender)
            if rows.follows.publish(post, rows.clock.now())[1]:
                nudges.append(Nudge("fanout", shard=rows.home))
    return nudges
