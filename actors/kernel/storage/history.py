"""The transcript of conversations: chat turns of one agent in one session, tagged with their run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

from actors.kernel.agent.message import ChatMessage
from actors.kernel.runtime.ids import AgentId


@runtime_checkable
class HistoryProvider(Protocol):
    """Every turn of every session, in order. Nothing is summarised or trimmed: compaction makes views.

    A turn may have an id, `ChatMessage.turn`. A provider drops a turn whose id the session already has,
    so that a replay, a retry or a redelivery never doubles one. Turns without an id are always kept; a
    provider may give them one.
    A turn may also name the turn before it, `ChatMessage.parent`, which is kept like all metadata.
    """

    async def append(
        self, agent_id: AgentId, message: ChatMessage, *, session_id: str, run_id: str = ""
    ) -> None:
        """Put one turn at the end of the session. See `append_many`."""

    async def append_many(
        self,
        agent_id: AgentId,
        messages: Sequence[ChatMessage],
        *,
        session_id: str,
        run_id: str = "",
    ) -> None:
        """Put turns at the end of the session, in their order and next to each other.

        The batch is atomic: after an error or a crash all of its turns are there, or none.
        """

    async def get_messages(
        self, agent_id: AgentId, *, session_id: str, limit: int | None = None, offset: int = 0
    ) -> list[ChatMessage]:
        """Return turns, oldest first: at most `limit`, after the first `offset`.

        A page after the end is empty. Changing the returned list does not change the history.

        Raises:
            ContractError: `limit` or `offset` is negative.
        """

    async def clear(self, agent_id: AgentId, *, session_id: str) -> None:
        """Remove all turns of the session, and of no other one."""

    async def clear_run(self, agent_id: AgentId, *, session_id: str, run_id: str) -> None:
        """Remove one run's turns from the session. The others keep their order.

        An empty `run_id` is that of no run, and nothing is removed.
        """

    async def count_messages(self, agent_id: AgentId, *, session_id: str) -> int:
        """Return how many turns `get_messages` without a limit returns."""
