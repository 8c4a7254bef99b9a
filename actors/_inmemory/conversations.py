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
        """True if a user sees the turn's message."""
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
    """The ordinal of the active turn, or None if it is the last turn on the path."""
    path: Path | None = None
    """The active path, or None if all turns are on it."""
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
        """Return the active turn, or None if the path has no turn."""
        return next((row for row in reversed(self.rows) if self.on_path(row.ordinal)), None)

    def move(self, ordinal: int) -> None:
        """Make a turn the active one, and the last cut on its path the current cut.

        An ordinal of -1 means `ROOT`.
        """
        is_last_turn = bool(self.rows) and self.rows[-1].ordinal == ordinal
        # The next turn follows the last one anyway: no branch begins.
        if is_last_turn and self.on_path(ordinal):
            return
        self.path, self.head = self.path_to(ordinal), ordinal
        on_path = [cut for cut in reversed(self.cuts) if is_on(self.path, cut.upto)]
        previous, self.cut = self.cut, max(on_path, key=lambda cut: cut.upto, default=None)
        if self.cut is not None and self.cut is not previous:
            self.cut = replace(self.cut, changes={})

    def path_to(self, ordinal: int) -> Path:
        """Return the path from the first turn to this turn."""
        ranges: list[tuple[int, int | None]] = []
        upto: int | None = ordinal
        while upto is not None and upto >= 0:
            first = max((begin for begin in self.branches if begin <= upto), default=0)
            ranges.append((first, upto))
            upto = self.branches.get(first)
        return tuple(reversed(ranges))

    def remove_turn(self, id_: str) -> None:
        """Remove a turn and all cuts, since a summary may contain it."""
        self.rows = [row for row in self.rows if row.id != id_]
        self.ids.discard(id_)
        self.cut = None
        self.cuts.clear()

    def remove_run(self, run_id: str) -> None:
        removed_rows = [row for row in self.rows if row.run_id == run_id]
        if not removed_rows:
            return
        self.rows = [row for row in self.rows if row.run_id != run_id]
        self.ids.difference_update(row.id for row in removed_rows)
        # Changes quote turns: those of an erased run would stay readable in them.
        self.cuts = [
            replace(cut, changes={}) for cut in self.cuts if cut.upto < removed_rows[0].ordinal
        ]
        if self.cut is not None:
            is_covered = removed_rows[0].ordinal <= self.cut.upto
            self.cut = None if is_covered else replace(self.cut, changes={})


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
        self.transcripts: dict[tuple[AgentId, str], _Transcript] = {}
        self._keys_by_run: dict[str, set[tuple[AgentId, str]]] = {}

    def write(
        self, agent: AgentId, run_id: str, turns: Iterable[NewTurn], cuts: Iterable[NewCut] = ()
    ) -> None:
        """Write the turns and cuts of a commit, without an await."""
        at = self._now()
        for new in turns:
            key = (agent, new.session)
            self.transcripts.setdefault(key, _Transcript()).add(new, run_id, at)
            if run_id:
                self._keys_by_run.setdefault(run_id, set()).add(key)
        for cut in cuts:
            transcript = self.transcripts.get((agent, cut.session))
            if transcript is None:
                continue
            last = NO_CUT if transcript.cut is None else transcript.cut.upto
            has_turn = cut.upto < transcript.next_ordinal and (
                cut.upto == NO_CUT or transcript.on_path(cut.upto)
            )
            if last == cut.previous and has_turn:
                changes = {**cut.changes}
                transcript.cut = Cut(cut.upto, cut.strategy, run_id, cut.summary, at, changes)
                transcript.cuts += [transcript.cut] if cut.upto != NO_CUT else []

    def forget_run(self, run_id: str) -> None:
        """Remove a run's turns in all sessions."""
        for key in self._keys_by_run.pop(run_id, ()):
            self._remove(key, run_id)

    def move_head(self, agent: AgentId, session: str, node: str) -> bool:
        """Make a turn the active one, or no turn for `ROOT`; return False if the session has no such turn."""
        transcript = self.transcripts.get((agent, session))
        if node == ROOT:
            if transcript is not None:
                transcript.move(NO_CUT)
            return True
        rows = [] if transcript is None else [row for row in transcript.rows if row.id == node]
        if transcript is None or not rows:
            return False
        transcript.move(rows[0].ordinal)
        return True

    def settle_head(self, agent: AgentId, session: str, run_id: str) -> None:
        """Make the last turn of a run that a user can see the active one. If there is none, nothing changes."""
        transcript = self.transcripts.get((agent, session))
        run_rows = (
            [] if transcript is None else [row for row in transcript.rows if row.run_id == run_id]
        )
        visible_row = next((row for row in reversed(run_rows) if row.is_visible), None)
        if transcript is not None and visible_row is not None:
            transcript.move(visible_row.ordinal)

    def head(self, agent: AgentId, session: str) -> str | None:
        """Return the id of the active turn, or None if there is none."""
        transcript = self.transcripts.get((agent, session))
        active = None if transcript is None else transcript.active()
        return None if active is None else active.id

    def nodes(self, agent: AgentId, session: str, ids: Collection[str]) -> list[Turn]:
        """Return the turns with these ids. Each has the id of the turn before it on its path as `parent`."""
        transcript, turns = self.transcripts.get((agent, session), _Transcript()), list[Turn]()
        for index, row in enumerate(transcript.rows):
            if row.id in ids:
                path = transcript.path_to(row.ordinal)
                earlier_rows = (
                    earlier
                    for earlier in reversed(transcript.rows[:index])
                    if is_on(path, earlier.ordinal)
                )
                parent = next(earlier_rows, None)
                turns.append(replace(row.turn(), parent=None if parent is None else parent.id))
        return turns

    def forget_agent(self, agent: AgentId) -> None:
        """Remove all sessions of an agent."""
        for key in [key for key in self.transcripts if key[0] == agent]:
            del self.transcripts[key]

    @override
    async def view(
        self, agent: AgentId, session: str, *, limit: int, whole: bool = False
    ) -> SessionView:
        transcript = self.transcripts.get((agent, session), _Transcript())
        upto = NO_CUT if transcript.cut is None or whole else transcript.cut.upto
        newest = transcript.on_active_path()[-limit:] if limit else []
        turns = [row.turn() for row in newest if row.ordinal > upto]
        messages = tuple(map(message_of_turn, turns))
        ordinals = {turn.id: turn.ordinal for turn in turns}
        return SessionView(transcript.cut, messages, ordinals, len(transcript.rows))

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
        transcript = self.transcripts.get((agent, session), _Transcript())
        rows = transcript.rows if branches else transcript.on_active_path()
        first = offset + bisect_right(rows, after, key=lambda row: row.ordinal)
        return [row.turn() for row in rows[first:][:limit]]

    @override
    async def count(self, agent: AgentId, session: str) -> int:
        return len(self.transcripts.get((agent, session), _Transcript()).on_active_path())

    @override
    async def append(self, agent: AgentId, turns: Sequence[NewTurn], *, run_id: str = "") -> None:
        self.write(agent, run_id, turns)

    @override
    async def clear(self, agent: AgentId, session: str) -> None:
        self.transcripts.pop((agent, session), None)

    @override
    async def clear_run(self, agent: AgentId, session: str | None, run_id: str) -> None:
        names = [name for owner, name in self.transcripts if owner == agent]
        for name in names if session is None else [session]:
            if run_id:
                self._remove((agent, name), run_id)

    @override
    async def sessions(self, agent: AgentId, *, limit: int = 100) -> list[SessionInfo]:
        infos = [
            SessionInfo(
                name,
                len(transcript.rows),
                sum(row.tokens or 0 for row in transcript.rows),
                transcript.rows[0].at,
                transcript.rows[-1].at,
            )
            for (owner, name), transcript in self.transcripts.items()
            if owner == agent and transcript.rows
        ]
        return sorted(infos, key=lambda info: info.last_at, reverse=True)[:limit]

    def _remove(self, key: tuple[AgentId, str], run_id: str) -> None:
        transcript = self.transcripts.get(key)
        if transcript is not None:
            transcript.remove_run(run_id)
            if not transcript.rows:
                del self.transcripts[key]
