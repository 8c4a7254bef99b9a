"""Inbound: in order of each sender, each message once, whatever the broker makes of it."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from actors._kernel.runtime.commit import LeaseLost
from actors._kernel.runtime.ids import AgentId, undeclared_shard
from actors._kernel.stores.shards import Serves
from actors._kernel.stores.transport import Ingested, StaleStream
from persistence._postgres.mail import mail as ingest_batches
from tests.integration.persistence.hosts import sql
from tests.integration.persistence.mailing import BERT, ids_of, post_of, post_office

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from tests.integration.persistence.mailing import Post

CARL = AgentId("desk", "carl")


@pytest.fixture
async def post(postgres_dsn: str, schema: str) -> AsyncIterator[Post]:
    """A host that sends everything by the broker."""
    async with post_office(postgres_dsn, schema, local_delivery=False) as post:
        yield post


async def test_a_message_leaves_the_outbox_with_the_commit_of_its_inbox_row(post: Post) -> None:
    """And the cursor moves with it."""
    await post.send(await post.begin(), "a", "b")
    assert await post.on_the_way() == ["a", "b"]

    assert await post.arrive("a", "b") == ["a", "b"]

    assert await post.inbox() == ["a", "b"]
    assert await post.on_the_way() == []
    assert await post.cursor() == 2


async def test_a_message_that_no_commit_has_sent_is_not_kept(post: Post) -> None:
    """A database that went back has forgotten that commit; its run goes on, and sends the same id."""
    run = await post.begin()
    await post.send(run, "a")
    assert await post.arrive("b", "a") == ["a"]
    assert await post.inbox() == ["a"]

    await post.send(run, "b")

    assert await post.arrive("b") == ["b"]
    assert await post.on_the_way() == []


async def test_a_message_waits_while_an_older_one_of_its_pair_is_missing(post: Post) -> None:
    """It is skipped, stays in the outbox, and comes when it is published again in order."""
    await post.send(await post.begin(), "a", "b", "c", "d")

    assert await post.arrive("b", "c") == []
    assert await post.on_the_way() == ["a", "b", "c", "d"]
    assert await post.arrive("a", "c") == ["a"]
    assert await post.arrive("d") == []
    assert await post.arrive("b", "d") == ["b"]
    assert await post.arrive("c", "d") == ["c", "d"]

    assert await post.inbox() == ["a", "b", "c", "d"]
    assert await post.on_the_way() == []


async def test_messages_read_in_the_wrong_order_become_rows_in_the_right_one(post: Post) -> None:
    """As far as all that belongs before them is in the same call."""
    await post.send(await post.begin(), "a", "b", "c", "d", "e")

    assert await post.arrive("c", "b", "e", "a", "c", "a") == ["a", "b", "c"]

    assert await post.inbox() == ["a", "b", "c"]
    assert await post.on_the_way() == ["d", "e"]


async def test_pairs_do_not_wait_for_each_other(post: Post) -> None:
    """Neither another sender's mail to the agent nor mail to another agent of the shard."""
    anna, carl = await post.begin(), await post.begin(CARL)
    await post.send(anna, "a1", "a2")
    await post.send(carl, "c1", "c2")
    twin = AgentId("clerk", "bert-2")
    await post.send(anna, "t1", to=twin)
    items = [post.read("a2"), post.read("c2", sender=CARL), post.read("c1", sender=CARL)]

    outcome = await post.ingest(*items)

    assert ids_of(outcome.arrived) == ["c1", "c2"]
    assert await post.arrive("t1", to=twin) == ["t1"]
    assert await post.on_the_way() == ["a1", "a2"]


async def test_a_known_message_is_dropped_and_its_outbox_row_deleted(post: Post) -> None:
    """The second reading finds nothing to do, and an id that was sent again is let go."""
    run = await post.begin()
    await post.send(run, "a", "b")
    assert await post.arrive("a", "b", "a") == ["a", "b"]
    await post.send(run, "a", "c")

    assert await post.arrive("a", "b") == []
    assert await post.on_the_way() == ["c"]
    assert await post.arrive("a", "c") == ["c"]

    assert await post.inbox() == ["a", "b", "c"]


