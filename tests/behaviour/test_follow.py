"""Followers get each post once, in order, from the moment of their follow on."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from actors._kernel.agent.message import Message
from actors._kernel.runtime.ids import AgentId, TopicId
from actors._kernel.runtime.log_entry import EntryKind
from actors.errors import OtherTenantError
from tests.behaviour.agents import Acting
from tests.behaviour.outside import all_done, brought, noting, received

if TYPE_CHECKING:
    from actors._runtime import RunContext
    from tests.behaviour.bed import Bed

K = EntryKind


def topic_of(bed: Bed, source: str = "default") -> TopicId:
    """Return a topic that no other test has."""
    return TopicId(bed.name().type, source)


async def publish(bed: Bed, topic: TopicId, payload: Any, **more: Any) -> None:
    """Publish from Python."""
    await bed.runtime.publish(topic.type, topic.source, payload, **more)


async def follower(bed: Bed, topic: TopicId, *, mode: Any = "eager") -> tuple[AgentId, list[Any]]:
    """Return an agent that follows a topic, and the list of its posts."""
    got: list[Any] = []
    agent = await bed.serve(noting(got))
    await bed.runtime.follow(agent, topic.type, topic.source, mode=mode)
    return agent, got


@pytest.mark.item(26, 27, 32, 95, 147)
async def test_a_post_reaches_every_follower_once(bed: Bed) -> None:
    """It starts a run without a submit. Its sender is the topic, its publisher is in the metadata."""
    topic = topic_of(bed, "eu west/1")
    followers = [await follower(bed, topic) for _ in range(5)]
    await publish(bed, topic, {"n": 1})
    await bed.until(lambda: all(got for _, got in followers))
    await brought(bed)

    for agent, got in followers:
        await all_done(bed, agent)
        [message] = await received(bed, agent)
        assert got == [{"n": 1}]
        assert (message.sender, message.target) == (f"topic:{topic}", agent)
        assert message.metadata["publisher"] == "client:local"


@pytest.mark.item(242)
async def test_a_followers_changes_to_a_post_are_not_shared(bed: Bed) -> None:
    """Other followers of the post and the log keep the original."""
    topic = topic_of(bed)
    got: list[Any] = []

    async def act(ctx: RunContext, inbox: list[Message]) -> None:
        post: Any = inbox[0].payload
        got.append(list(post["lines"]))
        post["lines"].append(str(ctx.run_id))
        inbox[0].metadata["seen"] = "yes"

    agents = [await bed.serve(act) for _ in range(4)]
    for agent in agents:
        await bed.runtime.follow(agent, topic.type, topic.source)
    await publish(bed, topic, {"lines": ["one"]})
    await bed.until(lambda: len(got) == 4)

    assert got == [["one"]] * 4
    for agent in agents:
        await all_done(bed, agent)
        [message] = await received(bed, agent)
        assert (message.payload, "seen" in message.metadata) == ({"lines": ["one"]}, False)


@pytest.mark.item(94, 95, 243)
async def test_runs_follow_and_publish(bed: Bed) -> None:
    """The effects of follow and emit are visible to the next run and other agents, once over replays."""
    topic = topic_of(bed)
    got: list[object] = []

    async def listen(ctx: RunContext, inbox: list[Message]) -> None:
        if inbox[0].payload == "follow":
            await ctx.follow(topic)
        else:
            got.extend(m.payload for m in inbox)

    async def talk(ctx: RunContext, inbox: list[Message]) -> str:
        for n in range(3):
            await ctx.emit(f"{topic.type}/{topic.source}", {"n": n})
            await ctx.step(f"s{n}", bed.world.do, "step")
        await ctx.sleep_until_signal("go")
        return "talked"

    listener = await bed.serve(listen)
    await bed.result(await bed.submit(listener, "follow"))
    run_id = await bed.submit(await bed.serve(talk))
    await bed.seen(run_id, K.EFFECT_RESULT, times=3)
    await bed.restart()
    await bed.runtime.signal(run_id, "go")
    assert await bed.result(run_id) == "talked"
    await bed.until(lambda: {"n": 2} in got)
    await brought(bed)
    await all_done(bed, listener)

    posts = [m for m in await received(bed, listener) if m.sender == f"topic:{topic}"]
    assert [m.payload for m in posts] == [{"n": 0}, {"n": 1}, {"n": 2}]
    assert len({m.id for m in posts}) == 3
    assert {m.metadata["publisher"] for m in posts} == {f"agent:{(await bed.row(run_id)).agent_id}"}
    assert [e.payload["target"] for e in await bed.log(run_id, K.MSG_SENT)] == [str(topic)] * 3


@pytest.mark.item(96, 138, 139)
async def test_a_repeated_follow_changes_nothing_and_unfollow_ends_it(bed: Bed) -> None:
    """Also from a run.

    Unfollowing without a follow is no error, and following again starts at that moment.
    """
    topic, other = topic_of(bed), topic_of(bed)
    got: list[object] = []

    async def act(ctx: RunContext, inbox: list[Message]) -> None:
        for message in inbox:
            if message.sender == "client:local":
                verb = ctx.follow if message.payload == "follow" else ctx.unfollow
                await verb(topic)
                await verb(topic)
            else:
                got.append(message.payload)

    agent = await bed.serve(act)
    await bed.runtime.follow(agent, other.type)

    async def tell(word: str) -> None:
        await bed.runtime.send(agent, word)
        await all_done(bed, agent)

    await tell("unfollow")
    await publish(bed, topic, "too early")
    await tell("follow")
    await publish(bed, topic, "heard")
    await bed.until(lambda: got)
    await tell("unfollow")
    await publish(bed, topic, "too late")
    assert not await bed.runtime.unfollow(agent, topic.type)
    await tell("follow")
    await publish(bed, topic, "heard again")
    await publish(bed, other, "end")
    await bed.until(lambda: "end" in got and "heard again" in got)
    await brought(bed)
    await all_done(bed, agent)

    assert sorted(map(str, got)) == ["end", "heard", "heard again"]


async def test_a_follow_is_recorded_and_durable_when_it_returns(bed: Bed) -> None:
    """A post published at that moment reaches it before the run goes on."""
    topic = topic_of(bed)

    async def body(ctx: RunContext) -> str:
        await ctx.follow(topic, mode="lazy")
        await ctx.unfollow(topic)
        return await ctx.uuid()

    values = await bed.live_and_replayed(body)

    assert len(set(values)) == 1
    [run] = await bed.runtime.store.lists.runs(limit=1)
    entries = await bed.log(run.run_id, K.FOLLOW_CHANGED)
    assert [(e.payload["following"], e.payload.get("mode")) for e in entries] == [
        (True, "lazy"),
        (False, None),
    ]


@pytest.mark.item(27)
async def test_a_repeated_post_is_delivered_once(bed: Bed) -> None:
    """Duplicates are recognised by publisher and message id; another publisher's post of that id is new."""
    topic = topic_of(bed)
    agent, got = await follower(bed, topic)
    post = Message.of(topic, "once", id="p-1")
    for sender in ("ext:a", "ext:a", "ext:b"):
        await publish(bed, topic, post, sender=sender)
    await publish(bed, topic, "end")
    await bed.until(lambda: "end" in got)
    await brought(bed)
    await all_done(bed, agent)

    assert got == ["once", "once", "end"]


