"""Backlog: the runs, messages and timers that the owner of shards has to serve."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Final, LiteralString

from typing_extensions import override

from actors._kernel.runtime.hints import Nudge
from actors._kernel.runtime.ids import AgentId, RunId, ShardId
from actors._kernel.runtime.rows import Arrived, RunRow, Timer
from actors._kernel.runtime.waits import WaitCycle
from actors._kernel.stores.runs import Blocking
from actors._kernel.stores.shards import BacklogStore
from persistence._postgres.commits.encode import RUN_COLUMNS, arrived_of, run_of
from persistence._postgres.connection.link import Link, Links
from persistence._postgres.connection.listener import PostgresClock, Reading

SQL_OPEN_RUNS: Final[LiteralString] = (
    "select"
    + RUN_COLUMNS
    + """from runs r where r.shard = any($1::text[]) and r.open
  and ($2::text is null or r.run_id > $2) order by r.run_id limit $3"""
)
# What is not consumed is little, and is looked up from its side: not a probe for each run that sleeps.
SQL_AWAKE_RUNS: Final[LiteralString] = (
    "select"  # noqa: S608 - constants only
    + RUN_COLUMNS
    + """from runs r where r.run_id in (
    select a.run_id from runs a where a.shard = any($1::text[]) and a.open
      and (a.status <> 'SUSPENDED' or a.parked is not null or a.cancel_requested is not null)
    union
    select a.run_id from signals s
      cross join lateral (select * from runs a where a.run_id = s.run_id offset 0) a
      where not s.consumed and a.open and a.shard = any($1)
    union
    select a.run_id from completions c
      cross join lateral (select * from runs a where a.run_id = c.parent offset 0) a
      where (not c.consumed) is true and a.open and a.shard = any($1))
  and ($2::text is null or r.run_id > $2) order by r.run_id limit $3"""
)
SQL_SLEEPERS: Final[LiteralString] = """
select r.shard, array_agg(r.agent) as agents, array_agg(r.priority) as priorities from runs r
  where r.shard = any($1::text[]) and r.open and r.status = 'SUSPENDED' and r.parked is null
  group by r.shard
"""
SQL_SELECT_BLOCKINGS: Final[LiteralString] = (
    "select run_id, seqs, place from blockings where shard = any($1::text[])"
)
# Reads a page of each shard in the order of its index. With `shard = any(…)` all waiting rows would be sorted.
SQL_WHO_HAS_MAIL: Final[LiteralString] = """
select i.agent, i.arrival from unnest($1::text[]) s(shard)
  cross join lateral (select n.agent, n.arrival from inbox n
    where n.shard = s.shard and n.state = 'p' and n.arrival > $2 order by n.arrival limit $3) i
  order by i.arrival limit $3
"""
SQL_PENDING_OF_AGENT: Final[LiteralString] = """
select i.agent, i.sender, i.message_id, i.arrival, i.body, i.alone from inbox i
  where i.agent = $1 and i.body is not null and i.run_id is null and i.arrival > $2 order by i.arrival limit $3
"""
SQL_DUE: Final[LiteralString] = """
select r.run_id, r.agent, r.wake_at, present() as now from runs r
  where r.shard = any($1::text[]) and r.wake_at <= (select present() + make_interval(secs => $2))
  order by r.wake_at, r.run_id limit $3
