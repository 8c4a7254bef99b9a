"""Runs that wait for each other over several hosts: locks, budgets, and who is told."""

from __future__ import annotations

import asyncio
import random
from typing import TYPE_CHECKING

import asyncpg
import pytest

from actors._kernel.agent.agent import HistoryRetention, SpawnBudget
from actors._kernel.agent.message import MessageKey
from actors._kernel.runtime.commit import Committed, Finish, OverBudget
from actors._kernel.runtime.hints import Nudge
from actors._kernel.runtime.ids import AgentId, HostIncarnation, run_id_of_submit
from actors._kernel.runtime.rows import NewRun
from actors._kernel.runtime.scheduler import RunStatus
from actors._kernel.stores.shards import Serves
from tests.conformance.bed import Bed, Turns, child_spawned, completed, message, result, started
from tests.conformance.talk import ask_wait, join_wait, question, reply, rest, terms
from tests.harness.proxy import FaultProxy
from tests.integration.persistence.hosts import connected, host, sql, store_of, waiting_for

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from actors._kernel.runtime.commit import Commit, CommitOutcome

FAR = Serves(types=("far",))


@pytest.fixture
async def near(postgres_dsn: str, schema: str) -> AsyncIterator[Bed]:
    """A host that owns every agent but those of type far."""
    async with host(postgres_dsn, schema) as bed:
        await store_of(bed).listening()
        yield bed


@pytest.fixture
async def far(near: Bed, postgres_dsn: str, schema: str) -> AsyncIterator[Bed]:
    """Another host, which owns the agents of type far."""
    async with host(postgres_dsn, schema, HostIncarnation("h2")) as bed:
        await bed.claim(FAR)
        await store_of(bed).listening()
        await near.store.shards.declare(FAR, partitions=4)
        yield bed


class Ear:
    """What one host's hook was called with."""

    def __init__(self, bed: Bed) -> None:
        self.heard: list[Nudge] = []
        self._news = asyncio.Event()
        bed.store.set_nudge_hook(self._hear)

    def _hear(self, nudge: Nudge) -> None:
        self.heard.append(nudge)
        self._news.set()

    async def hears(self, nudge: Nudge) -> None:
        """Return once the hook was called with this."""
        async with asyncio.timeout(10):
            while nudge not in self.heard:
                self._news.clear()
                await self._news.wait()


async def asked_far(asker: Turns, far: Bed, id: str = "ask-1") -> Turns:  # noqa: A002
    """A started run of the far host that has the asker's question."""
    to = AgentId("far", "1")
    message = question(asker, to, id=id)
    await asker.commit(asker.turn(outgoing=(message,)))
    key = MessageKey(to, message.sender, id)
    target, new = far.turns_of_mail(key)
    await target.commit(target.turn(started(to), create=new, bind=(key,)))
    return target


@pytest.mark.item(128, 231, 232)
@pytest.mark.parametrize("how", ["reply", "end"])
async def test_the_owner_of_a_waiting_run_is_notified_of_its_answer(
    near: Bed, far: Bed, how: str
) -> None:
    """It is written under the answering host's fence, and is no nudge for that host."""
    ear, asker = Ear(near), await near.begin()
    target = await asked_far(asker, far)
    await rest(asker, ask_wait("ask-1", target.agent))

    if how == "reply":
        outcome = await target.commit(target.turn(result("0"), answers=(reply(asker, "yes"),)))
    else:
        outcome = await target.complete("yes")

    await ear.hears(Nudge("signal", asker.agent, asker.run_id))
    assert outcome.nudges == ()
    (answer,) = await near.store.reads.answers(asker.run_id)
    assert (answer.result, answer.by) == ("yes", target.run_id)


async def test_an_end_waits_for_a_commit_of_the_run_that_waits_for_it(
    near: Bed, postgres_dsn: str, schema: str
) -> None:
    """So either the suspending turn sees the answer, or the answer sees the run suspended."""
    joiner, target = await near.begin(), await near.begin(agent=AgentId("clerk", "1"))
    await rest(joiner, join_wait(target))
    async with connected(postgres_dsn, schema) as connection:
        turn = connection.transaction()
        await turn.start()
        await connection.execute(
            "select from runs where run_id = $1 for no key update", joiner.run_id
        )
        end = asyncio.ensure_future(target.complete("done"))
        await waiting_for(connection)
        unseen = await near.store.reads.answers(joiner.run_id)
        await turn.commit()
        outcome = await end

    assert unseen == []
    assert Nudge("signal", joiner.agent, joiner.run_id) in outcome.nudges
    assert [a.result for a in await near.store.reads.answers(joiner.run_id)] == ["done"]


