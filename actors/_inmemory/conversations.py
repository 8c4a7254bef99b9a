"""Transcripts in one process: turns and cuts of sessions. Turns are kept as JSON text."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import TypeAlias

from typing_extensions import override

from actors._kernel.agent.agent import ROOT
from actors._kernel.agent.message import ChatMessage
from actors._kernel.agent.transcript import (
    NO_CUT,
    Cut,
    NewCut,
    NewTurn,
    SessionInfo,
    SessionView,
    Turn,
    is_visible,
    message_of_turn,
)
from actors._kernel.runtime.ids import AgentId
from actors._kernel.stores.conversations import TranscriptStore


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

    @property
    def is_visible(self) -> bool:
        """See `is_visible` of messages."""
        return is_visible(ChatMessage.model_validate_json(self.message))


@dataclass(slots=True)
class _Transcript:
    rows: list[_Row] = field(default_factory=list)
    ids: set[str] = field(default_factory=set)
    next_ordinal: int = 0
    cut: Cut | None = None
    cuts: list[Cut] = field(default_factory=list)
    """The cuts, in the order of their creation. A cut is valid on the paths that its last turn is on."""
    head: int | None = None
    """The ordinal of the active turn. None: it is the last turn on the path."""
    path: Path | None = None
    """The active path. None: all turns are on it."""
    branches: dict[int, int] = field(default_factory=dict)
    """For each branch, the ordinal of its first turn and that of the turn before the branch.

    These turns may have been removed.
    """

    def add(self, new: NewTurn, run_id: str, at: datetime) -> None:
        if new.id in self.ids:
            return
        text, ordinal = (
            new.message.model_dump_json(exclude_defaults=True).encode(),
            self.next_ordinal,
        )
        if self.head is not None:
            assert self.path is not None, "set with the head"
            self.branches[ordinal] = self.head
            self.path, self.head = (*self.path, (ordinal, None)), None
        self.rows.append(_Row(ordinal, new.id, run_id, text, new.tokens, new.parent, at))
        self.ids.add(new.id)
        self.next_ordinal += 1

    def on_path(self, ordinal: int) -> bool:
        """Return True if a turn is on the active path."""
        return self.path is None or is_on(self.path, ordinal)

    def on_active_path(self) -> list[_Row]:
        """Return the turns of the active path, the oldest first. Callers must not change the list."""
        if self.path is None:
            return self.rows
        return [row for row in self.rows if is_on(self.path, row.ordinal)]

    def active(self) -> _Row | None:
        """Return the active turn. None: the path has no turn."""
        return next((row for row in reversed(self.rows) if self.on_path(row.ordinal)), None)

    def move(self, ordinal: int) -> None:
        """Make a turn the active one, and the last cut on its path the current cut.

        An ordinal of -1 means `ROOT`.
        """
        at_end = bool(self.rows) and self.rows[-1].ordinal == ordinal
        if at_end and self.on_path(ordinal):
            return
        self.path, self.head = self.path_to(ordinal), ordinal
        on_path = [cut for cut in reversed(self.cuts) if is_on(self.path, cut.upto)]
        before, self.cut = self.cut, max(on_path, key=lambda cut: cut.upto, default=None)
        if self.cut is not None and self.cut is not before:
            self.cut = replace(self.cut, changes={})

    def path_to(self, ordinal: int) -> Path:
        """Return the path from the first turn to this turn."""
        found: list[tuple[int, int | None]] = []
        upto: int | None = ordinal
        while upto is not None and upto >= 0:
            first = max((begin for begin in self.branches if begin <= upto), default=0)
            found.append((first, upto))
            upto = self.branches.get(first)
        return tuple(reversed(found))

    def remove_turn(self, id_: str) -> None:
        """Remove a turn and all cuts, since a summary may contain it."""
        self.rows = [row for row in self.rows if row.id != id_]
        self.ids.discard(id_)
        self.cut = None
        self.cuts.clear()

    def remove_run(self, run_id: str) -> None:
        gone = [row for row in self.rows if row.run_id == run_id]
        if not gone:
            return
        self.rows = [row for row in self.rows if row.run_id != run_id]
        self.ids.difference_update(row.id for row in gone)
        # Changes repeat what turns said, also those that are gone.
        self.cuts = [replace(cut, changes={}) for cut in self.cuts if cut.upto < gone[0].ordinal]
        if self.cut is not None:
            is_over = gone[0].ordinal <= self.cut.upto
            self.cut = None if is_over else replace(self.cut, changes={})


Path: TypeAlias = tuple[tuple[int, int | None], ...]
"""Ranges of ordinals, including both ends, the oldest first. An end of None includes all later ordinals."""


def is_on(path: Path, ordinal: int) -> bool:
    """Return True if a turn is on a path."""
    return any(first <= ordinal and (last is None or ordinal <= last) for first, last in path)


class MemoryTranscripts(TranscriptStore):
    """A `TranscriptStore` whose rows are lost with its process.

    Args:
        now: The clock for the turns' instants.
    """

    def __init__(self, now: Callable[[], datetime]) -> None:
        self._now = now
        self.kept: dict[tuple[AgentId, str], _Transcript] = {}
        self._of_runs: dict[str, set[tuple[AgentId, str]]] = {}

    def write(
        self, agent: AgentId, run_id: str, turns: Iterable[NewTurn], cuts: Iterable[NewCut] = ()
    ) -> None:
        """Write the turns and cuts of a commit, without an await."""
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
            is_there = cut.upto < known.next_ordinal and (
                cut.upto == NO_CUT or known.on_path(cut.upto)
            )
            if last == cut.previous and is_there:
                changes = {**cut.changes}
                known.cut = Cut(cut.upto, cut.strategy, run_id, cut.summary, at, changes)
                known.cuts += [known.cut] if cut.upto != NO_CUT else []

    def forget_run(self, run_id: str) -> None:
        """Remove a run's turns in all sessions."""
        for key in self._of_runs.pop(run_id, ()):
            self._remove(key, run_id)

    def move_head(self, agent: AgentId, session: str, node: str) -> bool:
        """Make a turn the active one, or no turn for `ROOT`. False: the session has no such turn."""
        known = self.kept.get((agent, session))
        if node == ROOT:
            if known is not None:
                known.move(NO_CUT)
            return True
        found = [] if known is None else [row for row in known.rows if row.id == node]
        if known is None or not found:
            return False
        known.move(found[0].ordinal)
        return True

    def settle_head(self, agent: AgentId, session: str, run_id: str) -> None:
        """Make the last turn of a run that a user can see the active one. If there is none, nothing changes."""
        known = self.kept.get((agent, session))
        own = [] if known is None else [row for row in known.rows if row.run_id == run_id]
        seen = next((row for row in reversed(own) if row.is_visible), None)
        if known is not None and seen is not None:
            known.move(seen.ordinal)

    def head(self, agent: AgentId, session: str) -> str | None:
        """Return the id of the active turn. None: there is none."""
        known = self.kept.get((agent, session))
        active = None if known is None else known.active()
        return None if active is None else active.id

    def nodes(self, agent: AgentId, session: str, ids: Collection[str]) -> list[Turn]:
        """Return the turns with these ids. Each has the id of the turn before it on its path as `parent`."""
        known, found = self.kept.get((agent, session), _Transcript()), list[Turn]()
        for place, row in enumerate(known.rows):
            if row.id in ids:
                path = known.path_to(row.ordinal)
                before = (one for one in reversed(known.rows[:place]) if is_on(path, one.ordinal))
                parent = next(before, None)
                found.append(replace(row.turn(), parent=None if parent is None else parent.id))
        return found

    def forget_agent(self, agent: AgentId) -> None:
        """Remove all sessions of an agent."""
        for key in [key for key in self.kept if key[0] == agent]:
            del self.kept[key]

    @override
    async def view(
        self, agent: AgentId, session: str, *, limit: int, whole: bool = False
    ) -> SessionView:
        known = self.kept.get((agent, session), _Transcript())
        upto = NO_CUT if known.cut is None or whole else known.cut.upto
        newest = known.on_active_path()[-limit:] if limit else []
        turns = [row.turn() for row in newest if row.ordinal > upto]
        messages = tuple(map(message_of_turn, turns))
        ordinals = {turn.id: turn.ordinal for turn in turns}
        return SessionView(known.cut, messages, ordinals, len(known.rows))

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
        known = self.kept.get((agent, session), _Transcript())
        rows = known.rows if branches else known.on_active_path()
        first = offset + bisect_right(rows, after, key=lambda row: row.ordinal)
        return [row.turn() for row in rows[first:][:limit]]

    @override
    async def count(self, agent: AgentId, session: str) -> int:
        return len(self.kept.get((agent, session), _Transcript()).on_active_path())

    @override
    async def append(self, agent: AgentId, turns: Sequence[NewTurn], *, run_id: str = "") -> None:
        self.write(agent, run_id, turns)

    @override
    async def clear(self, agent: AgentId, session: str) -> None:
        self.kept.pop((agent, session), None)

    @override
    async def clear_run(self, agent: AgentId, session: str | None, run_id: str) -> None:
        every = [name for owner, name in self.kept if owner == agent]
        for name in every if session is None else [session]:
            if run_id:
                self._remove((agent, name), run_id)

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
