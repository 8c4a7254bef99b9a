"""What a turn sends: an inbox row here, or a place in the outbox, and always in order."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from actors._kernel.agent.message import Message, MessageKey
from actors._kernel.runtime.commit import Committed, Finish, Outgoing
from actors._kernel.runtime.ids import AgentId, TopicId
from actors._kernel.runtime.log_entry import EntryKind, NewEntry
from actors._kernel.runtime.scheduler import RunStatus
from tests.conformance.bed import outgoing, result
from tests.harness.proxy import FaultProxy
from tests.integration.persistence.hosts import connected, sql, waiting_for
from tests.integration.persistence.mailing import (
    ANNA,
    BERT,
    ids_of,
    move_shard,
    post_of,
    post_office,
)

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from actors._kernel.stores.transport import OutboxRow
    from tests.integration.persistence.mailing import Post


@pytest.fixture
async def post(postgres_dsn: str, schema: str) -> AsyncIterator[Post]:
    """A host behind a broker that delivers by itself what it can."""
    async with post_office(postgres_dsn, schema) as post:
        yield post


async def give_away(post: Post, other: Post, agent: AgentId) -> None:
    """Move the agent's shard to another host."""
    await move_shard(post, other, post.store.shards.shard_of(agent))


async def test_messages_between_agents_of_one_host_need_no_broker(post: Post) -> None:
    """Its inbox row is part of the turn."""
    outcome = await post.send(await post.begin(), "a", "b")

    assert ids_of(outcome.routed) == ["a", "b"]
    assert await post.on_the_way() == []
    assert await post.inbox() == ["a", "b"]


async def test_messages_for_another_host_wait_in_the_outbox(post: Post) -> None:
    """It is nobody's inbox row before that host's own commit makes it one."""
    async with post.bed.rival() as rival:
        other = await post_of(rival)
        await give_away(post, other, BERT)

        outcome = await post.send(await post.begin(), "a", "b")

        assert outcome.routed == ()
        assert [row.message.id for row in await post.outbox()] == ["a", "b"]
        assert await other.inbox() == []
        assert await other.arrive("a", "b") == ["a", "b"]


async def test_messages_for_undeclared_agents_wait_in_the_outbox(post: Post) -> None:
    """There is no host of theirs yet."""
    await post.send(await post.begin(), "a", to=AgentId("nova", "1"))

    assert await post.on_the_way() == ["a"]


async def test_what_comes_behind_a_message_on_its_way_takes_the_same_way(post: Post) -> None:
    """Also when the shard is ours by then; local again once the outbox of the pair is empty."""
    run = await post.begin()
    async with post.bed.rival() as rival:
        other = await post_of(rival)
        await give_away(post, other, BERT)
        await post.send(run, "a", "b")
        await give_away(other, post, BERT)

        assert (await post.send(run, "c")).routed == ()
        assert ids_of((await post.send(run, "x", to=AgentId("clerk", "other"))).routed) == ["x"]
        assert await post.arrive("a", "b") == ["a", "b"]
        assert (await post.send(run, "d")).routed == ()
        assert await post.arrive("c", "d") == ["c", "d"]
        assert ids_of((await post.send(run, "e")).routed) == ["e"]

        assert await post.inbox() == ["a", "b", "c", "d", "e"]


async def test_a_shard_cannot_move_while_a_commit_delivers_into_it(
    post: Post, postgres_dsn: str, schema: str
) -> None:
    """A turn that decided for the inbox holds the target's shard until it is committed."""
    run = await post.begin()
    lease = post.bed.lease_of(BERT)
    assert lease is not None
    async with connected(postgres_dsn, schema) as blocker:
        async with blocker.transaction():
            # The turn stops between its locks and its writes.
            await blocker.execute("select 1 from runs where run_id = $1 for update", run.run_id)
            sending = asyncio.ensure_future(post.send(run, "a"))
            busy = await waiting_for(blocker)
            moving = asyncio.ensure_future(
                sql(
                    postgres_dsn,
                    schema,
                    "update shards set owner = 'thief', epoch = epoch + 1 where shard = $1",
                    lease.shard,
                )
            )
            async with asyncio.timeout(10):
                while not await blocker.fetch(
                    "select 1 from pg_locks where not granted and pg_blocking_pids(pid) && $1::int[]",
                    list(busy),
                ):
                    pass
            assert not moving.done()
        assert ids_of((await sending).routed) == ["a"]
        await moving

    assert (await post.send(run, "b")).routed == ()


async def test_a_target_shard_that_moves_first_makes_the_commit_send_it_there(
    post: Post, postgres_dsn: str, schema: str
) -> None:
    """The decision is made under the lock; the turn itself is not stale."""
    run = await post.begin()
    lease = post.bed.lease_of(BERT)
    assert lease is not None
    async with connected(postgres_dsn, schema) as thief:
        async with thief.transaction():
            await thief.execute(
                "update shards set owner = 'thief', epoch = epoch + 1 where shard = $1", lease.shard
            )
            sending = asyncio.ensure_future(post.send(run, "a"))
            await waiting_for(thief)
        assert (await sending).routed == ()

    assert await post.on_the_way() == ["a"]
    assert await post.inbox() == []


