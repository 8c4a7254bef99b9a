"""The contract of every `PostStore`: receivers of a post, copies, and order."""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from actors._kernel.agent.message import MessageKey
from actors._kernel.runtime.commit import Committed, FollowChange, Outgoing, Suspend
from actors._kernel.runtime.hints import Nudge
from actors._kernel.runtime.ids import AgentId, TopicId, message_id_of_post
from actors._kernel.runtime.waits import WakeSet
from actors._kernel.stores.shards import Serves
from actors._kernel.stores.topics import Expanded, as_followed
from actors.errors import ContractError, OtherTenantError
from tests.conformance.bed import DESK, message, suspended
from tests.conformance.posts import NEWS, PUBLISHER, bring, desks, follow, mail, named, once, post

if TYPE_CHECKING:
    from actors._kernel.json import JsonValue
    from actors._kernel.runtime.communication import FollowMode
    from actors._kernel.runtime.ids import ShardId
    from tests.conformance.bed import Bed

THEIRS = TopicId("news", "today", "acme")


@pytest.mark.item(27, 94, 242)
@pytest.mark.parametrize("count", [0, 1, 10])
async def test_every_follower_gets_a_post_once(bed: Bed, count: int) -> None:
    """In shards of every kind. A topic without followers is no error."""
    fans = desks(count)
    await follow(bed, fans)

    is_new, nudges = await bed.store.posts.publish(post())
    woken = await bring(bed)

    assert is_new
    assert {nudge.kind for nudge in nudges} == ({"fanout"} if count else set())
    assert {nudge.shard for nudge in nudges} == {bed.store.shards.shard_of(fan) for fan in fans}
    assert sorted(woken) == sorted(fans)
    for fan in fans:
        (row,) = await mail(bed, fan)
        assert row.message == as_followed(post(), fan)


@pytest.mark.item(242)
async def test_the_caller_that_writes_a_post_gets_the_rows_that_it_wrote(bed: Bed) -> None:
    """They equal the rows in the store, so no further read is needed."""
    fans = desks(6)
    await follow(bed, fans)
    await bed.store.posts.publish(post({"text": "hello"}))

    chunk = await once(bed)

    woken_rows = {row.agent_id: row for rows in chunk.woken.values() for row in rows}
    assert woken_rows == {fan: row for fan in fans for row in await mail(bed, fan)}
    assert len(woken_rows) == 6
    for shard, rows in chunk.woken.items():
        assert {bed.store.shards.shard_of(row.agent_id) for row in rows} == {shard}
        assert [row.arrival for row in rows] == sorted(row.arrival for row in rows)


@pytest.mark.item(94, 136, 242)
@pytest.mark.timeout(120)
async def test_ten_thousand_followers_get_a_post_in_chunks(bed: Bed) -> None:
    """At the border of two chunks each follower gets it exactly once."""
    fans = desks(10_000)
    await follow(bed, fans)
    await bed.store.posts.publish(post())

    woken = await bring(bed, limit=400)

    assert Counter(woken) == Counter(fans)
    assert await bed.store.posts.behind(bed.shards) == set()
    waiting = await bed.store.backlog.who_has_mail(bed.shards, limit=20_000)
    assert Counter(agent for agent, _ in waiting) == Counter(fans)


async def test_a_post_as_its_follower_reads_it(bed: Bed) -> None:
    """The sender is the topic, the id depends on the publisher, and the payload is unchanged."""
    await follow(bed, [DESK])
    payload: JsonValue = {
        "kind": "x",
        "n": 1.0,
        "text": 'quote " and \n break',
        "metadata": {"a": [None]},
    }
    sent = replace(post(payload), reply_to=None, causation_id="why", correlation_id="c")
    await bed.store.posts.publish(sent)
    await bring(bed)

    (row,) = await mail(bed, DESK)

    assert row.message.payload == payload
    assert isinstance(row.message.payload, dict)
    assert isinstance(row.message.payload["n"], float)
    assert (row.message.target, row.sender, row.agent_id) == (DESK, f"topic:{NEWS}", DESK)
    assert row.message.id == message_id_of_post(PUBLISHER, "p1")
    assert row.message.metadata == {"trace": "t}", "publisher": PUBLISHER}
    assert (row.message.causation_id, row.message.correlation_id) == ("why", "c")
    assert row.message.created_at == sent.created_at


