"""Sessions in one process."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial

from typing_extensions import override

from actors.kernel.agent.session import ASKED_TO_STOP, FactKind, NewSession, SessionChange
from actors.kernel.agent.transcript import NO_CUT, Turn
from actors.kernel.runtime.ids import AgentId, RunId
from actors.kernel.storage.errors import (
    SessionActiveError,
    SessionDeletingError,
    UnknownNodeError,
    UnknownSessionError,
)
from actors.kernel.storage.session import NO_FACT, SessionFact, SessionRow, SessionStore
from actors.kernel.storage.session_directory import SessionLabel
from actors.storage.transcripts import MemoryTranscripts


@dataclass(slots=True)
class SessionRecord:
    """A session, or the tombstone of one: `created_at` is None then."""

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
        """Number of its last fact."""
        return self.first_fact + len(self.facts) - 1


class InMemorySessions(SessionStore):
    """A `SessionStore` whose rows are lost with its process.

    Args:
        now: Stamps facts.
        transcripts: Where nodes are.
        open_runs: Returns how many runs of an agent have not ended.

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
            SessionDeletingError: It is being deleted.
        """
        known = self.records.get(agent)
        if known is not None and known.is_deleting:
            raise SessionDeletingError(str(agent))

    def write_queued(self, agent: AgentId, run_id: RunId, new: NewSession) -> None:
        """Write that a run was submitted, without an await; the run is open already."""
        known = self._known(agent, new.project)
        self._add(agent, known, "queued", run_id, ahead=self._open_runs(agent) - 1)

    def write_change(
        self, agent: AgentId, run_id: RunId, change: SessionChange, *, is_success: bool
    ) -> None:
        """Write what a commit means for the session, without an await; its turns are written.

        A client that cancels a run need not know whether its agent is a session.
        """
        if change == ASKED_TO_STOP and self._find(agent) is None:
            return
        known = self._known(agent)
        for kind in change.facts:
            self._add(agent, known, kind, run_id)
        if "ended" in change.facts and not is_success:
            self._transcripts.settle_head(agent, agent.key, run_id)

    def forget(self, agent: AgentId) -> None:
        """Remove a session and its number, unless it is being deleted: then it stays for the deletion."""
        if agent in self.records and not self.records[agent].is_deleting:
            del self.records[agent]

    def removals(
        self, covers: Callable[[AgentId], bool], *, whole: bool
    ) -> Iterator[tuple[str, Callable[[], object]]]:
        """Yield each fact, oldest first, and each session behind its last one, with a call that removes it.

        Unless `whole`, one that is being deleted stays for who deletes it.
        """
        for agent, known in self.records.items():
            if covers(agent) and (whole or not known.is_deleting):
                for _ in known.facts:
                    yield "facts", partial(self._forget_fact, known)
                yield "sessions", partial(self.records.pop, agent, None)

    def _find(self, agent: AgentId) -> SessionRecord | None:
        """Return a session; None: there is none, or only its tombstone."""
        known = self.records.get(agent)
        return None if known is None or known.created_at is None else known

    @staticmethod
    def _forget_fact(known: SessionRecord) -> None:
        del known.facts[0]
        known.first_fact += 1

    def _known(self, agent: AgentId, project: str = "") -> SessionRecord:
        known = self.records[agent]
        if known.created_at is None:
            known.created_at, known.project = self._now(), project
        return known

    def _add(
        self, agent: AgentId, known: SessionRecord, kind: FactKind, run_id: RunId, *, ahead: int = 0
    ) -> None:
        at = known.last_at = self._now()
        known.facts.append(SessionFact(known.last_fact + 1, kind, run_id, ahead, at))
        for event in self._readers.get(agent, ()):
            event.set()

    @override
    async def get(self, agent: AgentId) -> SessionRow | None:
        known = self.records.get(agent)
        return None if known is None else self._row(agent, known)

    @override
    async def recent(
        self, tenant: str, type_: str, *, limit: int = 100, before: datetime | None = None
    ) -> list[SessionRow]:
        rows = [
            row
            for agent, known in self.records.items()
            if (agent.tenant, agent.type) == (tenant, type_)
            and (row := self._row(agent, known)) is not None
            and (before is None or row.last_at < before)
        ]
        return sorted(rows, key=lambda row: row.last_at, reverse=True)[:limit]

    @override
    async def facts(
        self, agent: AgentId, *, after: int = NO_FACT, limit: int = 1000
    ) -> list[SessionFact]:
        known = self.records.get(agent)
        if known is None:
            return []
        return known.facts[max(after - known.first_fact + 1, 0) :][:limit]

    @override
    async def queued(self, agent: AgentId, run_id: RunId) -> SessionFact | None:
        known = self.records.get(agent)
        facts = [] if known is None else known.facts
        return next((one for one in facts if one.run_id == run_id and one.kind == "queued"), None)

    @override
    async def tail(self, agent: AgentId, *, after: int = NO_FACT) -> AsyncIterator[SessionFact]:
        news = asyncio.Event()
        self._readers[agent].add(news)
        try:
            while True:
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
        known = self._find(agent)
        if known is None:
            raise UnknownSessionError(str(agent))
        self._refuse_open(agent, known)
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
        found = (
            agent
            for agent, known in self.records.items()
            if (agent.tenant, agent.type) == (tenant, type_)
            and project in (None, known.project)
            and owner in (None, known.owner)
            and known.created_at is not None
            and not known.is_deleting
            and (after is None or str(agent) > str(after))
        )
        return sorted(found, key=str)[:limit]

    @override
    async def idle(
        self, tenant: str, type_: str, *, before: datetime, limit: int = 100
    ) -> list[AgentId]:
        found = [
            (known.last_at, agent)
            for agent, known in self.records.items()
            if (agent.tenant, agent.type) == (tenant, type_)
            and known.created_at is not None
            and known.last_at is not None
            and known.last_at < before
            and (known.is_deleting or not self._open_runs(agent))
        ]
        return [agent for _, agent in sorted(found)][:limit]

    @override
    async def begin_delete(self, agent: AgentId, *, unless_since: datetime | None = None) -> bool:
        known = self._find(agent)
        if known is None or known.last_at is None:
            return False
        if not known.is_deleting:
            self._refuse_open(agent, known)
            if unless_since is not None and known.last_at >= unless_since:
                return False
        known.is_deleting = True
        return True

    @override
    async def finish_delete(self, agent: AgentId) -> int:
        known = self._find(agent)
        if known is None or not known.is_deleting:
            return 0
        rows = len(known.facts) + 1
        self.records[agent] = SessionRecord(first_fact=known.last_fact + 1, owner=known.owner)
        return rows

    def _refuse_open(self, agent: AgentId, known: SessionRecord) -> None:
        open_runs = self._open_runs(agent)
        if open_runs or known.is_deleting:
            raise SessionActiveError(str(agent), open_runs)

    def _row(self, agent: AgentId, known: SessionRecord) -> SessionRow | None:
        if known.created_at is None or known.last_at is None or known.is_deleting:
            return None
        head = self._transcripts.head(agent, agent.key)
        return SessionRow(
            agent,
            known.project,
            known.last_fact,
            self._open_runs(agent),
            head,
            known.created_at,
            known.last_at,
            known.label.title,
            known.label.metadata,
            known.owner,
        )
