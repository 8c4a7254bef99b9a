"""Cycles of waits as the SQL functions find them in rows: exactly those that are there, at the cost of few."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import pytest

from persistence._postgres.connection.link import KEYED
from tests.integration.persistence.hosts import connected

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from persistence._postgres.connection.link import Connection

AGENTS: Final = 12
SEEDS: Final = 40
SQL_RUN: Final = """
insert into runs (run_id, agent, tenant, shard, hash, priority, root, depth, status, attempt, arrival, wake,
    parked, ended_at, open)
  select u.run, u.agent, 'default', 'p:a:0', 0, 5, u.run, 0, u.status, u.attempt, u.arrival, u.wake::json,
      u.parked, case when u.status = 'COMPLETED' then now() end, u.status <> 'COMPLETED'
    from unnest($1::text[], $2::text[], $3::text[], $4::int[], $5::int[], $6::text[], $7::text[])
      u(run, agent, status, attempt, arrival, wake, parked)
"""
SQL_WAIT: Final = """
insert into waits (run_id, position, key, kind, agent, target_run, must)
  select u.run, u.position, u.key, case when u.target is null then 'ask' else 'join' end, u.agent, u.target,
      u.must
    from unnest($1::text[], $2::text[], $3::text[], $4::text[], $5::text[], $6::bool[])
      u(run, position, key, agent, target, must)
"""
SQL_ANSWER: Final = """
insert into completions (parent, child, status, consumed)
  select u.run, u.key, 'completed', u.taken from unnest($1::text[], $2::text[], $3::bool[]) u(run, key, taken)
"""
SQL_READ: Final = """
select sum(seq_tup_read + idx_tup_fetch) from pg_stat_xact_user_tables where relname in ('runs', 'waits')
"""
WAKES: Final = {"message": '{"message": true, "signals": [], "runs": []}'}


@dataclass
class Waiting:
    """A wait: of whom, and whether it has an answer, and that was taken."""

    position: str
    key: str
    agent: str
    target: str | None
    must: bool
    is_taken: bool | None = None


@dataclass
class Run:
    """A run as its row says."""

    run_id: str
    agent: str
    arrival: int
    status: str = "SUSPENDED"
    takes_mail: bool = False
    parked: str | None = None
    waits: list[Waiting] = field(default_factory=list)

    @property
    def is_over(self) -> bool:
        """It has ended."""
        return self.status == "COMPLETED"

    @property
    def is_queued(self) -> bool:
        """It has not begun."""
        return self.status == "PENDING"


class Rows:
    """Runs and their waits, and what they say, as docs/replay.md has it."""

    def __init__(self, runs: list[Run]) -> None:
        self.runs = {run.run_id: run for run in runs}

    def holder(self, agent: str) -> Run | None:
        """The run that has begun, and has not ended."""
        return next(
            (
                run
                for run in self.runs.values()
                if run.agent == agent and not (run.is_over or run.is_queued)
            ),
            None,
        )

    def blockers(self, run: Run) -> Iterator[tuple[str, Run]]:
        """Where it waits for whom, if nothing lets it go on."""
        if run.status not in ("RUNNING", "SUSPENDED") or run.parked or run.takes_mail:
            return
        if not any(wait.must for wait in run.waits):
            return
        if any(wait.is_taken is False for wait in run.waits):
            return
        for wait in sorted(run.waits, key=lambda wait: wait.position):
            target = self.runs.get(wait.target or "") or self.holder(wait.agent)
            if target is not None and target.is_queued:
                target = self.holder(target.agent)
            if wait.is_taken is None and target is not None and not target.is_over:
                yield wait.position, target

    def cycles(self, run: Run) -> list[tuple[list[str], list[str], list[str]]]:
        """Of each wait that leads back the shortest way: positions, runs, agents."""
        return [
            way
            for position, target in self.blockers(run)
            if (way := self._way(run, position, target)) is not None
        ]

    def _way(
        self, last: Run, position: str, first: Run
    ) -> tuple[list[str], list[str], list[str]] | None:
        ways = {first.run_id: [(position, last)]}
        queue = [first]
        for run in queue:
            way = ways[run.run_id]
            if run is last:
                return (
                    [position for position, _ in way],
                    [r.run_id for _, r in way],
                    [r.agent for _, r in way],
                )
            for at, target in self.blockers(run):
                if target.run_id not in ways:
                    ways[target.run_id] = [*way, (at, run)]
                    queue.append(target)
        return None


def draw_rows(seed: int) -> Rows:
    """Some runs that wait for each other, most of them at rest."""
    rnd = random.Random(seed)
    runs: list[Run] = []
    for n in range(AGENTS):
        agent = f"a/{n}"
        if rnd.random() < 0.3:
            runs.append(Run(f"{rnd.random()}", agent, 10 * n, "COMPLETED"))
        if rnd.random() < 0.9:
            status = rnd.choice(("RUNNING", "SUSPENDED", "SUSPENDED"))
            runs.append(Run(f"{rnd.random()}", agent, 10 * n + 1, status))
        runs += [
            Run(f"{rnd.random()}", agent, 10 * n + 2 + i, "PENDING")
            for i in range(rnd.choice((0, 0, 1, 3)))
        ]
    for run in runs:
        if run.is_over or run.is_queued:
            continue
        run.takes_mail, run.parked = rnd.random() < 0.05, rnd.choice(("poison", *[None] * 20))
        others = rnd.choices(runs, k=rnd.choice((0, 1, 1, 2, 3)))
        for n, other in enumerate(others):
            is_ask = rnd.random() < 0.5
            is_taken = rnd.choice((True, False, *[None] * 20))
            target = None if is_ask else other.run_id
            wait = Waiting(
                f"{n}", f"{run.run_id}{n}", other.agent, target, must=False, is_taken=is_taken
            )
            run.waits.append(wait)
        if run.waits:
            rnd.choice(run.waits).must = rnd.random() < 0.9
    rnd.shuffle(runs)
    return Rows(runs)


async def put(rows: Connection, what: Rows) -> None:
    """Write them."""
    runs = list(what.runs.values())
    waits = [(run, wait) for run in runs for wait in run.waits]
    await rows.execute(
        SQL_RUN,
        [run.run_id for run in runs],
        [run.agent for run in runs],
        [run.status for run in runs],
        [int(not run.is_queued) for run in runs],
        [run.arrival for run in runs],
        [WAKES["message"] if run.takes_mail else None for run in runs],
        [run.parked for run in runs],
    )
    await rows.execute(
        SQL_WAIT,
        [run.run_id for run, _ in waits],
        [wait.position for _, wait in waits],
        [wait.key for _, wait in waits],
        [wait.agent for _, wait in waits],
        [wait.target for _, wait in waits],
        [wait.must for _, wait in waits],
    )
    answered_waits = [(run, wait) for run, wait in waits if wait.is_taken is not None]
    await rows.execute(
        SQL_ANSWER,
        [run.run_id for run, _ in answered_waits],
        [wait.key for _, wait in answered_waits],
        [wait.is_taken for _, wait in answered_waits],
    )


async def read_cycles(rows: Connection, run: Run) -> list[tuple[list[str], list[str], list[str]]]:
    """What the functions say of a run."""
    return [tuple(row) for row in await rows.fetch("select * from cycles_of($1)", run.run_id)]


@pytest.fixture
async def rows(postgres_dsn: str, schema: str) -> AsyncIterator[Connection]:
    """A connection as a host's, whose changes are taken back."""
    async with connected(postgres_dsn, schema, **KEYED) as connection:
        change = connection.transaction()
        await change.start()
        yield connection
        await change.rollback()


