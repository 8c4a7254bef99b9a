"""Erasure and retention on PostgreSQL: what is asked to go, and what is old, in small batches.

Each batch of an erasure is one statement, whose rows are bounded by the functions `erase_…`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import Final, LiteralString, TypeAlias

from pydantic_core import from_json, to_json
from typing_extensions import override

from actors._kernel.memory_rules import memory_scopes
from actors._kernel.runtime.ids import AgentId, HostIncarnation, RunId, partition_hash
from actors._kernel.stores.administration import (
    ERASE_BATCH,
    Erasable,
    EraseCount,
    EraseRequest,
    EraseScope,
    ErasureStore,
)
from actors._kernel.stores.errors import OpenRunsError
from actors._kernel.stores.forgotten import Forgotten
from actors._kernel.stores.runs import RetentionStore, agent_scope
from persistence._postgres.administration.tables import PostgresFlowBundles, PostgresTokens
from persistence._postgres.connection.link import Links, Row
from persistence.errors import IndexInUseError

SQL_ERASE_MAIL: Final[LiteralString] = (
    "select schedules, posts, messages, letters, after from erase_mail($1, $2, $3, $4)"
)
SQL_ERASE_RUNS: Final[LiteralString] = (
    "select runs, entries, letters, more from erase_runs($1, $2, $3, null, $4)"
)
SQL_ERASE_TURNS: Final[LiteralString] = (
    "select sessions, turns, runs, entries, letters, more from erase_turns($1, $2, $3)"
)
SQL_ERASE_SESSIONS: Final[LiteralString] = (
    "select sessions, facts, more from erase_sessions($1, $2, $3)"
)
SQL_ERASE_ARTIFACTS: Final[LiteralString] = (
    "select artifacts, chunks, more from erase_artifacts($1, $2, $3)"
)
SQL_ERASE_BOARDS: Final[LiteralString] = "select erase_boards($1, $2, $3, $4) as boards"
SQL_ERASE_AUDIT: Final[LiteralString] = "select erase_audit($1, $2, $3) as audit"
SQL_ERASE_SNAPSHOTS: Final[LiteralString] = "select erase_snapshots($1, $2, $3) as snapshots"
SQL_ERASE_MEMORIES: Final[LiteralString] = (
    "select versions, about, slot from erase_memories($1, $2, $3, $4, $5)"
)
SQL_ERASE_FILES: Final[LiteralString] = "select erase_files($1, $2) as files"
SQL_ERASE_DOCUMENTS: Final[LiteralString] = (
    "select documents, collection, id, more from erase_documents($1, $2, $3, $4, $5)"
)
SQL_ERASE_GRAPH: Final[LiteralString] = (
    "select entities, relationships, step, after from erase_graph($1, $2, $3, $4, $5)"
)
SQL_ERASE_INDEXES: Final[LiteralString] = "select indexes, more from erase_indexes($1, $2)"
SQL_AGENTS_TO_ERASE: Final[LiteralString] = "select agents_to_erase($1, $2, 1) as agent"
SQL_PREVIEW_ERASE: Final[LiteralString] = (
    "select kind, n from preview_erase($1, $2, $3, $4, $5, $6)"
)
SQL_OPEN_RUNS_TO_ERASE: Final[LiteralString] = """
select r.run_id, r.agent from runs r
  where r.open and r.ended_at is null and r.tenant = $1 and ($2::text is null or r.agent = $2)
  order by r.run_id limit $3