async def test_an_external_message_deletes_no_outbox_row(post: Post) -> None:
    """It has no place in the order of those inside, even under a name of theirs."""
    await post.send(await post.begin(), "a", "b")

    assert await post.arrive("x", "b", sourced=True) == ["x", "b"]

    assert await post.on_the_way() == ["a", "b"]


@pytest.mark.item(59)
async def test_a_batch_under_a_lost_lease_writes_nothing(post: Post) -> None:
    """Nor under an old epoch of the stream; a neighbour in the same call is not harmed."""
    run = await post.begin()
    await post.send(run, "a")
    await post.send(run, "b", to=CARL)
    lost_batch, fine = post.batch(post.read("a")), post.batch(post.read("b", to=CARL), agent=CARL)
    await post.store.shards.release([lost_batch.lease])

    outcomes = await asyncio.gather(
        post.store.mail.ingest(lost_batch), post.store.mail.ingest(fine)
    )

    assert outcomes[0] == LeaseLost()
    assert isinstance(outcomes[1], Ingested)
    assert await post.inbox() == []
    assert await post.inbox(CARL) == ["b"]
    assert await post.cursor() == 0


async def test_a_batch_of_an_older_epoch_of_the_stream_writes_nothing(post: Post) -> None:
    """Somebody began another epoch since it was read."""
    await post.send(await post.begin(), "a")
    batch = post.batch(post.read("a"))
    newer = await post.store.mail.next_stream_epoch(post.stream, post.stream.created)

    outcome = await post.store.mail.ingest(batch)

    assert outcome == StaleStream()
    assert newer.epoch == post.stream.epoch + 1
    assert await post.inbox() == []
    assert await post.on_the_way() == ["a"]


async def test_reading_all_again_under_a_new_epoch_changes_nothing(post: Post) -> None:
    """Known ids are dropped, the cursor begins at 0, and what was missing comes in order."""
    run = await post.begin()
    await post.send(run, "a", "b", "c")
    assert await post.arrive("a", "b") == ["a", "b"]
    post.stream = await post.store.mail.next_stream_epoch(post.stream, post.stream.created)
    assert await post.cursor() == 0

    assert await post.arrive("a") == []
    assert await post.arrive("b", "c") == ["c"]

    assert await post.inbox() == ["a", "b", "c"]


async def test_a_cursor_never_moves_back_within_an_epoch(post: Post) -> None:
    """A batch that is written late, or again, leaves it where it is."""
    await post.store.mail.ingest(post.batch(upto=7))
    await post.store.mail.ingest(post.batch(upto=3))

    assert await post.cursor() == 7


async def test_two_batches_of_a_shard_at_once_are_written_one_after_the_other(post: Post) -> None:
    """As they were handed over."""
    await post.send(await post.begin(), "a", "b")
    batches = [post.batch(post.read("a")), post.batch(post.read("b"))]

    outcomes = await asyncio.gather(*(post.store.mail.ingest(batch) for batch in batches))

    arrivals = [item for out in outcomes if isinstance(out, Ingested) for item in out.arrived]
    assert ids_of(arrivals) == ["a", "b"]
    assert await post.cursor() == 2


async def test_a_group_of_many_batches_is_few_statements(post: Post) -> None:
    """Every shard's batch is told about its own messages, in order of arrival."""
    run = await post.begin()
    targets = [AgentId("clerk", f"k{n}") for n in range(40)]
    for target in targets:
        await post.send(run, *(f"{target.key}-{n}" for n in range(5)), to=target)
    by_shard: dict[str, list[AgentId]] = {}
    for target in targets:
        by_shard.setdefault(post.store.shards.shard_of(target), []).append(target)
    batches = [
        post.batch(
            *(post.read(f"{t.key}-{n}", to=t) for n in range(5) for t in members), agent=members[0]
        )
        for members in by_shard.values()
    ]

    outcomes = await asyncio.gather(*(post.store.mail.ingest(batch) for batch in batches))

    for outcome, members in zip(outcomes, by_shard.values(), strict=True):
        assert isinstance(outcome, Ingested)
        assert ids_of(outcome.arrived) == [f"{t.key}-{n}" for n in range(5) for t in members]
    assert await post.on_the_way() == []


