"""Histories in one process."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from actors.kernel.agent.message import ChatMessage
from actors.kernel.agent.transcript import check_page
from actors.kernel.runtime.ids import AgentId


class InMemoryHistoryProvider:
    """A `HistoryProvider` whose turns are lost with its process."""

    def __init__(self) -> None:
        self._sessions: defaultdict[tuple[AgentId, str], _Turns] = defaultdict(_Turns)

    async def append(
        self, agent_id: AgentId, message: ChatMessage, *, session_id: str, run_id: str = ""
    ) -> None:
        """See `HistoryProvider.append`."""
        await self.append_many(agent_id, [message], session_id=session_id, run_id=run_id)

    async def append_many(
        self,
        agent_id: AgentId,
        messages: Sequence[ChatMessage],
        *,
        session_id: str,
        run_id: str = "",
    ) -> None:
        """See `HistoryProvider.append_many`."""
        copies = [message.model_copy(deep=True) for message in messages]
        self._sessions[agent_id, session_id].append(run_id, copies)

    async def get_messages(
        self, agent_id: AgentId, *, session_id: str, limit: int | None = None, offset: int = 0
    ) -> list[ChatMessage]:
        """See `HistoryProvider.get_messages`."""
        check_page(limit, offset)
        end = None if limit is None else offset + limit
        session = self._sessions.get((agent_id, session_id))
        turns = [] if session is None else session.turns[offset:end]
        return [message.model_copy(deep=True) for _, message in turns]

    async def clear(self, agent_id: AgentId, *, session_id: str) -> None:
        """See `HistoryProvider.clear`."""
        self._sessions.pop((agent_id, session_id), None)

    async def clear_run(self, agent_id: AgentId, *, session_id: str, run_id: str) -> None:
        """See `HistoryProvider.clear_run`."""
        session = self._sessions.get((agent_id, session_id))
        if session is not None and run_id:
            session.remove(run_id)

    async def count_messages(self, agent_id: AgentId, *, session_id: str) -> int:
        """See `HistoryProvider.count_messages`."""
        session = self._sessions.get((agent_id, session_id))
        return 0 if session is None else len(session.turns)


@dataclass(slots=True)
class _Turns:
    """The turns of one agent in one session, each with its run, and the ids of the turns."""

    turns: list[tuple[str, ChatMessage]] = field(default_factory=list)
    ids: set[str] = field(default_factory=set)

    def append(self, run_id: str, messages: Iterable[ChatMessage]) -> None:
        """Add the turns whose id is new."""
        for message in messages:
            if message.turn is not None:
                if message.turn in self.ids:
                    continue
                self.ids.add(message.turn)
            self.turns.append((run_id, message))

    def remove(self, run_id: str) -> None:
        """Remove a run's turns and their ids."""
        self.turns = [turn for turn in self.turns if turn[0] != run_id]
        self.ids = {message.turn for _, message in self.turns if message.turn is not None}
