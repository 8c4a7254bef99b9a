"""The contract of every `FanoutStrategy`, over every store."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import pytest
from typing_extensions import override

from actors._kernel.stores.topics import as_followed
from actors._runtime.parts import (
    HybridFanout,
    InboxView,
    InMemoryFollowGraph,
    InMemoryInbox,
    PushAllFanout,
    StoreFanout,
)
from actors.errors import PersistenceError
from tests.conformance.clock import ManualClock
from tests.conformance.posts import NEWS, bring, desks, follow, mail, post

if TYPE_CHECKING:
    from actors._kernel.agent.message import Message
    from actors._kernel.runtime.ids import AgentId
    from actors._kernel.runtime.sources import Inbox
    from actors._kernel.stores.topics import FanoutReport, FanoutStrategy
    from tests.conformance.bed import Bed

FANS: Final = desks(6)
FEW: Final = 3
"""The threshold of the hybrid: both sides of it are tested."""


@dataclass
class Publisher:
    """A strategy over a bed, and the steps until its posts have arrived."""

    bed: Bed
    strategy: FanoutStrategy
    inbox: Inbox

    async def publish(self, message: Message) -> tuple[FanoutReport, list[AgentId]]:
        """Publish and let owners deliver; return the notified agents."""
        graph = self.bed.store.follows
        report = await self.strategy.publish(NEWS, message, graph=graph, inbox=self.inbox)
        return report, await bring(self.bed)


@pytest.fixture(params=["push", "store", "hybrid"])
def publisher(request: pytest.FixtureRequest, bed: Bed) -> Publisher:
    """Return each strategy over each store."""
    store = StoreFanout(bed.store.posts)
    strategies: dict[str, FanoutStrategy] = {
        "push": PushAllFanout(),
        "store": store,
        "hybrid": HybridFanout(FEW, many=store),
    }
    inbox = InboxView(bed.store, lease_of=bed.lease_of, clock=bed.clock)
    return Publisher(bed, strategies[request.param], inbox)


@pytest.mark.item(27, 94, 135, 241)
@pytest.mark.parametrize("count", [1, FEW, FEW + 1, 6])
async def test_a_post_reaches_every_follower_once(publisher: Publisher, count: int) -> None:
    """For repeated publication and each strategy."""
    bed, fans = publisher.bed, FANS[:count]
    await follow(bed, fans)

    for _ in range(3):
        await publisher.publish(post())

    for fan in FANS:
        expected = [as_followed(post(), fan)] if fan in fans else []
        assert [row.message for row in await mail(bed, fan)] == expected


@pytest.mark.item(136, 241, 242)
async def test_a_post_that_is_repeated_with_more_followers_stays_one(publisher: Publisher) -> None:
    """Also if a hybrid uses its other strategy the second time."""
    bed = publisher.bed
    await follow(bed, FANS[:FEW])
    await publisher.publish(post())
    await follow(bed, FANS)
    await publisher.publish(post())

    for fan in FANS[:FEW]:
        assert len(await mail(bed, fan)) == 1


@pytest.mark.item(27, 241)
async def test_a_post_nobody_follows_is_no_error(publisher: Publisher) -> None:
    """No agent gets it."""
    report, woken = await publisher.publish(post())

    assert (report.delivered, report.known, report.failed, woken) == (0, 0, (), [])


@pytest.mark.item(241)
async def test_a_lazy_follower_gets_the_post(publisher: Publisher) -> None:
    """The post is in the inbox when the agent reads it."""
    bed = publisher.bed
    await follow(bed, FANS[:1], mode="lazy")
    await follow(bed, FANS[1:2])

    _, woken = await publisher.publish(post())

    assert FANS[0] not in woken
    assert [len(await mail(bed, fan)) for fan in FANS[:3]] == [1, 1, 0]


@pytest.mark.item(136, 242)
async def test_a_hybrid_writes_once_above_its_threshold(bed: Bed) -> None:
    """Few followers have the post when the call returns. Many have it after their owners' next step."""
    strategy = HybridFanout(FEW, many=StoreFanout(bed.store.posts))
    inbox = InboxView(bed.store, lease_of=bed.lease_of, clock=bed.clock)
    graph = bed.store.follows
    await follow(bed, FANS[:FEW])
    few = await strategy.publish(NEWS, post(id="few"), graph=graph, inbox=inbox)
    at_once = [len(await mail(bed, fan)) for fan in FANS[:FEW]]
    await follow(bed, FANS)

    many = await strategy.publish(NEWS, post(id="many"), graph=graph, inbox=inbox)

    assert (few.delivered, few.is_under_way, at_once) == (FEW, False, [1] * FEW)
    assert (many.delivered, many.is_under_way) == (0, True)
    assert [len(await mail(bed, fan)) for fan in FANS[:FEW]] == [1] * FEW
    await bring(bed)
    assert [len(await mail(bed, fan)) for fan in FANS] == [2] * FEW + [1] * (len(FANS) - FEW)


async def test_a_host_is_notified_of_its_own_shards(bed: Bed) -> None:
    """It does not have to wait for its next scan."""
    nudge_kinds: list[str] = []
    strategy = StoreFanout(bed.store.posts, on_nudge=lambda nudge: nudge_kinds.append(nudge.kind))
    inbox = InboxView(bed.store, lease_of=bed.lease_of, clock=bed.clock)
    await follow(bed, FANS[:1])

    await strategy.publish(NEWS, post(), graph=bed.store.follows, inbox=inbox)

    assert nudge_kinds == ["fanout"]


class Refusing(InMemoryInbox):
    """An inbox that fails for one agent."""

    refused: AgentId | None = None

    @override
    async def deliver(self, agent_id: AgentId, msg: Message, *, notify: bool = True) -> bool:
        if agent_id == self.refused:
            raise PersistenceError("no room")
        return await super().deliver(agent_id, msg, notify=notify)


@pytest.mark.item(27, 135, 243)
async def test_one_follower_that_cannot_be_reached_keeps_it_from_nobody_else() -> None:
    """A repeated publication reaches exactly the followers that were left out."""
    inbox, graph = Refusing(clock=ManualClock()), InMemoryFollowGraph()
    inbox.refused = FANS[1]
    for fan in FANS:
        await graph.follow(fan, NEWS)

    first = await PushAllFanout().publish(NEWS, post(), graph=graph, inbox=inbox)
    inbox.refused = None
    second = await PushAllFanout().publish(NEWS, post(), graph=graph, inbox=inbox)

    assert (first.delivered, first.known, [agent for agent, _ in first.failed]) == (5, 0, [FANS[1]])
    assert (second.delivered, second.known, second.failed) == (1, 5, ())
    for fan in FANS:
        (got,) = await inbox.drain(fan)
        assert got == as_followed(post(), fan)


@pytest.mark.item(135)
async def test_only_eager_followers_call_the_inboxs_hook() -> None:
    """A lazy follower has the post, too."""
    inbox, graph = InMemoryInbox(clock=ManualClock()), InMemoryFollowGraph()
    woken: list[AgentId] = []
    inbox.set_deliver_hook(woken.append)
    await graph.follow(FANS[0], NEWS, mode="lazy")
    await graph.follow(FANS[1], NEWS)

    await PushAllFanout().publish(NEWS, post(), graph=graph, inbox=inbox)

    assert woken == [FANS[1]]
    assert await inbox.pending_count(FANS[0]) == 1
