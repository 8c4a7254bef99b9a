"""Follows and posts on PostgreSQL: lost answers, races, types declared late, what observers get."""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from actors._kernel.runtime.ids import AgentId, TopicId, topic_shard
from actors._kernel.stores.shards import Serves
from actors._kernel.stores.topics import Expanded, as_followed
from actors.errors import RegistrationError
from tests.conformance.bed import DESK, SERVES
from tests.conformance.posts import NEWS, bring, desks, follow, mail, named, post
from tests.integration.persistence.hosts import connected, host, sql, store_of, waiting_for
from tests.integration.persistence.test_unknown_outcome import Lost, host_behind_a_proxy, lose

if TYPE_CHECKING:
    from actors._kernel.runtime.scheduler import ShardLease
    from tests.conformance.bed import Bed

LATE = [AgentId("late", f"{n:02}") for n in range(30)]


def one_shard(bed: Bed, count: int) -> list[AgentId]:
    """So many clerks of one shard."""
    clerks = [AgentId("clerk", f"f{n:03}") for n in range(count * 8)]
    shard = bed.store.shards.shard_of(clerks[0])
    agents = [agent for agent in clerks if bed.store.shards.shard_of(agent) == shard][:count]
    assert len(agents) == count
    return agents


@pytest.mark.parametrize("what", ["request", "response"])
async def test_a_follow_and_its_end_whose_answers_are_lost_are_made_once(
    postgres_dsn: str, schema: str, what: Lost
) -> None:
    """Both callers hear what they would have heard."""
    topic = TopicId("news", "needle")
    async with host_behind_a_proxy(postgres_dsn, schema) as (bed, proxy):
        await bed.store.follows.follow(DESK, NEWS)
        loss = lose(proxy, what, "needle")
        first = await bed.store.follows.follow(DESK, topic)
        assert loss.happened.is_set()
        followers = [follower async for follower in bed.store.follows.followers_of(topic)]
        loss = lose(proxy, what, "needle")

        has_ended = await bed.store.follows.unfollow(DESK, topic)

        assert loss.happened.is_set()
        assert followers == [first]
        assert has_ended
        assert await bed.store.follows.following(DESK) == [NEWS]


@pytest.mark.item(27)
@pytest.mark.parametrize("what", ["request", "response"])
async def test_a_post_whose_answer_is_lost_is_published_once(
    postgres_dsn: str, schema: str, what: Lost
) -> None:
    """With its neighbours of the same group."""
    async with host_behind_a_proxy(postgres_dsn, schema) as (bed, proxy):
        fans = desks(5)
        await follow(bed, fans)
        await bed.store.posts.publish(post(id="warm"))
        loss = lose(proxy, what, "needle")

        outcomes = await asyncio.gather(
            *(bed.store.posts.publish(post(f"needle {n}", id=f"p{n}")) for n in range(4))
        )
        await bring(bed)

        assert loss.happened.is_set()
        assert [is_new for is_new, _ in outcomes] == [True] * 4
        assert [len(await mail(bed, fan)) for fan in fans] == [5] * 5


@pytest.mark.item(242)
@pytest.mark.parametrize("what", ["request", "response"])
async def test_a_chunk_whose_answer_is_lost_is_written_once(
    postgres_dsn: str, schema: str, what: Lost
) -> None:
    """Everybody whose row was written is named, so that nobody waits for the next scan."""
    async with host_behind_a_proxy(postgres_dsn, schema) as (bed, proxy):
        fans = one_shard(bed, 9)
        await follow(bed, fans)
        await bed.store.posts.publish(post(id="warm"))
        await bring(bed)
        await bed.store.posts.publish(post())
        (shard,) = await bed.store.posts.behind(bed.shards)
        leases = [bed.leases[shard]]
        loss = lose(proxy, what, shard)

        chunk = await bed.store.posts.expand(leases, limit=3)
        rest = await bring(bed, limit=3)

        assert loss.happened.is_set()
        for row in chunk.woken[shard]:
            assert row in await mail(bed, row.agent_id)
        assert set(fans[:3]) <= set(named(chunk))
        assert set(named(chunk)) | set(rest) == set(fans)
        assert chunk.lazy == {shard: None}  # who it was, was in the answer
        assert [len(await mail(bed, fan)) for fan in fans] == [2] * 9


async def test_a_chunk_does_not_wait_for_a_concurrent_follow(
    postgres_dsn: str, schema: str
) -> None:
    """Changes that are not committed keep no post from its followers; a publish waits for them."""
    async with host(postgres_dsn, schema) as bed:
        await follow(bed, [DESK])
        await bed.store.posts.publish(post())
        async with connected(postgres_dsn, schema) as holder:
            async with holder.transaction():
                await holder.execute(
                    "select change_follows(array['desk/9'], array[1::bigint], array['news/today'],"
                    " array['eager'])"
                )
                woken_agents = await bring(bed)
                publishing = asyncio.ensure_future(bed.store.posts.publish(post(id="p2")))
                await waiting_for(holder)
            await publishing

        assert woken_agents == [DESK]
        assert sorted(await bring(bed)) == [DESK, AgentId("desk", "9")]


