"""Sessions as rows, their names and their lists. Submits and commits write their facts.

See `schema/migrations/0033_sessions.sql` and `0035_session_titles.sql`.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from datetime import datetime
from functools import partial
from typing import Final, LiteralString

from typing_extensions import override

from actors._kernel.agent.transcript import NO_CUT, Turn
from actors._kernel.hidden import metadata_text
from actors._kernel.json import JsonValue, decoded_object
from actors._kernel.runtime.ids import AgentId, RunId, partition_hash
from actors._kernel.stores.conversations import (
    MOST_READ,
    NO_FACT,
    FoundSessions,
    SessionDirectory,
    SessionFact,
    SessionFilter,
    SessionLabel,
    SessionPlace,
    SessionRow,
    SessionStore,
)
from actors._kernel.stores.errors import (
    SessionActiveError,
    SessionDeletingError,
    UnknownNodeError,
    UnknownSessionError,
)
from actors._kernel.text import is_name
from persistence._postgres.commits.encode import columns, json_text
from persistence._postgres.connection.batch import lookups
from persistence._postgres.connection.link import Links, Row
from persistence._postgres.conversations.fact_readers import FactReaders
from persistence._postgres.conversations.transcripts import Transcripts

TAIL_PAGE: Final = 1_000
FACT_READERS: Final = 50
"""Number of readers that have pages of facts in one statement."""
NODE_READERS: Final = 50
"""Number of readers that have turns by their ids in one statement."""
DELETE_BATCH: Final = 1_000
"""Number of facts that are deleted in one statement."""

SESSION: Final[LiteralString] = """
  s.agent, s.project, s.last_fact, s.created_at, s.last_at, s.title, s.metadata, s.owner,
  (select count(*) from runs r where r.agent = s.agent and r.ended_at is null)::int as open_runs,
  active_node(s.agent, substr(s.agent, strpos(s.agent, '/') + 1)) as head
"""
SQL_SELECT_KNOWN_SESSION: Final[LiteralString] = f"""
select {SESSION} from sessions s
  where s.agent = any($1::text[]) and s.created_at is not null and not s.is_deleting
"""  # noqa: S608 - constants only
SQL_SELECT_KNOWN_SESSIONS: Final[LiteralString] = f"""
select {SESSION} from (select * from sessions n
    where n.tenant = $1 and n.type = $2 and n.last_at < coalesce($4::timestamptz, 'infinity')
      and n.created_at is not null and not n.is_deleting
    order by n.last_at desc, n.agent limit $3) s
  order by s.last_at desc, s.agent
"""  # noqa: S608 - constants only
SQL_PAGE_OF_SESSIONS: Final[LiteralString] = """
select s.agent from sessions s
  where s.agent > $4 and s.agent < $5 and s.tenant = $1 and s.type = $2
    and ($3::text is null or s.project = $3) and s.created_at is not null and not s.is_deleting
  order by s.agent limit $6
"""
SQL_PAGE_OF_OWN_SESSIONS: Final[LiteralString] = """
select s.agent from (select n.agent, n.project from sessions n
    where n.tenant = $1 and n.type = $2 and n.owner = $7 and n.created_at is not null and not n.is_deleting
    offset 0) s
  where s.agent > $4 and s.agent < $5 and ($3::text is null or s.project = $3)
  order by s.agent limit $6
"""
SQL_IDLE_SESSIONS: Final[LiteralString] = """
select k.agent from (
  (select n.agent, n.last_at from sessions n
    where n.tenant = $1 and n.type = $2 and n.last_at < $3 and n.is_deleting
    order by n.last_at limit $4)
  union all
  (select n.agent, n.last_at from sessions n
    cross join lateral (select count(*) as open from (
      select from runs r where r.agent = n.agent and r.ended_at is null offset 0) o) r
    where n.tenant = $1 and n.type = $2 and n.last_at < $3
      and n.created_at is not null and not n.is_deleting and r.open = 0
    order by n.last_at limit $4)) k
  order by k.last_at, k.agent limit $4
"""
SQL_FACTS: Final[LiteralString] = """
select w.i::int, f.number, f.kind, f.run_id, f.ahead, f.at
  from unnest($1::text[], $2::int[], $3::int[]) with ordinality w(agent, after, most, i)
  cross join lateral (select * from session_facts n
    where n.agent = w.agent and n.number > w.after order by n.number limit w.most) f
  order by w.i, f.number
"""
SQL_QUEUED_FACT: Final[LiteralString] = """
select w.i::int, f.number, f.kind, f.run_id, f.ahead, f.at
  from unnest($1::text[], $2::text[]) with ordinality w(agent, run_id, i)
  cross join lateral (
    select q.* from (select * from session_facts n
      where n.run_id = w.run_id and n.kind = 'queued' offset 0) q
    where q.agent = w.agent order by q.number limit 1) f
