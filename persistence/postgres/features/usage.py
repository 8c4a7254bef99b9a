"""Totals of usage as rows: see `schema/migrations/0031_usage.sql`. The committer writes them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, LiteralString

from typing_extensions import override

from actors.kernel.runtime.ids import AgentId
from actors.kernel.stores.administration import EACH, UsageBy, UsageFilter, UsageStore, UsageTotal
from persistence.postgres.connection.link import Links, Row

SQL_SELECT_USAGE: Final[LiteralString] = """
select case when 'tenant' = any($1::text[]) then u.tenant end as tenant,
    case when 'agent' = any($1) then u.agent end as agent,
    case when 'model' = any($1) then u.model end as model,
    case when 'day' = any($1) then u.day end as day,
    sum(u.calls) as calls, sum(u.input) as input, sum(u.output) as output, sum(u.cached) as cached,
    sum(u.cache_written) as cache_written, sum(u.cost_usd) as cost_usd, sum(u.unpriced) as unpriced
  from usage_totals u
  where ($2::text is null or u.tenant = $2) and ($3::text is null or agent_type(u.agent) = $3)
    and ($4::text is null or u.agent = $4) and ($5::text is null or u.model = $5)
    and ($6::date is null or u.day >= $6) and ($7::date is null or u.day <= $7)
  group by 1, 2, 3, 4 order by 1, 2, 3, 4
"""


class PostgresUsage(UsageStore):
    """A `UsageStore` on PostgreSQL."""

    def __init__(self, links: Links) -> None:
        self._links = links

    @override
    async def totals(
        self, wanted: UsageFilter, *, by: Sequence[UsageBy] = EACH
    ) -> list[UsageTotal]:
        rows = await self._links.fetch(
            "reading usage",
            SQL_SELECT_USAGE,
            list(by),
            wanted.tenant,
            wanted.type_,
            None if wanted.agent_id is None else str(wanted.agent_id),
            wanted.model,
            wanted.since,
            wanted.until,
        )
        return [_total(row) for row in rows]


def _total(row: Row) -> UsageTotal:
    agent = row["agent"]
    return UsageTotal(
        tenant=row["tenant"],
        agent_id=None if agent is None else AgentId.parse(agent),
        model=row["model"],
        day=row["day"],
        calls=int(row["calls"]),
        input=int(row["input"]),
        output=int(row["output"]),
        cached=int(row["cached"]),
        cache_written=int(row["cache_written"]),
        cost_usd=row["cost_usd"],
        unpriced=int(row["unpriced"]),
    )
