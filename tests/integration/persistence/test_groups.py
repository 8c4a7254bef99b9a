"""Groups of turns: locked first, compared under the locks, written whole or not at all."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

import pytest

from actors._kernel.agent.message import MessageKey
from actors._kernel.runtime.commit import (
    Committed,
    Conflict,
    Finish,
    LeaseLost,
    Missing,
    Outgoing,
    Park,
    Retry,
    Suspend,
)
from actors._kernel.runtime.ids import AgentId, HostIncarnation, RunId
from actors._kernel.runtime.log_entry import EntryKind, NewEntry
from actors._kernel.runtime.rows import NewRun
from actors._kernel.runtime.scheduler import RunStatus
from actors._kernel.runtime.waits import Answer, Wait, WakeSet
from actors._kernel.stores.shards import Serves
from actors.errors import ConcurrentAppendError, ContractError, LeaseLostError
from persistence._postgres.commits.columns import commit_arguments
from persistence._postgres.commits.outcomes import SQL_COMMIT_RUNS
from persistence._postgres.commits.unit import Unit, Write
from persistence._postgres.connection.batch import Batched
from persistence._postgres.connection.link import KEYED, Link
from persistence._postgres.mail import arrivals
from persistence._postgres.reads import lists
from tests.conformance.bed import DESK, EPOCH, SENDER, completed, message, result, started
from tests.integration.persistence.hosts import (
    connected,
    host,
    kinds,
    sql,
    store_of,
    waiting_for,
    write,
)

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Mapping

    from actors._kernel.json import JsonValue
    from actors._kernel.runtime.commit import Then
    from persistence._postgres.commits.unit import WriteResult
    from persistence._postgres.connection.link import Connection
    from tests.conformance.bed import Bed, Turns
    from tests.integration.persistence.hosts import Counted


@pytest.fixture
async def bed(postgres_dsn: str, schema: str) -> AsyncIterator[Bed]:
    """A host that owns every shard."""
    async with host(postgres_dsn, schema) as bed:
        yield bed


async def begin(bed: Bed, count: int) -> list[Turns]:
    """So many started runs of different agents."""
    return [await bed.begin(agent=AgentId("desk", f"a{n}")) for n in range(count)]


async def test_calls_that_arrive_during_a_flush_share_the_next_one(bed: Bed) -> None:
    """Two hundred concurrent appends need a few round trips, not two hundred."""
    runs = await begin(bed, 200)
    before = store_of(bed).commits.groups

    await asyncio.gather(*(run.append(result("0")) for run in runs))

    assert store_of(bed).commits.groups - before <= 3


async def test_waits_that_are_read_and_answered_at_once_are_few_statements(
    bed: Bed, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of two hundred runs; each has its own wait, and goes on by its own answer."""
    store, statements = store_of(bed), Counter[str]()

    async def count_fetches(self: Link, doing: str, statement: Any, *args: Any) -> Any:
        statements[statement] += 1
        return await fetch(self, doing, statement, *args)

    fetch = Link.fetch_once_or_again
    monkeypatch.setattr(Link, "fetch_once_or_again", count_fetches)
    runs = await begin(bed, 200)
    waits = [Wait("1", "approval", f"key {run.run_id}", request={}) for run in runs]
    await asyncio.gather(
        *(run.commit(run.turn(waits=(wait,))) for run, wait in zip(runs, waits, strict=True))
    )

    wait_lists = await asyncio.gather(*(store.lists.waits(run.run_id) for run in runs))
    answers = [
        Answer(run.run_id, row.wait.key, "approved")
        for run, (row,) in zip(runs, wait_lists, strict=True)
    ]
    outcomes = await asyncio.gather(*map(store.arrivals.answer, answers))

    assert [row.wait for (row,) in wait_lists] == waits
    assert all(outcome.accepted for outcome in outcomes)
    assert [await store.reads.answers(run.run_id) for run in runs] == [
        [answer] for answer in answers
    ]
    assert statements[lists.SQL_WAITS] <= 2
    assert statements[arrivals.SQL_GIVE_ANSWERS] <= 2