async def test_a_post_without_metadata_names_its_publisher(bed: Bed) -> None:
    """Also if the metadata has no other key."""
    await follow(bed, [DESK])
    await bed.store.posts.publish(replace(post(), metadata={}))
    await bring(bed)

    (row,) = await mail(bed, DESK)

    assert row.message.metadata == {"publisher": PUBLISHER}


@pytest.mark.item(27, 135)
async def test_a_post_that_is_published_twice_is_one(bed: Bed) -> None:
    """By topic, publisher and id: before, during and after delivery."""
    fans = desks(6)
    await follow(bed, fans)
    posts = bed.store.posts

    first = await asyncio.gather(*(posts.publish(post()) for _ in range(5)))
    again = await posts.publish(post())
    await bring(bed)
    late = await posts.publish(post())

    assert [is_new for is_new, _ in first].count(True) == 1
    assert again == late == (False, ())
    assert await bring(bed) == []
    assert [len(await mail(bed, fan)) for fan in fans] == [1] * 6


async def test_the_same_id_of_two_publishers_is_two_posts(bed: Bed) -> None:
    """Ids are unique per publisher and topic."""
    other = TopicId("news", "sports")
    await follow(bed, [DESK])
    await follow(bed, [DESK], topic=other)

    await bed.store.posts.publish(post("a"))
    await bed.store.posts.publish(post("b", sender="agent:editor/2"))
    await bed.store.posts.publish(post("c", topic=other))
    await bring(bed)

    assert sorted(str(row.message.payload) for row in await mail(bed, DESK)) == ["a", "b", "c"]


async def test_what_is_no_post_is_refused(bed: Bed) -> None:
    """A message to an agent, and one without a sender."""
    with pytest.raises(ContractError):
        await bed.store.posts.publish(message(id="m"))
    with pytest.raises(ContractError):
        await bed.store.posts.publish(replace(post(), sender=None))


@pytest.mark.item(137)
async def test_posts_stay_in_their_tenant(bed: Bed) -> None:
    """Topics of one name in two tenants are two topics. No agent follows across tenants."""
    ours, theirs = desks(3), desks(3, tenant="acme")
    await follow(bed, ours)
    await follow(bed, theirs, topic=THEIRS)
    with pytest.raises(OtherTenantError):
        await bed.store.follows.follow(ours[0], THEIRS)

    await bed.store.posts.publish(post("ours"))
    await bed.store.posts.publish(post("theirs", topic=THEIRS, sender="agent:acme:editor/1"))
    await bring(bed)

    for fan in ours:
        assert [row.message.payload for row in await mail(bed, fan)] == ["ours"]
    for fan in theirs:
        assert [row.message.payload for row in await mail(bed, fan)] == ["theirs"]


@pytest.mark.item(95, 96)
async def test_only_followers_of_the_posts_moment_get_it(bed: Bed) -> None:
    """Later followers do not. Followers that end later do, even if their row is not written yet."""
    early, late, former_fan, back = desks(4)
    graph = bed.store.follows
    await follow(bed, [early, former_fan, back])
    await graph.unfollow(former_fan, NEWS)

    await bed.store.posts.publish(post())
    await graph.follow(late, NEWS)
    await graph.unfollow(early, NEWS)
    await graph.unfollow(back, NEWS)
    await graph.follow(back, NEWS)
    woken = await bring(bed)

    assert sorted(woken) == sorted([early, back])


@pytest.mark.item(95, 96, 242)
async def test_changes_between_two_chunks_change_nothing(bed: Bed) -> None:
    """Each chunk and each repeat delivers to the followers at the time of the post."""
    clerks = [AgentId("clerk", f"f{n:02}") for n in range(40)]
    shard = bed.store.shards.shard_of(clerks[0])
    fans = [agent for agent in clerks if bed.store.shards.shard_of(agent) == shard][:8]
    strangers = [agent for agent in clerks if bed.store.shards.shard_of(agent) == shard][8:]
    assert len(fans) >= 4
    graph = bed.store.follows
    await follow(bed, fans)
    await bed.store.posts.publish(post())
    assert await bed.store.posts.behind(bed.shards) == {shard}

    first = await once(bed, limit=2)
    for agent in fans:
        await graph.unfollow(agent, NEWS)
    await follow(bed, strangers)
    await graph.follow(fans[0], NEWS)
    await graph.follow(fans[-1], NEWS)
    await bed.store.posts.sweep()
    rest = await bring(bed, limit=2)

    assert named(first) + rest == sorted(fans)
    assert set(first.more) == {shard}
    assert [len(await mail(bed, agent)) for agent in (*fans, *strangers)] == (
        [1] * len(fans) + [0] * len(strangers)
    )


