"""FollowGraph and PostStore on PostgreSQL: rows of followers, and of posts on their way."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import Final, LiteralString, NamedTuple, TypeAlias

from typing_extensions import override

from actors._kernel.agent.message import Message
from actors._kernel.faults import armed
from actors._kernel.json import read_or
from actors._kernel.runtime.communication import FollowMode
from actors._kernel.runtime.hints import Nudge
from actors._kernel.runtime.ids import AgentId, ShardId, TopicId, partition_hash, place_of
from actors._kernel.runtime.rows import Arrived
from actors._kernel.runtime.scheduler import ShardLease
from actors._kernel.stores.topics import (
    Expanded,
    FollowGraph,
    LazyAgents,
    PostStore,
    Subscription,
    check_follow,
    check_post,
)
from persistence._postgres.commits.encode import (
    arrived_of,
    columns,
    message_from_text,
    message_text,
)
from persistence._postgres.connection.batch import Batched, Batcher
from persistence._postgres.connection.link import Link, Links, Row, StoreSettings

FOLLOWERS_PAGE: Final = 1000
MOST_LAZY: Final = 10_000
"""Number of lazy followers with waiting posts in a shard from which on they are not listed."""

SQL_FOLLOW_TOPICS: Final[LiteralString] = "select i, number from follow_topics($1,$2,$3,$4)"
SQL_POST_TO_TOPICS: Final[LiteralString] = (
    "select i, shard, owner from post_to_topics($1,$2,$3,$4,$5,$6,$7)"
)
SQL_EXPAND_FANOUTS: Final[LiteralString] = (
    "select shard, outcome, body, agents, arrivals, lazies from expand_fanouts($1,$2,$3,$4)"
)
# After an unknown outcome; what it wrote came last.
SQL_FIND_EXPANDED: Final[LiteralString] = """
select s.shard, i.* from unnest($1::text[]) s(shard)
  cross join lateral (select n.agent, n.sender, n.message_id, n.arrival, n.body, n.alone from inbox n
    where n.shard = s.shard and n.state = 'p' and n.sender like 'topic:%' order by n.arrival desc limit $2) i
  order by i.arrival
"""
SQL_SWEEP_POSTS: Final[LiteralString] = "select sweep_posts($1) as taken"
SQL_FOLLOWERS: Final[LiteralString] = """
select f.follower, f.shard, f.mode, f.since from follows f
  where f.topic = $1 and f.until is null and (f.shard, f.follower) > ($2, $3)
  order by f.shard, f.follower limit $4
"""
SQL_FOLLOWING: Final[LiteralString] = """
select f.topic from follows f where f.follower || E'\\n' = $1 || E'\\n' and f.until is null
"""
SQL_SHARDS_BEHIND: Final[LiteralString] = """
select s.shard from unnest($1::text[]) s(shard)
  cross join lateral (select 1 from fanouts f where f.shard = s.shard limit 1) f
"""
SQL_LAZY_AGENTS: Final[LiteralString] = """
select s.shard, l.agents from unnest($1::text[]) s(shard)
  cross join lateral (select array_agg(i.agent) as agents from (
    select n.agent from inbox n where n.shard = s.shard and n.state = 'l' limit $2) i) l
  where l.agents is not null
