"""The contract of every `FollowGraph`: alone in memory, and in the rows of every store."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import pytest

from actors._kernel.runtime.ids import AgentId, TopicId
from actors._runtime.parts import InMemoryFollowGraph
from actors.errors import OtherTenantError
from tests.conformance.conftest import bed_of
from tests.conformance.posts import NEWS, desks

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from actors._kernel.stores.topics import FollowGraph
    from tests.conformance.bed import Bed

FANS = desks(3)


@asynccontextmanager
async def graph_of(kind: str, request: pytest.FixtureRequest) -> AsyncIterator[FollowGraph]:
    """Return an empty graph."""
    if kind == "in-memory":
        yield InMemoryFollowGraph()
        return
    async with bed_of(kind, request) as bed:
        yield bed.store.follows


@pytest.fixture(
    params=[
        "in-memory",
        "memory",
        "composed",
        pytest.param("postgres", marks=pytest.mark.postgres),
        pytest.param("brokered", marks=pytest.mark.postgres),
    ]
)
async def graph(request: pytest.FixtureRequest) -> AsyncIterator[FollowGraph]:
    """Return an empty graph of each kind."""
    async with graph_of(request.param, request) as graph:
        yield graph


async def followers(graph: FollowGraph, topic: TopicId = NEWS) -> list[AgentId]:
    """Return the followers of the topic, sorted."""
    return sorted([subscription.follower async for subscription in graph.followers_of(topic)])


@pytest.mark.item(137, 138)
async def test_followers_and_following_agree(graph: FollowGraph) -> None:
    """Following twice keeps one follow. Its mode may change, its start does not."""
    other = TopicId("news", "sports")
    first = await graph.follow(FANS[0], NEWS)
    second = await graph.follow(FANS[1], NEWS)
    await graph.follow(FANS[0], other)
    again = await graph.follow(FANS[0], NEWS, mode="lazy")

    assert await followers(graph) == sorted(FANS[:2])
    assert await followers(graph, other) == [FANS[0]]
    assert await graph.following(FANS[0]) == [other, NEWS]
    assert await graph.following(FANS[1]) == [NEWS]
    assert await graph.following(FANS[2]) == []
    assert (again.since, again.mode) == (first.since, "lazy")
    assert second.since > first.since
    follows = {f.follower: f async for f in graph.followers_of(NEWS)}
    assert follows == {FANS[0]: again, FANS[1]: second}


@pytest.mark.item(137)
async def test_topics_of_two_tenants_are_two_topics(graph: FollowGraph) -> None:
    """No agent follows a topic of another tenant."""
    theirs, spy = TopicId("news", "today", "acme"), AgentId("desk", "x", "acme")
    await graph.follow(FANS[0], NEWS)
    await graph.follow(spy, theirs)

    with pytest.raises(OtherTenantError):
        await graph.follow(spy, NEWS)

    assert await followers(graph) == [FANS[0]]
    assert await followers(graph, theirs) == [spy]
    assert await graph.following(spy) == [theirs]


@pytest.mark.item(139)
async def test_unfollowing_what_is_not_followed_is_no_error(graph: FollowGraph) -> None:
    """It returns that; a real unfollow ends the follow on both sides."""
    await graph.follow(FANS[0], NEWS)

    assert await graph.unfollow(FANS[1], NEWS) is False
    assert await graph.unfollow(FANS[0], NEWS) is True
    assert await graph.unfollow(FANS[0], NEWS) is False
    assert (await followers(graph), await graph.following(FANS[0])) == ([], [])


@pytest.mark.item(138, 139)
async def test_following_after_an_end_begins_anew(graph: FollowGraph) -> None:
    """The new follow has a greater number."""
    first = await graph.follow(FANS[0], NEWS)
    await graph.unfollow(FANS[0], NEWS)
    second = await graph.follow(FANS[0], NEWS, mode="lazy")

    assert second.since > first.since
    assert [f async for f in graph.followers_of(NEWS)] == [second]


@pytest.mark.item(137)
async def test_names_that_need_care_are_kept(graph: FollowGraph) -> None:
    """Sources and keys may have slashes, colons, quotes and any letters."""
    agent = AgentId("desk", "a/b:c'\"\\ é", "acme")
    topic = TopicId("news.v1", "x/y:z'\"\\ é", "acme")
    await graph.follow(agent, topic)

    assert await followers(graph, topic) == [agent]
    assert await graph.following(agent) == [topic]


@pytest.mark.item(138)
async def test_many_followers_are_read_in_pages(graph: FollowGraph) -> None:
    """Each is returned once, for any number."""
    fans = desks(2500)
    await asyncio.gather(*(graph.follow(fan, NEWS) for fan in fans))

    assert await followers(graph) == sorted(fans)


@pytest.mark.item(147, 240)
@pytest.mark.postgres
async def test_subscriptions_are_there_after_a_restart(request: pytest.FixtureRequest) -> None:
    """Another process reads the follows that a crashed one wrote."""
    bed: Bed
    async with bed_of("postgres", request) as bed:
        first = await bed.store.follows.follow(FANS[0], NEWS, mode="lazy")

        async with bed.open_host(bed.owner) as again:
            follows = [f async for f in again.follows.followers_of(NEWS)]

    assert follows == [first]
