"""Followers, posts, and what a shard's owner does for them, on a bed."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from actors._kernel.agent.message import Message
from actors._kernel.runtime.ids import AgentId, TopicId
from tests.conformance.bed import EPOCH

if TYPE_CHECKING:
    from collections.abc import Iterable

    from actors._kernel.json import JsonValue
    from actors._kernel.runtime.communication import FollowMode
    from actors._kernel.runtime.rows import Arrived
    from actors._kernel.stores.topics import Expanded
    from tests.conformance.bed import Bed

NEWS: Final = TopicId("news", "today")
PUBLISHER: Final = "agent:editor/1"


def desks(count: int, *, tenant: str = "default") -> list[AgentId]:
    """So many agents of the bed's types, over all their shards."""
    return [AgentId("desk" if n % 2 else "clerk", f"f{n}", tenant) for n in range(count)]


def post(
    text: JsonValue = "hello",
    *,
    id: str = "p1",  # noqa: A002
    topic: TopicId = NEWS,
    sender: str = PUBLISHER,
) -> Message:
    """A message for a topic's followers."""
    return Message(id, topic, text, sender, created_at=EPOCH, metadata={"trace": "t}"})


async def follow(
    bed: Bed, agents: Iterable[AgentId], *, topic: TopicId = NEWS, mode: FollowMode = "eager"
) -> None:
    """Let all of them follow."""
    graph = bed.store.follows
    await asyncio.gather(*(graph.follow(agent, topic, mode=mode) for agent in agents))


async def once(bed: Bed, *, limit: int = 2000) -> Expanded:
    """Bring posts to the next followers in the bed's shards, which are its own."""
    done = await bed.store.posts.expand(list(bed.leases.values()), limit=limit)
    assert not done.lost
    return done


def named(chunk: Expanded) -> list[AgentId]:
    """Whom it woke, by shard."""
    return [row.agent_id for rows in chunk.woken.values() for row in rows]


async def bring(bed: Bed, *, limit: int = 2000) -> list[AgentId]:
    """Bring everything to the followers in the bed's shards, as a host does; return who is woken."""
    woken: list[AgentId] = []
    while await bed.store.posts.behind(bed.shards):
        woken += named(await once(bed, limit=limit))
    return woken


async def mail(bed: Bed, agent: AgentId) -> list[Arrived]:
    """The agent's waiting mail."""
    return await bed.store.backlog.pending_mail(agent=agent)
