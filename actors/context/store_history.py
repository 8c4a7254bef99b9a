"""The history that the runtime's own store keeps: its turns are durable with the log entries of their run."""

from __future__ import annotations

import secrets
from collections.abc import Sequence

from actors.context.tokens import stamped_tokens
from actors.context.turns import TOKENS
from actors.errors import ContractError
from actors.kernel.agent.message import ChatMessage
from actors.kernel.agent.transcript import NewTurn, Turn
from actors.kernel.runtime.ids import AgentId
from actors.kernel.storage.transcript import TranscriptStore


class StoreHistory:
    """A `HistoryProvider` on the store of the runtime that serves the agent.

    Inside a run its turns ride in the run's commits: `ctx.generate` and `ctx.chat` cost no write beside
    those of the log. A host that lost the run's lease writes no turn. Outside, `Runtime.history` is one.

    Args:
        store: Where turns are. An agent's config needs none: the runtime knows its own.
    """

    def __init__(self, store: TranscriptStore | None = None) -> None:
        self._store = store

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
        turns = [new_turn(message, session_id) for message in messages]
        await self._transcripts.append(agent_id, turns, run_id=run_id)

    async def get_messages(
        self, agent_id: AgentId, *, session_id: str, limit: int | None = None, offset: int = 0
    ) -> list[ChatMessage]:
        """See `HistoryProvider.get_messages`."""
        if offset < 0 or (limit is not None and limit < 0):
            msg = f"a page of a history is not negative: {offset=}, {limit=}"
            raise ContractError(msg)
        turns = await self._transcripts.page(agent_id, session_id, limit=limit, offset=offset)
        return [message_of(turn) for turn in turns]

    async def clear(self, agent_id: AgentId, *, session_id: str) -> None:
        """See `HistoryProvider.clear`."""
        await self._transcripts.clear(agent_id, session_id)

    async def clear_run(self, agent_id: AgentId, *, session_id: str, run_id: str) -> None:
        """See `HistoryProvider.clear_run`."""
        await self._transcripts.clear_run(agent_id, session_id, run_id)

    async def count_messages(self, agent_id: AgentId, *, session_id: str) -> int:
        """See `HistoryProvider.count_messages`."""
        return await self._transcripts.count(agent_id, session_id)

    @property
    def _transcripts(self) -> TranscriptStore:
        if self._store is None:
            msg = (
                "StoreHistory() of an agent's context is used by its runs alone: elsewhere read "
                "`Runtime.history`, or give it a store"
            )
            raise ContractError(msg)
        return self._store


def new_turn(message: ChatMessage, session_id: str) -> NewTurn:
    """Return a turn as a store takes it; without an id it gets one that nobody has."""
    plain = {key: said for key, said in message.metadata.items() if key not in _KEPT_APART}
    return NewTurn(
        session_id,
        message.turn or secrets.token_hex(16),
        message.model_copy(update={"metadata": plain}),
        tokens=stamped_tokens(message),
        parent=message.parent,
    )


def message_of(turn: Turn) -> ChatMessage:
    """Return a stored turn with its id, its parent and its size in the metadata."""
    marks = {"turn": turn.id}
    if turn.parent is not None:
        marks["parent"] = turn.parent
    if turn.tokens is not None:
        marks[TOKENS] = str(turn.tokens)
    return turn.message.model_copy(update={"metadata": turn.message.metadata | marks})


_KEPT_APART = frozenset(("turn", "parent", TOKENS))
"""Keys of a turn's metadata that have columns of their own."""
