"""Questions about rows. Loads that are asked together become one query."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final, LiteralString

from pydantic_core import from_json

from actors.kernel.runtime.commit import BufferedSignal, LoadedRun, Timer
from actors.kernel.runtime.decisions import RESERVED, decided_seq
from actors.kernel.runtime.ids import AgentId, RunId
from persistence.postgres.answers import answer_of
from persistence.postgres.batch import Batcher, Call
from persistence.postgres.clock import Reading
from persistence.postgres.link import KEYED, Link
from persistence.postgres.rows import (
    RUN_COLUMNS,
    arrived_of,
    dead_letter_of,
    entry_of,
    loaded_of,
    run_of,
)

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    from actors.kernel.json import JsonValue
    from actors.kernel.runtime.commit import Answer, Arrived, DeadLetter, RunRow
    from actors.kernel.runtime.ids import ShardId
    from actors.kernel.runtime.log_entry import RunLogEntry
    from actors.kernel.runtime.scheduler import RunStatus
    from actors.kernel.runtime.store import RunFilter
    from persistence.postgres.clock import PostgresClock
    from persistence.postgres.link import Links, Outage, Row
    from persistence.postgres.settings import StoreSettings

ENTRY_PAGE: Final = 1000
TAIL_POLL_S: Final = 0.5

SQL_LOAD_RUNS: Final[LiteralString] = (
    "select"  # noqa: S608 - constants only
    + RUN_COLUMNS
    + """, l.seqs, l.kinds, l.positions, l.payloads, l.stamps, m.arrivals, m.senders, m.bodies
from runs r
left join lateral (
  select array_agg(e.seq) as seqs, array_agg(e.kind) as kinds, array_agg(e.position) as positions,
      '[' || string_agg(e.payload::text, ',') || ']' as payloads, array_agg(e.ts) as stamps
    from (select * from event_log e where e.run_id = r.run_id and e.seq >= r.log_from
      order by e.seq) e) l on true
left join lateral (
  select array_agg(i.arrival) as arrivals, array_agg(i.sender) as senders,
      '[' || string_agg(i.body::text, ',') || ']' as bodies
    from (select * from inbox i where i.run_id = r.run_id and i.state = 'b'
      order by i.arrival) i where l.seqs is null) m on true
where r.run_id = any($1::text[])
"""
)
SQL_SIGNALS: Final[LiteralString] = """
select s.run_id, s.name, s.n, s.payload, s.message_id from signals s
  where s.run_id = any($1::text[]) and not s.consumed order by s.n
"""
SQL_ANSWERS: Final[LiteralString] = """
select c.parent, c.child, c.status, c.result, c.error, c.run, c.last_seq from completions c
  where c.parent = any($1::text[]) and not c.consumed order by c.at nulls first, c.child
"""
SQL_STATE: Final[LiteralString] = (
    "select a.agent, a.key, a.value from agent_state a where a.agent = any($1::text[])"
)
SQL_OPEN_RUNS: Final[LiteralString] = (
    "select"
    + RUN_COLUMNS
    + """from runs r where r.shard = any($1::text[]) and r.open
  and ($2::text is null or r.run_id > $2) order by r.run_id limit $3"""
)
SQL_PENDING_OF_SHARDS: Final[LiteralString] = """
select i.agent, i.sender, i.arrival, i.body, i.alone from inbox i
  where i.shard = any($1::text[]) and i.state = 'p' and i.arrival > $2 order by i.arrival limit $3
"""
SQL_PENDING_OF_AGENT: Final[LiteralString] = """
select i.agent, i.sender, i.arrival, i.body, i.alone from inbox i
  where i.agent = $1 and i.body is not null and i.run_id is null and i.arrival > $2 order by i.arrival limit $3
"""
SQL_DUE: Final[LiteralString] = """
select r.run_id, r.agent, r.wake_at, present() as now from runs r
  where r.shard = any($1::text[]) and r.wake_at <= present() + make_interval(secs => $2)
  order by r.wake_at, r.run_id limit $3
"""
SQL_ENTRIES: Final[LiteralString] = """
select e.seq, e.kind, e.position, e.payload, e.ts from event_log e
  where e.run_id = $1 and e.seq >= $2 order by e.seq limit $3