async def test_cycles_are_those_of_the_rows(rows: Connection) -> None:
    """Of runs drawn at random, with questions, joins, queues and answers, each has the ways that are there."""
    cycles = 0
    for seed in range(SEEDS):
        what = draw_rows(seed)
        await rows.execute("delete from runs; delete from waits; delete from completions")
        await put(rows, what)
        for run in what.runs.values():
            expected = what.cycles(run)
            cycles += len(expected)
            assert await read_cycles(rows, run) == expected, f"seed {seed}"

    assert cycles > SEEDS


def tree(width: int, *, back: int | None) -> Rows:
    """A root that waits for a parent of many; `back`: one of these asks the root."""
    root, parent = Run("root", "a/root", 1), Run("parent", "a/parent", 2)
    children = [Run(f"c{n}", f"a/c{n}", 3 + n, "RUNNING") for n in range(width)]
    root.waits = [Waiting("0", "parent", "a/parent", "parent", must=True)]
    parent.waits = [
        Waiting(f"{c.run_id}", c.run_id, c.agent, c.run_id, must=False) for c in children
    ]
    parent.waits[0].must = True
    if back is not None:
        children[back].waits = [Waiting("0", "q", "a/root", None, must=True)]
    return Rows([root, parent, *children])


def service(clients: int, *, back: int | None) -> Rows:
    """A run that waits behind a store's, and many that ask it; `back`: one of these is asked by the store."""
    asked_run, store, queued = (
        Run("asked", "a/asked", 1),
        Run("store", "a/store", 2),
        Run("next", "a/store", 3, "PENDING"),
    )
    asked_run.waits = [Waiting("0", "next", "a/store", "next", must=True)]
    many = [Run(f"k{n}", f"a/k{n}", 3 + n) for n in range(clients)]
    for client in many:
        client.waits = [Waiting("0", f"q{client.run_id}", "a/asked", None, must=True)]
    if back is not None:
        store.waits = [Waiting("0", "b", f"a/k{back}", None, must=True)]
    return Rows([asked_run, store, queued, *many])


@pytest.mark.parametrize("back", [None, 0, 499])
async def test_a_cycle_of_one_among_many(rows: Connection, back: int | None) -> None:
    """A parent of five hundred, or an agent that five hundred wait for: whoever closes a cycle finds it."""
    for what in (tree(500, back=back), service(500, back=back)):
        await rows.execute("delete from runs; delete from waits")
        await put(rows, what)
        for run in what.runs.values():
            expected = what.cycles(run)
            assert await read_cycles(rows, run) == expected
            assert back is not None or not expected


async def test_who_begins_to_wait_is_not_looked_for_among_the_others(rows: Connection) -> None:
    """A child, its parent of two thousand, and a run that two thousand wait for: each looks at a few runs."""
    await put(rows, tree(2000, back=None))
    await put(rows, service(2000, back=None))
    await rows.execute("analyze runs; analyze waits")
    read_counts = []
    for run_id in ("c7", "parent", "root", "asked", "store"):
        before = await rows.fetchval(SQL_READ)
        assert await rows.fetch("select * from cycles_of($1)", run_id) == []
        read_counts.append(await rows.fetchval(SQL_READ) - before)

    assert max(read_counts) < 500, read_counts
