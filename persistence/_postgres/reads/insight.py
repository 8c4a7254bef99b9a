"""Views for operators: one statement a question, and nothing is locked."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, LiteralString

from pydantic_core import from_json
from typing_extensions import override

from actors._kernel.agent.message import stored_message
from actors._kernel.json import read_or
from actors._kernel.runtime.ids import AgentId, HostIncarnation, RunId, ShardId
from actors._kernel.runtime.rows import Arrived
from actors._kernel.runtime.scheduler import RunStatus
from actors._kernel.stores.insight import (
    COUNT_LIMIT_S,
    OVERDUE_S,
    AgentRow,
    HostRow,
    InsightStore,
    KnownTotals,
    Totals,
    reason_of,
)
from persistence._postgres.connection.link import Links, Row, StoreSettings

SQL_AGENTS: Final[LiteralString] = """
with live as materialized (
  select h.incarnation, h.types, h.shards from hosts h where h.expires_at >= present()
), places as materialized (
  select s.shard from shards s where s.type = $1 union all select 'u:' || $1
), mail as (
  select i.agent, count(*) as n, min(i.received_at) as oldest, min(i.shard) as shard from inbox i
    where i.state = 'p' and ($1::text is null or i.shard in (select p.shard from places p))
    group by i.agent
), held as (
  select r.agent, r.shard, r.run_id, r.status, r.parked, r.wake_at, r.arrival,
      r.attempt > 0 or r.status <> 'PENDING' as started from runs r
    where r.open and ($1::text is null or r.shard in (select p.shard from places p))
), waiting as (
  select h.agent, min(h.shard) as shard, count(*) as n from held h group by h.agent
), holding as (
  select distinct on (h.agent) h.* from held h where h.started order by h.agent, h.arrival, h.run_id
), known as (
  select coalesce(m.agent, w.agent) as agent, coalesce(m.shard, w.shard) as shard,
      coalesce(m.n, 0) as pending, m.oldest, coalesce(w.n, 0) as open_runs
    from mail m full join waiting w on w.agent = m.agent
)
select k.agent, k.pending, k.oldest, h.run_id, h.status, h.parked, h.wake_at, l.incarnation as owner,
    k.open_runs - (h.run_id is not null)::int as queued,
    exists (select 1 from live v where agent_type(k.agent) = any(v.types) or k.shard = any(v.shards))
      as served
  from known k
  left join holding h on h.agent = k.agent
  left join shards s on s.shard = k.shard
  left join live l on l.incarnation = s.owner
  where ($2::text is null or agent_tenant(k.agent) = $2)
    and ($3::double precision is null or k.oldest <= present() - make_interval(secs => $3))
    and ($4::text is null or (agent_tenant(k.agent) collate "C", agent_type(k.agent) collate "C",
      substr(k.agent, strpos(k.agent, '/') + 1) collate "C") > ($4, $5::text, $6::text))
  order by agent_tenant(k.agent) collate "C", agent_type(k.agent) collate "C",
    substr(k.agent, strpos(k.agent, '/') + 1) collate "C" limit $7
"""
SQL_INBOX: Final[LiteralString] = """
(select i.agent, i.sender, i.arrival, i.body, i.run_id, i.message_id from inbox i
    where i.agent = $1 and i.body is not null and i.run_id is null order by i.arrival limit $2)
union all
(select i.agent, i.sender, i.arrival, i.body, i.run_id, i.message_id
    from runs r cross join lateral (
      select * from inbox i where i.run_id = r.run_id and i.state = 'b' offset 0) i
    where r.agent = $1 and r.ended_at is null order by i.arrival limit $2)
order by 3 limit $2
"""
SQL_HOSTS: Final[LiteralString] = """
select h.incarnation, extract(epoch from h.expires_at - present())::double precision as left_s,
    h.types, h.shards,
    (select count(*) from shards s where s.owner = h.incarnation) as owned
  from hosts h where h.expires_at >= present() order by h.started_at, h.incarnation