@pytest.mark.item(59, 484)
async def test_refused_commits_leave_their_group_whole(
    bed: Bed, postgres_dsn: str, schema: str
) -> None:
    """Of fifty turns one is of another epoch, one at a wrong seq, one short of a message."""
    runs = await begin(bed, 50)
    before = store_of(bed).commits.groups
    commits = [
        run.turn(
            result("0"),
            outgoing=(Outgoing(message("m", to=DESK, id=run.run_id), f"agent:{run.agent}", DESK),),
            state={"n": 1},
        )
        for run in runs
    ]
    commits[7] = replace(commits[7], lease=replace(commits[7].lease, epoch=9))
    commits[9] = replace(commits[9], expected_seq=3)
    commits[11] = replace(commits[11], then=commits[11].then, take_answers=(runs[0].run_id,))

    outcomes = await asyncio.gather(*(bed.store.commits.commit(commit) for commit in commits))

    refusals = {n: out for n, out in enumerate(outcomes) if not isinstance(out, Committed)}
    assert store_of(bed).commits.groups - before <= 2
    assert refusals.keys() == {7, 9, 11}
    assert refusals[7] == LeaseLost()
    assert refusals[9] == Conflict(0)
    assert isinstance(refusals[11], Missing)
    for n, run in enumerate(runs):
        assert len(await kinds(run)) == (1 if n in refusals else 2)
    rows = await sql(postgres_dsn, schema, "select message_id from inbox where state = 'p'")
    assert len(rows) == 47
    assert len(await sql(postgres_dsn, schema, "select from agent_state")) == 47


async def test_an_append_and_a_commit_of_one_run_are_one_unit(bed: Bed) -> None:
    """Both are in one round trip; a turn that is refused does not take the append with it."""
    run = await bed.begin()
    good = replace(run.turn(result("1")), expected_seq=1)
    before = store_of(bed).commits.groups

    first = await asyncio.gather(
        bed.store.commits.append(run.lease, [result("0")], expected_seq=0),
        bed.store.commits.commit(good),
    )
    together = store_of(bed).commits.groups - before
    bad = replace(run.turn(result("3")), expected_seq=3, take_answers=(run.run_id,))
    second = await asyncio.gather(
        bed.store.commits.append(run.lease, [result("2")], expected_seq=2),
        bed.store.commits.commit(bad),
    )

    assert list(first) == [1, Committed(2)]
    assert together == 1
    assert second[0] == 3
    assert isinstance(second[1], Missing)
    assert len(await kinds(run)) == 4


async def test_many_calls_of_one_run_at_once_are_written_in_order(bed: Bed) -> None:
    """Against the rule of one call in flight: each follows the one before, or is refused."""
    run = await bed.begin()

    seqs = await asyncio.gather(
        *(bed.store.commits.append(run.lease, [result(str(n))], expected_seq=n) for n in range(20))
    )
    with pytest.raises(ConcurrentAppendError):
        await asyncio.gather(
            *(bed.store.commits.append(run.lease, [result("x")], expected_seq=20) for _ in range(2))
        )

    assert seqs == list(range(1, 21))
    assert len(await kinds(run)) == 22


async def test_a_commit_behind_a_lost_append_is_refused(bed: Bed) -> None:
    """The log's end is compared, not a cached number: an append that is not there leaves no gap."""
    run = await bed.begin()
    lost_turn = replace(run.turn(result("1")), expected_seq=1)

    assert await bed.store.commits.commit(lost_turn) == Conflict(0)
    assert len(await kinds(run)) == 1


@pytest.mark.item(140)
async def test_two_stores_that_append_behind_one_seq_give_one_winner(
    bed: Bed, postgres_dsn: str, schema: str
) -> None:
    """Two processes with one lease: the log grows by one entry, the loser learns the real end."""
    run = await bed.begin()
    async with host(postgres_dsn, schema, "h2") as other:
        answers = await asyncio.gather(
            bed.store.commits.append(run.lease, [result("0", "a")], expected_seq=0),
            other.store.commits.append(run.lease, [result("0", "b")], expected_seq=0),
            return_exceptions=True,
        )

    (error,) = (answer for answer in answers if not isinstance(answer, int))
    assert isinstance(error, ConcurrentAppendError)
    assert (error.expected, error.actual) == (0, 1)
    assert len(await kinds(run)) == 2


