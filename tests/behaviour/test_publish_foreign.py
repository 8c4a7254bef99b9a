"""A follow graph and a fan-out that are passed to the runtime are used by it and by its runs."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from actors._kernel.runtime.log_entry import EntryKind
from actors._runtime.parts import InMemoryFollowGraph, PushAllFanout
from tests.behaviour.outside import all_done, noting, received
from tests.behaviour.test_follow import publish, topic_of

if TYPE_CHECKING:
    from actors._kernel.agent.message import Message
    from actors._kernel.runtime.ids import AgentId, TopicId
    from actors._kernel.runtime.sources import Inbox
    from actors._kernel.stores.topics import FanoutReport, FollowGraph
    from actors._runtime import RunContext
    from tests.behaviour.bed import Bed


class Counting:
    """A fan-out that records its posts, and delivers them."""

    def __init__(self) -> None:
        self.asked: list[tuple[TopicId, str]] = []

    async def publish(
        self, topic: TopicId, msg: Message, *, graph: FollowGraph, inbox: Inbox
    ) -> FanoutReport:
        """See `FanoutStrategy.publish`."""
        self.asked.append((topic, msg.id))
        return await PushAllFanout().publish(topic, msg, graph=graph, inbox=inbox)


async def following(graph: FollowGraph, topic: TopicId) -> list[AgentId]:
    """Return the followers of a topic there."""
    return [follow.follower async for follow in graph.followers_of(topic)]


@pytest.mark.item(14, 15, 241, 243)
async def test_both_are_used_from_python(bed: Bed) -> None:
    """The graph gets the follows, the fan-out the posts; followers get each post once."""
    graph, fanout, topic = InMemoryFollowGraph(), Counting(), topic_of(bed)
    await bed.restart(follow_graph=graph, fanout=fanout)
    got: list[object] = []
    agent = await bed.serve(noting(got))
    await bed.runtime.follow(agent, topic.type)
    assert await following(graph, topic) == [agent]

    await publish(bed, topic, "hello")
    await bed.until(lambda: got)
    await bed.runtime.unfollow(agent, topic.type)
    await all_done(bed, agent)

    assert (got, [asked_topic for asked_topic, _ in fanout.asked]) == (["hello"], [topic])
    assert await following(graph, topic) == []
    assert [m.sender for m in await received(bed, agent)] == [f"topic:{topic}"]


@pytest.mark.item(14, 15, 94, 95, 96, 243)
async def test_a_runs_calls_of_them_are_recorded_effects(bed: Bed) -> None:
    """It happens once over crashes, and a replay calls neither of them."""
    graph, fanout = InMemoryFollowGraph(), Counting()
    topic, other = topic_of(bed), topic_of(bed)
    await bed.restart(follow_graph=graph, fanout=fanout)
    got: list[object] = []
    listener = await bed.serve(noting(got))
    await bed.runtime.follow(listener, topic.type)

    async def act(ctx: RunContext, inbox: list[Message]) -> None:
        del inbox
        await ctx.follow(other)
        await ctx.emit(topic, {"n": 1})
        await ctx.unfollow(other)
        await ctx.step("mark", bed.world.do, "mark")
        await ctx.sleep_until_signal("go")

    run_id = await bed.submit(await bed.serve(act))
    await bed.marked(run_id)
    await bed.until(lambda: got)
    await all_done(bed, listener)
    await bed.restart(follow_graph=graph, fanout=fanout)
    await bed.runtime.signal(run_id, "go")
    await bed.result(run_id)
    await all_done(bed, listener)

    assert (got, len(fanout.asked)) == ([{"n": 1}], 1)
    assert await following(graph, other) == []
    names = [e.payload["name"] for e in await bed.log(run_id, EntryKind.EFFECT_RESULT)]
    assert names == [f"follow {other}", f"emit {topic}", f"unfollow {other}", "mark"]


@pytest.mark.item(15)
async def test_a_foreign_fan_out_asks_the_stores_graph(bed: Bed) -> None:
    """Follows are in the rows, as without it."""
    fanout, topic = Counting(), topic_of(bed)
    await bed.restart(fanout=fanout)
    got: list[object] = []
    agent = await bed.serve(noting(got))
    await bed.runtime.follow(agent, topic.type)
    await bed.restart(fanout=fanout)
    await publish(bed, topic, "hello")
    await bed.until(lambda: got)

    assert (got, len(fanout.asked)) == (["hello"], 1)