@pytest.mark.item(242)
async def test_hosts_that_follow_and_publish_at_once_do_not_block_each_other(
    postgres_dsn: str, schema: str
) -> None:
    """No deadlock, and each follower gets all posts from its moment on, in order per publisher."""
    fans = desks(60)

    async def publish(bed: Bed, who: str) -> None:
        for n in range(30):
            await bed.store.posts.publish(post(n, id=f"{n}", sender=f"agent:editor/{who}"))

    async with host(postgres_dsn, schema) as bed, bed.rival() as rival:
        async with asyncio.TaskGroup() as group:
            for n, each in enumerate((bed, rival)):
                group.create_task(publish(each, f"{n}"))
                for fan in fans[n::2]:
                    group.create_task(each.store.follows.follow(fan, NEWS))
        await bring(bed, limit=7)

        for fan in fans:
            rows = await mail(bed, fan)
            for n in range(2):
                sender = f"agent:editor/{n}"
                payloads = [
                    row.message.payload
                    for row in rows
                    if row.message.metadata["publisher"] == sender
                ]
                assert payloads == list(range(30))[30 - len(payloads) :]


async def test_two_owners_of_one_chunk_write_it_once(postgres_dsn: str, schema: str) -> None:
    """The epoch decides, also when the old owner is already under way."""
    async with host(postgres_dsn, schema) as bed, bed.rival() as rival:
        fans = one_shard(bed, 20)
        await follow(bed, fans)
        await bed.store.posts.publish(post())
        leases = list(bed.leases.values())

        async def keep_on() -> list[AgentId]:
            woken_agents: list[AgentId] = []
            while True:
                chunk = await bed.store.posts.expand(leases, limit=1)
                woken_agents += named(chunk)
                if not chunk.more:
                    return woken_agents

        async with asyncio.TaskGroup() as group:
            old = group.create_task(keep_on())
            await bed.lose_to(rival)
        new = await bring(rival, limit=3)

        assert Counter(old.result() + new) == Counter(fans)


@pytest.mark.parametrize("kind", ["type", "agents"])
async def test_follows_of_an_undeclared_type_move_when_it_is_declared(
    postgres_dsn: str, schema: str, kind: str
) -> None:
    """With ended ones, with posts on their way, and what was brought already is not brought again."""
    async with host(postgres_dsn, schema) as bed:
        await follow(bed, LATE)
        await bed.store.posts.publish(post())
        await bed.store.follows.unfollow(LATE[0], NEWS)
        await bed.store.posts.publish(post(id="p2"))
        await sql(
            postgres_dsn,
            schema,
            "insert into shards (shard, type, owner, epoch) values ('u:late', 'late', 'h1', 1)",
        )
        rows = await sql(
            postgres_dsn,
            schema,
            "select unnest(agents) as agent from expand_fanouts('{u:late}', 'h1', '{1}', 7)",
        )
        agents = [AgentId.parse(row["agent"]) for row in rows]

        late = Serves(types=("late",)) if kind == "type" else Serves(agents=tuple(LATE))
        await bed.claim(Serves(types=(*SERVES.types, *late.types), agents=late.agents))
        woken_agents = await bring(bed, limit=2)

        assert len(agents) == 7
        assert Counter(agents + woken_agents) == Counter(LATE) + Counter(LATE[1:])
        post_rows = await sql(postgres_dsn, schema, "select body, shards_left from posts")
        assert [(row["body"], row["shards_left"]) for row in post_rows] == [(None, 0)] * 2


async def test_a_type_with_posts_on_their_way_is_not_declared_in_another_way(
    postgres_dsn: str, schema: str
) -> None:
    """Afterwards it may be, and its follows go with it."""
    single = AgentId("late", "00")
    async with host(postgres_dsn, schema) as bed:
        await bed.claim(Serves(types=(*SERVES.types, "late")))
        await follow(bed, LATE[:3])
        await bed.store.posts.publish(post())
        await sql(postgres_dsn, schema, "update hosts set expires_at = now() - interval '1 s'")
        async with bed.rival() as rival:
            with pytest.raises(RegistrationError):
                await rival.store.shards.declare(Serves(agents=(single,)))
            await bring(bed)
            await sql(postgres_dsn, schema, "update inbox set state = 'd', body = null")

            await rival.claim(Serves(types=SERVES.types, agents=(single,)))
            await rival.store.posts.publish(post(id="p2"))
            woken_agents = await bring(rival)

    assert single in woken_agents