async def test_a_small_batch_goes_before_large_ones_that_do_not_fit(
    post: Post, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of three shards, with room for twelve rows: 10 and 1 are the first statement, 10 the second."""
    monkeypatch.setattr(ingest_batches, "GROUP_ROWS", 12)
    of_shard = {
        post.store.shards.shard_of(agent): agent
        for agent in (AgentId("clerk", f"s{n}") for n in range(40))
    }
    large, other, small = list(of_shard.values())[:3]
    run = await post.begin()
    ids = {large: [f"l{n}" for n in range(10)], other: [f"o{n}" for n in range(10)], small: ["s"]}
    for target, names in ids.items():
        await post.send(run, *names, to=target)
    batches = [
        post.batch(*(post.read(name, to=target) for name in names), agent=target)
        for target, names in ids.items()
    ]

    outcomes = await asyncio.gather(*(post.store.mail.ingest(batch) for batch in batches))

    arrivals = [outcome.arrived[0].arrival for outcome in outcomes if isinstance(outcome, Ingested)]
    assert sorted(arrivals) == [arrivals[0], arrivals[2], arrivals[1]]


async def test_another_host_goes_on_where_the_cursor_is(post: Post) -> None:
    """It reads the outbox of the shards it took, and order holds over the move."""
    run = await post.begin()
    await post.send(run, "a", "b", "c")
    assert await post.arrive("a", "c") == ["a"]
    old = post.batch(post.read("b"))
    async with post.bed.rival() as rival:
        await post.bed.lose_to(rival)
        other = await post_of(rival)

        assert await post.store.mail.ingest(old) == LeaseLost()
        assert await other.cursor() == 2
        assert await other.on_the_way() == ["b", "c"]
        assert await other.arrive("c", "b") == ["b", "c"]

        assert await other.inbox() == ["a", "b", "c"]


async def test_messages_for_an_undeclared_type_move_when_it_is_declared(
    post: Post, postgres_dsn: str, schema: str
) -> None:
    """Its shard goes with its cursor, a batch that was read for it is refused, no message is lost."""
    nova = AgentId("nova", "1")
    await post.send(await post.begin(), "a", "b", to=nova)
    assert await post.store.mail.account_for([nova, BERT]) == 1
    assert await post.store.mail.account_for([nova]) == 0
    rows = await sql(
        postgres_dsn,
        schema,
        "update shards set owner = 'h1', epoch = 1 where shard = 'u:nova' returning shard",
    )
    assert [row["shard"] for row in rows] == [undeclared_shard("nova")]
    somebody = post.bed.lease_of(BERT)
    assert somebody is not None
    lease = replace(somebody, shard=undeclared_shard("nova"), epoch=1)
    first = replace(post.batch(post.read("a", to=nova)), lease=lease)
    second = replace(post.batch(post.read("b", to=nova)), lease=lease)
    assert isinstance(await post.store.mail.ingest(first), Ingested)

    _, outcome = await asyncio.gather(
        post.bed.claim(Serves(types=("nova",))), post.store.mail.ingest(second)
    )

    assert outcome == LeaseLost() or isinstance(outcome, Ingested)
    assert await post.store.mail.ingest(second) == LeaseLost()
    cursors = await sql(postgres_dsn, schema, "select shard from cursors")
    assert [row["shard"] for row in cursors] == []
    assert await post.cursor(nova) == 0
    await post.arrive("a", "b", to=nova)
    assert await post.inbox(nova) == ["a", "b"]
    backlog = await post.store.backlog.who_has_mail([post.store.shards.shard_of(nova)])
    assert [agent for agent, _ in backlog] == [nova, nova]
