"""Rows of followers, and of posts that not all followers have yet."""

from __future__ import annotations

from bisect import insort
from dataclasses import dataclass, field
from datetime import datetime
from itertools import count, islice
from typing import Final

from actors._inmemory.runs.records import InboxRow
from actors._kernel.agent.message import Message, MessageKey
from actors._kernel.runtime.communication import FollowMode
from actors._kernel.runtime.ids import AgentId, TopicId
from actors._kernel.stores.topics import check_post


@dataclass(slots=True)
class _Interval:
    """While one agent follows one topic; `until` is None if it still does."""

    since: int
    mode: FollowMode
    until: int | None = None

    def has(self, seq: int) -> bool:
        """Return True if a post of this number is for the follower."""
        return self.since < seq and (self.until is None or self.until > seq)


@dataclass(slots=True)
class FollowedTopic:
    """Followers of one topic, those who ended too, as long as a post on its way is for them."""

    intervals: dict[AgentId, list[_Interval]] = field(default_factory=dict)
    order: list[AgentId] = field(default_factory=list)
    active: int = 0

    def current(self, follower: AgentId) -> _Interval | None:
        """Return the interval that lasts."""
        intervals = self.intervals.get(follower)
        return intervals[-1] if intervals and intervals[-1].until is None else None


@dataclass(slots=True)
class _Work:
    """A post that not every follower has; those up to `after` have it."""

    topic: TopicId
    shell: InboxRow
    after: AgentId | None = None


@dataclass(slots=True)
class FollowRows:
    """Follows, posts and fanouts; numbers are of one sequence."""

    topics: dict[TopicId, FollowedTopic] = field(default_factory=dict)
    by_follower: dict[AgentId, set[TopicId]] = field(default_factory=dict)
    posts: dict[tuple[TopicId, str, str], datetime] = field(default_factory=dict)
    work: dict[int, _Work] = field(default_factory=dict)
    numbers: count[int] = field(default_factory=lambda: count(1))

    def follow(self, follower: AgentId, topic: TopicId, mode: FollowMode) -> int:
        """Return since when the agent follows; following again changes the mode at most."""
        followers = self.topics.setdefault(topic, FollowedTopic())
        current = followers.current(follower)
        if current is not None:
            current.mode = mode
            return current.since
        if follower not in followers.intervals:
            followers.intervals[follower] = []
            insort(followers.order, follower)
        interval = _Interval(next(self.numbers), mode)
        followers.intervals[follower].append(interval)
        followers.active += 1
        self.by_follower.setdefault(follower, set()).add(topic)
        return interval.since

    def unfollow(self, follower: AgentId, topic: TopicId) -> bool:
        """End what lasts; False when nothing does."""
        followers = self.topics.get(topic)
        current = followers.current(follower) if followers is not None else None
        if followers is None or current is None:
            return False
        current.until = next(self.numbers)
        followers.active -= 1
        topics = self.by_follower[follower]
        topics.discard(topic)
        if not topics:
            del self.by_follower[follower]
        return True

    def publish(self, post: Message, at: datetime) -> tuple[bool, bool]:
        """Write a post; return whether it was new, and whether its topic has followers."""
        topic, sender = check_post(post)
        if (topic, sender, post.id) in self.posts:
            return False, False
        self.posts[topic, sender, post.id] = at
        seq = next(self.numbers)
        followers = self.topics.get(topic)
        if followers is None or not followers.active:
            return True, False
        # The key is that of no follower: only the message is of use.
        row = InboxRow.of(MessageKey(_NOBODY, sender, post.id), post, -1, at=at)
        self.work[seq] = _Work(topic, row)
        return True, True

    def forget(self, before: datetime, limit: int) -> int:
        """Remove ended follows and old posts that no follower needs."""
        old_keys = [key for key, at in islice(self.posts.items(), limit) if at < before]
        for key in old_keys:
            del self.posts[key]
        busy_topics = {work.topic for work in self.work.values()}
        removed_count = 0
        for topic in [topic for topic in self.topics if topic not in busy_topics]:
            followers = self.topics[topic]
            for follower in [a for a in followers.order if followers.current(a) is None]:
                removed_count += len(followers.intervals.pop(follower))
            followers.order = list(followers.intervals)
            followers.order.sort()
            for intervals in followers.intervals.values():
                removed_count += len(intervals) - 1
                del intervals[:-1]
            if not followers.order:
                del self.topics[topic]
        return len(old_keys) + removed_count


_NOBODY: Final = AgentId("nobody", "nobody")