@pytest.mark.item(231, 236, 238)
async def test_spawns_of_two_hosts_use_one_budget(near: Bed, far: Bed) -> None:
    """Two runs of a tree ask for ten places each at once; thirteen are left."""
    root = await _root(near, SpawnBudget(max_runs=15))
    near_run = await root.spawn("1", AgentId("clerk", "w"))
    far_run = await root.spawn("2", AgentId("far", "w"))
    far_run.bed = far
    await near_run.start()
    await far_run.start()

    outcomes = await asyncio.gather(
        *(_spawn_one(run, n) for run in (near_run, far_run) for n in range(10))
    )

    refusals = [out for out in outcomes if isinstance(out, OverBudget)]
    assert sum(isinstance(out, Committed) for out in outcomes) == 13
    assert len(refusals) == 7
    assert {out.limit for out in refusals} == {"max_runs 15"}
    children = [
        *await near.store.lists.children(near_run.run_id),
        *await far.store.lists.children(far_run.run_id),
    ]
    assert len(children) == 13


async def _root(bed: Bed, budget: SpawnBudget) -> Turns:
    agent = AgentId("desk", "root")
    msg = message(to=agent, id="root", sender="submit:tests")
    run_id = run_id_of_submit(agent, "submit:tests", "root")
    await bed.store.arrivals.submit(
        NewRun(run_id, agent, supervision=terms(run_id, spawn=budget)), msg
    )
    return await Turns(bed, run_id, agent).start()


_locks: dict[str, asyncio.Lock] = {}


async def _spawn_one(run: Turns, n: int) -> CommitOutcome:
    # One call of a run at a time, as a worker does; the runs are not in step.
    async with _locks.setdefault(run.run_id, asyncio.Lock()):
        child = run.child(f"9.{n}", AgentId("clerk", f"{run.run_id}-{n}"), depth=2)
        return await run.send(run.turn(child_spawned(child), spawned=(child,)))


@pytest.mark.item(130)
async def test_orphans_of_other_hosts_are_asked_to_stop(near: Bed, far: Bed) -> None:
    """The flag is part of the parent's end; their owner is told."""
    parent = await near.begin()
    child = await parent.spawn("1", AgentId("far", "w"))
    child.bed = far
    await child.start()
    below = await child.spawn("1", AgentId("far", "v"))
    ear = Ear(far)

    await parent.complete(orphans=HistoryRetention.RUN)

    await ear.hears(Nudge("cancel", child.agent, child.run_id))
    await ear.hears(Nudge("cancel", below.agent, below.run_id))
    for run in (child, below):
        row = await far.store.reads.run(run.run_id)
        assert row is not None
        assert row.cancel_requested == f"parent run {parent.run_id} has ended"


@pytest.mark.item(128, 234)
@pytest.mark.parametrize("what", ["request", "response"])
async def test_a_talking_commit_whose_answer_is_lost_is_written_once(
    postgres_dsn: str, schema: str, what: str
) -> None:
    """Its child, its reply and its budget count once, and it names those it concerns all the same."""
    async with (
        FaultProxy.to(postgres_dsn) as proxy,
        host(proxy.through(postgres_dsn), schema) as bed,
    ):
        asker = await bed.begin()
        message = question(asker, AgentId("clerk", "1"))
        await asker.commit(asker.turn(outgoing=(message,)))
        key = MessageKey(AgentId("clerk", "1"), message.sender, "ask-1")
        target, new = bed.turns_of_mail(key)
        await target.commit(target.turn(started(target.agent), create=new, bind=(key,)))
        child = target.child("0", AgentId("clerk", "2"), boot="needle")
        mark = b"needle"
        loss = (
            proxy.lose_request(request_has=mark)
            if what == "request"
            else proxy.lose_response(request_has=mark)
        )

        outcome = await target.commit(
            target.turn(child_spawned(child), spawned=(child,), answers=(reply(asker, 1),))
        )

        assert loss.happened.is_set()
        # After a lost answer the child is only known by its row.
        born = {Nudge("run", c.run.agent_id, c.run.run_id) for c, _ in outcome.spawned}
        assert born | set(outcome.nudges) == {
            Nudge("run", AgentId("clerk", "2"), child.run.run_id),
            Nudge("signal", asker.agent, asker.run_id),
        }
        assert len(await bed.store.reads.answers(asker.run_id)) == 1
        (account,) = await sql(postgres_dsn, schema, "select runs, open from budgets")
        assert tuple(account) == (1, 1)


