"""Sweeping on a real PostgreSQL: by several hosts at once, in small batches, and message ids after days."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING

import pytest

from actors._kernel.agent.message import MessageKey
from actors._kernel.runtime.commit import Finish
from actors._kernel.runtime.ids import HostIncarnation
from actors._kernel.runtime.log_entry import EntryKind, NewEntry
from actors._kernel.runtime.scheduler import RunStatus
from actors._runtime.sharding.retention import sweep_all
from tests.conformance.bed import DESK, SENDER, message, started
from tests.conformance.talk import CLERK, join_wait, rest
from tests.integration.persistence.hosts import connected, host, sql, step_clock

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from tests.conformance.bed import Bed, Turns


KEPT = ("runs", "event_log", "inbox", "message_ids", "dead_letters", "blockings")


async def rows_of(url: str, schema: str, *tables: str) -> list[int]:
    """How many rows these tables have."""
    counts = [await sql(url, schema, f"select count(*) as n from {table}") for table in tables]
    return [row["n"] for (row,) in counts]


async def give_up(run: Turns) -> None:
    """End the run as one whose messages become dead letters."""
    finish = Finish(RunStatus.FAILED, error={"message": "over"}, dead_letter="explicit")
    entry = NewEntry(EntryKind.RUN_FAILED, "", {"status": "error", "error": {"message": "over"}})
    await run.commit(run.turn(entry, then=finish))


@pytest.fixture
async def bed(postgres_dsn: str, schema: str) -> AsyncIterator[Bed]:
    """A host that owns every agent."""
    async with host(postgres_dsn, schema) as bed:
        yield bed


@pytest.mark.item(487)
async def test_several_hosts_sweep_each_run_once(bed: Bed, postgres_dsn: str, schema: str) -> None:
    """Together they sweep all there is, without waiting for each other."""
    for n in range(40):
        await (await bed.begin(agent=CLERK if n % 2 else DESK)).complete(n)
    still_open = await bed.begin()
    await asyncio.sleep(0.01)
    async with (
        host(postgres_dsn, schema, HostIncarnation("h2")) as second,
        host(postgres_dsn, schema, HostIncarnation("h3")) as third,
        asyncio.timeout(20),
    ):
        counts = [
            count
            for _ in range(5)
            for count in await asyncio.gather(
                *(
                    each.store.retention.sweep(older_than_s=0, limit=3)
                    for each in (bed, second, third)
                )
            )
        ]
        rest_of_them = await sweep_all(second.store, older_than_s=0)

    assert sum(counts) + rest_of_them == 40
    rows = await sql(postgres_dsn, schema, "select distinct run_id from event_log")
    assert [row["run_id"] for row in rows] == [still_open.run_id]
    swept_rows = await sql(postgres_dsn, schema, "select count(*) as n from runs where swept")
    assert swept_rows[0]["n"] == 40


@pytest.mark.item(487)
async def test_a_batch_is_small_in_entries_too(bed: Bed) -> None:
    """Runs with many entries are swept a few at a time: no commit takes long."""
    for _ in range(4):
        run = await bed.begin()
        payload = {"effect": "now", "hash": "0" * 16, "status": "ok", "value": 1}
        entries = [NewEntry(EntryKind.EFFECT_RESULT, str(n), payload) for n in range(8_000)]  # type: ignore[arg-type]
        await run.commit(run.turn(*entries))
        await run.complete()
    await asyncio.sleep(0.01)

    counts = [await bed.store.retention.sweep(older_than_s=0) for _ in range(3)]

    assert counts == [3, 1, 0]


@pytest.mark.item(487)
async def test_ids_of_messages_are_kept_for_eight_days(
    bed: Bed, postgres_dsn: str, schema: str
) -> None:
    """From when they are done; a message that comes again is none, and names its run."""
    first = await bed.begin(id="submitted")
    await first.complete()
    mail = message("x", id="sent", to=CLERK)
    await bed.store.arrivals.deliver([mail])
    waiting = message("x", id="waiting", to=CLERK)
    await bed.store.arrivals.deliver([waiting])
    run, new = bed.turns_of_mail(MessageKey(CLERK, SENDER, "sent"))
    await run.commit(
        run.turn(started(CLERK), create=new, bind=(MessageKey(CLERK, SENDER, "sent"),))
    )
    await run.complete()

    for days in (0.1, 7, 7.9):
        await step_clock(postgres_dsn, schema, timedelta(days=days))
        await sweep_all(bed.store, older_than_s=0)
        again = [await bed.submit(id="submitted", on_conflict=how) for how in ("queue", "reject")]
        assert [(submission.run_id, submission.arrived) for submission in again] == [
            (first.run_id, None)
        ] * 2
        assert await bed.store.arrivals.deliver([mail, waiting]) == []
        assert (await bed.store.lists.run_of_message(CLERK, SENDER, "sent")) is not None
    await step_clock(postgres_dsn, schema, timedelta(days=8.2))
    await sweep_all(bed.store, older_than_s=0)

    assert await rows_of(postgres_dsn, schema, "message_ids", "inbox", "runs") == [0, 1, 0]
    assert len(await bed.store.arrivals.deliver([mail, waiting])) == 1


@pytest.mark.parametrize("older_than_s", [30 * 86_400.0, None], ids=["a month", "for ever"])
async def test_ids_that_name_no_run_go_after_eight_days_whatever_is_kept(
    bed: Bed, postgres_dsn: str, schema: str, older_than_s: float | None
) -> None:
    """Those of an agent that was forgotten, and of what was no message, behind any number of ids of runs."""
    forget = partial(bed.store.retention.forget_old, older_than_s=older_than_s, limit=2)
    for n in range(5):
        await (await bed.begin(id=f"kept {n}")).complete()
    await (await bed.begin(agent=CLERK, id="forgotten")).complete()
    await step_clock(postgres_dsn, schema, timedelta(days=1))
    while await forget():
        pass
    await bed.store.retention.forget_agent(CLERK)
    await sql(
        postgres_dsn,
        schema,
        "insert into message_ids select sha256(n::text::bytea), null, present() from generate_series(1, 5) n",
    )

    counts = []
    for days in (8.5, 9.5):
        await step_clock(postgres_dsn, schema, timedelta(days=days))
        for _ in range(8):  # each looks at two of eleven ids, and every sixth at the rest
            await forget()
        counts += await rows_of(postgres_dsn, schema, "message_ids")

    assert counts == [11, 5]


async def test_an_id_that_is_being_moved_is_known(bed: Bed, postgres_dsn: str, schema: str) -> None:
    """To who asks just before, meanwhile and just after."""
    await (await bed.begin(id="m")).complete()
    await step_clock(postgres_dsn, schema, timedelta(days=1))
    async with connected(postgres_dsn, schema) as connection:
        async with connection.transaction():
            moved_count = await connection.fetchval("select forget_old(null, 10)")
            meanwhile = await bed.submit(id="m")
        after = await bed.submit(id="m")

    assert moved_count == 1
    assert [meanwhile.arrived, after.arrived] == [None, None]
    assert meanwhile.run_id == after.run_id


async def test_an_id_takes_two_hundred_bytes(bed: Bed, postgres_dsn: str, schema: str) -> None:
    """With its index; its mailbox's place is free for the next message."""
    await sql(
        postgres_dsn,
        schema,
        "insert into inbox (agent, sender, message_id, shard, hash, state, run_id)"
        " select 'desk/' || i % 1000, 'client:somebody', md5(i::text), 'p:desk:1', i, 'd',"
        "  md5('run ' || i) from generate_series(1, 20000) i",
    )
    await step_clock(postgres_dsn, schema, timedelta(days=1))

    await sweep_all(bed.store, older_than_s=None)

    size = "select pg_total_relation_size('message_ids') as n"
    assert await rows_of(postgres_dsn, schema, "inbox", "message_ids") == [0, 20_000]
    assert (await sql(postgres_dsn, schema, size))[0]["n"] / 20_000 <= 200