@pytest.mark.item(138)
async def test_following_again_keeps_the_beginning(bed: Bed) -> None:
    """A post from before the second follow is delivered, in the present mode."""
    first = await bed.store.follows.follow(DESK, NEWS)
    await bed.store.posts.publish(post())
    again = await bed.store.follows.follow(DESK, NEWS, mode="lazy")

    assert await bring(bed) == []
    assert again.since == first.since
    assert len(await mail(bed, DESK)) == 1


@pytest.mark.item(96)
async def test_after_an_end_comes_nothing_until_one_follows_again(bed: Bed) -> None:
    """Each follow is a separate interval."""
    graph, posts = bed.store.follows, bed.store.posts
    for n in range(3):
        await graph.follow(DESK, NEWS)
        await posts.publish(post(n, id=f"in-{n}"))
        await graph.unfollow(DESK, NEWS)
        await posts.publish(post(n, id=f"out-{n}"))

    await bring(bed)

    assert [row.message.payload for row in await mail(bed, DESK)] == [0, 1, 2]


@pytest.mark.item(94)
async def test_posts_of_one_publisher_come_in_order(bed: Bed) -> None:
    """Each follower reads them in the order of publication."""
    fans = desks(12)
    await follow(bed, fans)
    for n in range(5):
        await bed.store.posts.publish(post(n, id=f"p{n}"))

    await bring(bed, limit=2)

    for fan in fans:
        assert [row.message.payload for row in await mail(bed, fan)] == [0, 1, 2, 3, 4]


async def test_posts_come_by_number(bed: Bed) -> None:
    """A post starts in a shard after the one before it is done there, in chunks of any size."""
    fans = desks(8)
    shards = {bed.store.shards.shard_of(fan) for fan in fans}
    await follow(bed, fans)
    for n in range(3):
        await bed.store.posts.publish(post(n, id=f"p{n}"))
    assert await bed.store.posts.behind(bed.shards) == shards
    assert await bed.store.posts.behind([]) == set()

    got: dict[ShardId, list[JsonValue]] = {shard: [] for shard in shards}
    while await bed.store.posts.behind(bed.shards):
        chunk = await once(bed, limit=5)
        for shard, rows in chunk.woken.items():
            got[shard] += [row.message.payload for row in rows]

    for shard, numbers in got.items():
        assert numbers == sorted(numbers, key=str)
        assert len(numbers) == 3 * [bed.store.shards.shard_of(fan) for fan in fans].count(shard)


async def test_many_small_posts_are_brought_at_once(bed: Bed) -> None:
    """Each to its own followers, in order. A shard returns as many as it has."""
    fans = desks(12)
    topics = [TopicId("news", f"{n}") for n in range(8)]
    for n, topic in enumerate(topics):
        await follow(bed, fans[n : n + 5], topic=topic)
        await bed.store.posts.publish(post(n, id=f"p{n}", topic=topic))

    chunk = await once(bed)

    assert Counter(named(chunk)) == Counter(fan for n in range(8) for fan in fans[n : n + 5])
    assert not chunk.more
    for i, fan in enumerate(fans):
        got = [row.message.payload for row in await mail(bed, fan)]
        assert got == [n for n in range(8) if n <= i < n + 5]


async def test_a_small_post_does_not_wait_for_a_large_one_of_another_shard(bed: Bed) -> None:
    """A chunk has followers of every shard that has some left."""
    fans = desks(60)
    await follow(bed, fans)
    await bed.store.posts.publish(post())
    shards = {bed.store.shards.shard_of(fan) for fan in fans}

    chunk = await once(bed, limit=len(shards))

    assert {shard: len(rows) for shard, rows in chunk.woken.items()} == dict.fromkeys(shards, 1)