async def test_observers_get_posts_of_hosts_by_the_outbox(postgres_dsn: str, schema: str) -> None:
    """In a row of the topic's own shard, as they were published, each once."""
    async with host(postgres_dsn, schema, brokered=True) as bed:
        topics = [TopicId("news", f"{n}") for n in range(5)]
        for topic in topics:
            await bed.store.posts.publish(post(topic=topic))
            await bed.store.posts.publish(post(topic=topic))
        before = await sql(postgres_dsn, schema, "select distinct shard from outbox")
        await bed.store.shards.declare(Serves(types=("~topic",)), partitions=4)

        rows = await sql(postgres_dsn, schema, "select shard, target, sender, body from outbox")

        assert [row["shard"] for row in before] == ["u:~topic"]
        assert {row["target"] for row in rows} == {f"topic:{topic}" for topic in topics}
        assert Counter(row["shard"] for row in rows) == Counter(
            topic_shard(topic, 4) for topic in topics
        )
        assert {row["sender"] for row in rows} == {"agent:editor/1"}


async def test_ids_of_posts_are_known_for_eight_days(postgres_dsn: str, schema: str) -> None:
    """Then their rows go, unless somebody still has to get the post."""
    async with host(postgres_dsn, schema) as bed:
        await bed.store.posts.publish(post(id="nobody"))
        await follow(bed, [DESK])
        await bed.store.posts.publish(post(id="open"))
        week = "update posts set published_at = published_at - interval '7 days 23 hours'"
        await sql(postgres_dsn, schema, week)
        young = await store_of(bed).posts.sweep()
        await sql(postgres_dsn, schema, week)

        old = await store_of(bed).posts.sweep()

        rows = await sql(postgres_dsn, schema, "select id from posts")
        assert (young, old, [row["id"] for row in rows]) == (0, 1, ["open"])
        assert await bring(bed) == [DESK]
        assert [row.message for row in await mail(bed, DESK)] == [
            as_followed(post(id="open"), DESK)
        ]
        assert await store_of(bed).posts.sweep() == 1


async def test_a_wrong_lease_brings_nothing(postgres_dsn: str, schema: str) -> None:
    """Neither one of another epoch, nor one of another owner."""
    async with host(postgres_dsn, schema) as bed, bed.rival() as rival:
        await follow(bed, [DESK])
        await bed.store.posts.publish(post())
        (shard,) = await bed.store.posts.behind(bed.shards)
        old = bed.leases[shard]
        await bed.lose_to(rival)
        await rival.store.shards.release(list(rival.leases.values()))
        await bed.claim()

        lost_chunk = Expanded({}, lost={shard})
        assert await bed.store.posts.expand([old]) == lost_chunk
        assert await bed.store.posts.expand([rival.leases[shard]]) == lost_chunk
        assert named(await bed.store.posts.expand([bed.leases[shard]])) == [DESK]


async def test_of_several_shards_only_lost_ones_are_left_out(
    postgres_dsn: str, schema: str
) -> None:
    """The others are served in the same statement."""
    async with host(postgres_dsn, schema) as bed:
        fans = desks(40)
        await follow(bed, fans)
        await bed.store.posts.publish(post())
        shard = bed.store.shards.shard_of(fans[0])
        stale = replace(bed.leases[shard], epoch=bed.leases[shard].epoch - 1)

        chunk = await bed.store.posts.expand([*(bed.leases | {shard: stale}).values()])

        others = [fan for fan in fans if bed.store.shards.shard_of(fan) != shard]
        assert chunk.lost == {shard}
        assert Counter(named(chunk)) == Counter(others)
        assert await bed.store.posts.behind(bed.shards) == {shard}


async def test_hosts_that_bring_the_same_posts_do_not_block_each_other(
    postgres_dsn: str, schema: str
) -> None:
    """Each has some of the shards; posts are done when all are, and the rows say so."""
    fans = desks(40)
    async with host(postgres_dsn, schema) as bed, bed.rival() as rival:
        await follow(bed, fans)
        leases = list(bed.leases.values())[::2]
        await bed.store.shards.release(leases)
        await rival.claim()
        for n in range(30):
            await bed.store.posts.publish(post(n, id=f"p{n}", topic=NEWS))
        ours = [lease for lease in bed.leases.values() if lease not in leases]

        async def keep_on(host_bed: Bed, leases: list[ShardLease]) -> list[AgentId]:
            woken_agents: list[AgentId] = []
            while (chunk := await host_bed.store.posts.expand(leases, limit=9)).more:
                assert not chunk.lost
                woken_agents += named(chunk)
            return woken_agents + named(chunk)

        both = await asyncio.gather(keep_on(bed, ours), keep_on(rival, list(rival.leases.values())))

        assert Counter(both[0] + both[1]) == Counter(fans * 30)
        assert all(both)
        rows = await sql(postgres_dsn, schema, "select distinct body, shards_left from posts")
        assert [(row["body"], row["shards_left"]) for row in rows] == [(None, 0)]