@pytest.mark.item(484)
@pytest.mark.parametrize("kind", ["append", "commit"])
async def test_a_take_over_while_a_group_waits_for_the_lock_refuses_it(
    bed: Bed, postgres_dsn: str, schema: str, kind: str
) -> None:
    """The epoch is compared under the lock: a group that waited behind the take-over is stale."""
    run, other = await bed.begin(), await bed.begin(agent=AgentId("clerk", "1"))
    async with connected(postgres_dsn, schema) as connection:
        taking = connection.transaction()
        await taking.start()
        await connection.execute(
            "update shards set owner = 'thief', epoch = epoch + 1 where shard = $1", run.lease.shard
        )
        turn = run.turn(result("0"))
        call: asyncio.Future[object] = asyncio.ensure_future(
            bed.store.commits.append(run.lease, turn.entries, expected_seq=0)
            if kind == "append"
            else bed.store.commits.commit(turn)
        )
        beside = asyncio.ensure_future(other.send(other.turn(result("0"))))
        await waiting_for(connection)
        await taking.commit()
        outcome = (await asyncio.gather(call, return_exceptions=True))[0]

    assert isinstance(outcome, LeaseLostError | LeaseLost)
    assert isinstance(await beside, Committed)
    assert len(await kinds(run)) == 1


async def test_two_commits_of_one_group_that_want_one_message_do_not_both_get_it(bed: Bed) -> None:
    """Each of them alone passes the check; together the first one wins, turn by turn."""
    await bed.store.arrivals.deliver([message(id="1")])
    key = MessageKey(DESK, "client:tests", "1")
    runs = [await bed.begin(), await bed.begin()]

    outcomes = await asyncio.gather(
        *(bed.store.commits.commit(run.turn(result("0"), bind=(key,))) for run in runs)
    )

    assert {type(outcome) for outcome in outcomes} == {Committed, Missing}
    assert sorted([len(await kinds(run)) for run in runs]) == [1, 2]


@pytest.mark.costly
@pytest.mark.slow
async def test_three_stores_with_overlapping_groups_neither_deadlock_nor_leave_gaps(
    bed: Bed, postgres_dsn: str, schema: str
) -> None:
    """Random sets of runs in random order: each call is committed or refused, no log has a gap."""
    runs = await begin(bed, 50)
    errors: list[BaseException] = []
    won = 0

    async def stress(seed: int) -> None:
        nonlocal won
        rnd = random.Random(seed)
        async with host(postgres_dsn, schema, f"s{seed}") as other:
            for _ in range(60):
                sample = rnd.sample(runs, 20)
                ends = {
                    loaded_run.row.run_id: loaded_run.row.last_seq
                    for loaded_run in await other.store.reads.load([run.run_id for run in sample])
                }
                commits = [
                    replace(
                        run.turn(result("0"), state={"by": seed}), expected_seq=ends[run.run_id]
                    )
                    for run in sample
                ]
                answers = await asyncio.gather(
                    *(other.store.commits.commit(commit) for commit in commits),
                    return_exceptions=True,
                )
                errors.extend(answer for answer in answers if isinstance(answer, BaseException))
                won += sum(isinstance(answer, Committed) for answer in answers)

    await asyncio.gather(*(stress(seed) for seed in range(3)))

    assert errors == []
    total = sum([len(await kinds(run)) - 1 for run in runs])
    assert total == won > 60 * 20


async def test_a_refusal_of_the_database_fails_only_its_own_call(bed: Bed) -> None:
    """A text that PostgreSQL cannot store is found turn by turn; its neighbours are written."""
    runs = await begin(bed, 3)
    calls = [bed.store.commits.append(run.lease, [result("0")], expected_seq=0) for run in runs]
    calls[1].close()
    calls[1] = bed.store.commits.append(
        runs[1].lease,
        [NewEntry(EntryKind.EFFECT_RESULT, "\x00", result("0").payload)],
        expected_seq=0,
    )

    answers = await asyncio.gather(*calls, return_exceptions=True)

    assert [isinstance(answer, int) for answer in answers] == [True, False, True]
    assert await runs[1].append(result("0")) == 1