"""
SQL_YOUNG_CYCLES: Final[LiteralString] = (
    "select places, run_ids, agents from young_cycles($1::text[], $2::interval)"
)
SQL_UNNOTICED: Final[LiteralString] = "select kind, agent, run_id from unnoticed($1,$2)"


class PostgresBacklog(BacklogStore):
    """Reads of the runs, messages and timers that wait in shards.

    Args:
        links: Connections for statements.
        keyed: A connection for reads by key.
        clock: The clock, which is adjusted to the time at which timers were read.
    """

    def __init__(self, links: Links, keyed: Link, clock: PostgresClock) -> None:
        self._links, self._keyed, self._clock = links, keyed, clock

    @override
    async def open_runs(
        self,
        shards: Sequence[ShardId],
        *,
        after: RunId | None = None,
        limit: int = 1000,
        asleep: bool = True,
    ) -> list[RunRow]:
        statement = SQL_OPEN_RUNS if asleep else SQL_AWAKE_RUNS
        rows = await self._links.fetch("reading", statement, list(shards), after, limit)
        return [run_of(row) for row in rows]

    @override
    async def sleepers(self, shards: Sequence[ShardId]) -> dict[ShardId, dict[str, int]]:
        rows = await self._links.fetch("reading", SQL_SLEEPERS, list(shards))
        return {
            ShardId(row["shard"]): dict(zip(row["agents"], row["priorities"], strict=True))
            for row in rows
        }

    @override
    async def blockings(self, shards: Sequence[ShardId]) -> list[Blocking]:
        rows = await self._links.fetch("reading blockings", SQL_SELECT_BLOCKINGS, list(shards))
        return [
            Blocking(run_id=RunId(row["run_id"]), seqs=tuple(row["seqs"]), place=row["place"])
            for row in rows
        ]

    @override
    async def pending_mail(
        self, *, agent: AgentId, after: int = -1, limit: int = 1000
    ) -> list[Arrived]:
        rows = await self._links.fetch("reading", SQL_PENDING_OF_AGENT, str(agent), after, limit)
        return [arrived_of(row) for row in rows]

    @override
    async def who_has_mail(
        self, shards: Sequence[ShardId], *, after: int = -1, limit: int = 1000
    ) -> list[tuple[AgentId, int]]:
        rows = await self._links.fetch("reading", SQL_WHO_HAS_MAIL, list(shards), after, limit)
        return [(AgentId.parse(row["agent"]), row["arrival"]) for row in rows]

    @override
    async def due(
        self, shards: Sequence[ShardId], *, within_s: float, limit: int = 10_000
    ) -> list[Timer]:
        """Return due timers. `PostgresStore.clock` agrees then that they are due."""
        asked_at = self._clock.monotonic()
        rows = await self._links.fetch("reading", SQL_DUE, list(shards), within_s, limit)
        if rows:
            now = max(row["now"] for row in rows)
            self._clock.observe(Reading(now, asked_at, self._clock.monotonic()))
        return [
            Timer(RunId(row["run_id"]), AgentId.parse(row["agent"]), row["wake_at"]) for row in rows
        ]

    @override
    async def wait_cycles(
        self, shards: Sequence[ShardId], *, younger_than_s: float
    ) -> list[WaitCycle]:
        younger = timedelta(seconds=younger_than_s)
        rows = await self._keyed.fetch(
            "looking for cycles", SQL_YOUNG_CYCLES, list(shards), younger
        )
        cycles_by_wait: dict[tuple[RunId, str], WaitCycle] = {}
        for row in rows:
            # The view of the run with the greatest id, so that always the same run fails.
            runs, positions = row["run_ids"], row["places"]
            agents = [AgentId.parse(agent) for agent in row["agents"]]
            n = runs.index(max(runs))
            run_id, cycle_agents = RunId(runs[n]), (*agents[n:], *agents[:n])
            cycle = WaitCycle(run_id, agents[n], positions[n], cycle_agents)
            cycles_by_wait.setdefault((cycle.run_id, cycle.position), cycle)
        return list(cycles_by_wait.values())

    @override
    async def unnoticed(self, shards: Sequence[ShardId], *, younger_than_s: float) -> list[Nudge]:
        younger = timedelta(seconds=younger_than_s)
        rows = await self._keyed.fetch(
            "looking for lost hints", SQL_UNNOTICED, list(shards), younger
        )
        return [
            Nudge(row["kind"], AgentId.parse(row["agent"]), RunId(row["run_id"])) for row in rows
        ]
