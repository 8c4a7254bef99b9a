"""Names and lists of sessions in one process."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime

from typing_extensions import override

from actors.kernel.json import JsonValue
from actors.kernel.runtime.ids import AgentId
from actors.kernel.stores.conversations import (
    MOST_READ,
    FoundSessions,
    SessionDirectory,
    SessionFilter,
    SessionLabel,
    SessionPlace,
    SessionRow,
)
from actors.storage.sessions import InMemorySessions


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
        known = self._sessions.records[agent]
        if known.created_at is not None or (owner and known.owner not in (None, owner)):
            return False
        known.created_at = known.last_at = self._now()
        known.project, known.label, known.owner = project, label, known.owner or owner
        return True

    @override
    async def relabel(
        self,
        agent: AgentId,
        *,
        title: str | None = None,
        metadata: Mapping[str, JsonValue] | None = None,
    ) -> bool:
        new = SessionLabel(title=title or "", metadata=metadata or {})
        row = await self._sessions.get(agent)
        if row is None:
            return False
        self._sessions.records[agent].label = SessionLabel(
            title=row.title if title is None else new.title,
            metadata=row.metadata if metadata is None else new.metadata,
        )
        return True

    @override
    async def find(
        self, wanted: SessionFilter, *, limit: int = 100, most_read: int = MOST_READ
    ) -> FoundSessions:
        known = [
            row
            for agent in self._sessions.records
            if (agent.tenant, agent.type) == (wanted.tenant, wanted.app)
            and (row := await self._sessions.get(agent)) is not None
            and wanted.owner in (None, row.owner)
            and (wanted.after is None or _is_behind(row, wanted.after))
        ]
        known.sort(key=lambda row: str(row.agent_id))
        known.sort(key=lambda row: row.last_at, reverse=True)
        read = known[:most_read]
        rows = [row for row in read if _is_wanted(row, wanted)][:limit]
        is_cut = len(rows) < limit and len(read) == most_read
        return FoundSessions(
            rows, SessionPlace(read[-1].last_at, read[-1].agent_id) if is_cut else None
        )

    @override
    async def is_deleted(self, agent: AgentId, *, owner: str | None = None) -> bool:
        known = self._sessions.records.get(agent)
        if known is None or (owner is not None and known.owner != owner):
            return False
        return known.created_at is None or known.is_deleting


def _is_wanted(row: SessionRow, wanted: SessionFilter) -> bool:
    is_named = wanted.title is None or wanted.title.casefold() in row.title.casefold()
    is_as_busy = wanted.is_active in (None, row.open_runs > 0)
    return is_named and is_as_busy


def _is_behind(row: SessionRow, place: SessionPlace) -> bool:
    if row.last_at != place.last_at:
        return row.last_at < place.last_at
    return str(row.agent_id) > str(place.agent_id)