"""
SQL_SHARDS_OF: Final[LiteralString] = (
    "select s.shard from shards s where s.owner = $1 order by s.shard"
)
SQL_TOTALS: Final[LiteralString] = """
with live as materialized (
  select h.incarnation, h.types, h.shards from hosts h where h.expires_at >= present()
), late as materialized (
  select present() - make_interval(secs => $1) as at
), held as materialized (
  select r.status, r.parked, r.shard, count(*) as n,
      count(*) filter (where r.wake_at < (select l.at from late l)) as overdue
    from runs r where r.open group by 1, 2, 3
), mail_of_shards as (
  select i.shard, count(*) as n, min(i.received_at) as oldest
    from inbox i where i.state = 'p' group by 1
), types as materialized (
  select x.shard, case left(x.shard, 2) when 'i:' then split_part(split_part(x.shard, ':', 3), '/', 1)
      else split_part(x.shard, ':', 2) end as type
    from (select h.shard from held h union select m.shard from mail_of_shards m) x
), mail as materialized (
  select m.*, t.type from mail_of_shards m join types t on t.shard = m.shard
), unserved as (
  select x.type, bool_and(x.shard like 'u:%') as is_made_up from types x
    where not exists (select 1 from live v where x.type = any(v.types) or x.shard = any(v.shards))
    group by x.type
)
select
  (select json_object_agg(x.status, x.n) from (
    select h.status, sum(h.n) as n from held h group by 1) x) as runs,
  (select json_object_agg(x.parked, x.n) from (
    select h.parked, sum(h.n) as n from held h where h.parked is not null group by 1) x) as parked,
  (select json_object_agg(x.type, x.n) from (
    select m.type, sum(m.n) as n from mail m group by 1) x) as pending,
  (select extract(epoch from present() - min(m.oldest))::double precision from mail m) as oldest_s,
  (select count(*) from outbox o where o.dead is null) as outbox,
  (select count(*) from dead_letters d where d.redriven_at is null) as dead_letters,
  (select coalesce(sum(h.overdue), 0) from held h)::bigint as overdue,
  (select count(*) from shards s) as shards,
  (select count(*) from shards s
    where s.owner is null or s.owner not in (select v.incarnation from live v)) as unowned,
  (select count(*) from live v) as hosts,
  (select array_agg(u.type order by u.is_made_up, u.type) from unserved u) as unserved,
  (select count(*) from waits w join runs r on r.run_id = w.run_id
    where w.kind = 'approval' and r.ended_at is null and not exists (
      select 1 from completions c where c.parent = w.run_id and c.child = w.key and not c.consumed))
    as approvals
"""
SQL_COUNT_NOW: Final[LiteralString] = (
    "select row_to_json(c)::text as body"  # noqa: S608 - constants only
    " from (" + SQL_TOTALS + ") c"
)
SQL_KEEP_TOTALS: Final[LiteralString] = (
    "insert into totals (body, counted_at, took)"  # noqa: S608 - constants only
    " select row_to_json(c), now(), clock_timestamp() - now() from ("
    + SQL_TOTALS
    + """) c
  on conflict (one) do update set body = excluded.body, counted_at = excluded.counted_at,
    took = excluded.took, counting_until = null"""
)
# A session that waited for the row lock of another's claim sees that claim, and claims nothing.
SQL_CLAIM_COUNT: Final[LiteralString] = """
insert into totals as t (counting_until) values (present() + make_interval(secs => $2))
  on conflict (one) do update set counting_until = excluded.counting_until
    where (t.counted_at is null
        or t.counted_at < present() - greatest(make_interval(secs => $1), 10 * t.took))
      and (t.counting_until is null or t.counting_until < present())
  returning true
"""
SQL_KNOWN_TOTALS: Final[LiteralString] = """
select t.body::text as body,
    extract(epoch from present() - t.counted_at)::double precision as age_s,
    (t.counted_at is null or t.counted_at < present() - greatest(make_interval(secs => $1), 10 * t.took))
      and (t.counting_until is null or t.counting_until < present()) as is_due
  from totals t