async def test_nothing_of_a_run_is_kept_for_ever(bed: Bed, postgres_dsn: str, schema: str) -> None:
    """Its tombstone, its letters and its messages' ids go too; what an open run has stays."""
    dead, still_open = await bed.begin(id="dead"), await bed.begin(agent=CLERK, id="open")
    await give_up(dead)
    await sql(postgres_dsn, schema, "insert into blockings values ('x', 'p:desk:1', '{1}', 'here')")

    await sweep_all(bed.store, older_than_s=0)
    young = await rows_of(postgres_dsn, schema, *KEPT)
    for days in (9, 18):  # ids: from when they left the mailbox
        await step_clock(postgres_dsn, schema, timedelta(days=days))
        await sweep_all(bed.store, older_than_s=0)
    counts = await rows_of(postgres_dsn, schema, *KEPT)

    assert young == [2, 1, 2, 0, 1, 1]
    assert counts == [1, 1, 1, 0, 0, 0]
    assert await bed.store.reads.run(dead.run_id) is None
    assert await bed.store.reads.run(still_open.run_id) is not None


async def test_totals_of_usage_go_after_four_hundred_days(
    bed: Bed, postgres_dsn: str, schema: str
) -> None:
    """A call looks at few of them, and the next one behind those; all that are old go, and no other."""
    forget = partial(bed.store.retention.forget_old, limit=2)
    await sql(
        postgres_dsn,
        schema,
        "insert into usage_totals select 't' || n % 2, 'a', 'm', present()::date - d, 1, d, 0, 0, 0, 0, 0"
        " from generate_series(1, 2) n, unnest(array[2, 399, 402, 700]) d",
    )
    for older_than_s in (None, 800 * 86_400.0):
        for _ in range(6):
            await forget(older_than_s=older_than_s)
    counts = await rows_of(postgres_dsn, schema, "usage_totals")
    removed_counts = [await forget(older_than_s=0) for _ in range(6)]
    rows = await sql(postgres_dsn, schema, "select tenant, input from usage_totals order by 1, 2")

    assert counts == [8]
    assert sorted(removed_counts) == [0, 0, 0, 0, 2, 2]
    assert [tuple(row) for row in rows] == [("t0", 2), ("t0", 399), ("t1", 2), ("t1", 399)]


