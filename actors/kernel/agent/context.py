"""An agent's memory of a conversation, and the ways to fit it into a model's window."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

from actors.kernel.agent.llm import GenerationOptions, LLMClient, LLMResponse
from actors.kernel.agent.message import ChatMessage


@runtime_checkable
class CompactionStrategy(Protocol):
    """A way to make a view of a history that is cheaper to send."""

    async def compact(self, raw_history: list[ChatMessage]) -> list[ChatMessage]:
        """Return the view. Neither `raw_history` nor its messages are changed.

        The turns that stay keep their order. A tool call and its results stay or go together. A turn
        with `metadata["pinned"]` stays. Compacting a view again changes nothing.
        """


@runtime_checkable
class AgentContextProtocol(Protocol):
    """An agent's memory of its conversations: a `HistoryProvider` seen through a strategy."""

    async def get_prompt_window(self, session_id: str) -> list[ChatMessage]:
        """Return the session's history as the model is to see it, oldest first."""


@runtime_checkable
class PaidCalls(Protocol):
    """The model calls of strategies, as a run records them. A runtime that has a log offers this."""

    async def ask(
        self,
        llm: LLMClient,
        messages: Sequence[ChatMessage],
        *,
        options: GenerationOptions | None = None,
    ) -> LLMResponse:
        """Return the recorded answer to this very call, else ask `llm` and record its answer."""
