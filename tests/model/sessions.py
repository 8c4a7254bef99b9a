"""Sessions of the model: turns with their ordinals, and the starts of a session's windows."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from actors._kernel.agent.transcript import NO_CUT
from tests.model.scripted import SESSIONS

if TYPE_CHECKING:
    from collections.abc import Iterable

    from actors._kernel.runtime.ids import AgentId
    from actors._kernel.stores.run_store import RunStore


@dataclass(frozen=True, slots=True)
class Said:
    """A turn: text, role and run."""

    ordinal: int
    id: str
    run: str
    role: str
    text: str


@dataclass(frozen=True, slots=True)
class Cut:
    """A cut that a run requests.

    Attributes: previous: `upto` of the session's last cut that the run has read. summary: Id of the
    last turn that its summary replaces.
    """

    session: str
    upto: int
    previous: int
    summary: str


@dataclass(slots=True)
class Session:
    """One conversation of an agent.

    Attributes:
        turns: In their order.
        upto: Ordinal of the last turn before its windows.
        summary: Id of the last turn that the summary in front stands for; empty: there is none.
    """

    turns: list[Said] = field(default_factory=list)
    next_ordinal: int = 0
    upto: int = NO_CUT
    summary: str = ""

    def add(self, id: str, run: str, role: str, text: str) -> None:  # noqa: A002
        """Put a turn at the end, unless it is there."""
        if all(turn.id != id for turn in self.turns):
            self.turns.append(Said(self.next_ordinal, id, run, role, text))
            self.next_ordinal += 1

    def cut(self, cut: Cut) -> None:
        """Move the start of windows, unless another run was faster."""
        if cut.previous == self.upto:
            self.upto, self.summary = cut.upto, cut.summary

    def forget(self, run: str) -> None:
        """Delete the turns of a run, and a cut that covers one."""
        deleted_turns = [turn for turn in self.turns if turn.run == run]
        self.turns = [turn for turn in self.turns if turn.run != run]
        if deleted_turns and deleted_turns[0].ordinal <= self.upto:
            self.upto, self.summary = NO_CUT, ""
        if not self.turns:
            self.next_ordinal = 0

    @property
    def told(self) -> tuple[list[Said], int, str]:
        """Return the predicted content."""
        return self.turns, self.upto, self.summary


async def sessions_of(store: RunStore, agents: Iterable[AgentId]) -> dict[str, Session]:
    """Return the sessions of agents that have turns, by ``AGENT SESSION``."""
    sessions: dict[str, Session] = {}
    for agent in agents:
        for name in SESSIONS:
            turns = [
                Said(turn.ordinal, turn.id, turn.run_id, turn.message.role, turn.message.text)
                for turn in await store.data.transcripts.page(agent, name)
            ]
            if not turns:
                continue
            cut = (await store.data.transcripts.view(agent, name, limit=1)).cut
            session = Session(turns, turns[-1].ordinal + 1)
            if cut is not None:
                upto = cut.summary.metadata["upto"] if cut.summary is not None else ""
                session.upto, session.summary = cut.upto, upto
            sessions[f"{agent} {name}"] = session
    return sessions