"""
NODE: Final[LiteralString] = (
    "t.ordinal, t.id, t.run_id, t.follows as parent, t.tokens, t.body, t.at, t.artifact"
)
"""Columns of a turn: those of `COLUMNS`, but with the node that the turn follows as its parent."""
SQL_PATH: Final[LiteralString] = f"""
select {NODE} from (
    select p.*, coalesce(lag(p.id) over (order by p.ordinal), parent_node($1, $2, p.ordinal)) as follows
      from turns_on_path($1, $2, $3::int + 1, $4, false) p) t
  order by t.ordinal
"""  # noqa: S608 - constants only
SQL_PATHS: Final[LiteralString] = f"""
select {NODE} from (
    select p.*, parent_node($1, $2, p.ordinal) as follows from transcript_turns p
      where p.agent = $1 and p.session = $2 and p.ordinal > $3 order by p.ordinal limit $4) t
  order by t.ordinal
"""  # noqa: S608 - constants only
"""The same of all branches."""
SQL_NODES: Final[LiteralString] = f"""
select w.i::int, {NODE}
  from unnest($1::text[], $2::text[], $3::text[]) with ordinality w(agent, session, ids, i)
  cross join lateral turns_by_id(w.agent, w.session, array(select json_array_elements_text(w.ids::json))) t
  order by w.i, t.ordinal
