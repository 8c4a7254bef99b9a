"""Names and lists of sessions as rows: see `schema/migrations/0035_session_titles.sql`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, LiteralString

from typing_extensions import override

from actors.kernel.hidden import metadata_text
from actors.kernel.json import JsonValue
from actors.kernel.runtime.ids import AgentId
from actors.kernel.stores.conversations import (
    MOST_READ,
    FoundSessions,
    SessionDirectory,
    SessionFilter,
    SessionLabel,
    SessionPlace,
)
from actors.kernel.stores.errors import SessionDeletingError
from persistence.postgres.connection.link import Links
from persistence.postgres.features.sessions import SESSION, session_of

SQL_CREATE_SESSION: Final[LiteralString] = """
insert into sessions as s (agent, tenant, type, project, title, title_folded, metadata, owner, created_at)
  values ($1, $2, $3, $4, $5, $6, $7, $8, clock_timestamp())
  on conflict (agent) do update set project = excluded.project, title = excluded.title,
      title_folded = excluded.title_folded, metadata = excluded.metadata,
      owner = coalesce(s.owner, excluded.owner), created_at = excluded.created_at, last_at = excluded.created_at
    where s.created_at is null and (s.owner = excluded.owner or s.owner is null or excluded.owner is null)
  returning true as is_made
"""
SQL_SESSION_IS_DELETED: Final[LiteralString] = """
select s.created_at is null or s.is_deleting as is_deleted, s.is_deleting from sessions s
  where s.agent = $1 and ($2::text is null or s.owner = $2)
"""
SQL_RELABEL_SESSION: Final[LiteralString] = """
update sessions s set title = coalesce($2, s.title), title_folded = coalesce($3, s.title_folded),
    metadata = coalesce($4::json, s.metadata)
  where s.agent = $1 and s.created_at is not null and not s.is_deleting
  returning true as is_there
"""
_LISTED: Final[LiteralString] = """
  n.tenant = $1 and n.type = $2 and n.created_at is not null and not n.is_deleting
  and n.last_at <= coalesce($3::timestamptz, 'infinity')
  and ($3::timestamptz is null or n.last_at < $3 or n.agent > $4)
"""
_OWN: Final[LiteralString] = f"{_LISTED} and n.owner = $9"
_MATCHES: Final[LiteralString] = """
  ($5::text is null or strpos(n.title_folded, $5) > 0)
  and ($6::boolean is null or $6 = exists (
    select from runs r where r.agent = n.agent and r.ended_at is null offset 0))
"""
_BY_CHANGE: Final[LiteralString] = "order by n.last_at desc, n.agent"
# If the page is not full, one more row is returned after the hits: the last row that was read.
SQL_FIND_SESSIONS: Final[LiteralString] = f"""
with found as materialized (
    select n.* from (select n.* from sessions n where {_LISTED} {_BY_CHANGE} limit $8) n
      where {_MATCHES} {_BY_CHANGE} limit $7),
  last_read as (
    select n.* from sessions n where {_LISTED} and (select count(*) from found) < $7
      {_BY_CHANGE} offset $8 - 1 limit 1)
select {SESSION}, s.is_found from (
    select f.*, true as is_found from found f union all select l.*, false from last_read l) s
  order by s.is_found desc, s.last_at desc, s.agent
"""  # noqa: S608 - constants only
SQL_FIND_OWN_SESSIONS: Final[LiteralString] = SQL_FIND_SESSIONS.replace(_LISTED, _OWN)


class PostgresSessionDirectory(SessionDirectory):
    """A `SessionDirectory` on PostgreSQL.

    Args:
        links: Connections, each for one statement at a time.
    """

    def __init__(self, links: Links) -> None:
        self._links = links

    @override
    async def create(
        self, agent: AgentId, label: SessionLabel, *, project: str = "", owner: str | None = None
    ) -> bool:
        args = (
            *(str(agent), agent.tenant, agent.type, project),
            *(label.title, label.title.casefold(), _text_of(label.metadata)),
            owner,
        )
        if await self._links.fetch("creating a session", SQL_CREATE_SESSION, *args):
            return True
        rows = await self._links.fetch(
            "creating a session", SQL_SESSION_IS_DELETED, str(agent), None
        )
        if rows and rows[0]["is_deleting"]:
            raise SessionDeletingError(str(agent))
        return False

    @override
    async def relabel(
        self,
        agent: AgentId,
        *,
        title: str | None = None,
        metadata: Mapping[str, JsonValue] | None = None,
    ) -> bool:
        new = SessionLabel(title=title or "", metadata=metadata or {})
        folded = None if title is None else new.title.casefold()
        text = None if metadata is None else _text_of(new.metadata)
        args = (str(agent), title, folded, text)
        return bool(await self._links.fetch("naming a session", SQL_RELABEL_SESSION, *args))

    @override
    async def find(
        self, wanted: SessionFilter, *, limit: int = 100, most_read: int = MOST_READ
    ) -> FoundSessions:
        after = wanted.after
        args = (
            *(wanted.tenant, wanted.app),
            *((None, None) if after is None else (after.last_at, str(after.agent_id))),
            *(None if wanted.title is None else wanted.title.casefold(), wanted.is_active, limit),
            most_read,
        )
        if wanted.owner is None:
            rows = await self._links.fetch("listing sessions", SQL_FIND_SESSIONS, *args)
        else:
            rows = await self._links.fetch(
                "listing sessions", SQL_FIND_OWN_SESSIONS, *args, wanted.owner
            )
        found = [session_of(row) for row in rows]
        if not found or rows[-1]["is_found"]:
            return FoundSessions(found)
        last = found.pop()
        return FoundSessions(found, SessionPlace(last.last_at, last.agent_id))

    @override
    async def is_deleted(self, agent: AgentId, *, owner: str | None = None) -> bool:
        args = (str(agent), owner)
        rows = await self._links.fetch("reading a session", SQL_SESSION_IS_DELETED, *args)
        return bool(rows and rows[0]["is_deleted"])


def _text_of(metadata: Mapping[str, JsonValue]) -> str:
    return metadata_text(metadata, what="metadata of a session")