"""


class Insight(InsightStore):
    """An `InsightStore` on PostgreSQL. Pages of one type read that type's rows; others read all open runs."""

    def __init__(self, settings: StoreSettings, links: Links) -> None:
        self._lease_s, self._links = settings.lease_s, links

    @override
    async def agents(
        self,
        *,
        type_: str | None = None,
        tenant: str | None = None,
        waiting_s: float | None = None,
        after: AgentId | None = None,
        limit: int = 100,
    ) -> list[AgentRow]:
        position = (None, None, None) if after is None else (after.tenant, after.type, after.key)
        rows = await self._links.fetch(
            "reading agents", SQL_AGENTS, type_, tenant, waiting_s, *position, limit
        )
        return [_agent_of(row) for row in rows]

    @override
    async def inbox(self, agent_id: AgentId, *, limit: int = 100) -> list[Arrived]:
        return [
            Arrived(
                stored_message(
                    row["body"], id_=row["message_id"], target=agent_id, sender=row["sender"]
                ),
                row["sender"],
                agent_id,
                row["arrival"],
                row["run_id"],
            )
            for row in await self._links.fetch("reading an inbox", SQL_INBOX, str(agent_id), limit)
        ]

    @override
    async def hosts(self) -> list[HostRow]:
        """`seen_s` takes it that all hosts have this store's lease time."""
        return [
            HostRow(
                owner=HostIncarnation(row["incarnation"]),
                seen_s=max(0.0, self._lease_s - row["left_s"]),
                expires_s=row["left_s"],
                shards=row["owned"],
                serves=(
                    *sorted(type_ for type_ in row["types"] if not type_.startswith("~")),
                    # The shard of a single agent is ``i:<tenant>:<type>/<key>``.
                    *sorted(
                        str(AgentId.parse(shard.removeprefix("i:"))) for shard in row["shards"]
                    ),
                ),
            )
            for row in await self._links.fetch("reading hosts", SQL_HOSTS)
        ]

    @override
    async def shards_of(self, owner: HostIncarnation) -> Sequence[ShardId]:
        rows = await self._links.fetch("reading a host's shards", SQL_SHARDS_OF, owner)
        return [ShardId(row["shard"]) for row in rows]

    @override
    async def totals(self) -> Totals:
        """Reads every open run and every message that waits."""
        (row,) = await self._links.fetch("reading totals", SQL_COUNT_NOW, OVERDUE_S)
        return _totals_of(row["body"])

    @override
    async def known_totals(self, *, every_s: float) -> KnownTotals:
        """If a count is due, exactly one host claims it."""
        fetch = self._links.fetch
        rows = await fetch("reading totals", SQL_KNOWN_TOTALS, every_s)
        is_mine = (not rows or rows[0]["is_due"]) and bool(
            await fetch("claiming the count", SQL_CLAIM_COUNT, every_s, COUNT_LIMIT_S)
        )
        body = rows[0]["body"] if rows else None
        totals = None if body is None else read_or(body, _totals_of, lambda _: None)
        if totals is None:
            return KnownTotals(None, is_due=is_mine)
        return KnownTotals(totals, max(0.0, rows[0]["age_s"]), is_mine)

    @override
    async def count_totals(self) -> None:
        await self._links.fetch("counting totals", SQL_KEEP_TOTALS, OVERDUE_S)


def _agent_of(row: Row) -> AgentRow:
    status = row["status"]
    return AgentRow(
        agent_id=AgentId.parse(row["agent"]),
        pending=row["pending"],
        oldest_at=row["oldest"],
        queued=row["queued"],
        run_id=None if row["run_id"] is None else RunId(row["run_id"]),
        status=None if status is None else RunStatus(status),
        parked=row["parked"],
        wake_at=row["wake_at"],
        owner=None if row["owner"] is None else HostIncarnation(row["owner"]),
        reason=reason_of(
            None if status is None else RunStatus(status),
            parked=row["parked"] is not None,
            served=row["served"],
            owned=row["owner"] is not None,
        ),
    )


def _totals_of(body: str) -> Totals:
    row: dict[str, Any] = from_json(body)
    return Totals(
        runs={RunStatus(name): n for name, n in (row["runs"] or {}).items()},
        parked=row["parked"] or {},
        pending=row["pending"] or {},
        oldest_pending_s=max(0.0, row["oldest_s"] or 0.0),
        outbox=row["outbox"],
        dead_letters=row["dead_letters"],
        timers_overdue=row["overdue"],
        shards=row["shards"],
        unowned=row["unowned"],
        hosts=row["hosts"],
        unserved=tuple(row["unserved"] or ()),
        approvals=row["approvals"],
    )