"""

INDEX_TRIES: Final = 100
"""Tries to drop one index, each of which waits a tenth of a second at most."""
_AGAIN: Final = "+"
"""The cursor of a store that needs none, as long as there is more."""
RemoveObjects: TypeAlias = Callable[[int], Awaitable[int]]
_Step: TypeAlias = Callable[[Links, EraseRequest, str | None, int], Awaitable[EraseCount]]
"""Function that removes one batch: rows after a cursor, at most that many of each kind."""
_ALONE: Final = (EraseScope.TENANT,)
_OF_AGENTS: Final = (EraseScope.TENANT, EraseScope.AGENT)
_OF_SESSIONS: Final = (*_OF_AGENTS, EraseScope.SESSION)
_OF_SUBJECTS: Final = (EraseScope.TENANT, EraseScope.SUBJECT)
_OF_MEMORIES: Final = (*_OF_AGENTS, EraseScope.SUBJECT)


class PostgresErasure(ErasureStore):
    """The parts of an erase on PostgreSQL. Tables that no store has made yet are left out.

    Args:
        links: Connections, each for one statement at a time.
        retention: Forgets single agents.
        remove_objects: Removes objects of artifacts that are gone, at most so many; returns how many.
    """

    def __init__(
        self, links: Links, retention: RetentionStore, remove_objects: RemoveObjects
    ) -> None:
        self._links = links
        self.parts: Sequence[Erasable] = (
            PostgresTokens(links),  # first: no client adds to a tenant while it is erased
            _PostgresPart(links, "mail", _OF_AGENTS, _erase_messages),
            _PostgresPart(links, "conversations", _OF_SESSIONS, _erase_turns),
            _PostgresPart(links, "runs", _OF_AGENTS, _erase_runs),
            _PostgresPart(links, "snapshots", _OF_AGENTS, _erase_snapshots),  # no run: no new one
            _PostgresPart(links, "sessions", _OF_AGENTS, _erase_sessions),
            _PostgresPart(links, "boards", _OF_SESSIONS, _erase_boards),
            _PostgresPart(links, "files", _ALONE, _erase_files),
            PostgresFlowBundles(links),
            _PostgresPart(links, "audit", _OF_AGENTS, _erase_audit),
            _PostgresPart(
                links,
                "artifacts",
                _OF_AGENTS,
                partial(_erase_artifacts, remove_objects=remove_objects),
            ),
            _PostgresPart(links, "agents", _OF_AGENTS, partial(_erase_agents, retention=retention)),
            _PostgresPart(links, "memories", _OF_MEMORIES, _erase_memories),
            _PostgresPart(links, "documents", _OF_SUBJECTS, _erase_documents),
            _PostgresPart(links, "graph", _OF_SUBJECTS, _erase_graph),
            _PostgresPart(links, "indexes", _OF_MEMORIES, _erase_indexes),
        )

    @override
    async def open_runs(self, what: EraseRequest, *, limit: int) -> list[tuple[RunId, AgentId]]:
        if what.scope is EraseScope.SUBJECT:
            return []
        args = (what.tenant, _agent(what), limit)
        rows = await self._links.fetch("looking for open runs", SQL_OPEN_RUNS_TO_ERASE, *args)
        return [(RunId(row["run_id"]), AgentId.parse(row["agent"])) for row in rows]


@dataclass(slots=True)
class _PostgresPart(Erasable):
    """A store of the schema.

    Attributes:
        links: Connections, each for one statement at a time.
        erased_as: Name of the store in a report of an erase.
        scopes: Scopes of which this store has rows.
        step: Function that removes a batch of such rows.
    """

    links: Links
    erased_as: str
    scopes: tuple[EraseScope, ...]
    step: _Step

    @override
    async def erase(
        self, what: EraseRequest, *, cursor: str | None = None, limit: int = ERASE_BATCH
    ) -> EraseCount:
        if what.scope not in self.scopes:
            return EraseCount()
        return await self.step(self.links, what, cursor, limit)

    @override
    async def count(self, what: EraseRequest) -> Mapping[str, int]:
        args = (what.tenant, _agent(what), _hash(what), what.session, what.about, self.erased_as)
        rows = await self.links.fetch("counting what is erased", SQL_PREVIEW_ERASE, *args)
        return {row["kind"]: row["n"] for row in rows}


async def _erase_messages(
    links: Links, what: EraseRequest, cursor: str | None, limit: int
) -> EraseCount:
    args = (what.tenant, _agent(what), int(cursor or 0), limit)
    [row] = await links.fetch("erasing messages", SQL_ERASE_MAIL, *args)
    after = row["after"]
    rows = _rows(row, "schedules posts messages letters")
    return EraseCount(rows, None if after is None else str(after))


async def _erase_turns(
    links: Links, what: EraseRequest, cursor: str | None, limit: int
) -> EraseCount:
    """Remove turns; those of a tenant go agent by agent."""
    agent = _agent(what) or await _next_agent(links, what.tenant, cursor)
    if agent is None:
        return EraseCount()
    [row] = await links.fetch("erasing turns", SQL_ERASE_TURNS, agent, what.session, limit)
    rows = _rows(row, "sessions turns runs entries letters")
    return EraseCount(rows, _cursor_after(agent, what, cursor, more=row["more"]))


async def _erase_runs(
    links: Links, what: EraseRequest, cursor: str | None, limit: int
) -> EraseCount:
    del cursor
    args = (what.tenant, _agent(what), _hash(what), limit)
    [row] = await links.fetch("erasing runs", SQL_ERASE_RUNS, *args)
    return EraseCount(_rows(row, "runs entries letters"), _AGAIN if row["more"] else None)


async def _erase_sessions(
    links: Links, what: EraseRequest, cursor: str | None, limit: int
) -> EraseCount:
    """Remove facts of sessions, and each session after its last fact; those of a tenant agent by agent.

    A session whose deletion is under way is removed only with its tenant, because the deletion uses its row.
    """
    agent = _agent(what) or await _next_agent(links, what.tenant, cursor)
    if agent is None:
        return EraseCount()
    args = (agent, what.agent is None, limit)
    [row] = await links.fetch("erasing sessions", SQL_ERASE_SESSIONS, *args)
    return EraseCount(
        _rows(row, "sessions facts"), _cursor_after(agent, what, cursor, more=row["more"])
    )


async def _erase_agents(
    links: Links, what: EraseRequest, cursor: str | None, limit: int, *, retention: RetentionStore
) -> EraseCount:
    """Remove state, follows and mailboxes; see `RetentionStore.forget_agent`."""
    agent_text = _agent(what) or await _next_agent(links, what.tenant, cursor)
    if agent_text is None:
        return EraseCount()
    agent = AgentId.parse(agent_text)
    report = await retention.forget_agent(agent, limit=limit)
    if report.open_run is not None:
        remedy = "it began during the erase: erase again to finish, with cancel=True to stop it"
        raise OpenRunsError(str(agent), report.open_run, remedy)
    rows = {
        "state": report.state,
        "follows": report.follows,
        "messages": report.messages,
        "letters": report.letters,
        "runs": report.runs,
    }
    return EraseCount(rows, _cursor_after(agent_text, what, cursor, more=report.more))


async def _erase_snapshots(
    links: Links, what: EraseRequest, cursor: str | None, limit: int
) -> EraseCount:
    del cursor
    args = (what.tenant, _agent(what), limit)
    [row] = await links.fetch("erasing snapshots", SQL_ERASE_SNAPSHOTS, *args)
    return EraseCount(_rows(row, "snapshots"), _AGAIN if row["snapshots"] == limit else None)


async def _erase_audit(
    links: Links, what: EraseRequest, cursor: str | None, limit: int
) -> EraseCount:
    """Delete rows of a tenant; clear the values of those of an agent."""
    del cursor
    [row] = await links.fetch(
        "erasing audit rows", SQL_ERASE_AUDIT, what.tenant, _agent(what), limit
    )
    return EraseCount(_rows(row, "audit"), _AGAIN if row["audit"] == limit else None)


async def _erase_boards(
    links: Links, what: EraseRequest, cursor: str | None, limit: int
) -> EraseCount:
    del cursor
    args = (what.tenant, _agent(what), what.session, limit)
    [row] = await links.fetch("erasing boards", SQL_ERASE_BOARDS, *args)
    return EraseCount(_rows(row, "boards"), _AGAIN if row["boards"] == limit else None)


async def _erase_files(
    links: Links, what: EraseRequest, cursor: str | None, limit: int
) -> EraseCount:
    del cursor
    [row] = await links.fetch("erasing files", SQL_ERASE_FILES, what.tenant, limit)
    return EraseCount(_rows(row, "files"), _AGAIN if row["files"] == limit else None)


async def _erase_artifacts(
    links: Links,
    what: EraseRequest,
    cursor: str | None,
    limit: int,
    *,
    remove_objects: RemoveObjects,
) -> EraseCount:
    """Remove artifacts, and the objects of these and of others that are gone."""
    del cursor
    scope = None if what.agent is None else agent_scope(what.agent)
    [row] = await links.fetch("erasing artifacts", SQL_ERASE_ARTIFACTS, what.tenant, scope, limit)
    removed_count = await remove_objects(limit)
    is_done = not row["more"] and removed_count < limit
    return EraseCount(_rows(row, "artifacts"), None if is_done else _AGAIN)


async def _erase_memories(
    links: Links, what: EraseRequest, cursor: str | None, limit: int
) -> EraseCount:
    about, slot = ("", "") if cursor is None else from_json(cursor)
    args = (what.tenant, memory_scopes(what), limit, about, slot)
    [row] = await links.fetch("erasing memories", SQL_ERASE_MEMORIES, *args)
    next_cursor = to_json((row["about"] or "", row["slot"] or "")).decode()
    return EraseCount(_rows(row, "versions"), next_cursor if row["versions"] == limit else None)


async def _erase_documents(
    links: Links, what: EraseRequest, cursor: str | None, limit: int
) -> EraseCount:
    collection, id_ = ("", "") if cursor is None else from_json(cursor)
    args = (what.tenant, what.about, collection, id_, limit)
    [row] = await links.fetch("erasing documents", SQL_ERASE_DOCUMENTS, *args)
    next_cursor = to_json((row["collection"] or "", row["id"] or "")).decode()
    return EraseCount(_rows(row, "documents"), next_cursor if row["more"] else None)


async def _erase_graph(
    links: Links, what: EraseRequest, cursor: str | None, limit: int
) -> EraseCount:
    step, after = ("e", "") if cursor is None else (cursor[0], cursor[1:])
    args = (what.tenant, what.about, step, after, limit)
    [row] = await links.fetch("erasing a graph", SQL_ERASE_GRAPH, *args)
    rows = _rows(row, "entities relationships")
    return EraseCount(rows, None if row["step"] is None else row["step"] + row["after"])


async def _erase_indexes(
    links: Links, what: EraseRequest, cursor: str | None, limit: int
) -> EraseCount:
    """Drop the indexes of what was erased, one in a statement; the cursor counts tries in vain."""
    del limit
    args = (what.tenant, memory_scopes(what))
    [row] = await links.fetch("dropping an index", SQL_ERASE_INDEXES, *args)
    tries = 0 if row["indexes"] else int(cursor or 0) + 1
    if row["more"] and tries == INDEX_TRIES:
        raise IndexInUseError(what.tenant)
    return EraseCount(_rows(row, "indexes"), str(tries) if row["more"] else None)


def _cursor_after(agent: str, what: EraseRequest, cursor: str | None, *, more: bool) -> str | None:
    """Return the cursor after an agent. If the agent has more rows, the next batch reads it again."""
    if what.agent is not None:
        return _AGAIN if more else None
    return cursor or "" if more else agent


def _agent(what: EraseRequest) -> str | None:
    return None if what.agent is None else str(what.agent)


def _hash(what: EraseRequest) -> int | None:
    return None if what.agent is None else partition_hash(what.agent)


def _rows(row: Row, names: str) -> dict[str, int]:
    return {name: row[name] for name in names.split()}


async def _next_agent(links: Links, tenant: str, after: str | None) -> str | None:
    rows = await links.fetch("finding agents to erase", SQL_AGENTS_TO_ERASE, tenant, after or "")
    return rows[0]["agent"] if rows else None


SQL_SWEEP_RUNS: Final[LiteralString] = "select sweep_runs($1, $2) as n"
SQL_SWEEP_THESE: Final[LiteralString] = "select sweep_these($1) as n"
SQL_FORGET_AGENT: Final[LiteralString] = (
    "select open_run, state, follows, messages, letters, runs, more from forget_agent($1,$2,$3,$4,$5)"
)
SQL_FORGET_OLD: Final[LiteralString] = "select forget_old($1, $2) as n"
SQL_FORGET_IDS: Final[LiteralString] = "select taken, last from forget_ids($1, $2)"
SQL_FORGET_USAGE: Final[LiteralString] = "select taken, last from forget_usage($1, $2, $3)"
SQL_FORGET_AUDIT: Final[LiteralString] = "select forget_audit($1, $2) as taken"
FIRST_TOTAL: Final = ["", "", "", "-infinity"]
"""Position before all totals of usage."""


class Retention(RetentionStore):
    """The removal of old rows.

    Args:
        owner: The incarnation of the host.
        links: Connections, each for one statement at a time.
        remove_objects: Function that removes at most that many objects of removed artifacts.
    """

    def __init__(
        self, owner: HostIncarnation, links: Links, remove_objects: Callable[[int], Awaitable[int]]
    ) -> None:
        self._me, self._links, self._remove_objects = owner, links, remove_objects
        self._id = b""
        """Message id from which the next search for ids without a run continues; these expire sooner."""
        self._total: list[str] = FIRST_TOTAL
        """Usage total from which the next search for old totals continues."""

    @override
    async def sweep(self, *, older_than_s: float | None, limit: int = 200) -> int:
        return int(
            await self._links.value("sweeping runs", SQL_SWEEP_RUNS, _span(older_than_s), limit)
        )

    @override
    async def sweep_these(self, run_ids: Sequence[RunId]) -> int:
        return int(await self._links.value("sweeping runs", SQL_SWEEP_THESE, [*run_ids]))

    @override
    async def forget_old(self, *, older_than_s: float | None, limit: int = 2000) -> int:
        """Ids of messages that ended an hour ago move to a table of ids."""
        args = (_span(older_than_s), limit)
        removed_count = int(await self._links.value("forgetting", SQL_FORGET_OLD, *args))
        [row] = await self._links.fetch("forgetting ids", SQL_FORGET_IDS, self._id, limit)
        self._id = row["last"] or b""
        if removed_count < limit:
            await self._remove_objects(limit)
        removed_count += int(row["taken"])
        if older_than_s is None:
            return removed_count
        removed_count += int(
            await self._links.value("forgetting audit rows", SQL_FORGET_AUDIT, *args)
        )
        [row] = await self._links.fetch("forgetting usage", SQL_FORGET_USAGE, self._total, *args)
        self._total = row["last"] or FIRST_TOTAL
        return removed_count + int(row["taken"])

    @override
    async def forget_agent(
        self, agent_id: AgentId, *, cancel: bool = False, limit: int = 200
    ) -> Forgotten:
        args = (self._me, str(agent_id), partition_hash(agent_id), cancel, limit)
        (row,) = await self._links.fetch("forgetting an agent", SQL_FORGET_AGENT, *args)
        return Forgotten(**row)


def _span(seconds: float | None) -> timedelta | None:
    return None if seconds is None else timedelta(seconds=seconds)
