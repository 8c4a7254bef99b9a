"""The history of a program that has no runtime: the rows of runs, read and written from outside."""

from __future__ import annotations

from collections.abc import Sequence

from typing_extensions import override

from actors.kernel.agent.message import ChatMessage
from actors.kernel.agent.transcript import check_page, message_of_turn, new_turn
from actors.kernel.runtime.ids import AgentId
from actors.kernel.stores.conversations import HistoryProvider, TranscriptStore


class PostgresHistoryProvider(HistoryProvider):
    """A durable `HistoryProvider`: turns are rows, which SQL may read. Made by `open_postgres_history`.

    A turn that was given without an id comes back with one.

    Args:
        transcripts: The sessions of one schema.
    """

    def __init__(self, transcripts: TranscriptStore) -> None:
        self._transcripts = transcripts

    @override
    async def append(
        self, agent_id: AgentId, message: ChatMessage, *, session_id: str, run_id: str = ""
    ) -> None:
        await self.append_many(agent_id, [message], session_id=session_id, run_id=run_id)

    @override
    async def append_many(
        self,
        agent_id: AgentId,
        messages: Sequence[ChatMessage],
        *,
        session_id: str,
        run_id: str = "",
    ) -> None:
        turns = [new_turn(message, session_id) for message in messages]
        await self._transcripts.append(agent_id, turns, run_id=run_id)

    @override
    async def get_messages(
        self, agent_id: AgentId, *, session_id: str, limit: int | None = None, offset: int = 0
    ) -> list[ChatMessage]:
        check_page(limit, offset)
        turns = await self._transcripts.page(agent_id, session_id, limit=limit, offset=offset)
        return [message_of_turn(turn) for turn in turns]

    @override
    async def clear(self, agent_id: AgentId, *, session_id: str) -> None:
        await self._transcripts.clear(agent_id, session_id)

    @override
    async def clear_run(self, agent_id: AgentId, *, session_id: str, run_id: str) -> None:
        await self._transcripts.clear_run(agent_id, session_id, run_id)

    @override
    async def count_messages(self, agent_id: AgentId, *, session_id: str) -> int:
        return await self._transcripts.count(agent_id, session_id)
