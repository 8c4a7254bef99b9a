"""Sessions in one process: their facts, names and lists, and the identity of the agent that executes.

Functions that an agent's `run` calls without a reference to the agent read the identity from variables. The
runtime sets them inside the agent's task, before its code begins. Branches, steps and tools of the run have the
same values, and so has every replay. Outside of an agent's code they raise `LookupError`.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from typing import Final

from typing_extensions import override

from actors._inmemory.conversations import MemoryTranscripts
from actors._kernel.agent.agent import (
    ASKED_TO_STOP,
    ExpectedSession,
    FactKind,
    NewSession,
    SessionChange,
)
from actors._kernel.agent.transcript import NO_CUT, Turn
from actors._kernel.json import JsonValue
from actors._kernel.runtime.ids import AgentId, RunId
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


@dataclass(slots=True)
class SessionRecord:
    """A session, or the tombstone of a deleted one, whose `created_at` is None."""

    project: str = ""
    owner: str | None = None
    label: SessionLabel = field(default_factory=SessionLabel)
    created_at: datetime | None = None
    last_at: datetime | None = None
    first_fact: int = 1
    facts: list[SessionFact] = field(default_factory=list)
    is_deleting: bool = False

    @property
    def last_fact(self) -> int:
        """Number of the session's last fact."""
        return self.first_fact + len(self.facts) - 1