async def test_a_commit_that_no_store_can_write_is_a_contract_error(bed: Bed) -> None:
    """A message of another agent, a run that is not the lease's: refused before anything is sent."""
    run = await bed.begin()
    key = MessageKey(AgentId("clerk", "1"), "client:tests", "1")

    with pytest.raises(ContractError, match="cannot bind a message of clerk/1"):
        await bed.store.commits.commit(run.turn(result("0"), bind=(key,)))
    with pytest.raises(ContractError, match="not for the created"):
        await bed.store.commits.commit(run.turn(create=NewRun(RunId("0" * 32), DESK)))
    assert len(await kinds(run)) == 1


@pytest.mark.item(484)
async def test_only_the_owner_of_a_runs_own_shard_writes_its_log(
    bed: Bed, postgres_dsn: str, schema: str
) -> None:
    """Not a host without shards, not one that owns another shard and names it in the lease."""
    run = await bed.begin()
    async with host(postgres_dsn, schema, "h2") as other:
        serves = Serves(types=("other",))
        await other.store.shards.declare(serves, partitions=1)
        (mine,) = await other.store.shards.claim(
            owner=HostIncarnation("h2"), serves=serves, limit=9
        )
        leases = [
            replace(run.lease, owner=HostIncarnation("h2")),
            replace(run.lease, shard=mine.shard, owner=mine.owner, epoch=mine.epoch),
        ]
        for lease in leases:
            turn = replace(run.turn(result("0")), lease=lease)
            assert await other.store.commits.commit(turn) == LeaseLost()
            with pytest.raises(LeaseLostError):
                await other.store.commits.append(lease, turn.entries, expected_seq=0)

    assert len(await kinds(run)) == 1


WAITING = """
insert into inbox (agent, sender, message_id, shard, hash, body)
  select 'desk/1', 'client:' || n % 50, n::text, $1, 0,
      json_build_object('id', n::text, 'target', 'desk/1', 'sender', 'client:' || n % 50, 'payload', n,
        'created_at', now())
    from generate_series(1, 20000) n returning 1
"""
ROWS_READ = """
select t.seq_scan, t.idx_tup_fetch as fetched from pg_stat_xact_user_tables t
  where t.relid = to_regclass('inbox')
"""


@pytest.mark.parametrize("counted", ["never", "too early", "well"])
async def test_taking_messages_reads_what_came_before_them_and_no_more(
    bed: Bed, postgres_dsn: str, schema: str, counted: Counted
) -> None:
    """Of 20,000 waiting messages, and 2,000 that the run has already, a turn reads those it takes."""
    await write(postgres_dsn, schema, {WAITING: (bed.store.shards.shard_of(DESK),)}, counted)
    mail = await bed.store.backlog.pending_mail(agent=DESK, limit=2200)
    keys = tuple(MessageKey(DESK, item.sender, item.message.id) for item in mail)
    run = await bed.begin()
    await run.commit(run.turn(result("0"), bind=keys[:2000]))

    async def read_by(connection: Connection, bind: tuple[MessageKey, ...]) -> int:
        turn = run.turn(result("1"), bind=bind)
        future: asyncio.Future[WriteResult] = asyncio.get_running_loop().create_future()
        unit = Unit(Batched(Write(turn.lease, turn.expected_seq, turn.entries, turn), future))
        transaction = connection.transaction()
        await transaction.start()
        args = (*commit_arguments([unit]), False, True, None, [], None, None)
        assert await connection.fetch(SQL_COMMIT_RUNS, *args) == []
        [row] = await connection.fetch(ROWS_READ)
        await transaction.rollback()
        assert row["seq_scan"] == 0
        return int(row["fetched"])

    async with connected(postgres_dsn, schema, **KEYED) as connection:
        rows_read = await read_by(connection, keys[2000:2001])
        hundred = await read_by(connection, keys[2000:2100])

    assert rows_read <= 8
    assert hundred <= 400


