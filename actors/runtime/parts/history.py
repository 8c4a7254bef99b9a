"""Transcripts in one process."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from actors.kernel.agent.message import ChatMessage
from actors.kernel.runtime.ids import AgentId


class InMemoryHistoryProvider:
    """A `HistoryProvider` that forgets everything with its process."""

    def __init__(self) -> None:
        self._turns: defaultdict[tuple[AgentId, str], list[tuple[str, ChatMessage]]]
        self._turns = defaultdict(list)

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
        copies = [(run_id, message.model_copy(deep=True)) for message in messages]
        self._turns[agent_id, session_id] += copies

    async def get_messages(
        self, agent_id: AgentId, *, session_id: str, limit: int | None = None, offset: int = 0
    ) -> list[ChatMessage]:
        """See `HistoryProvider.get_messages`."""
        turns = self._turns.get((agent_id, session_id), [])[offset:]
        return [message.model_copy(deep=True) for _, message in turns[:limit]]

    async def clear(self, agent_id: AgentId, *, session_id: str) -> None:
        """See `HistoryProvider.clear`."""
        self._turns.pop((agent_id, session_id), None)

    async def clear_run(self, agent_id: AgentId, *, session_id: str, run_id: str) -> None:
        """See `HistoryProvider.clear_run`."""
        kept = [turn for turn in self._turns.get((agent_id, session_id), []) if turn[0] != run_id]
        self._turns[agent_id, session_id] = kept

    async def count_messages(self, agent_id: AgentId, *, session_id: str) -> int:
        """See `HistoryProvider.count_messages`."""
        return len(self._turns.get((agent_id, session_id), []))
