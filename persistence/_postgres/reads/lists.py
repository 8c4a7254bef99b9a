"""Lists of runs, waits and dead letters."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, LiteralString

from typing_extensions import override

from actors._kernel.json import decoded
from actors._kernel.runtime.ids import AgentId, RunId, partition_hash
from actors._kernel.runtime.rows import DeadLetter, RunRow
from actors._kernel.runtime.scheduler import RunStatus
from actors._kernel.runtime.waits import OpenWait, Wait
from actors._kernel.stores.runs import (
    ANY_APPROVAL,
    ANY_RUN,
    ApprovalFilter,
    ListStore,
    RunFilter,
    TaskRun,
)
from persistence._postgres.commits.encode import RUN_COLUMNS, columns, dead_letter_of, run_of
from persistence._postgres.connection.batch import lookups
from persistence._postgres.connection.link import Link, Links, Row

# A filter that is not given leaves its parameter, and no condition: every choice of filters is a statement
# of its own, and its plan begins with the rarest of them.
_FILTERS: Final[Sequence[tuple[LiteralString, LiteralString]]] = (
    ("r.created_at >= $1", "$1::timestamptz is null"),
    ("r.created_at < $2", "$2::timestamptz is null"),
    (
        "(r.created_at, r.run_id) < ((select a.created_at from runs a where a.run_id = $3), $3)",
        "$3::text is null",
    ),
    ("agent_type(r.agent) = $4", "$4::text is null"),
    ("r.tenant = $5", "$5::text is null"),
    ("r.parent = $6", "$6::text is null"),
    ("r.status = any($7)", "$7::text[] is null"),
    ("r.agent = $8", "$8::text is null"),
    ("r.hash = $9", "$9::bigint is null"),
)
_UNDONE: Final = frozenset({RunStatus.FAILED, RunStatus.CANCELLED})
SQL_RUN_OF_AGENT: Final[LiteralString] = (
    "select" + RUN_COLUMNS + "from runs r where r.run_id = holder_of($1)"
)
SQL_PENDING_COUNT: Final[LiteralString] = """
select (select count(*) from inbox i where i.agent = $1 and i.body is not null and i.run_id is null)
  + (select count(*) from runs r cross join lateral (
      select 1 from inbox i where i.run_id = r.run_id and i.state = 'b' offset 0) i
    where r.agent = $1 and r.ended_at is null) as n
"""
SQL_DEAD_LETTERS: Final[LiteralString] = """
select d.id, d.agent, d.sender, d.message_id, d.body, d.reason, d.attempts, d.last_error, d.run_id, d.at,
    d.times from dead_letters d
  where d.redriven_at is null and ($1::text is null or d.agent = $1)
    and (cardinality($2::bigint[]) = 0 or d.id = any($2)) order by d.id desc limit $3
"""
_WAITS: Final[LiteralString] = """
select w.run_id, r.agent as waiter, w.position, w.kind, w.key, w.agent, w.target_run, w.must, w.request,
    w.expires_at, w.since
  from waits w cross join lateral (select * from runs n where n.run_id = w.run_id offset 0) r
  where r.ended_at is null and not exists (select from (
    select c.consumed from completions c where c.parent = w.run_id and c.child = w.key offset 0) c
    where not c.consumed)
"""
_IN_ORDER: Final[LiteralString] = " order by w.since, w.run_id, w.position, w.key limit "
_CHOSEN: Final[LiteralString] = """
    and w.kind = 'approval' and w.since >= coalesce($2::timestamptz, '-infinity')
    and ($2::timestamptz is null or (w.since, w.run_id, w.position, w.key) > ($2, $3, $4, $5))
    and ($6::text is null or starts_with(w.key, $6)) and ($7::text is null or r.tenant = $7)
    and ($8::text is null or exists (
      select from (select t.agent from runs t where t.run_id = coalesce(r.root, r.run_id) offset 0) t
        cross join lateral (select * from sessions s where s.agent = t.agent offset 0) s
        where s.owner = $8 and s.tenant = r.tenant and s.created_at is not null and not s.is_deleting))
