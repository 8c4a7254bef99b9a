"""FollowGraph and PostStore on PostgreSQL: who follows what, and posts on their way, as rows."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final, LiteralString, NamedTuple

from pydantic_core import from_json

from actors.errors import ContractError
from actors.kernel.agent.message import Message
from actors.kernel.faults import armed
from actors.kernel.runtime.commit import Arrived, LeaseLost
from actors.kernel.runtime.fanout import Expanded, Fanout, check_post
from actors.kernel.runtime.follow_graph import Subscription, check_follow
from actors.kernel.runtime.ids import AgentId, ShardId, TopicId, partition_hash
from actors.kernel.runtime.shards import place_of
from actors.kernel.runtime.store import Nudge
from persistence.postgres.batch import Batcher
from persistence.postgres.encode import columns, message_text
from persistence.postgres.link import KEYED, Link

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    from actors.kernel.runtime.follow_graph import FollowMode
    from actors.kernel.runtime.scheduler import ShardLease
    from persistence.postgres.batch import Call
    from persistence.postgres.link import Links, Outage, Row
    from persistence.postgres.settings import StoreSettings

FOLLOWERS_PAGE: Final = 1000

SQL_FOLLOW_TOPICS: Final[LiteralString] = "select i, number from follow_topics($1,$2,$3,$4)"
SQL_POST_TO_TOPICS: Final[LiteralString] = (
    "select i, shard, owner from post_to_topics($1,$2,$3,$4,$5,$6,$7)"
)
SQL_EXPAND_FANOUT: Final[LiteralString] = (
    "select held, body, agents, arrivals, lazy, done from expand_fanout($1,$2,$3,$4,$5)"
)
# After an unknown outcome; the post itself may have no body any more.
SQL_FIND_EXPANDED: Final[LiteralString] = """
select array_agg(i.agent order by i.arrival) as agents,
    array_agg(i.arrival order by i.arrival) as arrivals,
    min(i.body::text) as body
  from posts p
  join inbox i on i.shard = $1 and i.state = 'p' and i.sender = 'topic:' || p.topic
    and i.message_id = p.message_id
  where p.seq = $2
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
SQL_FANOUTS: Final[LiteralString] = """
select x.shard, x.seq, x.topic from fanouts x
  where x.shard = any($1::text[]) order by x.seq, x.shard limit $2
"""
SQL_LAZY_SHARDS: Final[LiteralString] = """
select s.shard from unnest($1::text[]) s(shard)
  where exists (select 1 from inbox i where i.shard = s.shard and i.state = 'l')
"""


class _Change(NamedTuple):
    row: tuple[str, int, str, str | None]


class _Post(NamedTuple):
    key: tuple[str, str, str]
    row: tuple[object, ...]


class _Changed(NamedTuple):
    number: int | None
    is_certain: bool
    """False after an unknown outcome: an end may have been written by the first try."""


