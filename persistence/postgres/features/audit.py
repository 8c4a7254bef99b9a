"""Audit rows: see `schema/migrations/0042_audit.sql` and `0043_audit_writes.sql`."""

from __future__ import annotations

from typing import Final, LiteralString

from pydantic_core import to_json
from typing_extensions import override

from actors.kernel.json import decoded_object
from actors.kernel.runtime.ids import AgentId
from actors.kernel.stores.administration import AuditRow, AuditStore, Facts, NewAuditRow
from actors.kernel.text import check_name_of
from persistence.postgres.connection.link import Links, Row

COLUMNS: Final[LiteralString] = """
  a.id, a.tenant, a.principal, a.action, a.thing, a.agent, a.before::text as before, a.after::text as after,
  a.outcome, a.write_id, a.at
"""
# On a conflict the update changes nothing: it makes the statement return the row.
SQL_ADD_AUDIT: Final[LiteralString] = f"""
insert into audit as a (tenant, principal, action, thing, agent, before, after, outcome, write_id)
  values ($1, $2, $3, $4, $5, $6, $7, $8, $9)
  on conflict (tenant, write_id) where write_id is not null do update set write_id = excluded.write_id
  returning {COLUMNS}
"""  # noqa: S608 - constants only
SQL_LIST_AUDIT: Final[LiteralString] = f"""
select {COLUMNS} from audit a where a.tenant = $1 and a.id < coalesce($2::bigint, 9223372036854775807)
  order by a.id desc limit $3
"""  # noqa: S608 - constants only
SQL_LIST_AUDIT_OF_THING: Final[LiteralString] = f"""
select {COLUMNS} from audit a
  where a.tenant = $1 and a.thing = $4 and a.id < coalesce($2::bigint, 9223372036854775807)
  order by a.id desc limit $3
"""  # noqa: S608 - constants only


class PostgresAudit(AuditStore):
    """An `AuditStore` on PostgreSQL.

    Args:
        links: For one statement at a time.
    """

    def __init__(self, links: Links) -> None:
        self._links = links

    @override
    async def add(self, new: NewAuditRow) -> AuditRow:
        args = (
            *(new.tenant, new.principal, new.action, new.thing),
            *(None if new.agent is None else str(new.agent), _text(new.before)),
            *(_text(new.after), new.outcome, new.write_id),
        )
        [row] = await self._links.fetch("writing an audit row", SQL_ADD_AUDIT, *args)
        return _audit_row(row)

    @override
    async def list(
        self, tenant: str, *, thing: str | None = None, after: int | None = None, limit: int = 100
    ) -> list[AuditRow]:
        check_name_of("thing", thing or "")
        args = (tenant, after, limit)
        wanted = (
            (SQL_LIST_AUDIT, *args) if thing is None else (SQL_LIST_AUDIT_OF_THING, *args, thing)
        )
        return [_audit_row(row) for row in await self._links.fetch("listing audit rows", *wanted)]


def _text(facts: Facts | None) -> str | None:
    return None if facts is None else to_json(facts).decode()


def _audit_row(row: Row) -> AuditRow:
    agent, before, after = row["agent"], row["before"], row["after"]
    return AuditRow(
        id=row["id"],
        tenant=row["tenant"],
        principal=row["principal"],
        action=row["action"],
        thing=row["thing"],
        agent=None if agent is None else AgentId.parse(agent),
        before=None if before is None else decoded_object(before),
        after=None if after is None else decoded_object(after),
        outcome=row["outcome"],
        write_id=row["write_id"],
        at=row["at"],
    )