"""
SQL_WAITS: Final[LiteralString] = (
    "select g.i::int, w.* from unnest($1::text[], $2::int[]) with ordinality g(run, most, i)"  # noqa: S608 - constants only
    " cross join lateral ("
    + _WAITS
    + " and w.run_id = g.run"
    + _IN_ORDER
    + "g.most) w order by g.i, w.since, w.position, w.key"
)
SQL_APPROVALS: Final[LiteralString] = _WAITS + "and $1::text is null" + _CHOSEN + _IN_ORDER + "$9"
SQL_APPROVALS_OF_RUN: Final[LiteralString] = (
    _WAITS + "and w.run_id = $1" + _CHOSEN + _IN_ORDER + "$9"
)
SQL_CHILDREN: Final[LiteralString] = (
    "select" + RUN_COLUMNS + "from runs r where r.parent = $1 order by r.arrival, r.run_id"
)
SQL_TASKS: Final[LiteralString] = """
with recursive tree (run_id, agent, status, ended_at, task, swept) as (
  select r.run_id, r.agent, r.status, null::timestamptz, null::text, true
    from (select * from runs n where n.hash = $2 and n.agent = $1 offset 0) r
  union
  select c.run_id, c.agent, c.status, c.ended_at, c.supervision ->> 'task', c.swept from tree t
    cross join lateral (select * from runs n where n.parent = t.run_id offset 0) c)
select t.run_id, t.agent, coalesce(t.task, '') as task, t.status, t.ended_at, e.entries, e.size_bytes
  from tree t
  cross join lateral (
    select count(*)::int as entries, coalesce(sum(octet_length(l.payload::text)), 0)::bigint as size_bytes
      from event_log l where l.run_id = t.run_id) e
  where (t.task is not null or $4) and t.ended_at is not null and (not t.swept or $4) and t.status = any($3)
  order by t.run_id