async def test_for_ever_is_for_ever(bed: Bed, postgres_dsn: str, schema: str) -> None:
    """Only ids move, and marks of blocked hosts go."""
    await give_up(await bed.begin(id="dead"))
    await step_clock(postgres_dsn, schema, timedelta(days=4000))

    await sweep_all(bed.store, older_than_s=None)
    await sweep_all(bed.store, older_than_s=None)

    assert await rows_of(postgres_dsn, schema, *KEPT) == [1, 2, 0, 1, 1, 0]


async def test_a_tree_keeps_its_account(bed: Bed, postgres_dsn: str, schema: str) -> None:
    """For as long as a run of it is open, also when its root is forgotten; then it goes."""
    parent = await bed.begin()
    child = await parent.spawn("1", CLERK)
    await parent.complete()
    for days in (9, 18):
        await step_clock(postgres_dsn, schema, timedelta(days=days))
        await sweep_all(bed.store, older_than_s=0)
    counts = await rows_of(postgres_dsn, schema, "runs", "budgets")
    await child.complete()
    await step_clock(postgres_dsn, schema, timedelta(days=40))
    await sweep_all(bed.store, older_than_s=0)

    assert counts == [1, 1]
    assert await rows_of(postgres_dsn, schema, "runs", "budgets") == [0, 0]


async def test_dead_letters_are_kept_until_their_run_is_swept(
    bed: Bed, postgres_dsn: str, schema: str
) -> None:
    """A letter is there as long as its run could be redriven in its place."""
    await give_up(await bed.begin(id="dead"))
    await step_clock(postgres_dsn, schema, timedelta(days=9))

    await bed.store.retention.forget_old(older_than_s=0)
    counts = await rows_of(postgres_dsn, schema, "dead_letters")
    await sweep_all(bed.store, older_than_s=0)

    assert counts == [1]
    assert await rows_of(postgres_dsn, schema, "dead_letters") == [0]


@pytest.mark.item(487)
async def test_answers_of_an_open_run_stay(bed: Bed, postgres_dsn: str, schema: str) -> None:
    """However old they are: it may replay the wait they end."""
    target, joiner = await bed.begin(agent=CLERK), await bed.begin()
    await rest(joiner, join_wait(target))
    await target.complete("done")
    await sql(postgres_dsn, schema, "update runs set ended_at = ended_at - interval '90 days'")

    assert await sweep_all(bed.store, older_than_s=86_400) == 1

    rows = await sql(postgres_dsn, schema, "select parent, child from completions")
    assert [(row["parent"], row["child"]) for row in rows] == [(joiner.run_id, target.run_id)]
    assert (await bed.store.arrivals.deliver([message("x", id="m")])) != []