"""  # noqa: S608 - constants only
"""Turns of several conversations; the ids of each are a JSON array."""
SQL_SWITCH_SESSION: Final[LiteralString] = (
    "select outcome, runs from switch_session($1, $2, $3, $4)"
)
SQL_BEGIN_DELETE: Final[LiteralString] = (
    "select outcome, runs from begin_delete_session($1, $2, $3, $4)"
)
SQL_FINISH_DELETE: Final[LiteralString] = "select gone, more from finish_delete_session($1, $2)"


class PostgresSessions(SessionStore):
    """A `SessionStore` on PostgreSQL.

    Args:
        links: Connections, each for one statement at a time.
        keyed: Connections for reads by key. Equal questions of many callers are one statement, and a long
            read of turns does not delay the read of a session's row.
        transcripts: The transcripts of the same schema.
        readers: The readers that writers of facts in this process notify.
    """

    def __init__(
        self, links: Links, keyed: Links, transcripts: Transcripts, readers: FactReaders
    ) -> None:
        self._links, self._keyed = links, keyed
        self._transcripts, self._readers = transcripts, readers
        self._rows = lookups(
            partial(keyed.fetch, "reading a session", SQL_SELECT_KNOWN_SESSION),
            lambda _, rows: session_of(rows[0]) if rows else None,
            by="agent",
        )
        self._facts = lookups(self._fetch_facts, _facts, limit=FACT_READERS)
        self._queued = lookups(self._fetch_queued, _facts)
        self._nodes = lookups(self._fetch_nodes, _rows, limit=NODE_READERS)
        self.batchers = (self._rows, self._facts, self._queued, self._nodes)

    @override
    async def get(self, agent: AgentId) -> SessionRow | None:
        return await self._rows.call(str(agent))

    @override
    async def recent(
        self, tenant: str, type_: str, *, limit: int = 100, before: datetime | None = None
    ) -> list[SessionRow]:
        args = (tenant, type_, limit, before)
        rows = await self._links.fetch("listing sessions", SQL_SELECT_KNOWN_SESSIONS, *args)
        return [session_of(row) for row in rows]

    @override
    async def facts(
        self, agent: AgentId, *, after: int = NO_FACT, limit: int = 1000
    ) -> list[SessionFact]:
        return await self._facts.call((str(agent), after, limit))

    async def _fetch_facts(self, questions: list[tuple[str, int, int]]) -> list[Row]:
        return await self._keyed.fetch("reading facts", SQL_FACTS, *columns(questions, 3))

    @override
    async def queued(self, agent: AgentId, run_id: RunId) -> SessionFact | None:
        if (fact := self._readers.take_queued(agent, run_id)) is not None:
            return fact
        facts = await self._queued.call((str(agent), run_id))
        return facts[0] if facts else None

    async def _fetch_queued(self, questions: list[tuple[str, RunId]]) -> list[Row]:
        return await self._keyed.fetch("reading facts", SQL_QUEUED_FACT, *columns(questions, 2))

    @override
    async def tail(self, agent: AgentId, *, after: int = NO_FACT) -> AsyncIterator[SessionFact]:
        """Facts are seen at once; those that another process writes in half a second if its hint is lost.

        Other processes notify of a session that has readers, and of no other.
        """
        was_there, news = False, asyncio.Event()
        with self._readers.waiting(agent, after) as reader:
            reader.on_news = news.set
            await self._readers.watch(agent)
            while True:
                news.clear()
                facts = reader.take()
                if reader.has_to_read and not facts:
                    reader.has_to_read = False
                    facts = await self.facts(agent, after=reader.begin - 1, limit=TAIL_PAGE)
                    reader.has_to_read |= len(facts) == TAIL_PAGE
                for fact in facts:
                    reader.begin = fact.number + 1
                    yield fact
                if facts and not was_there:  # it may have been created after its notification
                    was_there = True
                    reader.has_to_read |= await self._readers.watch(agent, is_there=True)
                if not reader.has_to_read:
                    await news.wait()

    @override
    async def path(
        self,
        agent: AgentId,
        *,
        after: int = NO_CUT,
        limit: int | None = None,
        branches: bool = False,
    ) -> list[Turn]:
        statement = SQL_PATHS if branches else SQL_PATH

        async def read(behind: int, most: int | None) -> Sequence[Row]:
            args = (str(agent), agent.key, behind, most)
            return await self._links.fetch("reading a path", statement, *args)

        return await self._transcripts.page_of(agent, read, after=after, limit=limit)

    @override
    async def nodes(self, agent: AgentId, ids: Sequence[str]) -> list[Turn]:
        node_ids = [n for n in ids if is_name(n)]  # no other text is the id of anything
        rows = await self._nodes.call((str(agent), agent.key, json_text(node_ids, "ids of nodes")))
        return await self._transcripts.turns_of(agent, rows)

    async def _fetch_nodes(self, questions: list[tuple[str, str, str]]) -> list[Row]:
        return await self._keyed.fetch("reading nodes", SQL_NODES, *columns(questions, 3))

    @override
    async def switch(self, agent: AgentId, node: str) -> None:
        if not is_name(node):
            raise UnknownNodeError(str(agent), node)
        args = (str(agent), partition_hash(agent), agent.key, node)
        [row] = await self._links.fetch("switching a session", SQL_SWITCH_SESSION, *args)
        match row["outcome"]:
            case "unknown":
                raise UnknownSessionError(str(agent))
            case "active":
                raise SessionActiveError(str(agent), row["runs"])
            case "node":
                raise UnknownNodeError(str(agent), node)

    @override
    async def page(
        self,
        tenant: str,
        type_: str,
        *,
        project: str | None = None,
        owner: str | None = None,
        after: AgentId | None = None,
        limit: int = 100,
    ) -> list[AgentId]:
        app = str(AgentId(type_, "-", tenant)).removesuffix("/-")
        first = f"{app}/" if after is None else str(after)
        end = f"{app}0"  # "0" follows "/": the ids of an app are contiguous in the order of keys
        args = (tenant, type_, project, first, end, limit)
        if owner is None:
            rows = await self._links.fetch("listing sessions", SQL_PAGE_OF_SESSIONS, *args)
        else:
            rows = await self._links.fetch(
                "listing sessions", SQL_PAGE_OF_OWN_SESSIONS, *args, owner
            )
        return [AgentId.parse(row["agent"]) for row in rows]

    @override
    async def idle(
        self, tenant: str, type_: str, *, before: datetime, limit: int = 100
    ) -> list[AgentId]:
        args = (tenant, type_, before, limit)
        rows = await self._links.fetch("looking for idle sessions", SQL_IDLE_SESSIONS, *args)
        return [AgentId.parse(row["agent"]) for row in rows]

    @override
    async def begin_delete(self, agent: AgentId, *, unless_since: datetime | None = None) -> bool:
        args = (str(agent), partition_hash(agent), agent.key, unless_since)
        [row] = await self._links.fetch("deleting a session", SQL_BEGIN_DELETE, *args)
        if row["outcome"] == "active":
            raise SessionActiveError(str(agent), row["runs"])
        self._readers.forget(agent)
        return bool(row["outcome"] == "ok")

    @override
    async def finish_delete(self, agent: AgentId) -> int:
        """Facts go in batches: after a crash in between the session is still being deleted."""
        total, has_more = 0, True
        while has_more:
            args = (str(agent), DELETE_BATCH)
            [row] = await self._links.fetch("deleting a session", SQL_FINISH_DELETE, *args)
            total, has_more = total + row["gone"], row["more"]
        return total


def _rows(_: object, rows: list[Row]) -> list[Row]:
    return rows


def _facts(_: object, rows: list[Row]) -> list[SessionFact]:
    return [SessionFact(*row[1:]) for row in rows]


def session_of(row: Row) -> SessionRow:
    """Return what a statement has read by `SESSION`."""
    return SessionRow(
        AgentId.parse(row["agent"]),
        row["project"],
        row["last_fact"],
        row["open_runs"],
        row["head"],
        row["created_at"],
        row["last_at"],
        row["title"],
        decoded_object(row["metadata"]),
        row["owner"],
    )


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
        folded_title = None if title is None else new.title.casefold()
        text = None if metadata is None else _text_of(new.metadata)
        args = (str(agent), title, folded_title, text)
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
        sessions = [session_of(row) for row in rows]
        if not sessions or rows[-1]["is_found"]:
            return FoundSessions(sessions)
        last = sessions.pop()
        return FoundSessions(sessions, SessionPlace(last.last_at, last.agent_id))

    @override
    async def is_deleted(self, agent: AgentId, *, owner: str | None = None) -> bool:
        args = (str(agent), owner)
        rows = await self._links.fetch("reading a session", SQL_SESSION_IS_DELETED, *args)
        return bool(rows and rows[0]["is_deleted"])


def _text_of(metadata: Mapping[str, JsonValue]) -> str:
    return metadata_text(metadata, what="metadata of a session")