class Follows:
    """See `FollowGraph` and `PostStore`. Changes and posts that come together are one statement.

    After an unknown outcome the group is sent again: an end then counts as this call's, and a post
    that is known then counts as new.
    """

    def __init__(self, settings: StoreSettings, outage: Outage, links: Links) -> None:
        self._settings, self._links = settings, links
        # A chunk takes its time: it does not keep those waiting who publish or follow.
        self._link, self._chunks = Link(settings, outage, KEYED), Link(settings, outage, KEYED)
        self._changes: Batcher[_Change, _Changed] = Batcher(
            self._flush_changes, limit=settings.group_limit
        )
        self._posts: Batcher[_Post, tuple[bool, tuple[Nudge, ...]]] = Batcher(
            self._flush_posts, limit=settings.group_limit
        )
        self._post_fault, self._expand_fault = armed("post"), armed("expand")
        self.batchers = (self._changes, self._posts)

    async def close(self) -> None:
        """Close the connections; the batchers have ended."""
        await self._chunks.close()
        await self._link.close()

    # --- who follows what -------------------------------------------------------------------------

    async def follow(
        self, follower: AgentId, topic: TopicId, *, mode: FollowMode = "eager"
    ) -> Subscription:
        """See `FollowGraph.follow`."""
        check_follow(follower, topic)
        changed = await self._changes.call(_change(follower, topic, mode))
        assert changed.number is not None, "a follow has a number"
        return Subscription(follower, topic, mode, changed.number)

    async def unfollow(self, follower: AgentId, topic: TopicId) -> bool:
        """See `FollowGraph.unfollow`."""
        changed = await self._changes.call(_change(follower, topic, None))
        return changed.number is not None or not changed.is_certain

    async def followers_of(self, topic: TopicId) -> AsyncIterator[Subscription]:
        """See `FollowGraph.followers_of`. In pages, by shard."""
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

    async def following(self, agent_id: AgentId) -> list[TopicId]:
        """See `FollowGraph.following`."""
        rows = await self._links.fetch("reading follows", SQL_FOLLOWING, str(agent_id))
        return sorted(_topic(row["topic"]) for row in rows)

    async def _flush_changes(self, calls: list[Call[_Change, _Changed]]) -> None:
        args = columns((call.args.row for call in calls), 4)
        rows, again = await self._link.fetch_once_or_again(
            "changing follows", SQL_FOLLOW_TOPICS, *args
        )
        for row in rows:
            calls[row["i"] - 1].answer(_Changed(row["number"], not again))

    # --- posts ------------------------------------------------------------------------------------

    async def publish(self, post: Message) -> tuple[bool, tuple[Nudge, ...]]:
        """See `PostStore.publish`."""
        topic, sender = check_post(post)
        key = (str(topic), sender, post.id)
        row = (key[0], partition_hash(place_of(topic)), sender, post.id)
        return await self._posts.call(_Post(key, (*row, message_text(post, sender))))

    async def _flush_posts(self, calls: list[Call[_Post, tuple[bool, tuple[Nudge, ...]]]]) -> None:
        args = columns((call.args.row for call in calls), 5)
        if self._post_fault is not None:
            self._post_fault.before()
        rows, again = await self._link.fetch_once_or_again(
            "publishing", SQL_POST_TO_TOPICS, self._settings.owner, *args, self._settings.brokered
        )
        if self._post_fault is not None:
            self._post_fault.after()
        fresh: set[int] = set()
        nudges: dict[int, list[Nudge]] = {}
        for row in rows:
            if row["shard"] is None:
                fresh.add(row["i"])
            elif row["owner"] == self._settings.owner:
                nudge = Nudge("fanout", shard=ShardId(row["shard"]))
                nudges.setdefault(row["i"], []).append(nudge)
        seen: set[tuple[str, str, str]] = set()
        for i, call in enumerate(calls, 1):
            # What was written by a lost first try has its hints in the next scan.
            is_new = (i in fresh or again) and call.args.key not in seen
            seen.add(call.args.key)
            call.answer((is_new, tuple(nudges.get(i, ()))))

    async def fanouts(self, shards: Sequence[ShardId], *, limit: int = 1000) -> list[Fanout]:
        """See `PostStore.fanouts`."""
        rows = await self._links.fetch("reading posts", SQL_FANOUTS, list(shards), limit)
        return [Fanout(ShardId(row["shard"]), row["seq"], _topic(row["topic"])) for row in rows]

    async def expand(
        self, lease: ShardLease, fanout: Fanout, *, limit: int = 2000
    ) -> Expanded | LeaseLost:
        """See `PostStore.expand`.

        After an unknown outcome it names everybody in the shard whose row of this post still waits.
        """
        if lease.shard != fanout.shard:
            msg = f"a lease of {lease.shard} is none for the followers in {fanout.shard}"
            raise ContractError(msg)
        if self._expand_fault is not None:
            self._expand_fault.before()
        args = (lease.shard, lease.owner, lease.epoch, fanout.seq, limit)
        doing = "bringing a post to followers"
        [row], again = await self._chunks.fetch_once_or_again(doing, SQL_EXPAND_FANOUT, *args)
        found = row
        if again and row["held"]:
            [found] = await self._chunks.fetch(doing, SQL_FIND_EXPANDED, lease.shard, fanout.seq)
        if self._expand_fault is not None:
            self._expand_fault.after()
        if not row["held"]:
            return LeaseLost()
        return Expanded(_woken(found), row["lazy"], row["done"])

    async def lazy(self, shards: Sequence[ShardId]) -> set[ShardId]:
        """See `PostStore.lazy`."""
        rows = await self._links.fetch("looking for lazy mail", SQL_LAZY_SHARDS, list(shards))
        return {ShardId(row["shard"]) for row in rows}

    async def sweep(self, *, limit: int = 1000) -> int:
        """See `PostStore.sweep`."""
        rows = await self._links.fetch("sweeping posts", SQL_SWEEP_POSTS, limit)
        taken: int = rows[0]["taken"]
        return taken


def _change(follower: AgentId, topic: TopicId, mode: FollowMode | None) -> _Change:
    return _Change((str(follower), partition_hash(follower), str(topic), mode))


def _woken(found: Row) -> tuple[Arrived, ...]:
    """Return the followers' rows of one post: their messages differ in the target only."""
    if not found["agents"]:
        return ()
    post = Message.from_json(from_json(found["body"]))
    sender = post.sender or ""
    ids = [AgentId.parse(agent) for agent in found["agents"]]
    return tuple(
        Arrived(replace(post, target=agent), sender, agent, arrival)
        for agent, arrival in zip(ids, found["arrivals"], strict=True)
    )


def _topic(text: str) -> TopicId:
    place = AgentId.parse(text)
    return TopicId(place.type, place.key, place.tenant)
