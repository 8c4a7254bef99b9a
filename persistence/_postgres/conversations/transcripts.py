"""Conversations of agents as rows, and the history of a program that has no runtime.

See `schema/migrations/0030_transcripts.sql`. Such a program reads and writes the rows of runs from outside.
"""

from __future__ import annotations

import json
import re
from collections.abc import Awaitable, Callable, Sequence
from datetime import datetime
from functools import lru_cache
from operator import itemgetter
from typing import Any, Final, LiteralString, TypeAlias

from pydantic import TypeAdapter
from pydantic_core import from_json
from typing_extensions import override

from actors._kernel.agent.message import ChatMessage
from actors._kernel.agent.transcript import (
    NO_CUT,
    Cut,
    NewTurn,
    SessionInfo,
    SessionView,
    Turn,
    check_page,
    marks_of,
    message_of_turn,
    new_turn,
)
from actors._kernel.json import Unreadable, read_or
from actors._kernel.json_data import MAX_DIGITS
from actors._kernel.runtime.ids import AgentId
from actors._kernel.stores.artifacts import ArtifactRef
from actors._kernel.stores.conversations import HistoryProvider, TranscriptStore
from persistence._postgres.commits.encode import json_text
from persistence._postgres.commits.unit import ArtifactsOf, TranscriptRows, put_apart, turn_rows
from persistence._postgres.connection.link import Links, Row

ReadTurns: TypeAlias = Callable[[int, int | None], Awaitable[Sequence[Row]]]
"""Returns a limited number of turns with larger ordinals than the given one, oldest first."""

KEPT_TURNS: Final = 2_048
"""Number of decoded turns of all sessions that stay in memory: those that windows used last."""
KEPT_CHARS: Final = 4_096
"""Longest JSON of a turn that stays in memory: all of them together are a few MiB at most."""

_CHANGES: Final = TypeAdapter(dict[str, ChatMessage | None])
_ROLE: Final = re.compile(r'"role"\s*:\s*"(system|user|assistant|tool)"')
COLUMNS: Final[LiteralString] = (
    "t.ordinal, t.id, t.run_id, t.parent, t.tokens, t.body, t.at, t.artifact"
)
"""Columns of a turn, as `Transcripts.turns_of` reads them."""

SQL_VIEW: Final[LiteralString] = """
with s as materialized (
  select turns, cut_upto, cut_strategy, cut_run, cut_summary, cut_at, cut_changes,
    path is not null as branches
    from transcripts where agent = $1 and session = $2)
select -1 as ordinal, null as id, null::int as tokens, null as parent, row_to_json(s) as body,
    null as artifact
  from s
union all (
  select t.ordinal, t.id, t.tokens, t.parent, t.body, t.artifact from transcript_turns t
    where t.agent = $1 and t.session = $2 and (select not s.branches from s)
      and t.ordinal > (select case when $4 then -1 else s.cut_upto end from s)
    order by t.ordinal desc limit $3)
"""
"""The session's own row, whose ordinal is -1, and turns: narrow rows, for each window is made of some.

No turn of a session that branches: see `SQL_VIEW_PATH`.
"""
SQL_VIEW_PATH: Final[LiteralString] = """
with s as materialized (
  select turns, cut_upto, cut_strategy, cut_run, cut_summary, cut_at, cut_changes
    from transcripts where agent = $1 and session = $2)
select -1 as ordinal, null as id, null::int as tokens, null as parent, row_to_json(s) as body,
    null as artifact
  from s
union all
select t.ordinal, t.id, t.tokens, t.parent, t.body, t.artifact
  from s cross join lateral
    turns_on_path($1, $2, case when $4 then 0 else s.cut_upto + 1 end, $3::int, true) t
"""
"""The same of any session: turns of each part of its path."""
SQL_PAGE: Final[LiteralString] = f"""
with s as materialized (
  select path is not null and not $6 as branches from transcripts where agent = $1 and session = $2)
select null::int as ordinal, null as id, null as run_id, null as parent, null::int as tokens,
    null::json as body, null::timestamptz as at, null as artifact
  from s where s.branches
union all (
  select {COLUMNS} from transcript_turns t
    where t.agent = $1 and t.session = $2 and t.ordinal > $5
      and coalesce((select not s.branches from s), true)
    order by t.ordinal limit $3 offset $4)
"""  # noqa: S608 - constants only
"""Turns; of a session that branches one row, whose ordinal is null: see `SQL_PAGE_PATH`."""
SQL_PAGE_PATH: Final[LiteralString] = f"""
select {COLUMNS} from turns_on_path($1, $2, $5::int + 1, $3::int + $4::int, false) t
  order by t.ordinal offset $4
"""  # noqa: S608 - constants only
SQL_COUNT: Final[LiteralString] = """
select case when s.path is null then s.turns else count_on_path($1, $2, s.path) end as turns
  from transcripts s where s.agent = $1 and s.session = $2
"""
SQL_APPEND: Final[LiteralString] = (
    "select write_transcripts($1::json, $2::text[], $3::text[], '{}')"
)
SQL_CLEAR: Final[LiteralString] = "select clear_transcript($1, $2)"
SQL_CLEAR_RUN: Final[LiteralString] = "select forget_turns(array[$1::text], $2, $3)"
SQL_SESSIONS: Final[LiteralString] = """
select s.session, s.turns, s.tokens, s.first_at, s.last_at from transcripts s
  where s.agent = $1 order by s.last_at desc, s.session limit $2
"""