ERROR: Final[dict[str, JsonValue]] = {"type": "builtins:ValueError", "message": "no"}
SLEEP: Final = WakeSet(message=True, at=EPOCH)
ENDS: Final[Mapping[str, Callable[[tuple[MessageKey, ...]], Then]]] = {
    "completed": lambda _: Finish(RunStatus.COMPLETED, "fine"),
    "failed": lambda _: Finish(RunStatus.FAILED, error=ERROR),
    "given up": lambda _: Finish(RunStatus.FAILED, error=ERROR, dead_letter="max_retries"),
    "cancelled": lambda _: Finish(RunStatus.CANCELLED),
    "asleep": lambda _: Suspend(SLEEP),
    "parked": lambda _: Park("in_doubt"),
    "tried again": lambda _: Retry(EPOCH, ERROR, 0),
    "taken apart": lambda keys: Retry(EPOCH, ERROR, 0, keys[1:]),
    # The runtime gives back what came later; the run's place is that of its first message all the same.
    "without its first": lambda keys: Retry(EPOCH, ERROR, 0, keys[:-1]),
}
WRITTEN: Final[Mapping[str, str]] = {
    "runs": """
        select to_jsonb(r) || jsonb_build_object('place', i.message_id, 'is_over', r.ended_at is not null)
          from runs r left join inbox i on i.arrival = r.arrival where r.agent = $1""",
    "inbox": """
        select to_jsonb(i) || jsonb_build_object('is_bound', i.run_id is not null, 'body', i.body ->> 'payload')
          from inbox i where i.agent = $1 order by i.arrival""",
    "dead_letters": """
        select to_jsonb(d) || jsonb_build_object('body', d.body ->> 'payload')
          from dead_letters d where d.agent = $1 order by d.id""",
    "event_log": """
        select to_jsonb(e) from event_log e join runs r on r.run_id = e.run_id
          where r.agent = $1 order by e.seq""",
}
OWN: Final = (
    "agent",
    "arrival",
    "at",
    "created_at",
    "ended_at",
    "hash",
    "id",
    "received_at",
    "root",
    "run_id",
    "shard",
    "ts",
    "updated_at",
)
"""Columns in which no two runs agree."""


@pytest.mark.parametrize(
    ("end", "beside"), [(end, beside) for end in ENDS for beside in (False, True)]
)
async def test_a_run_of_one_commit_leaves_what_one_of_two_does(
    bed: Bed, postgres_dsn: str, schema: str, *, end: str, beside: bool
) -> None:
    """It is written once, as what it became: whatever that is, and whoever is in its group."""
    entry = completed("fine")  # the store does not ask whether entry and end fit

    async def left_by(name: str, *, is_split: bool) -> dict[str, Any]:
        agent = AgentId("desk", name)
        await bed.store.arrivals.deliver([message(n, to=agent, id=f"m{n}") for n in range(3)])
        keys = tuple(MessageKey(agent, SENDER, f"m{n}") for n in range(3))
        run, new = bed.turns_of_mail(keys[0])
        others = [await bed.begin(agent=AgentId("desk", f"{name}-{n}")) for n in range(2)]
        then = ENDS[end](keys)
        if is_split:
            await run.commit(run.turn(started(), create=new, bind=keys))
            turn = run.turn(entry, then=then)
        else:
            turn = run.turn(started(), entry, then=then, create=new, bind=keys)
        if beside:
            child = others[0].child("c", AgentId("clerk", name), boot=1)
            loud_turn = others[0].turn(result("1"), spawned=(child,))
            await asyncio.gather(
                bed.store.commits.commit(loud_turn), run.commit(turn), others[1].complete()
            )
        else:
            await run.commit(turn)
        return {
            table: await sql(
                postgres_dsn,
                schema,
                f"select (x - $2::text[])::text as x from ({rows}) t(x)",
                str(agent),
                OWN,
            )
            for table, rows in WRITTEN.items()
        }

    once, twice = await left_by("once", is_split=False), await left_by("twice", is_split=True)

    assert once == twice
    assert '"place": "m0"' in once["runs"][0]["x"]