"""


_Change: TypeAlias = "tuple[str, int, str, str | None]"


class _Post(NamedTuple):
    key: tuple[str, str, str]
    row: tuple[object, ...]


class _ChangeResult(NamedTuple):
    number: int | None
    is_certain: bool
    """False after an unknown outcome: an end may have been written by the first try."""


class Follows(FollowGraph, PostStore):
    """Changes and posts that come together are one statement.

    After an unknown outcome the group is sent again: an end then counts as this call's, and a post
    that is known then counts as new.
    """

    def __init__(self, settings: StoreSettings, links: Links, link: Link, chunks: Link) -> None:
        self._settings, self._links = settings, links
        # A chunk takes time: publishers and followers do not wait for it.
        self._link, self._chunks = link, chunks
        self._changes: Batcher[_Change, _ChangeResult] = Batcher(
            self._flush_changes, limit=settings.group_limit
        )
        self._posts: Batcher[_Post, tuple[bool, tuple[Nudge, ...]]] = Batcher(
            self._flush_posts, limit=settings.group_limit
        )
        self._post_fault, self._expand_fault = armed("post"), armed("expand")
        self.batchers = (self._changes, self._posts)

    @override
    async def follow(
        self, follower: AgentId, topic: TopicId, *, mode: FollowMode = "eager"
    ) -> Subscription:
        check_follow(follower, topic)
        result = await self._changes.call(_change(follower, topic, mode))
        assert result.number is not None, "a follow has a number"
        return Subscription(follower, topic, mode, result.number)

    @override
    async def unfollow(self, follower: AgentId, topic: TopicId) -> bool:
        result = await self._changes.call(_change(follower, topic, None))
        return result.number is not None or not result.is_certain

    @override
    async def followers_of(self, topic: TopicId) -> AsyncIterator[Subscription]:
        """The followers are read in pages, shard by shard."""
        shard = follower = ""
        while True:
            rows = await self._links.fetch(
                "reading followers", SQL_FOLLOWERS, str(topic), shard, follower, FOLLOWERS_PAGE
            )
            for row in rows:
                shard, follower = row["shard"], row["follower"]
                mode: FollowMode = "lazy" if row["mode"] == b"l" else "eager"
                yield Subscription(AgentId.parse(follower), topic, mode, row["since"])
            if len(rows) < FOLLOWERS_PAGE:
                return

    @override
    async def following(self, agent_id: AgentId) -> list[TopicId]:
        rows = await self._links.fetch("reading follows", SQL_FOLLOWING, str(agent_id))
        return sorted(_topic(row["topic"]) for row in rows)

    async def _flush_changes(self, calls: list[Batched[_Change, _ChangeResult]]) -> None:
        args = columns((call.args for call in calls), 4)
        rows, may_be_done = await self._link.fetch_once_or_again(
            "changing follows", SQL_FOLLOW_TOPICS, *args
        )
        for row in rows:
            calls[row["i"] - 1].answer(_ChangeResult(row["number"], not may_be_done))

    @override
    async def publish(self, post: Message) -> tuple[bool, tuple[Nudge, ...]]:
        topic, sender = check_post(post)
        key = (str(topic), sender, post.id)
        row = (key[0], partition_hash(place_of(topic)), sender, post.id)
        return await self._posts.call(_Post(key, (*row, message_text(post, sender))))

    async def _flush_posts(
        self, calls: list[Batched[_Post, tuple[bool, tuple[Nudge, ...]]]]
    ) -> None:
        args = (*columns((call.args.row for call in calls), 5), self._settings.brokered)
        with self._post_fault:
            rows, may_be_done = await self._link.fetch_once_or_again(
                "publishing", SQL_POST_TO_TOPICS, self._settings.owner, *args
            )
        new_numbers: set[int] = set()
        nudges_by_number: dict[int, list[Nudge]] = {}
        for row in rows:
            if row["shard"] is None:
                new_numbers.add(row["i"])
            elif row["owner"] == self._settings.owner:
                nudge = Nudge("fanout", shard=ShardId(row["shard"]))
                nudges_by_number.setdefault(row["i"], []).append(nudge)
        seen_keys: set[tuple[str, str, str]] = set()
        for i, call in enumerate(calls, 1):
            # What was written by a lost first try has its hints in the next scan.
            is_new = (i in new_numbers or may_be_done) and call.args.key not in seen_keys
            seen_keys.add(call.args.key)
            call.answer((is_new, tuple(nudges_by_number.get(i, ()))))

    @override
    async def behind(self, shards: Sequence[ShardId]) -> set[ShardId]:
        rows = await self._links.fetch("looking for posts", SQL_SHARDS_BEHIND, list(shards))
        return {ShardId(row["shard"]) for row in rows}

    @override
    async def expand(self, leases: Sequence[ShardLease], *, limit: int = 2000) -> Expanded:
        """After an unknown outcome it names those whose rows of posts came last, and wait."""
        if not leases:
            return Expanded({})
        shards = [lease.shard for lease in leases]
        args = (shards, leases[0].owner, [lease.epoch for lease in leases], limit)
        doing = "bringing posts to followers"
        with self._expand_fault:
            rows, may_be_done = await self._chunks.fetch_once_or_again(
                doing, SQL_EXPAND_FANOUTS, *args
            )
        rows_by_outcome: dict[str, list[Row]] = {"lost": [], "more": [], "brought": []}
        for row in rows:
            rows_by_outcome[row["outcome"]].append(row)
        lost_shards, unfinished_shards = (
            {ShardId(row["shard"]) for row in rows_by_outcome[key]} for key in ("lost", "more")
        )
        lazy: LazyAgents = _lazy(rows_by_outcome["brought"])
        arrivals_by_shard = _arrivals_by_shard(rows_by_outcome["brought"])
        if may_be_done:
            lazy = dict.fromkeys(shards)
            tries = 2  # the one that was lost, and the one that was answered; the next scan finds others
            inbox_rows = await self._chunks.fetch(
                doing, SQL_FIND_EXPANDED, list(lazy), tries * limit
            )
            arrivals_by_shard = {}
            for row in inbox_rows:
                arrivals_by_shard.setdefault(ShardId(row["shard"]), []).append(arrived_of(row))
        return Expanded(arrivals_by_shard, lazy, unfinished_shards, lost_shards)

    @override
    async def lazy(self, shards: Sequence[ShardId]) -> LazyAgents:
        doing = "looking for lazy messages"
        rows = await self._links.fetch(doing, SQL_LAZY_AGENTS, list(shards), MOST_LAZY)
        return {
            ShardId(row["shard"]): set(row["agents"]) if len(row["agents"]) < MOST_LAZY else None
            for row in rows
        }

    @override
    async def sweep(self, *, limit: int = 1000) -> int:
        return int(await self._links.value("sweeping posts", SQL_SWEEP_POSTS, limit))


def _change(follower: AgentId, topic: TopicId, mode: FollowMode | None) -> _Change:
    return str(follower), partition_hash(follower), str(topic), mode


def _arrivals_by_shard(rows: list[Row]) -> dict[ShardId, list[Arrived]]:
    """Return the followers' rows by shard: messages of one post differ in the target only."""
    arrivals_by_shard: dict[ShardId, list[Arrived]] = {}
    post: Message | None = None
    for row in rows:
        if not row["agents"]:
            continue
        if row["body"] is not None:
            post = read_or(row["body"], message_from_text, lambda _: None)
        if post is None:  # it cannot be read: its receivers' next scans find its rows
            continue
        sender = post.sender or ""
        arrivals_by_shard.setdefault(ShardId(row["shard"]), []).extend(
            Arrived(post.copied_to(agent), sender, agent, arrival)
            for agent, arrival in zip(
                map(AgentId.parse, row["agents"]), row["arrivals"], strict=True
            )
        )
    return arrivals_by_shard


def _lazy(rows: list[Row]) -> dict[ShardId, list[str]]:
    lazy: dict[ShardId, list[str]] = {}
    for row in rows:
        if row["lazies"]:
            lazy.setdefault(ShardId(row["shard"]), []).extend(row["lazies"])
    return lazy


def _topic(text: str) -> TopicId:
    topic_agent = AgentId.parse(text)
    return TopicId(topic_agent.type, topic_agent.key, topic_agent.tenant)