class Transcripts(TranscriptStore):
    """A `TranscriptStore` on PostgreSQL. What runs add is written by the committer."""

    def __init__(self, links: Links, artifacts_of: ArtifactsOf) -> None:
        self._links, self._artifacts_of = links, artifacts_of

    @override
    async def view(
        self, agent: AgentId, session: str, *, limit: int, whole: bool = False
    ) -> SessionView:
        args = (str(agent), session, limit, whole)
        rows = await self._links.fetch("reading a conversation", SQL_VIEW, *args)
        if not rows:
            return SessionView(None, (), {}, 0)
        session_row, turns = _split(rows)
        if session_row["branches"]:
            rows = await self._links.fetch("reading a conversation", SQL_VIEW_PATH, *args)
            if not rows:  # it was cleared meanwhile
                return SessionView(None, (), {}, 0)
            session_row, turns = _split(rows)
        messages, ordinals = list[ChatMessage](), dict[str, int]()
        for row in turns:
            ordinal, turn, tokens, parent, text, artifact = row  # twice as fast as by their names
            if artifact is not None and (text := await self._text(agent, text, artifact)) is None:
                continue
            decode = _decode_cached if len(text) <= KEPT_CHARS else _decode
            messages.append(decode(text, turn, tokens, parent))
            ordinals[turn] = ordinal
        return SessionView(_cut(session_row), tuple(messages), ordinals, session_row["turns"])

    @override
    async def page(
        self,
        agent: AgentId,
        session: str,
        *,
        limit: int | None = None,
        offset: int = 0,
        after: int = NO_CUT,
        branches: bool = False,
    ) -> list[Turn]:
        async def read(behind: int, most: int | None) -> Sequence[Row]:
            skipped = offset if behind == after else 0
            args = (str(agent), session, most, skipped, behind)
            rows = await self._links.fetch("reading a conversation", SQL_PAGE, *args, branches)
            if rows and rows[0]["ordinal"] is None:
                rows = await self._links.fetch("reading a conversation", SQL_PAGE_PATH, *args)
            return rows

        return await self.page_of(agent, read, after=after, limit=limit)

    async def page_of(
        self, agent: AgentId, read: ReadTurns, *, after: int, limit: int | None
    ) -> list[Turn]:
        """Return turns with larger ordinals. For each turn without its bytes a later turn is read instead."""
        turns = list[Turn]()
        while True:
            missing_count = None if limit is None else limit - len(turns)
            rows = await read(after, missing_count)
            turns += await self.turns_of(agent, rows)
            if missing_count is None or len(rows) < missing_count or len(turns) == limit:
                return turns
            after = rows[-1]["ordinal"]

    async def turns_of(self, agent: AgentId, rows: Sequence[Row]) -> list[Turn]:
        """Return the turns of these rows, without turns whose artifact was removed."""
        turns = list[Turn]()
        for row in rows:
            text: str | bytes | None = row["body"]
            if row["artifact"] is not None:
                text = await self._text(agent, row["body"], row["artifact"])
            if text is not None:
                turns.append(_turn(row, text))
        return turns

    @override
    async def count(self, agent: AgentId, session: str) -> int:
        rows = await self._links.fetch("counting turns", SQL_COUNT, str(agent), session)
        return rows[0]["turns"] if rows else 0

    @override
    async def append(self, agent: AgentId, turns: Sequence[NewTurn], *, run_id: str = "") -> None:
        if not turns:
            return
        rows: TranscriptRows = {"turns": turn_rows(turns, agent.key)}
        await put_apart(rows, agent, self._artifacts_of)
        writes = {
            name: [{"t": 1, **(row or {})} for row in relation_rows]
            for name, relation_rows in rows.items()
        }
        text = json_text(writes, "turn")
        await self._links.fetch("adding turns", SQL_APPEND, text, [run_id], [str(agent)])

    @override
    async def clear(self, agent: AgentId, session: str) -> None:
        await self._links.fetch("clearing a conversation", SQL_CLEAR, str(agent), session)

    @override
    async def clear_run(self, agent: AgentId, session: str | None, run_id: str) -> None:
        await self._links.fetch(
            "clearing turns of a run", SQL_CLEAR_RUN, run_id, session, str(agent)
        )

    @override
    async def sessions(self, agent: AgentId, *, limit: int = 100) -> list[SessionInfo]:
        rows = await self._links.fetch("listing conversations", SQL_SESSIONS, str(agent), limit)
        return [SessionInfo(*row.values()) for row in rows]

    async def _text(self, agent: AgentId, body: str, scope: str) -> bytes | None:
        """Return the JSON of a turn that is an artifact, or None if it was cleared meanwhile."""
        ref = ArtifactRef.model_validate(from_json(body)["artifact"])
        try:
            return await self._artifacts_of(agent.tenant, scope).resolve(ref)
        except KeyError:
            return None


