"""Mail that reaches its receivers without the broker: once and in order, whatever the broker does beside it."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from actors._kernel.runtime.commit import LeaseLost
from actors._kernel.runtime.hints import Nudge
from actors._kernel.runtime.ids import AgentId
from tests.integration.persistence.hosts import sql
from tests.integration.persistence.mailing import BERT, ids_of, post_of, post_office

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    from actors._kernel.stores.transport import OutboxRow
    from tests.integration.persistence.mailing import Post

CARL = AgentId("desk", "carl")


@pytest.fixture
async def post(postgres_dsn: str, schema: str) -> AsyncIterator[Post]:
    """A host that sends everything by the broker."""
    async with post_office(postgres_dsn, schema, local_delivery=False) as post:
        yield post


async def hand_over(post: Post, rows: Sequence[OutboxRow]) -> list[bool]:
    """Hand all of them over at once."""
    return list(await asyncio.gather(*(post.store.outbox.hand_over(row) for row in rows)))


async def test_messages_are_handed_over_in_order_and_leave_the_outbox(post: Post) -> None:
    """The cursor stays where it is, and the broker's copies change nothing."""
    await post.send(await post.begin(), "a", "b", "c")
    await post.ingest(post.read("x", sourced=True))

    assert await hand_over(post, (await post.outbox())[::-1]) == [True, True, True]

    assert await post.inbox() == ["x", "a", "b", "c"]
    assert await post.on_the_way() == []
    assert await post.cursor() == 1
    assert await post.arrive("b", "a", "c") == []
    assert await post.inbox() == ["x", "a", "b", "c"]


async def test_what_is_not_its_turn_waits(post: Post) -> None:
    """Until all that its sender sent to that agent before is there."""
    await post.send(await post.begin(), "a", "b")
    first, second = await post.outbox()

    assert await hand_over(post, [second]) == [False]
    assert await hand_over(post, [first]) == [True]
    assert await hand_over(post, [second]) == [True]

    assert await post.inbox() == ["a", "b"]


async def test_what_was_taken_meanwhile_is_let_go(post: Post) -> None:
    """By the broker's copy, or by another call: nobody gets it twice."""
    await post.send(await post.begin(), "a", "b")
    rows = await post.outbox()
    assert await post.arrive("a") == ["a"]

    assert await hand_over(post, [*rows, *rows]) == [True, True, True, True]
    assert await hand_over(post, rows) == [True, True]

    assert await post.inbox() == ["a", "b"]


async def test_messages_of_a_later_commit_wait_for_nothing(postgres_dsn: str, schema: str) -> None:
    """Once its pair has nothing on the way, what the same host owns is delivered by the commit."""
    async with post_office(postgres_dsn, schema, local_delivery=False) as far_post:
        await far_post.send(await far_post.begin(), "a")
        rows = await far_post.outbox()
        await hand_over(far_post, rows)
        await far_post.send(await far_post.begin(CARL), "b", to=BERT)
        assert await far_post.arrive("b", sender=CARL) == ["b"]

    assert await sql(postgres_dsn, schema, "select 1 from outbox") == []


async def test_the_owner_is_notified_in_the_commit_and_an_old_one_reads_no_more(post: Post) -> None:
    """A shard that moved: its new owner has the message, and hears of it; a batch of the old one is refused."""
    await post.send(await post.begin(), "a", "b")
    row, other = await post.outbox()
    async with post.bed.rival() as rival:
        old = post.batch(post.read("a"))
        await post.bed.lose_to(rival)
        taker, nudges = await post_of(rival), asyncio.Queue[Nudge]()
        taker.store.set_nudge_hook(nudges.put_nowait)
        await taker.store.listening()

        assert await hand_over(post, [row]) == [True]
        assert await post.store.mail.ingest(old) == LeaseLost()
        assert await hand_over(taker, [row, other]) == [True, True]

        async with asyncio.timeout(5):
            while await nudges.get() != Nudge("mail", BERT):
                pass
        assert await taker.inbox() == ["a", "b"]
        assert await taker.arrive("a", "b") == []


async def test_a_message_for_an_undeclared_type_gets_its_shard(
    post: Post, postgres_dsn: str, schema: str
) -> None:
    """It waits there as rows, as what the broker brings does."""
    nova = AgentId("nova", "1")
    await post.send(await post.begin(), "a", to=nova)

    assert await hand_over(post, await post.outbox()) == [True]

    rows = await sql(postgres_dsn, schema, "select owner from shards where shard = 'u:nova'")
    assert [row["owner"] for row in rows] == [None]
    assert ids_of(await post.store.backlog.pending_mail(agent=nova)) == ["a"]


async def test_before_there_was_a_stream_messages_wait(
    post: Post, postgres_dsn: str, schema: str
) -> None:
    """There is no cursor that could stay where it is."""
    await post.send(await post.begin(), "a")
    await sql(postgres_dsn, schema, "delete from cursors")
    await sql(postgres_dsn, schema, "delete from streams")

    assert await hand_over(post, await post.outbox()) == [False]
    assert await post.on_the_way() == ["a"]


async def test_ingest_and_handing_over_of_the_same_rows_at_once(post: Post) -> None:
    """Many pairs, in opposite orders: each message once and in order."""
    run = await post.begin()
    targets = [AgentId("clerk", f"k{n}") for n in range(200)]
    for target in targets:
        await post.send(run, "a", "b", to=target)
    rows = await post.outbox()
    by_shard: dict[str, list[AgentId]] = {}
    for target in targets[::-1]:
        by_shard.setdefault(post.store.shards.shard_of(target), []).append(target)
    batches = [
        post.batch(
            *(post.read(id_, to=target) for id_ in ("a", "b") for target in members),
            agent=members[0],
        )
        for members in by_shard.values()
    ]

    await asyncio.gather(
        *(post.store.mail.ingest(batch) for batch in batches), hand_over(post, rows)
    )

    for target in targets:
        assert await post.inbox(target) == ["a", "b"]
    assert await post.on_the_way() == []
