"""How an agent's memory of a conversation fits a model's window."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, runtime_checkable

if TYPE_CHECKING:
    from actors.kernel.agent.message import ChatMessage


@runtime_checkable
class CompactionStrategy(Protocol):
    """One way to make a history shorter."""

    async def compact(self, raw_history: list[ChatMessage]) -> list[ChatMessage]:
        """Return a list that is not longer, in the same order. `raw_history` is left as it is.

        Never splits a tool call from its result.
        """
        ...


@runtime_checkable
class AgentContextProtocol(Protocol):
    """An agent's memory of its conversations: a `HistoryProvider` seen through a strategy."""

    async def get_prompt_window(self, session_id: str) -> list[ChatMessage]:
        """Return the session's history as the model is to see it, oldest first."""
        ...
