"""The contract of every `FollowGraph` and every `FanoutStrategy`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from typing_extensions import override

from actors.errors import ContractError, PersistenceError
from actors.kernel.runtime.ids import AgentId, TopicId
from actors.runtime.backends import InMemoryFollowGraph, InMemoryInbox, PushAllFanout
from tests.conformance.bed import message
from tests.conformance.clock import ManualClock

if TYPE_CHECKING:
    from actors.kernel.agent.message import Message
    from actors.kernel.runtime.fanout import FanoutStrategy
    from actors.kernel.runtime.follow_graph import FollowGraph

NEWS = TopicId("news", "today")
FANS = [AgentId("fan", str(n)) for n in range(3)]


@pytest.fixture
def graph() -> FollowGraph:
    """An empty graph."""
    return InMemoryFollowGraph()


@pytest.fixture
def fanout() -> FanoutStrategy:
    """The strategy under test."""
    return PushAllFanout()


async def followers(graph: FollowGraph, topic: TopicId = NEWS) -> list[AgentId]:
    """Who follows the topic."""
    return [subscription.follower async for subscription in graph.followers_of(topic)]


@pytest.mark.item(137, 138)
async def test_followers_and_following_agree(graph: FollowGraph) -> None:
    """Following twice is following once; the mode may change, the beginning does not."""
    other = TopicId("news", "sports")
    first = await graph.follow(FANS[0], NEWS)
    await graph.follow(FANS[1], NEWS)
    await graph.follow(FANS[0], other)
    again = await graph.follow(FANS[0], NEWS, mode="lazy")

    assert await followers(graph) == FANS[:2]
    assert await graph.following(FANS[0]) == [other, NEWS]
    assert (again.since, again.mode) == (first.since, "lazy")


@pytest.mark.item(137)
async def test_topics_of_two_tenants_are_two_topics(graph: FollowGraph) -> None:
    """And nobody follows a topic of another tenant."""
    theirs, spy = TopicId("news", "today", "acme"), AgentId("fan", "x", "acme")
    await graph.follow(FANS[0], NEWS)
    await graph.follow(spy, theirs)

    with pytest.raises(ContractError):
        await graph.follow(spy, NEWS)

    assert await followers(graph) == [FANS[0]]
    assert await followers(graph, theirs) == [spy]


@pytest.mark.item(139)
async def test_unfollowing_what_is_not_followed_is_no_error(graph: FollowGraph) -> None:
    """It says so; a real one ends the subscription on both sides."""
    await graph.follow(FANS[0], NEWS)

    assert await graph.unfollow(FANS[1], NEWS) is False
    assert await graph.unfollow(FANS[0], NEWS) is True
    assert await graph.unfollow(FANS[0], NEWS) is False
    assert (await followers(graph), await graph.following(FANS[0])) == ([], [])


class Refusing(InMemoryInbox):
    """An inbox that fails for one agent."""

    refused: AgentId | None = None

    @override
    async def deliver(self, agent_id: AgentId, msg: Message, *, notify: bool = True) -> bool:
        if agent_id == self.refused:
            raise PersistenceError("no room")
        return await super().deliver(agent_id, msg, notify=notify)


@pytest.mark.item(27, 135)
async def test_a_post_reaches_every_follower_once(
    graph: FollowGraph, fanout: FanoutStrategy
) -> None:
    """However often it is published; one that cannot be reached keeps it from nobody else."""
    inbox = Refusing(clock=ManualClock())
    inbox.refused = FANS[1]
    for fan in FANS:
        await graph.follow(fan, NEWS)
    post = message("hello", id="p1")

    first = await fanout.publish(NEWS, post, graph=graph, inbox=inbox)
    inbox.refused = None
    second = await fanout.publish(NEWS, post, graph=graph, inbox=inbox)

    assert (first.delivered, first.known, [agent for agent, _ in first.failed]) == (2, 0, [FANS[1]])
    assert (second.delivered, second.known, second.failed) == (1, 2, ())
    for fan in FANS:
        (mail,) = await inbox.drain(fan)
        assert (mail.payload, mail.target, mail.sender) == ("hello", fan, f"topic:{NEWS}")


@pytest.mark.item(27)
async def test_a_post_nobody_follows_is_no_error(
    graph: FollowGraph, fanout: FanoutStrategy
) -> None:
    """It reaches nobody."""
    inbox = InMemoryInbox(clock=ManualClock())

    report = await fanout.publish(NEWS, message(id="p"), graph=graph, inbox=inbox)

    assert (report.delivered, report.known, report.failed) == (0, 0, ())


async def test_a_lazy_follower_gets_the_post_without_being_woken(
    graph: FollowGraph, fanout: FanoutStrategy
) -> None:
    """Only eager ones call the inbox's hook."""
    inbox, woken = InMemoryInbox(clock=ManualClock()), list[AgentId]()
    inbox.set_deliver_hook(woken.append)
    await graph.follow(FANS[0], NEWS, mode="lazy")
    await graph.follow(FANS[1], NEWS)

    await fanout.publish(NEWS, message(id="p"), graph=graph, inbox=inbox)

    assert woken == [FANS[1]]
    assert await inbox.pending_count(FANS[0]) == 1