@pytest.mark.slow
async def test_hosts_that_end_and_join_each_others_runs_do_not_deadlock(
    near: Bed, postgres_dsn: str, schema: str
) -> None:
    """Groups of random joins and ends by three writers: each is committed, each joiner answered."""
    errors: list[object] = []
    pairs: list[tuple[Turns, Turns]] = []
    for n in range(120):
        joiner = await near.begin(agent=AgentId("desk", f"{n}"))
        pairs.append((joiner, await near.begin(agent=AgentId("clerk", f"{n}"))))

    async def write(seed: int) -> None:
        rnd = random.Random(seed)
        async with host(postgres_dsn, schema, f"s{seed}") as other:
            mine = pairs[seed::3]
            rnd.shuffle(mine)
            turns = [
                other.store.commits.commit(join.turn(waits=(join_wait(_target(pairs, rnd)),)))
                for join, _ in mine
            ]
            ends = [
                other.store.commits.commit(_end(target))
                for _, target in rnd.sample(mine, len(mine))
            ]
            both = [*turns, *ends]
            rnd.shuffle(both)
            for start in range(0, len(both), 20):
                group = both[start : start + 20]
                outcomes = await asyncio.gather(*group, return_exceptions=True)
                errors.extend(out for out in outcomes if not isinstance(out, Committed))

    await asyncio.gather(*(write(seed) for seed in range(3)))

    assert errors == []
    for joiner, _ in pairs:
        assert len(await near.store.reads.answers(joiner.run_id)) == 1


def _target(pairs: list[tuple[Turns, Turns]], rnd: random.Random) -> Turns:
    return rnd.choice(pairs)[1]


def _end(run: Turns) -> Commit:
    return run.turn(completed(run.run_id), then=Finish(RunStatus.COMPLETED, run.run_id))


async def test_a_take_over_follows_no_wait_of_which_there_can_be_no_cycle(
    near: Bed, postgres_dsn: str, schema: str
) -> None:
    """Fifty runs sleep until a child has slept; two in a cycle of theirs are found, and only they followed."""
    async with (
        asyncpg.create_pool(
            postgres_dsn, min_size=1, max_size=1, server_settings={"search_path": schema}
        ) as pool,
        pool.acquire() as rows,
        rows.transaction(),
    ):
        await rows.execute("set local track_functions = 'pl'")
        await rows.execute(
            """insert into runs (run_id, agent, tenant, shard, hash, priority, root, depth, status, attempt)
            select k || g, k || '/' || g, 'default', 'p:a:0', 0, 5, k || g, 0, 'SUSPENDED', 1
              from generate_series(1, 50) g, unnest('{a,b}'::text[]) k"""
        )
        await rows.execute(
            """insert into waits (run_id, position, key, kind, agent, target_run, must, changed_at)
            select 'a' || g, '1', 'b' || g, 'join', 'b/' || g, 'b' || g, true, now() - interval '1 day'
              from generate_series(1, 50) g
            union all select 'b7', '1', 'a7', 'join', 'a/7', 'a7', true, now() - interval '1 day'"""
        )

        cycles = await rows.fetch(
            "select * from young_cycles(array['p:a:0'], interval '1000 days')"
        )
        calls = await rows.fetchval(
            "select calls from pg_stat_xact_user_functions where funcname = 'cycles_of'"
        )

    assert [sorted(row["agents"]) for row in cycles] == [["a/7", "b/7"]] * 2
    assert calls == 2