class InMemorySessions(SessionStore):
    """A `SessionStore` whose rows are lost with its process.

    Args:
        now: The clock for the facts' instants.
        transcripts: The transcripts, which have the nodes.
        open_runs: Function that returns the number of an agent's open runs.

    Attributes:
        records: The sessions, and tombstones of deleted ones.
    """

    def __init__(
        self,
        now: Callable[[], datetime],
        transcripts: MemoryTranscripts,
        open_runs: Callable[[AgentId], int],
    ) -> None:
        self._now, self._transcripts, self._open_runs = now, transcripts, open_runs
        self.records: defaultdict[AgentId, SessionRecord] = defaultdict(SessionRecord)
        self._readers: defaultdict[AgentId, set[asyncio.Event]] = defaultdict(set)

    def check_open(self, agent: AgentId) -> None:
        """Check that the session takes runs.

        Raises:
            SessionDeletingError: The session is being deleted.
        """
        record = self.records.get(agent)
        if record is not None and record.is_deleting:
            raise SessionDeletingError(str(agent))

    def write_queued(self, agent: AgentId, run_id: RunId, new: NewSession) -> None:
        """Write that a run was submitted, without an await. The run is already open."""
        record = self._record(agent, new.project)
        self._add(agent, record, "queued", run_id, ahead=self._open_runs(agent) - 1)

    def write_change(
        self, agent: AgentId, run_id: RunId, change: SessionChange, *, is_success: bool
    ) -> None:
        """Write the facts of a commit, without an await. The commit's turns are already written.

        A cancellation of a run whose agent is not a session writes nothing.
        """
        if change == ASKED_TO_STOP and self._find(agent) is None:
            return
        record = self._record(agent)
        for kind in change.facts:
            self._add(agent, record, kind, run_id)
        if "ended" in change.facts and not is_success:
            self._transcripts.settle_head(agent, agent.key, run_id)

    def forget(self, agent: AgentId) -> None:
        """Remove a session and its number, unless it is being deleted. Then the deletion removes it."""
        if agent in self.records and not self.records[agent].is_deleting:
            del self.records[agent]

    def removals(
        self, covers: Callable[[AgentId], bool], *, whole: bool
    ) -> Iterator[tuple[str, Callable[[], object]]]:
        """Yield each fact, the oldest first, then its session, each with a function that removes it.

        Unless `whole` is true, a session that is being deleted is left out, since its deletion removes it.
        """
        for agent, record in self.records.items():
            if covers(agent) and (whole or not record.is_deleting):
                for _ in record.facts:
                    yield "facts", partial(self._forget_fact, record)
                yield "sessions", partial(self.records.pop, agent, None)

    def _find(self, agent: AgentId) -> SessionRecord | None:
        """Return a session, or None if there is none, or only its tombstone."""
        record = self.records.get(agent)
        return None if record is None or record.created_at is None else record

    @staticmethod
    def _forget_fact(record: SessionRecord) -> None:
        del record.facts[0]
        record.first_fact += 1

    def _record(self, agent: AgentId, project: str = "") -> SessionRecord:
        record = self.records[agent]
        if record.created_at is None:
            record.created_at, record.project = self._now(), project
        return record

    def _add(
        self,
        agent: AgentId,
        record: SessionRecord,
        kind: FactKind,
        run_id: RunId,
        *,
        ahead: int = 0,
    ) -> None:
        at = record.last_at = self._now()
        record.facts.append(SessionFact(record.last_fact + 1, kind, run_id, ahead, at))
        for event in self._readers.get(agent, ()):
            event.set()

    @override
    async def get(self, agent: AgentId) -> SessionRow | None:
        record = self.records.get(agent)
        return None if record is None else self._row(agent, record)

    @override
    async def recent(
        self, tenant: str, type_: str, *, limit: int = 100, before: datetime | None = None
    ) -> list[SessionRow]:
        rows = [
            row
            for agent, record in self.records.items()
            if (agent.tenant, agent.type) == (tenant, type_)
            and (row := self._row(agent, record)) is not None
            and (before is None or row.last_at < before)
        ]
        return sorted(rows, key=lambda row: row.last_at, reverse=True)[:limit]

    @override
    async def facts(
        self, agent: AgentId, *, after: int = NO_FACT, limit: int = 1000
    ) -> list[SessionFact]:
        record = self.records.get(agent)
        if record is None:
            return []
        return record.facts[max(after - record.first_fact + 1, 0) :][:limit]

    @override
    async def queued(self, agent: AgentId, run_id: RunId) -> SessionFact | None:
        record = self.records.get(agent)
        facts = [] if record is None else record.facts
        return next(
            (fact for fact in facts if fact.run_id == run_id and fact.kind == "queued"), None
        )

    @override
    async def tail(self, agent: AgentId, *, after: int = NO_FACT) -> AsyncIterator[SessionFact]:
        news = asyncio.Event()
        self._readers[agent].add(news)
        try:
            while True:
                # Cleared before the read: a fact that is added while the caller handles another sets it again.
                news.clear()
                for fact in await self.facts(agent, after=after):
                    yield fact
                    after = fact.number
                if not news.is_set():
                    await news.wait()
        finally:
            self._readers[agent].discard(news)
            if not self._readers[agent]:
                del self._readers[agent]

    @override
    async def path(
        self,
        agent: AgentId,
        *,
        after: int = NO_CUT,
        limit: int | None = None,
        branches: bool = False,
    ) -> list[Turn]:
        page = await self._transcripts.page(
            agent, agent.key, after=after, limit=limit, branches=branches
        )
        return self._transcripts.nodes(agent, agent.key, {turn.id for turn in page})

    @override
    async def nodes(self, agent: AgentId, ids: Sequence[str]) -> list[Turn]:
        return self._transcripts.nodes(agent, agent.key, set(ids))

    @override
    async def switch(self, agent: AgentId, node: str) -> None:
        record = self._find(agent)
        if record is None:
            raise UnknownSessionError(str(agent))
        self._refuse_open(agent, record)
        if not self._transcripts.move_head(agent, agent.key, node):
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
        agents = (
            agent
            for agent, record in self.records.items()
            if (agent.tenant, agent.type) == (tenant, type_)
            and project in (None, record.project)
            and owner in (None, record.owner)
            and record.created_at is not None
            and not record.is_deleting
            and (after is None or str(agent) > str(after))
        )
        return sorted(agents, key=str)[:limit]

    @override
    async def idle(
        self, tenant: str, type_: str, *, before: datetime, limit: int = 100
    ) -> list[AgentId]:
        agents_with_instants = [
            (record.last_at, agent)
            for agent, record in self.records.items()
            if (agent.tenant, agent.type) == (tenant, type_)
            and record.created_at is not None
            and record.last_at is not None
            and record.last_at < before
            and (record.is_deleting or not self._open_runs(agent))
        ]
        return [agent for _, agent in sorted(agents_with_instants)][:limit]

    @override
    async def begin_delete(self, agent: AgentId, *, unless_since: datetime | None = None) -> bool:
        record = self._find(agent)
        if record is None or record.last_at is None:
            return False
        if not record.is_deleting:
            self._refuse_open(agent, record)
            if unless_since is not None and record.last_at >= unless_since:
                return False
        record.is_deleting = True
        return True

    @override
    async def finish_delete(self, agent: AgentId) -> int:
        record = self._find(agent)
        if record is None or not record.is_deleting:
            return 0
        # The tombstone keeps the last number: a cursor of the deleted session must fit no later fact.
        rows = len(record.facts) + 1
        self.records[agent] = SessionRecord(first_fact=record.last_fact + 1, owner=record.owner)
        return rows

    def _refuse_open(self, agent: AgentId, record: SessionRecord) -> None:
        open_runs = self._open_runs(agent)
        if open_runs or record.is_deleting:
            raise SessionActiveError(str(agent), open_runs)

    def _row(self, agent: AgentId, record: SessionRecord) -> SessionRow | None:
        if record.created_at is None or record.last_at is None or record.is_deleting:
            return None
        head = self._transcripts.head(agent, agent.key)
        return SessionRow(
            agent,
            record.project,
            record.last_fact,
            self._open_runs(agent),
            head,
            record.created_at,
            record.last_at,
            record.label.title,
            record.label.metadata,
            record.owner,
        )


