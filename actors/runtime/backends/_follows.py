"""Who follows what, and posts on their way to followers, in the rows of the in-memory store."""

from __future__ import annotations

from bisect import bisect_right, insort
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from itertools import count, islice
from typing import TYPE_CHECKING, Final

from actors.kernel.agent.message import MessageKey
from actors.kernel.runtime.commit import LeaseLost
from actors.kernel.runtime.fanout import Expanded, Fanout, as_followed, check_post
from actors.kernel.runtime.follow_graph import Subscription, check_follow
from actors.kernel.runtime.ids import AgentId, TopicId
from actors.kernel.runtime.store import Nudge
from actors.runtime.backends._records import InboxRow

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    from actors.kernel.agent.message import Message
    from actors.kernel.runtime.commit import Commit
    from actors.kernel.runtime.follow_graph import FollowMode
    from actors.kernel.runtime.ids import ShardId
    from actors.kernel.runtime.inbox import Inbox
    from actors.kernel.runtime.scheduler import ShardLease
    from actors.runtime.backends._rows import MemoryRows

_KEPT: Final = timedelta(days=8)
"""So long the id of a post is known."""


@dataclass(slots=True)
class _Interval:
    """While one agent follows one topic; `until` None: it still does."""

    since: int
    mode: FollowMode
    until: int | None = None

    def has(self, seq: int) -> bool:
        """Whether a post of this number is for the follower."""
        return self.since < seq and (self.until is None or self.until > seq)


@dataclass(slots=True)
class _Topic:
    """Followers of one topic, those who ended too, as long as a post on its way is for them."""

    intervals: dict[AgentId, list[_Interval]] = field(default_factory=dict)
    order: list[AgentId] = field(default_factory=list)
    active: int = 0

    def current(self, follower: AgentId) -> _Interval | None:
        """Return the interval that lasts."""
        known = self.intervals.get(follower)
        return known[-1] if known and known[-1].until is None else None


@dataclass(slots=True)
class _Work:
    """A post that not every follower has; those up to `after` have it."""

    topic: TopicId
    shell: InboxRow
    after: AgentId | None = None


@dataclass(slots=True)
class FollowRows:
    """Follows, posts and fanouts; numbers are of one sequence."""

    topics: dict[TopicId, _Topic] = field(default_factory=dict)
    by_follower: dict[AgentId, set[TopicId]] = field(default_factory=dict)
    posts: dict[tuple[TopicId, str, str], datetime] = field(default_factory=dict)
    work: dict[int, _Work] = field(default_factory=dict)
    numbers: count[int] = field(default_factory=lambda: count(1))

    def follow(self, follower: AgentId, topic: TopicId, mode: FollowMode) -> int:
        """Return since when the agent follows; following again changes the mode at most."""
        followed = self.topics.setdefault(topic, _Topic())
        current = followed.current(follower)
        if current is not None:
            current.mode = mode
            return current.since
        if follower not in followed.intervals:
            followed.intervals[follower] = []
            insort(followed.order, follower)
        interval = _Interval(next(self.numbers), mode)
        followed.intervals[follower].append(interval)
        followed.active += 1
        self.by_follower.setdefault(follower, set()).add(topic)
        return interval.since

    def unfollow(self, follower: AgentId, topic: TopicId) -> bool:
        """End what lasts; False when nothing does."""
        followed = self.topics.get(topic)
        current = followed.current(follower) if followed is not None else None
        if followed is None or current is None:
            return False
        current.until = next(self.numbers)
        followed.active -= 1
        topics = self.by_follower[follower]
        topics.discard(topic)
        if not topics:
            del self.by_follower[follower]
        return True

    def publish(self, post: Message, at: datetime) -> tuple[bool, bool]:
        """Write a post; return whether it was not known, and whether anybody follows."""
        topic, sender = check_post(post)
        if (topic, sender, post.id) in self.posts:
            return False, False
        self.posts[topic, sender, post.id] = at
        seq = next(self.numbers)
        followed = self.topics.get(topic)
        if followed is None or not followed.active:
            return True, False
        # The key is that of no follower: only the message is of use.
        row = InboxRow.of(MessageKey(_NOBODY, sender, post.id), post, -1, at=at)
        self.work[seq] = _Work(topic, row)
        return True, True

    def forget(self, before: datetime, limit: int) -> int:
        """Take away ended follows and old posts that nobody needs."""
        old = [key for key, at in islice(self.posts.items(), limit) if at < before]
        for key in old:
            del self.posts[key]
        busy = {work.topic for work in self.work.values()}
        taken = 0
        for topic in [topic for topic in self.topics if topic not in busy]:
            followed = self.topics[topic]
            for follower in [a for a in followed.order if followed.current(a) is None]:
                taken += len(followed.intervals.pop(follower))
            followed.order = list(followed.intervals)
            followed.order.sort()
            for intervals in followed.intervals.values():
                taken += len(intervals) - 1
                del intervals[:-1]
            if not followed.order:
                del self.topics[topic]
        return len(old) + taken


