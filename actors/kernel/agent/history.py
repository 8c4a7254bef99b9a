"""The transcript of conversations: chat messages of one agent in one session, tagged with their run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

from actors.kernel.agent.message import ChatMessage
from actors.kernel.runtime.ids import AgentId


@runtime_checkable
class HistoryProvider(Protocol):
    """Keeps chat messages in order; never trims or summarises them (that is compaction's work)."""

    async def append(
        self, agent_id: AgentId, message: ChatMessage, *, session_id: str, run_id: str = ""
    ) -> None:
        """Put one message at the end of the session."""

    async def append_many(
        self,
        agent_id: AgentId,
        messages: Sequence[ChatMessage],
        *,
        session_id: str,
        run_id: str = "",
    ) -> None:
        """Put messages at the end, in their order, all or none."""

    async def get_messages(
        self, agent_id: AgentId, *, session_id: str, limit: int | None = None, offset: int = 0
    ) -> list[ChatMessage]:
        """Return messages, oldest first: at most `limit`, after the first `offset`."""

    async def clear(self, agent_id: AgentId, *, session_id: str) -> None:
        """Forget the whole session, and no other one."""

    async def clear_run(self, agent_id: AgentId, *, session_id: str, run_id: str) -> None:
        """Forget one run's messages; the others keep their order."""

    async def count_messages(self, agent_id: AgentId, *, session_id: str) -> int:
        """Return how many messages `get_messages` without a limit would return."""
