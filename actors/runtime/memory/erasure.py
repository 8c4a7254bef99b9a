"""Erasure of the rows of the in-memory store."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import Final, TypeAlias

from typing_extensions import override

from actors.kernel.runtime.ids import AgentId, RunId
from actors.kernel.storage.erasure import (
    ERASE_BATCH,
    Erasable,
    EraseCount,
    EraseRequest,
    EraseScope,
    ErasureStore,
)
from actors.kernel.store.operators import agent_scope
from actors.runtime.memory.records import RunRecord
from actors.runtime.memory.rows import MemoryRows
from actors.runtime.memory.schedules import ScheduleRows

_Removal: TypeAlias = tuple[str, Callable[[], object]]
"""The kind of a row, and a call that removes it."""
_OF_AGENTS: Final = (EraseScope.TENANT, EraseScope.AGENT)
_AGAIN: Final = "+"


class MemoryErasure(ErasureStore):
    """The parts of an erase in memory. Each batch is done without an await in the middle.

    Args:
        rows: Runs, mail, conversations and artifacts.
        schedules: Those of the same store.
    """

    def __init__(self, rows: MemoryRows, schedules: ScheduleRows) -> None:
        self._rows, self._schedules = rows, schedules
        self.parts: Sequence[Erasable] = (
            _Part("mail", self._mail),
            _Part("conversations", self._conversations),
            _Part("runs", self._runs),
            _Part("agents", self._agents),
            _Part("artifacts", self._artifacts),
        )

    @override
    async def open_runs(self, what: EraseRequest, *, limit: int) -> list[tuple[RunId, AgentId]]:
        found = sorted(
            (run.cause.run_id, run.cause.agent_id)
            for run in self._rows.open_runs()
            if what.covers(run.cause.agent_id)
        )
        return found[:limit]

    def _mail(self, what: EraseRequest) -> Iterator[_Removal]:
        """Yield schedules, posts on their way and dead letters."""
        if what.scope not in _OF_AGENTS:
            return
        kept, dead, follows = self._schedules.kept, self._rows.dead, self._rows.follows
        for place, schedule in kept.items():
            if what.covers(schedule.agent_id):
                yield "schedules", partial(kept.pop, place, None)
        for number, (letter, _) in dead.items():
            if what.covers(letter.agent_id):
                yield "letters", partial(dead.pop, number, None)
        if what.scope is EraseScope.TENANT:
            for seq, work in follows.work.items():
                if work.topic.tenant == what.tenant:
                    yield "posts", partial(follows.work.pop, seq, None)

    def _conversations(self, what: EraseRequest) -> Iterator[_Removal]:
        """Yield turns, the oldest first; of a named session the ended runs that wrote them before."""
        transcripts = self._rows.transcripts
        for agent, session in transcripts.kept():
            if not what.covers(agent) or what.session not in (None, session):
                continue
            turns = transcripts.turns_of(agent, session)
            if what.session is not None:
                found = (self._rows.runs.get(RunId(run_id)) for _, run_id in turns)
                yield from self._dropped(run for run in found if run and run.status.is_terminal)
            for turn, run_id in turns:
                run = self._rows.runs.get(RunId(run_id))
                if what.session is None or run is None or run.status.is_terminal:
                    yield "turns", partial(transcripts.forget_turn, agent, session, turn)

    def _runs(self, what: EraseRequest) -> Iterator[_Removal]:
        if what.scope in _OF_AGENTS:
            yield from self._dropped(
                run
                for run in self._rows.runs.values()
                if what.covers(run.cause.agent_id) and run.status.is_terminal
            )

    def _dropped(self, runs: Iterable[RunRecord]) -> Iterator[_Removal]:
        for run_id in dict.fromkeys(run.cause.run_id for run in runs):
            letters = [n for n, (one, _) in self._rows.dead.items() if one.run_id == run_id]
            for number in letters:
                yield "letters", partial(self._rows.dead.pop, number, None)
            yield "runs", partial(self._rows.drop_run, self._rows.runs[run_id])

    def _agents(self, what: EraseRequest) -> Iterator[_Removal]:
        """Yield waiting mail, follows and state."""
        if what.scope not in _OF_AGENTS:
            return
        rows = self._rows
        for row in (one for group in rows.pending.values() for one in group.values()):
            if what.covers(row.key.agent):
                yield "messages", partial(rows.withdraw, row.key)
        for follower, topics in rows.follows.by_follower.items():
            if what.covers(follower):
                for topic in topics:
                    yield "follows", partial(rows.follows.unfollow, follower, topic)
        for agent, state in rows.states.items():
            if what.covers(agent):
                for key in state:
                    yield "state", partial(state.pop, key, None)

    def _artifacts(self, what: EraseRequest) -> Iterator[_Removal]:
        if what.scope in _OF_AGENTS:
            scope = None if what.agent is None else agent_scope(what.agent)
            for remove in self._rows.artifacts.removals(what.tenant, scope):
                yield "artifacts", remove


@dataclass(slots=True)
class _Part(Erasable):
    """Rows of one kind of store.

    Attributes:
        erased_as: See `Erasable`.
        found: Yields what is to go.
    """

    erased_as: str
    found: Callable[[EraseRequest], Iterator[_Removal]]

    @override
    async def erase(
        self, what: EraseRequest, *, cursor: str | None = None, limit: int = ERASE_BATCH
    ) -> EraseCount:
        del cursor
        batch = list(islice(self.found(what), limit))
        for _, remove in batch:
            remove()
        counts = Counter(kind for kind, _ in batch)
        return EraseCount(counts, _AGAIN if len(batch) == limit else None)

    @override
    async def count(self, what: EraseRequest) -> Mapping[str, int]:
        return Counter(kind for kind, _ in self.found(what))
