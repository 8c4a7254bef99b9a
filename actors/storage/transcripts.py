"""Transcripts in one process: turns and cuts of sessions, kept as JSON text."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime

from typing_extensions import override

from actors.kernel.agent.message import ChatMessage
from actors.kernel.agent.transcript import (
    NO_CUT,
    Cut,
    NewCut,
    NewTurn,
    SessionInfo,
    SessionView,
    Turn,
    message_of_turn,
)
from actors.kernel.runtime.ids import AgentId
from actors.kernel.storage.transcript import TranscriptStore


@dataclass(frozen=True, slots=True)
class _Row:
    ordinal: int
    id: str
    run_id: str
    message: bytes
    tokens: int | None
    parent: str | None
    at: datetime

    def turn(self) -> Turn:
        message = ChatMessage.model_validate_json(self.message)
        return Turn(self.ordinal, self.id, self.run_id, message, self.tokens, self.parent, self.at)


@dataclass(slots=True)
class _Transcript:
    rows: list[_Row] = field(default_factory=list)
    ids: set[str] = field(default_factory=set)
    next_ordinal: int = 0
    cut: Cut | None = None

    def add(self, new: NewTurn, run_id: str, at: datetime) -> None:
        if new.id in self.ids:
            return
        text = new.message.model_dump_json(exclude_defaults=True).encode()
        self.rows.append(_Row(self.next_ordinal, new.id, run_id, text, new.tokens, new.parent, at))
        self.ids.add(new.id)
        self.next_ordinal += 1

    def remove_turn(self, id_: str) -> None:
        """Remove a turn, and the cut, whose summary may stand for it."""
        self.rows = [row for row in self.rows if row.id != id_]
        self.ids.discard(id_)
        self.cut = None

    def remove_run(self, run_id: str) -> None:
        gone = [row for row in self.rows if row.run_id == run_id]
        if not gone:
            return
        self.rows = [row for row in self.rows if row.run_id != run_id]
        self.ids.difference_update(row.id for row in gone)
        if self.cut is not None and gone[0].ordinal <= self.cut.upto:
            self.cut = None


class MemoryTranscripts(TranscriptStore):
    """A `TranscriptStore` that forgets everything with its process.

    Args:
        now: Stamps turns.
    """

    def __init__(self, now: Callable[[], datetime]) -> None:
        self._now = now
        self.kept: dict[tuple[AgentId, str], _Transcript] = {}
        self._of_runs: dict[str, set[tuple[AgentId, str]]] = {}

    def write(
        self, agent: AgentId, run_id: str, turns: Iterable[NewTurn], cuts: Iterable[NewCut] = ()
    ) -> None:
        """Write what a commit adds, without an await."""
        at = self._now()
        for new in turns:
            key = (agent, new.session)
            self.kept.setdefault(key, _Transcript()).add(new, run_id, at)
            if run_id:
                self._of_runs.setdefault(run_id, set()).add(key)
        for cut in cuts:
            known = self.kept.get((agent, cut.session))
            if known is None:
                continue
            last = NO_CUT if known.cut is None else known.cut.upto
            if last == cut.previous and cut.upto < known.next_ordinal:
                known.cut = Cut(cut.upto, cut.strategy, run_id, cut.summary, at)

    def forget_run(self, run_id: str) -> None:
        """Forget a run's turns, in all sessions."""
        for key in self._of_runs.pop(run_id, ()):
            self._remove(key, run_id)

    def forget_agent(self, agent: AgentId) -> None:
        """Forget all sessions of an agent."""
        for key in [key for key in self.kept if key[0] == agent]:
            del self.kept[key]

    @override
    async def view(
        self, agent: AgentId, session: str, *, limit: int, whole: bool = False
    ) -> SessionView:
        known = self.kept.get((agent, session), _Transcript())
        upto = NO_CUT if known.cut is None or whole else known.cut.upto
        rows = known.rows[-limit:] if limit else []
        turns = [row.turn() for row in rows if row.ordinal > upto]
        messages = tuple(map(message_of_turn, turns))
        return SessionView(
            known.cut, messages, {turn.id: turn.ordinal for turn in turns}, len(known.rows)
        )

    @override
    async def page(
        self,
        agent: AgentId,
        session: str,
        *,
        limit: int | None = None,
        offset: int = 0,
        after: int = NO_CUT,
    ) -> list[Turn]:
        rows = self.kept.get((agent, session), _Transcript()).rows
        first = offset + bisect_right(rows, after, key=lambda row: row.ordinal)
        return [row.turn() for row in rows[first:][:limit]]

    @override
    async def count(self, agent: AgentId, session: str) -> int:
        return len(self.kept.get((agent, session), _Transcript()).rows)

    @override
    async def append(self, agent: AgentId, turns: Sequence[NewTurn], *, run_id: str = "") -> None:
        self.write(agent, run_id, turns)

    @override
    async def clear(self, agent: AgentId, session: str) -> None:
        self.kept.pop((agent, session), None)

    @override
    async def clear_run(self, agent: AgentId, session: str, run_id: str) -> None:
        if run_id:
            self._remove((agent, session), run_id)

    @override
    async def sessions(self, agent: AgentId, *, limit: int = 100) -> list[SessionInfo]:
        found = [
            SessionInfo(
                name,
                len(known.rows),
                sum(row.tokens or 0 for row in known.rows),
                known.rows[0].at,
                known.rows[-1].at,
            )
            for (owner, name), known in self.kept.items()
            if owner == agent and known.rows
        ]
        return sorted(found, key=lambda one: one.last_at, reverse=True)[:limit]

    def _remove(self, key: tuple[AgentId, str], run_id: str) -> None:
        known = self.kept.get(key)
        if known is not None:
            known.remove_run(run_id)
            if not known.rows:
                del self.kept[key]