async def test_a_lazy_follower_has_the_post_and_is_not_notified(bed: Bed) -> None:
    """The post waits in the agent's inbox. The owner starts no run for it."""
    lazy, eager = DESK, AgentId("desk", "2")
    await follow(bed, [lazy], mode="lazy")
    await follow(bed, [eager])
    shard = bed.store.shards.shard_of(lazy)
    assert await bed.store.posts.lazy(bed.shards) == {}

    await bed.store.posts.publish(post())
    chunk = await once(bed)

    assert named(chunk) == [eager]
    assert {at: set(agents or ()) for at, agents in chunk.lazy.items()} == {shard: {str(lazy)}}
    assert [agent for agent, _ in await bed.store.backlog.who_has_mail(bed.shards)] == [eager]
    assert [row.message.payload for row in await mail(bed, lazy)] == ["hello"]
    assert await bed.store.lists.pending_count(lazy) == 1
    assert await bed.store.posts.lazy(bed.shards) == {shard: {str(lazy)}}


async def test_a_lazy_followers_post_is_a_message_for_a_run_that_is_there(bed: Bed) -> None:
    """It ends a wait for messages, is bound once, and done with its run."""
    await follow(bed, [DESK], mode="lazy")
    await bed.store.posts.publish(post())
    await bring(bed)
    (row,) = await mail(bed, DESK)
    key = MessageKey(DESK, row.sender, row.message.id)
    turns = await bed.begin()
    wake = WakeSet(message=True)

    resting = await turns.commit(turns.turn(suspended(wake), then=Suspend(wake)))
    bound = await turns.send(turns.turn(bind=(key,)))
    await turns.complete()

    assert resting.wake_now
    assert isinstance(bound, Committed)
    assert await mail(bed, DESK) == []
    assert await bed.store.lists.pending_count(DESK) == 0
    assert await bed.store.posts.lazy(bed.shards) == {}


@pytest.mark.item(242)
async def test_a_new_owner_goes_on_where_the_last_one_stopped(bed: Bed) -> None:
    """Each follower gets the post once, and the former owner writes nothing more."""
    fans = desks(60)
    await follow(bed, fans)
    await bed.store.posts.publish(post())
    begun = named(await once(bed, limit=20))
    leases = list(bed.leases.values())

    async with bed.rival() as rival:
        await bed.lose_to(rival)
        stale = await bed.store.posts.expand(leases)
        rest = await bring(rival, limit=20)

    assert stale == Expanded({}, lost={lease.shard for lease in leases})
    assert Counter(begun + rest) == Counter(fans)
    assert begun
    assert rest


@pytest.mark.item(242)
async def test_the_owner_of_followers_is_notified_of_posts_of_others(bed: Bed) -> None:
    """The notification names the shard. Without it the next scan finds the same."""
    bed.needs("hosts")
    await follow(bed, [DESK])
    nudges: list[Nudge] = []
    notification = asyncio.Event()

    def hear(nudge: Nudge) -> None:
        if nudge.kind == "fanout":
            nudges.append(nudge)
            notification.set()

    bed.store.set_nudge_hook(hear)
    async with bed.rival() as rival, asyncio.timeout(10):
        await rival.store.posts.publish(post())
        await notification.wait()

    assert nudges == [Nudge("fanout", shard=bed.store.shards.shard_of(DESK))]


async def test_followers_in_shards_of_every_kind_get_a_post(fresh_bed: Bed) -> None:
    """Of a type, of single agents, and of a type that is declared after the post."""
    bed = fresh_bed
    single = AgentId("single", "1")
    await bed.claim(Serves(types=("desk", "clerk"), agents=(single,)))
    late = [AgentId("late", f"{n}") for n in range(20)]
    fans = [*desks(10), single, *late]
    await follow(bed, fans)
    await bed.store.posts.publish(post())

    await bed.claim(Serves(types=("desk", "clerk", "late"), agents=(single,)))
    woken = await bring(bed, limit=2)

    assert Counter(woken) == Counter(fans)
    assert [row.agent_id for row in await mail(bed, single)] == [single]
    assert await bed.store.follows.unfollow(late[0], NEWS)
    await bed.store.posts.publish(post(id="p2"))
    assert Counter(await bring(bed)) == Counter(fans) - Counter([late[0]])


def emit(text: str, *, id: str, topic: TopicId = NEWS) -> Outgoing:  # noqa: A002
    """Return a post that is written with a commit."""
    sender = f"agent:{DESK}"
    return Outgoing(post(text, id=id, topic=topic, sender=sender), sender, topic)


