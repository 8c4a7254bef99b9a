"""One post to 1,000, 10,000 and 100,000 followers: into their inboxes, and until every one has handled it.

Beside a plain program, and the runs that handle it committed by hand.
"""

from __future__ import annotations

import asyncio
import gc
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import asyncpg

from actors._kernel.agent.message import Message
from actors._kernel.runtime.commit import Commit
from actors._kernel.runtime.ids import TopicId, partition_hash
from tests.benchmarks import mock
from tests.benchmarks.bench import (
    PAYLOAD,
    TYPE,
    Floor,
    agent_id,
    beside,
    many,
    open_runtime,
    open_store,
    report,
)
from tests.benchmarks.byhand import committed, handled

if TYPE_CHECKING:
    from actors._kernel.runtime.ids import AgentId
    from actors._kernel.runtime.rows import Arrived
    from persistence.postgres import PostgresStore

NEWS = TopicId("news", "bench")
AT_ONCE = 500
POLL_S = 0.01
"""Seconds for each thousand followers, because a poll reads all rows."""
RESTATE_PER_S = 1730
"""Deliveries of the best durable peer, one post to 10,000."""


class Reader:
    """Reads a post."""

    def __init__(self, id: AgentId) -> None:  # noqa: A002
        self.id = id

    async def run(self, ctx: Any, inbox: list[Message]) -> int:
        """Count."""
        return len(inbox)


async def follow(connection: asyncpg.Connection[Any], count: int) -> None:
    """Let so many agents follow, in a few statements."""
    agents = [agent_id(index) for index in range(count)]
    for start in range(0, count, 5000):
        part = agents[start : start + 5000]
        await connection.execute(
            "select follow_topics($1, $2, $3, $4)",
            [str(agent) for agent in part],
            [partition_hash(agent) for agent in part],
            [str(NEWS)] * len(part),
            ["eager"] * len(part),
        )
    await connection.execute("analyze follows")


async def _connect(url: str, store: PostgresStore) -> asyncpg.Connection[Any]:
    return await asyncpg.connect(url, server_settings={"search_path": store.settings.schema})


async def floors(url: str, followers: int) -> tuple[float, float]:
    """Return rows per second of ours by hand, and posts handled per second, with their delivery, by hand."""
    async with open_store(url) as store:
        hand = await Floor.over(store)
        connection = await _connect(url, store)
        await follow(connection, followers)
        await store.posts.publish(Message.of(NEWS, PAYLOAD).sent_by("client:bench"))
        began = time.perf_counter()
        arrived: list[Arrived] = []
        while len(arrived) < followers:
            chunk = await store.posts.expand(list(hand.shards.values()))
            arrived += [row for rows in chunk.woken.values() for row in rows]
        delivered = time.perf_counter() - began

        async def handle(index: int) -> None:
            parts = handled(arrived[index], 1)
            lease = hand.lease(arrived[index].agent_id, parts["create"].run_id)
            await committed(hand, Commit(lease, **parts))

        took = await many(handle, total=followers, at_once=AT_ONCE, warm_up=False)
        await connection.close()
    return followers / delivered, followers / (delivered + took)


async def plain(url: str, followers: int) -> tuple[float, float]:
    """Return rows per second of a plain program, and posts handled per second, with their delivery."""
    async with mock.opened(url) as database:
        delivered = await mock.post(database, followers)
        rows = await database.inbox_of(mock.NEWS)
        took = await many(
            lambda i: mock.take(database, *rows[i]), total=followers, at_once=AT_ONCE, warm_up=False
        )
        return followers / delivered, followers / (delivered + took)


def _resident_mib() -> float:
    pages = Path("/proc/self/statm").read_text(encoding="ascii").split()[1]
    return int(pages) * 4096 / 2**20


@dataclass
class Fanned:
    """The figures of one post."""

    publish_ms: float
    delivered_per_s: float
    """Until the last follower's row is there, while runs handle those that are."""
    handled_per_s: float
    mib: float
    """At most above the start."""


async def ours(url: str, followers: int) -> Fanned:
    """Publish one post and wait until every follower has handled it."""
    async with open_runtime(url) as runtime:
        await runtime.register_type(TYPE, Reader)
        store: Any = runtime.store
        connection = await _connect(url, store)
        await follow(connection, followers)
        gc.collect()  # not during the measurement, which would include it
        before = most = _resident_mib()
        began = time.perf_counter()
        await runtime.publish(NEWS.type, NEWS.source, PAYLOAD)
        published, delivered, handled = time.perf_counter() - began, 0.0, 0
        query = "select count(*), count(*) filter (where state = 'd') from inbox"
        while handled < followers:
            await asyncio.sleep(POLL_S * followers / 1000)
            row_count, handled = await connection.fetchrow(query)  # type: ignore[misc]
            most = max(most, _resident_mib())
            if row_count == followers and not delivered:
                delivered = time.perf_counter() - began
        took = time.perf_counter() - began
        await connection.close()
    return Fanned(published * 1000, followers / delivered, followers / took, most - before)


async def run(url: str, *, scale: float = 1.0) -> None:
    """Print a line for each number of followers."""
    for size in (1_000, 10_000, 100_000):
        followers = max(200, int(size * scale))
        # In this order: memory kept by the floors would hide that of ours.
        figures = await ours(url, followers)
        least_rows, least = await plain(url, followers)
        rows, base = await floors(url, followers)
        report(
            benchmark="posts",
            followers=followers,
            publish_ms=round(figures.publish_ms, 1),
            mock_rows_per_s=round(least_rows),
            rows_per_s=round(rows),
            rows_of_mock=round(rows / least_rows, 3),
            delivered_per_s=round(figures.delivered_per_s),
            goal_delivered_per_s=20_000,
            handled_per_s=round(figures.handled_per_s),
            **beside(figures.handled_per_s, mock=least, floor=base),
            goal_per_s=6000,
            mib=round(figures.mib),
            times_restate=round(figures.handled_per_s / RESTATE_PER_S, 1),
        )
