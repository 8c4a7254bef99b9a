"""Histories in one process.

The history in the runtime's own store.

Its turns are durable in the same commits as the log entries of their run.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from actors._kernel.agent.message import ChatMessage
from actors._kernel.agent.transcript import check_page, message_of_turn, new_turn
from actors._kernel.runtime.ids import AgentId
from actors._kernel.stores.conversations import TranscriptStore
from actors.errors import ContractError


class InMemoryHistoryProvider:
    """A `HistoryProvider` whose turns are lost with its process."""

    def __init__(self) -> None:
        self._sessions: defaultdict[tuple[AgentId, str], _Turns] = defaultdict(_Turns)

    async def append(
        self, agent_id: AgentId, message: ChatMessage, *, session_id: str, run_id: str = ""
    ) -> None:
        """Add a turn at the end of the session."""
        await self.append_many(agent_id, [message], session_id=session_id, run_id=run_id)

    async def append_many(
        self,
        agent_id: AgentId,
        messages: Sequence[ChatMessage],
        *,
        session_id: str,
        run_id: str = "",
    ) -> None:
        """Add turns at the end of the session, in their order. A turn whose id the session has is left out."""
        copies = [message.model_copy(deep=True) for message in messages]
        self._sessions[agent_id, session_id].append(run_id, copies)

    async def get_messages(
        self, agent_id: AgentId, *, session_id: str, limit: int | None = None, offset: int = 0
    ) -> list[ChatMessage]:
        """Return a page of the session's turns, the oldest first."""
        check_page(limit, offset)
        end = None if limit is None else offset + limit
        session = self._sessions.get((agent_id, session_id))
        turns = [] if session is None else session.turns[offset:end]
        return [message.model_copy(deep=True) for _, message in turns]

    async def clear(self, agent_id: AgentId, *, session_id: str) -> None:
        """Remove all turns of the session."""
        self._sessions.pop((agent_id, session_id), None)

    async def clear_run(self, agent_id: AgentId, *, session_id: str, run_id: str) -> None:
        """Remove a run's turns from the session."""
        session = self._sessions.get((agent_id, session_id))
        if session is not None and run_id:
            session.remove(run_id)

    async def count_messages(self, agent_id: AgentId, *, session_id: str) -> int:
        """Return the number of the session's turns."""
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


class StoreHistory:
    """A `HistoryProvider` on the store of the runtime that serves the agent.

    Inside a run, turns are written in the run's commits, so `ctx.generate` and `ctx.chat` cost no write in
    addition to those of the log. A host that lost the run's lease writes no turn. Outside of runs use
    `Runtime.history`.

    Args:
        store: The store of turns. An agent's config needs none, since the runtime uses its own.
    """

    def __init__(self, store: TranscriptStore | None = None) -> None:
        self._store = store

    @property
    def has_store(self) -> bool:
        """True if a store was given, False if the history uses the store of the runtime."""
        return self._store is not None

    async def append(
        self, agent_id: AgentId, message: ChatMessage, *, session_id: str, run_id: str = ""
    ) -> None:
        """Add a turn at the end of the session."""
        await self.append_many(agent_id, [message], session_id=session_id, run_id=run_id)

    async def append_many(
        self,
        agent_id: AgentId,
        messages: Sequence[ChatMessage],
        *,
        session_id: str,
        run_id: str = "",
    ) -> None:
        """Add turns at the end of the session, in their order. A turn whose id the session has is left out."""
        turns = [new_turn(message, session_id) for message in messages]
        await self._transcripts.append(agent_id, turns, run_id=run_id)

    async def get_messages(
        self, agent_id: AgentId, *, session_id: str, limit: int | None = None, offset: int = 0
    ) -> list[ChatMessage]:
        """Return a page of the session's turns, the oldest first."""
        check_page(limit, offset)
        turns = await self._transcripts.page(agent_id, session_id, limit=limit, offset=offset)
        return [message_of_turn(turn) for turn in turns]

    async def clear(self, agent_id: AgentId, *, session_id: str) -> None:
        """Remove all turns of the session."""
        await self._transcripts.clear(agent_id, session_id)

    async def clear_run(self, agent_id: AgentId, *, session_id: str, run_id: str) -> None:
        """Remove a run's turns from the session."""
        await self._transcripts.clear_run(agent_id, session_id, run_id)

    async def count_messages(self, agent_id: AgentId, *, session_id: str) -> int:
        """Return the number of the session's turns."""
        return await self._transcripts.count(agent_id, session_id)

    @property
    def _transcripts(self) -> TranscriptStore:
        if self._store is None:
            msg = (
                "StoreHistory() of an agent's context can be used only by its runs. Elsewhere read "
                "`Runtime.history`, or give it a store"
            )
            raise ContractError(msg)
        return self._store
