"""One post to 10,000 and 100,000 followers: into their inboxes, and until every one has handled it.

Floors: the same inbox rows written by one statement, and the runs that handle them committed by hand.
"""

from __future__ import annotations

import asyncio
import gc
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import asyncpg

from actors.kernel.agent.message import Message, sender_of
from actors.kernel.runtime.commit import Commit
from actors.kernel.runtime.fanout import Expanded
from actors.kernel.runtime.ids import TopicId, partition_hash
from tests.benchmarks.bench import (
    PAYLOAD,
    TYPE,
    Floor,
    agent_id,
    many,
    open_runtime,
    open_store,
    report,
)
from tests.benchmarks.byhand import committed, handled

if TYPE_CHECKING:
    from actors.kernel.runtime.ids import AgentId
    from persistence.postgres import PostgresStore

NEWS = TopicId("news", "bench")
AT_ONCE = 500
RESTATE_PER_S = 1146
"""Deliveries of the best durable peer, one post to 10,000 (DESIGN §14)."""


class Reader:
    """Reads a post."""

    def __init__(self, id: AgentId) -> None:  # noqa: A002
        self.id = id

    async def run(self, ctx: Any, inbox: list[Message]) -> int:
        """Count."""
        return len(inbox)


async def _follow(connection: asyncpg.Connection[Any], count: int) -> None:
    """Let so many agents follow, in a few statements."""
    agents = [agent_id(index) for index in range(count)]
    for start in range(0, count, 5000):
        part = agents[start : start + 5000]
        await connection.execute(
            "select follow_topics($1, $2, $3, $4)", [str(agent) for agent in part],
            [partition_hash(agent) for agent in part], [str(NEWS)] * len(part),
            ["eager"] * len(part),
        )  # fmt: skip
    await connection.execute("analyze follows")


async def _connect(url: str, store: PostgresStore) -> asyncpg.Connection[Any]:
    return await asyncpg.connect(url, server_settings={"search_path": store.settings.schema})


async def floors(url: str, followers: int) -> tuple[float, float, float]:
    """Return rows per second of one statement, of ours by hand, and handled posts per second by hand."""
    async with open_store(url) as store:
        hand = await Floor.over(store)
        connection = await _connect(url, store)
        await _follow(connection, followers)
        await store.posts.publish(Message.of(NEWS, PAYLOAD).sent_by("client:bench"))
        began = time.perf_counter()
        for fanout in await store.posts.fanouts(list(hand.shards)):
            outcome = None
            while not (isinstance(outcome, Expanded) and outcome.is_done):
                outcome = await store.posts.expand(hand.shards[fanout.shard], fanout)
        ours = followers / (time.perf_counter() - began)
        arrived = await store.pending_mail(shards=list(hand.shards), limit=followers)
        assert len(arrived) == followers

        async def handle(index: int) -> None:
            parts = handled(arrived[index], 1)
            lease = hand.lease(arrived[index].agent_id, parts["create"].run_id)
            await committed(hand, Commit(lease, **parts))

        took = await many(handle, total=followers, at_once=AT_ONCE, warm_up=False)
        began = time.perf_counter()
        await connection.execute(
            "insert into inbox (agent, sender, message_id, shard, hash, state, body)"
            " select agent, sender, 'floor', shard, hash, 'p', $1::json from inbox"
            " where sender = $2",
            '{"v": 1, "payload": "' + "x" * 400 + '"}', sender_of("topic", NEWS),
        )  # fmt: skip
        statement = followers / (time.perf_counter() - began)
        await connection.close()
    return statement, ours, followers / took


def _resident_mib() -> float:
    pages = Path("/proc/self/statm").read_text(encoding="ascii").split()[1]
    return int(pages) * 4096 / 2**20


async def ours(url: str, followers: int) -> tuple[float, float, float]:
    """Return milliseconds of the publish, handled posts per second, and MiB at most above the start."""
    async with open_runtime(url) as runtime:
        await runtime.register_type(TYPE, Reader)
        store: Any = runtime.store
        connection = await _connect(url, store)
        await _follow(connection, followers)
        gc.collect()  # not while it is measured: that would be measured too
        before = most = _resident_mib()
        began = time.perf_counter()
        await runtime.publish(NEWS.type, NEWS.source, PAYLOAD)
        published = time.perf_counter() - began
        query = "select count(*) from inbox where state = 'd'"
        while await connection.fetchval(query) < followers:
            most = max(most, _resident_mib())
            await asyncio.sleep(0.1)
        took = time.perf_counter() - began
        await connection.close()
    return published * 1000, followers / took, most - before


async def run(url: str, *, scale: float = 1.0) -> None:
    """Print a line for each number of followers."""
    for size in (10_000, 100_000):
        followers = max(500, int(size * scale))
        # In this order: what the floors held in memory would hide what ours needs.
        publish_ms, handled_per_s, mib = await ours(url, followers)
        statement, rows, by_hand = await floors(url, followers)
        report(
            benchmark="posts", followers=followers, publish_ms=round(publish_ms, 1),
            floor_rows_per_s=round(statement), rows_per_s=round(rows),
            rows_ratio=round(rows / statement, 3), floor_handled_per_s=round(by_hand),
            handled_per_s=round(handled_per_s), ratio=round(handled_per_s / by_hand, 3), goal=0.4,
            mib=round(mib), times_restate=round(handled_per_s / RESTATE_PER_S, 1),
        )  # fmt: skip