async def test_the_hook_is_notified_of_outbox_rows_before_the_commit_is_answered(
    postgres_dsn: str, schema: str
) -> None:
    """In the order of `n`, with the very messages of the commit."""
    async with post_office(postgres_dsn, schema, local_delivery=False) as post:
        hooked_rows: list[OutboxRow] = []
        row_counts: list[int] = []
        post.store.outbox.set_hook(hooked_rows.extend)
        runs = [await post.begin(AgentId("desk", f"a{n}")) for n in range(20)]
        outs = [
            [outgoing(n, to=BERT, id=f"{n}", sender=f"agent:{r.agent}") for n in range(3)]
            for r in runs
        ]

        async def send(run_index: int) -> None:
            run = runs[run_index]
            await run.commit(run.turn(result("0"), outgoing=tuple(outs[run_index])))
            row_counts.append(
                sum(row.message.sender == f"agent:{run.agent}" for row in hooked_rows)
            )

        await asyncio.gather(*(send(n) for n in range(20)))

        assert row_counts == [3] * 20
        assert [row.n for row in hooked_rows] == sorted(row.n for row in hooked_rows)
        assert hooked_rows == await post.outbox()
        assert {id(row.message) for row in hooked_rows} == {
            id(o.message) for row in outs for o in row
        }


@pytest.mark.parametrize("what", ["request", "response"])
async def test_a_commit_whose_answer_is_lost_still_tells_of_its_outbox_rows(
    postgres_dsn: str, schema: str, what: str
) -> None:
    """Once, whether the server did it or not."""
    async with (
        FaultProxy.to(postgres_dsn) as proxy,
        post_office(proxy.through(postgres_dsn), schema, local_delivery=False) as post,
    ):
        hooked_rows: list[OutboxRow] = []
        post.store.outbox.set_hook(hooked_rows.extend)
        run = await post.begin()
        if what == "request":
            loss = proxy.lose_request(request_has=b"needle")
        else:
            loss = proxy.lose_response(request_has=b"needle")

        await post.send(run, "needle", "b")

        assert loss.happened.is_set()
        assert [row.message.id for row in hooked_rows] == ["needle", "b"]
        assert hooked_rows == await post.outbox()


async def test_a_dead_letter_goes_out_with_the_end_of_its_run(post: Post) -> None:
    """Its row says why it was given up, and goes once the broker has it."""
    hooked_rows: list[OutboxRow] = []
    post.store.outbox.set_hook(hooked_rows.extend)
    await post.send(await post.begin(), "a")
    key = MessageKey(BERT, f"agent:{ANNA}", "a")
    run, new = post.bed.turns_of_mail(key)
    started = NewEntry(EntryKind.RUN_STARTED, "", {"agent": str(BERT)})
    await run.commit(run.turn(started, create=new, bind=(key,)))
    failed_entry = NewEntry(
        EntryKind.RUN_FAILED, "", {"status": "failed", "error": {"message": "no"}}
    )
    end = Finish(RunStatus.FAILED, error={"message": "no"}, dead_letter="max_retries")

    await run.commit(run.turn(failed_entry, then=end))

    assert [(row.message.id, row.dead_letter) for row in hooked_rows] == [("a", "max_retries")]
    assert hooked_rows[0].message.target == BERT
    assert hooked_rows == await post.outbox()
    assert [letter.message.id for letter in await post.store.lists.dead_letters()] == ["a"]
    await post.store.outbox.forget(hooked_rows)
    assert await post.outbox() == []


async def test_the_outbox_is_read_in_pages_and_tells_how_far_its_targets_were_read(
    postgres_dsn: str, schema: str
) -> None:
    """By `n`, over all shards asked for, and no others."""
    async with post_office(postgres_dsn, schema, local_delivery=False) as post:
        runs = [await post.begin(AgentId("desk", f"a{n}")) for n in range(6)]
        for n in range(4):
            for run in runs:
                await post.send(run, f"{run.agent.key}-{n}")
        await post.store.mail.ingest(post.batch(upto=9))
        leases = list(post.bed.leases.values())

        pages, after = [], -1
        while page := await post.store.outbox.page(leases, after=after, limit=5):
            pages.append(page)
            after = page[-1].n

        rows = [row for page in pages for row in page]
        assert [len(page) for page in pages] == [5, 5, 5, 5, 4]
        assert [row.message.id for row in rows] == [f"a{k}-{n}" for n in range(4) for k in range(6)]
        assert {row.target_read for row in rows} == {9}
        assert await post.store.outbox.page([]) == []
        lease = post.bed.lease_of(BERT)
        assert lease is not None
        assert await post.store.outbox.page([lease]) == []


async def test_a_post_of_a_commit_is_in_the_outbox_for_observers(
    post: Post, postgres_dsn: str, schema: str
) -> None:
    """Once, for the owner of its topic's shard; followers get it from its rows."""
    run, topic = await post.begin(), TopicId("news")
    sender = f"agent:{ANNA}"
    out = Outgoing(Message("a", topic, "x", sender), sender, topic)

    for position in ("0", "1"):
        await run.commit(run.turn(result(position), outgoing=(out,)))

    rows = await sql(postgres_dsn, schema, "select target, sender, message_id from outbox")
    assert [tuple(row) for row in rows] == [("topic:news/default", sender, "a")]


async def test_a_refused_commit_leaves_nothing_in_the_outbox(
    postgres_dsn: str, schema: str
) -> None:
    """Its neighbours' rows are there."""
    async with post_office(postgres_dsn, schema, local_delivery=False) as post:
        fine, stale = await post.begin(), await post.begin(AgentId("desk", "x"))
        stale.seq = 5
        turns = [
            run.turn(result("0"), outgoing=(outgoing(to=BERT, id=i, sender=f"agent:{run.agent}"),))
            for run, i in ((fine, "a"), (stale, "b"))
        ]

        outcomes = await asyncio.gather(*(post.store.commits.commit(turn) for turn in turns))

        assert isinstance(outcomes[0], Committed)
        assert not isinstance(outcomes[1], Committed)
        assert await post.on_the_way() == ["a"]
