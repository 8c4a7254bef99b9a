"""Followers, posts, and what a shard's owner does for them, on a bed."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from actors.kernel.agent.message import Message
from actors.kernel.runtime.fanout import Expanded
from actors.kernel.runtime.ids import AgentId, TopicId
from tests.conformance.bed import EPOCH

if TYPE_CHECKING:
    from collections.abc import Iterable

    from actors.kernel.json import JsonValue
    from actors.kernel.runtime.commit import Arrived
    from actors.kernel.runtime.fanout import Fanout
    from actors.kernel.runtime.follow_graph import FollowMode
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


async def once(bed: Bed, fanout: Fanout, *, limit: int = 2000) -> Expanded:
    """Bring one chunk to followers; it must be allowed."""
    done = await bed.store.posts.expand(bed.leases[fanout.shard], fanout, limit=limit)
    assert isinstance(done, Expanded), done
    return done


async def bring(bed: Bed, *, limit: int = 2000) -> list[AgentId]:
    """Bring everything to the followers in the bed's shards, as a host does; return who is woken."""
    woken: list[AgentId] = []
    while fanouts := await bed.store.posts.fanouts(bed.shards):
        for fanout in fanouts:
            is_done = False
            while not is_done:
                chunk = await once(bed, fanout, limit=limit)
                woken += [row.agent_id for row in chunk.woken]
                is_done = chunk.is_done
    return woken


async def mail(bed: Bed, agent: AgentId) -> list[Arrived]:
    """The agent's waiting mail."""
    return await bed.store.pending_mail(agent=agent)