_NOBODY: Final = AgentId("nobody", "nobody")


class MemoryFollows:
    """See `FollowGraph` and `PostStore`.

    Args:
        rows: Where everything is.
        source: Whose siblings hear of new posts.
        inbox: Gets each follower's message too; None: the rows are enough.
    """

    def __init__(self, rows: MemoryRows, source: object, inbox: Inbox | None = None) -> None:
        self._rows, self._source, self._inbox = rows, source, inbox

    async def follow(
        self, follower: AgentId, topic: TopicId, *, mode: FollowMode = "eager"
    ) -> Subscription:
        """See `FollowGraph.follow`."""
        check_follow(follower, topic)
        since = self._rows.follows.follow(follower, topic, mode)
        return Subscription(follower, topic, mode, since)

    async def unfollow(self, follower: AgentId, topic: TopicId) -> bool:
        """See `FollowGraph.unfollow`."""
        return self._rows.follows.unfollow(follower, topic)

    async def followers_of(self, topic: TopicId) -> AsyncIterator[Subscription]:
        """See `FollowGraph.followers_of`. Sorted, as it is at the call."""
        followed = self._rows.follows.topics.get(topic, _Topic())
        for follower in list(followed.order):
            if (current := followed.current(follower)) is not None:
                yield Subscription(follower, topic, current.mode, current.since)

    async def following(self, agent_id: AgentId) -> list[TopicId]:
        """See `FollowGraph.following`."""
        return sorted(self._rows.follows.by_follower.get(agent_id, ()))

    async def publish(self, post: Message) -> tuple[bool, tuple[Nudge, ...]]:
        """See `PostStore.publish`."""
        is_new, is_followed = self._rows.follows.publish(post, self._rows.clock.now())
        if not is_followed:
            return is_new, ()
        nudge = Nudge("fanout", shard=self._rows.home)
        self._rows.nudge(self._source, nudge)
        return is_new, (nudge,)

    async def fanouts(self, shards: Sequence[ShardId], *, limit: int = 1000) -> list[Fanout]:
        """See `PostStore.fanouts`."""
        home = self._rows.home
        work = self._rows.follows.work.items() if home in shards else ()
        return [Fanout(home, seq, one.topic) for seq, one in islice(work, limit)]

    async def expand(
        self, lease: ShardLease, fanout: Fanout, *, limit: int = 2000
    ) -> Expanded | LeaseLost:
        """See `PostStore.expand`."""
        shard = self._rows.shard
        if (lease.owner, lease.epoch) != (shard.owner, shard.epoch):
            return LeaseLost()
        written, is_done = expand_rows(self._rows, fanout.seq, limit)
        if self._inbox is not None:
            for row in written:
                await self._inbox.deliver(row.key.agent, row.message(), notify=False)
        woken = tuple(row.arrived() for row in written if not row.is_lazy)
        return Expanded(woken, len(written) - len(woken), is_done)

    async def lazy(self, shards: Sequence[ShardId]) -> set[ShardId]:
        """See `PostStore.lazy`."""
        waiting = self._rows.pending.values()
        if self._rows.home in shards and any(
            row.is_lazy for rows in waiting for row in rows.values()
        ):
            return {self._rows.home}
        return set()

    async def sweep(self, *, limit: int = 1000) -> int:
        """See `PostStore.sweep`."""
        return self._rows.follows.forget(self._rows.clock.now() - _KEPT, limit)


def expand_rows(rows: MemoryRows, seq: int, limit: int) -> tuple[list[InboxRow], bool]:
    """Write the rows of a post's next followers; return them, and whether all have it."""
    work = rows.follows.work.get(seq)
    if work is None:
        return [], True
    followed = rows.follows.topics[work.topic]
    start = 0 if work.after is None else bisect_right(followed.order, work.after)
    written: list[InboxRow] = []
    met = 0
    for follower in islice(followed.order, start, None):
        for interval in followed.intervals[follower]:
            if interval.has(seq):
                mail = as_followed(work.shell.message(), follower)
                row = rows.put_mail(
                    mail, mail.sender or "", follower, is_lazy=interval.mode == "lazy"
                )
                written += [row] if row is not None else []
                met += 1
        work.after = follower
        if met == limit:
            return written, False
    del rows.follows.work[seq]
    return written, True


def change_and_post(rows: MemoryRows, commit: Commit) -> list[Nudge]:
    """Do what a turn does to follows and topics; return whom of its host to look after."""
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