"""
SQL_RUN: Final[LiteralString] = "select" + RUN_COLUMNS + "from runs r where r.run_id = $1"
SQL_RUN_OF_AGENT: Final[LiteralString] = (
    "select" + RUN_COLUMNS + "from runs r where r.run_id = holder_of($1)"
)
# Most runs have ended: who asks for others alone ($11) gets them by the index of open runs.
SQL_LIST_RUNS: Final[LiteralString] = (
    "select"  # noqa: S608 - constants only
    + RUN_COLUMNS
    + """from runs r
  where (cardinality($1::text[]) = 0 or r.status = any($1)) and ($2::text is null or r.agent = $2)
    and ($3::boolean is null or (r.parked is not null) = $3)
    and ($4::text is null or agent_type(r.agent) = $4) and ($5::text is null or r.tenant = $5)
    and ($6::timestamptz is null or r.created_at >= $6)
    and ($7::timestamptz is null or r.created_at < $7) and ($8::text is null or r.parent = $8)
    and ($9::text is null or (r.created_at, r.run_id) <
      (select a.created_at, a.run_id from runs a where a.run_id = $9))
    and (not $11::boolean or r.open)
  order by r.created_at desc, r.run_id desc limit $10"""
)
SQL_PENDING_COUNT: Final[LiteralString] = """
select (select count(*) from inbox i where i.agent = $1 and i.body is not null and i.run_id is null)
  + (select count(*) from runs r join inbox i on i.run_id = r.run_id and i.state = 'b'
    where r.agent = $1 and r.ended_at is null) as n
"""
SQL_DEAD_LETTERS: Final[LiteralString] = """
select d.id, d.agent, d.body, d.reason, d.attempts, d.last_error, d.run_id, d.at from dead_letters d
  where d.redriven_at is null and ($1::text is null or d.agent = $1)
    and (cardinality($2::bigint[]) = 0 or d.id = any($2)) order by d.id desc limit $3
"""
SQL_SELECT_LETTERS: Final[LiteralString] = """
select d.id, d.sender, d.body, d.reason, d.last_error from dead_letters d
  where d.redriven_at is null and d.id = any($1::bigint[]) order by d.id