def _split(rows: Sequence[Row]) -> tuple[dict[str, Any], list[Row]]:
    """Return the session's own row as an object, and its turns by their ordinals."""
    session_row, *turns = sorted(rows, key=itemgetter(0))
    body: str = session_row["body"]
    return read_or(body, from_json, lambda _: json.loads(body, parse_int=_parse_int)), turns


def _parse_int(text: str) -> int:
    """Return an integer; 0 for one that is too long, so that the session's other columns are read."""
    return int(text) if len(text) <= MAX_DIGITS else 0


def _decode(
    text: str | bytes, turn_id: str, tokens: int | None, parent_id: str | None
) -> ChatMessage:
    """Return a turn as `message_of_turn` does."""
    message = _message(text)
    for key, mark in marks_of(turn_id, tokens, parent_id).items():
        message.metadata.setdefault(key, mark)
    return message


_decode_cached = lru_cache(maxsize=KEPT_TURNS)(_decode)
"""The same turns are read for each window of a session."""


def _turn(row: Row, text: str | bytes) -> Turn:
    return Turn(
        row["ordinal"],
        row["id"],
        row["run_id"],
        _message(text),
        row["tokens"],
        row["parent"],
        row["at"],
    )


def _no_summary(problem: Unreadable) -> ChatMessage:
    return ChatMessage.of("system", f"[The summary {problem}]")


def _message(text: str | bytes) -> ChatMessage:
    """Return a stored turn. In place of one that cannot be read, its author says so."""

    def unreadable(problem: Unreadable) -> ChatMessage:
        whole = text if isinstance(text, str) else text.decode(errors="replace")
        role = _ROLE.search(whole)
        author: Any = role[1] if role is not None else "user"
        return ChatMessage.of(author, f"[This message {problem}]")

    return read_or(text, ChatMessage.model_validate_json, unreadable)


def _cut(session: dict[str, Any]) -> Cut | None:
    if session["cut_upto"] < 0 and session["cut_strategy"] is None:
        return None
    summary, changes = session["cut_summary"], session["cut_changes"] or {}
    return Cut(
        session["cut_upto"],
        session["cut_strategy"],
        session["cut_run"],
        None if summary is None else read_or(summary, ChatMessage.model_validate, _no_summary),
        datetime.fromisoformat(session["cut_at"]),
        read_or(changes, _CHANGES.validate_python, lambda _: {}),  # the turns themselves are shown
    )


class PostgresHistoryProvider(HistoryProvider):
    """A durable `HistoryProvider`: turns are rows, which SQL may read. Made by `open_postgres_history`.

    A turn that was given without an id comes back with one.

    Args:
        transcripts: The sessions of one schema.
    """

    def __init__(self, transcripts: TranscriptStore) -> None:
        self._transcripts = transcripts

    @override
    async def append(
        self, agent_id: AgentId, message: ChatMessage, *, session_id: str, run_id: str = ""
    ) -> None:
        await self.append_many(agent_id, [message], session_id=session_id, run_id=run_id)

    @override
    async def append_many(
        self,
        agent_id: AgentId,
        messages: Sequence[ChatMessage],
        *,
        session_id: str,
        run_id: str = "",
    ) -> None:
        turns = [new_turn(message, session_id) for message in messages]
        await self._transcripts.append(agent_id, turns, run_id=run_id)

    @override
    async def get_messages(
        self, agent_id: AgentId, *, session_id: str, limit: int | None = None, offset: int = 0
    ) -> list[ChatMessage]:
        check_page(limit, offset)
        turns = await self._transcripts.page(agent_id, session_id, limit=limit, offset=offset)
        return [message_of_turn(turn) for turn in turns]

    @override
    async def clear(self, agent_id: AgentId, *, session_id: str) -> None:
        await self._transcripts.clear(agent_id, session_id)

    @override
    async def clear_run(self, agent_id: AgentId, *, session_id: str, run_id: str) -> None:
        await self._transcripts.clear_run(agent_id, session_id, run_id)

    @override
    async def count_messages(self, agent_id: AgentId, *, session_id: str) -> int:
        return await self._transcripts.count(agent_id, session_id)