"""
SQL_RUN_OF_MESSAGE: Final[LiteralString] = (
    "select"  # noqa: S608 - constants only
    + RUN_COLUMNS
    + """from runs r where r.run_id = coalesce(
    (select i.run_id from inbox i where i.agent = $1 and i.sender = $2 and i.message_id = $3),
    (select k.run_id from message_ids k where k.key = message_key($1, $2, $3)), started_on($1))"""
)


class Lists(ListStore):
    """Looks for rows.

    Args:
        links: Connections for statements.
        keyed: A connection for reads by key.
    """

    def __init__(self, links: Links, keyed: Link) -> None:
        self._links, self._keyed = links, keyed
        self._waits = lookups(self._fetch_waits, lambda _, rows: list(map(_open_wait, rows)))
        self.batchers = (self._waits,)

    @override
    async def runs(
        self,
        *,
        status: Sequence[RunStatus] = (),
        agent: AgentId | None = None,
        parked: bool | None = None,
        among: RunFilter = ANY_RUN,
        limit: int = 100,
    ) -> list[RunRow]:
        statement, values = list_statement(status, agent, parked, among)
        rows = await self._links.fetch("reading", statement, *values, limit)
        return [run_of(row) for row in rows]

    @override
    async def children(self, run_id: RunId) -> list[RunRow]:
        return [run_of(row) for row in await self._keyed.fetch("reading", SQL_CHILDREN, run_id)]

    @override
    async def tasks(
        self, agent_id: AgentId, *, status: Sequence[RunStatus], every: bool = False
    ) -> list[TaskRun]:
        args = (str(agent_id), partition_hash(agent_id), [*status], every)
        rows = await self._links.fetch("listing tasks", SQL_TASKS, *args)
        return [_task_run(row) for row in rows]

    @override
    async def find_run_for_agent(self, agent_id: AgentId) -> RunRow | None:
        rows = await self._links.fetch("reading", SQL_RUN_OF_AGENT, str(agent_id))
        return run_of(rows[0]) if rows else None

    @override
    async def run_of_message(
        self, agent_id: AgentId, sender: str, message_id: str
    ) -> RunRow | None:
        rows = await self._keyed.fetch(
            "reading", SQL_RUN_OF_MESSAGE, str(agent_id), sender, message_id
        )
        return run_of(rows[0]) if rows else None

    @override
    async def waits(self, run_id: RunId, *, limit: int = 100) -> list[OpenWait]:
        return await self._waits.call((run_id, limit))

    async def _fetch_waits(self, questions: list[tuple[RunId, int]]) -> list[Row]:
        return await self._keyed.fetch("reading", SQL_WAITS, *columns(questions, 2))

    @override
    async def approvals(
        self, among: ApprovalFilter = ANY_APPROVAL, *, limit: int = 100
    ) -> list[OpenWait]:
        position = among.after or (None, None, None, None)
        args = (among.run_id, *position, among.key, among.tenant, among.owner, limit)
        statement = SQL_APPROVALS if among.run_id is None else SQL_APPROVALS_OF_RUN
        rows = await self._keyed.fetch("reading approvals", statement, *args)
        return [_open_wait(row) for row in rows]

    @override
    async def pending_count(self, agent_id: AgentId) -> int:
        return int(await self._links.value("reading", SQL_PENDING_COUNT, str(agent_id)))

    @override
    async def dead_letters(
        self, *, agent: AgentId | None = None, ids: Sequence[int] = (), limit: int = 100
    ) -> list[DeadLetter]:
        agent_text = None if agent is None else str(agent)
        rows = await self._links.fetch("reading", SQL_DEAD_LETTERS, agent_text, list(ids), limit)
        return [dead_letter_of(row) for row in rows]


def _task_run(row: Row) -> TaskRun:
    return TaskRun(
        RunId(row["run_id"]),
        AgentId.parse(row["agent"]),
        row["task"],
        RunStatus(row["status"]),
        row["ended_at"],
        row["entries"],
        row["size_bytes"],
    )


def list_statement(
    status: Sequence[RunStatus], agent: AgentId | None, parked: bool | None, among: RunFilter
) -> tuple[LiteralString, list[object]]:
    """Return the statement for these filters, and its arguments but the last one, the limit."""
    values: list[object] = [
        among.since,
        among.until,
        among.after,
        among.type,
        among.tenant,
        among.parent,
        [s.value for s in status] or None,
        None if agent is None else str(agent),
        None if agent is None else partition_hash(agent),
    ]
    conditions = [
        null_condition if value is None else condition
        for (condition, null_condition), value in zip(_FILTERS, values, strict=True)
    ]
    if parked is not None:
        conditions.append("r.parked is not null" if parked else "r.parked is null")
    # Most runs are completed. Open runs, and runs that ended otherwise, have partial indexes, used here.
    if len(status) == 1 and status[0] in _UNDONE:
        conditions.append("r.ended_as = ($7)[1]")
    elif status and not any(s.is_terminal for s in status):
        conditions.append("r.open")
    where = " and ".join(conditions)
    order = " order by r.created_at desc, r.run_id desc limit $10"
    return "select" + RUN_COLUMNS + "from runs r where " + where + order, values


def _open_wait(row: Row) -> OpenWait:
    agent, request = row["agent"], row["request"]
    wait = Wait(
        position=row["position"],
        kind=row["kind"],
        key=row["key"],
        agent=None if agent is None else AgentId.parse(agent),
        target_run=row["target_run"],
        must=row["must"],
        request=None if request is None else decoded(request),
        expires_at=row["expires_at"],
    )
    return OpenWait(RunId(row["run_id"]), AgentId.parse(row["waiter"]), wait, row["since"])