"""


class Reads:
    """Answers the reading half of `RunStore`."""

    def __init__(
        self, settings: StoreSettings, outage: Outage, links: Links, clock: PostgresClock
    ) -> None:
        self._links, self._keyed, self._clock = links, Link(settings, outage, KEYED), clock
        limit = settings.group_limit
        self._loads: Batcher[RunId, LoadedRun | None] = Batcher(self._flush_loads, limit=limit)
        self._signals: Batcher[RunId, list[BufferedSignal]] = Batcher(
            self._flush_signals, limit=limit
        )
        self._answers: Batcher[RunId, list[Answer]] = Batcher(self._flush_answers, limit=limit)
        self._states: Batcher[str, dict[str, JsonValue]] = Batcher(self._flush_states, limit=limit)
        self._growth: dict[str, set[asyncio.Event]] = {}
        self.batchers = (self._loads, self._signals, self._answers, self._states)

    async def close(self) -> None:
        """Close the connection; the batchers have ended."""
        await self._keyed.close()

    # --- grouped ----------------------------------------------------------------------------------

    async def load(self, run_ids: Sequence[RunId]) -> list[LoadedRun]:
        """See `RunStore.load`."""
        futures = [self._loads.call(run_id) for run_id in run_ids]
        loaded = [await future for future in futures]
        return [run for run in loaded if run is not None]

    async def signals(self, run_id: RunId) -> list[BufferedSignal]:
        """See `RunStore.signals`."""
        return await self._signals.call(run_id)

    async def state(self, agent_id: AgentId) -> dict[str, JsonValue]:
        """See `RunStore.state`."""
        return await self._states.call(str(agent_id))

    async def _flush_loads(self, calls: list[Call[RunId, LoadedRun | None]]) -> None:
        run_ids = list({call.args for call in calls})
        rows = await self._keyed.fetch("reading runs", SQL_LOAD_RUNS, run_ids)
        found = {row["run_id"]: row for row in rows}
        for call in calls:
            row = found.get(call.args)
            call.answer(None if row is None else loaded_of(row))

    async def _flush_signals(self, calls: list[Call[RunId, list[BufferedSignal]]]) -> None:
        found: dict[str, list[BufferedSignal]] = {call.args: [] for call in calls}
        for row in await self._keyed.fetch("reading", SQL_SIGNALS, list(found)):
            name, about = row["name"], None
            if name.startswith(RESERVED):
                about = decided_seq(name, row["message_id"])
            signal = BufferedSignal(name, row["n"], from_json(row["payload"]), about)
            found[row["run_id"]].append(signal)
        for call in calls:
            call.answer(list(found[call.args]))

    async def answers(self, run_id: RunId) -> list[Answer]:
        """See `RunStore.answers`."""
        return await self._answers.call(run_id)

    async def _flush_answers(self, calls: list[Call[RunId, list[Answer]]]) -> None:
        found: dict[str, list[Row]] = {call.args: [] for call in calls}
        for row in await self._keyed.fetch("reading", SQL_ANSWERS, list(found)):
            found[row["parent"]].append(row)
        for call in calls:
            call.answer([answer_of(row) for row in found[call.args]])

    async def _flush_states(self, calls: list[Call[str, dict[str, JsonValue]]]) -> None:
        found: dict[str, list[tuple[str, str]]] = {call.args: [] for call in calls}
        for row in await self._keyed.fetch("reading", SQL_STATE, list(found)):
            found[row["agent"]].append((row["key"], row["value"]))
        for call in calls:
            call.answer({key: from_json(value) for key, value in found[call.args]})

    async def _rows(self, sql: LiteralString, *args: object) -> list[Row]:
        return await self._links.fetch("reading", sql, *args)

    # --- pages for the owner ----------------------------------------------------------------------

    async def open_runs(
        self, shards: Sequence[ShardId], after: RunId | None, limit: int
    ) -> list[RunRow]:
        """See `RunStore.open_runs`."""
        rows = await self._rows(SQL_OPEN_RUNS, list(shards), after, limit)
        return [run_of(row) for row in rows]

    async def pending_mail(
        self, shards: Sequence[ShardId], agent: AgentId | None, after: int, limit: int
    ) -> list[Arrived]:
        """See `RunStore.pending_mail`."""
        if agent is None:
            rows = await self._rows(SQL_PENDING_OF_SHARDS, list(shards), after, limit)
        else:
            rows = await self._rows(SQL_PENDING_OF_AGENT, str(agent), after, limit)
        return [arrived_of(row) for row in rows]

    async def due(self, shards: Sequence[ShardId], within_s: float, limit: int) -> list[Timer]:
        """See `RunStore.due`. What is due for the database is due by `PostgresStore.clock` then, too."""
        asked = self._clock.monotonic()
        rows = await self._rows(SQL_DUE, list(shards), within_s, limit)
        if rows:
            now = max(row["now"] for row in rows)
            self._clock.hear(Reading(now, asked, self._clock.monotonic()))
        return [
            Timer(RunId(row["run_id"]), AgentId.parse(row["agent"]), row["wake_at"]) for row in rows
        ]

    # --- everybody --------------------------------------------------------------------------------

    async def entries(self, run_id: RunId, from_seq: int) -> AsyncIterator[RunLogEntry]:
        """See `RunStore.entries`."""
        while True:
            rows = await self._rows(SQL_ENTRIES, run_id, from_seq, ENTRY_PAGE)
            for row in rows:
                yield entry_of(run_id, row)
            if len(rows) < ENTRY_PAGE:
                return
            from_seq = rows[-1]["seq"] + 1

    async def tail(self, run_id: RunId, from_seq: int) -> AsyncIterator[RunLogEntry]:
        """See `RunStore.tail`. Own commits are seen at once, others' in half a second."""
        grown, idle = asyncio.Event(), 0
        self._growth.setdefault(run_id, set()).add(grown)
        try:
            while True:
                grown.clear()
                async for entry in self.entries(run_id, from_seq):
                    yield entry
                    from_seq, idle = entry.seq + 1, 0
                    if entry.is_terminal:
                        return
                try:
                    async with asyncio.timeout(TAIL_POLL_S):
                        await grown.wait()
                except TimeoutError:
                    idle += 1
                    # Its log may have been swept: seldom, so the run is asked ever more seldom.
                    if idle.bit_count() == 1 and await self._is_swept(run_id):
                        return
        finally:
            waiting = self._growth[run_id]
            waiting.discard(grown)
            if not waiting:
                del self._growth[run_id]

    async def _is_swept(self, run_id: RunId) -> bool:
        row = await self.run(run_id)
        return row is not None and row.swept

    def grew(self, run_id: str) -> None:
        """Wake those who tail the run."""
        if self._growth and (waiting := self._growth.get(run_id)):
            for grown in waiting:
                grown.set()

    async def run(self, run_id: RunId) -> RunRow | None:
        """See `RunStore.run`."""
        rows = await self._rows(SQL_RUN, run_id)
        return run_of(rows[0]) if rows else None

    async def find_run_for_agent(self, agent_id: AgentId) -> RunRow | None:
        """See `RunStore.find_run_for_agent`."""
        rows = await self._rows(SQL_RUN_OF_AGENT, str(agent_id))
        return run_of(rows[0]) if rows else None

    async def list_runs(
        self,
        status: Sequence[RunStatus],
        agent: AgentId | None,
        *,
        parked: bool | None,
        among: RunFilter,
        limit: int,
    ) -> list[RunRow]:
        """See `RunStore.list_runs`."""
        wanted = None if agent is None else str(agent)
        is_open = bool(parked) or (bool(status) and not any(s.is_terminal for s in status))
        rows = await self._rows(
            SQL_LIST_RUNS, [s.value for s in status], wanted, parked, among.type, among.tenant,
            among.since, among.until, among.parent, among.after, limit, is_open,
        )  # fmt: skip
        return [run_of(row) for row in rows]

    async def pending_count(self, agent_id: AgentId) -> int:
        """See `RunStore.pending_count`."""
        rows = await self._rows(SQL_PENDING_COUNT, str(agent_id))
        count: int = rows[0]["n"]
        return count

    async def dead_letters(
        self, agent: AgentId | None, ids: Sequence[int], limit: int
    ) -> list[DeadLetter]:
        """See `RunStore.dead_letters`."""
        wanted = None if agent is None else str(agent)
        rows = await self._rows(SQL_DEAD_LETTERS, wanted, list(ids), limit)
        return [dead_letter_of(row) for row in rows]