@pytest.mark.item(27)
async def test_publishing_without_followers_is_no_error(bed: Bed) -> None:
    """From Python and from a run; a later follower does not get the post."""
    topic = topic_of(bed)

    async def act(ctx: RunContext, inbox: list[Message]) -> str:
        del inbox
        await ctx.emit(topic, "unheard")
        return "done"

    await publish(bed, topic, "unheard")
    assert await bed.play(act) == "done"
    _, got = await follower(bed, topic)
    await publish(bed, topic, "heard")
    await bed.until(lambda: got)
    await brought(bed)

    assert got == ["heard"]


async def test_concurrent_follows_and_posts_lose_no_post(bed: Bed) -> None:
    """A follower gets every post from one on, none before it, and all of them in order."""
    topic, count = topic_of(bed), 20
    agents: dict[AgentId, list[Any]] = {}
    for _ in range(8):
        got: list[Any] = []
        agents[await bed.serve(noting(got))] = got
    followed: dict[AgentId, int] = {}
    published = 0

    async def follow(agent: AgentId, pause: int) -> None:
        for _ in range(pause):
            await asyncio.sleep(0)
        await bed.runtime.follow(agent, topic.type)
        followed[agent] = published

    async def talk() -> None:
        nonlocal published
        for n in range(count):
            await publish(bed, topic, n)
            published = n + 1

    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(talk())
        for pause, agent in enumerate(agents):
            tasks.create_task(follow(agent, pause * 5))
    await publish(bed, topic, count)
    await bed.until(lambda: all(count in got for got in agents.values()))
    await brought(bed)

    for agent, got in agents.items():
        await all_done(bed, agent)
        assert got == list(range(got[0], count + 1))
        assert got[0] <= followed[agent] + 1