class InMemorySessionDirectory(SessionDirectory):
    """A `SessionDirectory` of `InMemorySessions`.

    Args:
        now: The clock for the sessions' instants.
        sessions: The sessions.
    """

    def __init__(self, now: Callable[[], datetime], sessions: InMemorySessions) -> None:
        self._now, self._sessions = now, sessions

    @override
    async def create(
        self, agent: AgentId, label: SessionLabel, *, project: str = "", owner: str | None = None
    ) -> bool:
        self._sessions.check_open(agent)
        record = self._sessions.records[agent]
        if record.created_at is not None or (owner and record.owner not in (None, owner)):
            return False
        record.created_at = record.last_at = self._now()
        record.project, record.label, record.owner = project, label, record.owner or owner
        return True

    @override
    async def relabel(
        self,
        agent: AgentId,
        *,
        title: str | None = None,
        metadata: Mapping[str, JsonValue] | None = None,
    ) -> bool:
        new_label = SessionLabel(title=title or "", metadata=metadata or {})
        row = await self._sessions.get(agent)
        if row is None:
            return False
        self._sessions.records[agent].label = SessionLabel(
            title=row.title if title is None else new_label.title,
            metadata=row.metadata if metadata is None else new_label.metadata,
        )
        return True

    @override
    async def find(
        self, wanted: SessionFilter, *, limit: int = 100, most_read: int = MOST_READ
    ) -> FoundSessions:
        rows = [
            row
            for agent in self._sessions.records
            if (agent.tenant, agent.type) == (wanted.tenant, wanted.app)
            and (row := await self._sessions.get(agent)) is not None
            and wanted.owner in (None, row.owner)
            and (wanted.after is None or _is_behind(row, wanted.after))
        ]
        rows.sort(key=lambda row: str(row.agent_id))
        rows.sort(key=lambda row: row.last_at, reverse=True)
        page = rows[:most_read]
        title = "" if wanted.title is None else wanted.title.casefold()
        hits = [
            row
            for row in page
            if title in row.title.casefold() and wanted.is_active in (None, row.open_runs > 0)
        ][:limit]
        is_cut = len(hits) < limit and len(page) == most_read
        next_position = SessionPlace(page[-1].last_at, page[-1].agent_id) if is_cut else None
        return FoundSessions(hits, next_position)

    @override
    async def is_deleted(self, agent: AgentId, *, owner: str | None = None) -> bool:
        record = self._sessions.records.get(agent)
        if record is None or (owner is not None and record.owner != owner):
            return False
        return record.created_at is None or record.is_deleting


def check_expected(
    agent: AgentId, record: SessionRecord | None, expected: ExpectedSession | None
) -> None:
    """Check the condition of a submit.

    Raises:
        UnknownSessionError: It does not hold.
    """
    if expected is None:
        return
    if (
        record is None
        or record.created_at is None
        or record.is_deleting
        or expected.owner not in (None, record.owner)
    ):
        raise UnknownSessionError(str(agent))


def _is_behind(row: SessionRow, position: SessionPlace) -> bool:
    if row.last_at != position.last_at:
        return row.last_at < position.last_at
    return str(row.agent_id) > str(position.agent_id)


current_thread_id: Final[ContextVar[str]] = ContextVar("callboard_thread_id")
"""The conversation, which is the run's session."""
current_agent_id: Final[ContextVar[str]] = ContextVar("callboard_agent_id")
"""The agent, as `AgentId.parse` reads it."""
current_agent_label: Final[ContextVar[str]] = ContextVar("callboard_agent_label")
"""The agent's name for a person to read: ``type/key``, without the tenant."""
current_parent_agent_id: Final[ContextVar[str | None]] = ContextVar("callboard_parent_agent_id")
"""The agent whose run spawned this run, or None if no agent spawned it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentIdentity:
    """The identity of the agent and the conversation of one run.

    Attributes:
        agent_id: The agent.
        thread_id: The run's session.
        parent_agent_id: The agent whose run spawned this run, or None if no agent spawned it.
    """

    agent_id: AgentId
    thread_id: str
    parent_agent_id: str | None = None

    def enter(self) -> None:
        """Set the variables in the current task and in tasks that it starts."""
        current_thread_id.set(self.thread_id)
        current_agent_id.set(str(self.agent_id))
        current_agent_label.set(f"{self.agent_id.type}/{self.agent_id.key}")
        current_parent_agent_id.set(self.parent_agent_id)