@pytest.mark.item(94, 95, 96)
async def test_a_commit_follows_before_it_posts(bed: Bed) -> None:
    """In one commit: agents that follow in it get its posts, agents that unfollow do not."""
    turns = await bed.begin()
    await follow(bed, [AgentId("clerk", "1")])
    sports = TopicId("news", "sports")
    await follow(bed, [DESK], topic=sports)

    done = await turns.commit(
        turns.turn(
            follows=(FollowChange(NEWS, "eager"), FollowChange(sports, None)),
            outgoing=(emit("a", id="1"), emit("b", id="2"), emit("c", id="3", topic=sports)),
        )
    )
    woken = await bring(bed)

    assert {nudge.kind for nudge in done.nudges} == {"fanout"}
    assert {nudge.shard for nudge in done.nudges} == {
        bed.store.shards.shard_of(agent) for agent in (DESK, AgentId("clerk", "1"))
    }
    assert done.routed == ()
    assert sorted(woken) == sorted([DESK, AgentId("clerk", "1")] * 2)
    assert [row.message.payload for row in await mail(bed, DESK)] == ["a", "b"]
    assert await bed.store.follows.following(DESK) == [NEWS]


@pytest.mark.item(95, 96)
async def test_changes_of_one_commit_are_made_in_order(bed: Bed) -> None:
    """The last one is valid, and each unfollow ends an interval."""
    turns = await bed.begin()
    modes: list[FollowMode | None] = ["eager", None, "lazy", None, "lazy", "eager"]
    changes = tuple(FollowChange(NEWS, mode) for mode in modes)

    await turns.commit(turns.turn(follows=changes))

    (subscription,) = [f async for f in bed.store.follows.followers_of(NEWS)]
    assert (subscription.follower, subscription.mode) == (DESK, "eager")


async def test_a_commit_that_is_refused_follows_and_posts_nothing(bed: Bed) -> None:
    """Either all parts are written or none."""
    turns = await bed.begin()
    await follow(bed, [AgentId("clerk", "1")])
    unknown_key = MessageKey(DESK, "client:x", "never")

    refused = await turns.send(
        turns.turn(
            bind=(unknown_key,),
            follows=(FollowChange(NEWS, "eager"),),
            outgoing=(emit("a", id="1"),),
        )
    )

    assert not isinstance(refused, Committed)
    assert await bring(bed) == []
    assert await bed.store.follows.following(DESK) == []


@pytest.mark.item(137)
async def test_a_commit_reaches_no_topic_of_another_tenant(bed: Bed) -> None:
    """It can neither follow nor post there; nothing of it is written."""
    turns = await bed.begin()

    with pytest.raises(OtherTenantError):
        await turns.send(turns.turn(follows=(FollowChange(THEIRS, "eager"),)))
    with pytest.raises(OtherTenantError):
        await turns.send(turns.turn(outgoing=(emit("a", id="1", topic=THEIRS),)))

    row = await bed.store.reads.run(turns.run_id)
    assert row is not None
    assert row.last_seq == turns.seq


@pytest.mark.item(242)
async def test_who_follows_while_posts_come_gets_all_from_some_post_on(bed: Bed) -> None:
    """A new follower gets every post after one instant and none before it."""
    posts, graph = bed.store.posts, bed.store.follows
    fans = desks(30)

    async def publish() -> None:
        for n in range(40):
            await posts.publish(post(n, id=f"p{n}"))

    async with asyncio.TaskGroup() as group:
        group.create_task(publish())
        for fan in fans:
            group.create_task(graph.follow(fan, NEWS))
            await posts.behind(bed.shards)
    await posts.publish(post(40, id="p40"))
    await bring(bed)

    for fan in fans:
        got = [row.message.payload for row in await mail(bed, fan)]
        assert got == list(range(41))[-len(got) :]
        assert got


async def test_a_sweep_takes_ends_that_no_post_has_to_know(bed: Bed) -> None:
    """Not while an older post is in delivery, and never open follows or known ids."""
    fans = desks(6)
    await follow(bed, fans)
    await bed.store.posts.publish(post())
    for fan in fans[:3]:
        await bed.store.follows.unfollow(fan, NEWS)

    early = await bed.store.posts.sweep()
    woken = await bring(bed)
    late = await bed.store.posts.sweep()

    assert (early, late) == (0, 3)
    assert Counter(woken) == Counter(fans)
    assert await bed.store.posts.sweep() == 0
    assert (await bed.store.posts.publish(post()))[0] is False
    await bed.store.posts.publish(post(id="p2"))
    assert sorted(await bring(bed)) == sorted(fans[3:])