@pytest.mark.item(135)
async def test_a_failing_follower_delays_no_other_follower(bed: Bed) -> None:
    """Its run fails; every other follower handles the post."""
    topic = topic_of(bed)

    async def fail(ctx: RunContext, inbox: list[Message]) -> None:
        raise ValueError(inbox[0].payload)

    bad = await bed.serve(fail)
    await bed.runtime.follow(bad, topic.type)
    followers = [await follower(bed, topic) for _ in range(3)]
    for n in range(2):
        await publish(bed, topic, n)
    await bed.until(lambda: all(got == [0, 1] for _, got in followers))

    assert await bed.runtime.store.lists.pending_count(
        bad
    ) > 0 or await bed.runtime.store.lists.dead_letters(agent=bad)


@pytest.mark.item(240, 242)
async def test_subscriptions_and_posts_survive_a_crash(bed: Bed) -> None:
    """A post that was not delivered when the host crashed is delivered by the next one, once."""
    topic = topic_of(bed)
    agent, got = await follower(bed, topic)
    await publish(bed, topic, "before")
    await bed.restart()
    await publish(bed, topic, "after")
    await bed.until(lambda: "after" in got)
    await brought(bed)
    await all_done(bed, agent)

    assert [m.payload for m in await received(bed, agent)] == ["before", "after"]


async def test_a_client_publishes_to_followers_of_a_host(bed: Bed) -> None:
    """The client executes nothing; the host that owns the followers is notified."""
    topic = topic_of(bed)
    agent, got = await follower(bed, topic)
    async with bed.client() as client:
        await client.publish(topic.type, topic.source, "hello")
        await bed.until(lambda: got)
    await all_done(bed, agent)

    [message] = await received(bed, agent)
    assert message.metadata["publisher"] == "client:other"


@pytest.mark.item(137)
async def test_topics_of_two_tenants_are_two_topics(bed: Bed) -> None:
    """A topic of the same name in another tenant has no follower of this one."""
    type_ = bed.name().type
    got: dict[str, list[object]] = {"a": [], "b": []}
    agents = {tenant: AgentId(type_, "1", tenant) for tenant in got}
    for tenant, agent in agents.items():
        bed.agents[agent] = Acting(agent, noting(got[tenant]))
        await bed.runtime.register(bed.agents[agent])
        await bed.runtime.follow(agent, type_)
    await publish(bed, TopicId(type_), "for a", tenant="a")
    await publish(bed, TopicId(type_), "for b", tenant="b")
    await bed.until(lambda: all(got.values()))
    await brought(bed)

    assert got == {"a": ["for a"], "b": ["for b"]}


@pytest.mark.parametrize("verb", ["follow", "unfollow", "emit"])
async def test_a_run_reaches_no_topic_of_another_tenant(bed: Bed, verb: str) -> None:
    """The call raises and nothing is recorded; the run goes on."""
    topic = TopicId(bed.name().type, tenant="other")

    async def act(ctx: RunContext, inbox: list[Message]) -> str:
        del inbox
        words = (topic, "x") if verb == "emit" else (topic,)
        with pytest.raises(OtherTenantError, match="nothing crosses tenants"):
            await getattr(ctx, verb)(*words)
        return "went on"

    run_id = await bed.submit(await bed.serve(act))

    assert await bed.result(run_id) == "went on"
    assert await bed.log(run_id, K.FOLLOW_CHANGED, K.MSG_SENT) == []
