"""SIGKILL during the delivery of a post to thousands of followers, which follow and unfollow meanwhile.

Most followers are of a type that no host serves: their posts stay rows and are counted. Some are
served, and keep their posts.
"""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from typing import TYPE_CHECKING, Final

import pytest

from actors._kernel.runtime.ids import AgentId, TopicId
from actors._kernel.stores.shards import Serves
from tests.harness.slow import IS_SLOW
from tests.system.fleet import HERE, Node
from tests.system.moments import with_moments
from tests.system.waiting import until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from actors._kernel.agent.agent import Agent
    from actors._kernel.agent.message import Message
    from actors._runtime import RunContext, Runtime
    from tests.harness.rawnats import RawNats
    from tests.system.fleet import Rows
    from tests.system.processes import Hosts

COUNT: Final = 100_000 if IS_SLOW else 20_000
SERVED: Final = 50
TOPIC: Final = TopicId("news", "eu")
SENDER: Final = f"topic:{TOPIC}"
NODES: Final = f"{HERE}:NODES"
LEASE_S: Final = 1.0


class Crier:
    """Publishes three posts, with a step after each."""

    def __init__(self, agent_id: AgentId) -> None:
        self.id = agent_id

    async def run(self, ctx: RunContext, inbox: list[Message]) -> None:
        """Execute; the payload is ignored."""
        del inbox
        for n in range(POSTS):
            await ctx.emit(TOPIC, {"n": n})
            await ctx.step(f"s{n}", lambda n=n: n)


POSTS: Final = 3
CRIERS: Final[dict[str, Callable[[AgentId], Agent]]] = {"node": Node, "crier": Crier}


def crowd(first: int, count: int) -> list[AgentId]:
    """Return agents of an unserved type."""
    return [AgentId("crowd", f"{n:06}") for n in range(first, first + count)]


def nodes(first: int, count: int) -> list[AgentId]:
    """Return agents that keep their messages."""
    return [AgentId("node", f"{n:06}") for n in range(first, first + count)]


async def follow(client: Runtime, agents: Iterable[AgentId]) -> None:
    """Let all of them follow."""
    async with asyncio.TaskGroup() as tasks:
        for agent in agents:
            tasks.create_task(client.follow(agent, TOPIC.type, TOPIC.source))


async def unfollow(client: Runtime, agents: Iterable[AgentId]) -> None:
    """Let all of them unfollow."""
    async with asyncio.TaskGroup() as tasks:
        for agent in agents:
            tasks.create_task(client.unfollow(agent, TOPIC.type, TOPIC.source))


async def got(rows: Rows) -> Counter[str]:
    """Return how many posts each agent got."""
    records = await rows.connection.fetch(
        "select agent, count(*) as n from inbox where sender = $1 group by agent", SENDER
    )
    return Counter({row["agent"]: row["n"] for row in records})


async def publish(outsider: RawNats, namespace: str, payload: object) -> None:
    """Publish as the external client `crm`, and wait for the acknowledgement."""
    subject = f"{namespace}.topic.v1.{TOPIC.tenant}.{TOPIC.type}.{TOPIC.source}.ext.crm"
    ack = await outsider.publish(subject, json.dumps(payload).encode(), {"Nats-Msg-Id": "p-1"})
    assert "error" not in ack, ack


@pytest.mark.costly
@pytest.mark.slow
@pytest.mark.timeout(600 if COUNT > 20_000 else 180)
@pytest.mark.item(27, 94, 242, 243, 486)
@pytest.mark.parametrize(
    "fault",
    [
        f"{point}:{nth}:{moment}"
        for point, nth, moment in with_moments([("ingest", 1), ("expand", 1), ("expand", 7)])
    ],
)
async def test_each_current_follower_gets_a_post_once_after_any_crash(  # noqa: PLR0917 - fixtures
    fleet: Hosts, client: Runtime, rows: Rows, outsider: RawNats, namespace: str, fault: str
) -> None:
    """The reader of the topic, or the host that delivers the post, is killed; later followers get nothing."""
    await client.store.shards.declare(Serves(types=("crowd", "node")))
    stay, leave, come = crowd(0, COUNT), crowd(COUNT, 200), crowd(COUNT + 200, 200)
    await follow(client, [*stay, *leave, *nodes(0, SERVED), *nodes(SERVED, SERVED)])
    doomed = await fleet.serving(NODES, lease_s=LEASE_S, fault=fault)
    await rows.until_owned("p:~topic:", {doomed.name: 16})
    await rows.until_owned("p:crowd:", {doomed.name: 16})

    await publish(outsider, namespace, {"n": 7})
    assert await doomed.exit_code() == -9
    if fault != "ingest:1:before":  # else its moment is still to come
        await unfollow(client, [*leave, *nodes(SERVED, SERVED)])
        await follow(client, [*come, *nodes(2 * SERVED, SERVED)])
        await follow(client, leave[:100])  # from now on, which is too late for this post
    expected = {str(agent) for agent in [*stay, *leave, *nodes(0, 2 * SERVED)]}
    other = await fleet.serving(NODES, lease_s=LEASE_S)

    async def is_over() -> bool:
        return await rows.count("posts") == 1 and await rows.count("fanouts") == 0

    await until(is_over, "the post is with everybody", limit_s=120)
    for agent in nodes(0, 2 * SERVED):
        assert await rows.until_seen(agent, 1) == [(SENDER, 7)]
    assert await got(rows) == Counter(dict.fromkeys(expected, 1))
    for agent in nodes(2 * SERVED, SERVED):
        assert await rows.seen(agent) == []
    assert other.is_alive


@pytest.mark.slow
@pytest.mark.timeout(120)
@pytest.mark.item(94, 147, 486)
@pytest.mark.parametrize(("nth", "moment"), with_moments([(1,), (2,), (3,), (4,)]))
async def test_posts_of_a_run_reach_each_follower_once_and_in_order_after_any_crash(  # noqa: PLR0917 - fixtures
    fleet: Hosts, client: Runtime, rows: Rows, nth: int, moment: str
) -> None:
    """The host is killed at each commit of the run that publishes; the next one continues."""
    serves = f"{__name__}:CRIERS"
    followers = nodes(0, SERVED)
    await follow(client, followers)
    doomed = await fleet.serving(serves, lease_s=LEASE_S, fault=f"commit:{nth}:{moment}")
    await client.submit(AgentId("crier", "a"), {})
    assert await doomed.exit_code() == -9
    await fleet.serving(serves, lease_s=LEASE_S)

    for agent in followers:
        assert await rows.until_seen(agent, POSTS) == [(SENDER, n) for n in range(POSTS)]
    assert await rows.count("posts") == POSTS
    assert await rows.count("fanouts") == 0
