"""How fast posts come to followers, beside the same rows written in one statement."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING, Final

import asyncpg
import pytest

from actors.kernel.runtime.ids import partition_hash
from tests.conformance.posts import NEWS, bring, desks, follow, post
from tests.integration.persistence.hosts import host

if TYPE_CHECKING:
    from tests.conformance.bed import Bed

SLOW: Final = bool(os.environ.get("CALLBOARD_TEST_SLOW"))
FOLLOWERS: Final = (10_000, 100_000) if SLOW else (10_000,)
PART_OF_FLOOR: Final = 0.4
ROUNDS: Final = 3


async def floor(connection: asyncpg.Connection[asyncpg.Record], n: int) -> float:
    """Seconds for the rows of the last post, written again under another id in one statement."""
    begun = time.perf_counter()
    await connection.execute(
        "insert into inbox (agent, sender, message_id, shard, hash, state, body)"
        " select agent, sender, 'floor ' || $1::text, shard, hash, 'p', body from inbox"
        " where message_id = (select message_id from posts order by seq desc limit 1)",
        str(n),
    )
    return time.perf_counter() - begun


async def publish(bed: Bed, n: int) -> float:
    """Seconds for one post."""
    begun = time.perf_counter()
    await bed.store.posts.publish(post(n, id=f"p{n}"))
    return time.perf_counter() - begun


async def follow_fast(url: str, schema: str, count: int) -> None:
    """Let so many agents follow, in a few statements."""
    fans = desks(count)
    connection = await asyncpg.connect(url, server_settings={"search_path": schema})
    try:
        for start in range(0, count, 5000):
            part = fans[start : start + 5000]
            await connection.execute(
                "select follow_topics($1, $2, $3, $4)",
                [str(fan) for fan in part],
                [partition_hash(fan) for fan in part],
                [str(NEWS)] * len(part),
                ["eager"] * len(part),
            )
        await connection.execute("analyze follows")
    finally:
        await connection.close()


@pytest.mark.item(136, 242)
@pytest.mark.timeout(300 if SLOW else 60)
@pytest.mark.parametrize("count", FOLLOWERS)
async def test_followers_get_a_post_at_the_speed_of_their_rows(
    postgres_dsn: str, schema: str, count: int
) -> None:
    """Rows come at 40 % of a single statement's speed or better; publishing costs what it did."""
    async with host(postgres_dsn, schema) as bed:
        await follow(bed, desks(2))
        few = min([await publish(bed, n) for n in range(20)])
        await bring(bed)
        await follow_fast(postgres_dsn, schema, count)
        connection = await asyncpg.connect(postgres_dsn, server_settings={"search_path": schema})
        shares, many, speeds = [], [], []
        try:
            for n in range(ROUNDS):
                many.append(await publish(bed, 100 + n))
                begun = time.perf_counter()
                woken = await bring(bed)
                took_s = time.perf_counter() - begun
                least_s = await floor(connection, n)
                assert len(woken) == count
                speeds.append(count / took_s)
                shares.append(least_s / took_s)
        finally:
            await connection.close()

    print(  # noqa: T201 - the figures are asked for by name
        f"\n{count} followers: {max(speeds):,.0f} rows/s, {max(shares):.0%} of the floor;"
        f" publish {min(many) * 1000:.1f} ms, with 2 followers {few * 1000:.1f} ms"
    )
    assert max(shares) >= PART_OF_FLOOR
    # The post of many goes to more shards (8 here), not to more followers.
    assert min(many) < few * 5 + 0.02
