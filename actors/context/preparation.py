"""Summaries that are written ahead: behind an answer, for the window of a later call."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from actors.context.paid_calls import ask
from actors.kernel.agent.llm import Completion, GenerationOptions, LLMResponse, StreamEvent
from actors.kernel.agent.message import ChatMessage


class WindowMode(StrEnum):
    """The ways in which strategies make a window."""

    ASKING = "asking"
    """A call needs the window and waits for models that strategies ask."""
    READY = "ready"
    """A call needs the window without waiting: strategies use what they have."""
    AHEAD = "ahead"
    """No call needs the window yet. Answers of models are kept until one does."""


_mode: ContextVar[WindowMode] = ContextVar("callboard_window_mode", default=WindowMode.ASKING)


def current_mode() -> WindowMode:
    """Return the mode in which this task makes a window."""
    return _mode.get()


@contextmanager
def in_mode(mode: WindowMode) -> Iterator[None]:
    """Let strategies inside the block make windows in this mode."""
    token = _mode.set(mode)
    try:
        yield
    finally:
        _mode.reset(token)


@dataclass(frozen=True, slots=True)
class AnsweredCall:
    """A model call of a strategy that was made ahead, as the client of a model that answers at once.

    Attributes:
        model: Name of the model that was asked.
        messages: What it was asked.
        options: How.
        response: Its answer.
    """

    model: str
    messages: Sequence[ChatMessage]
    options: GenerationOptions | None
    response: LLMResponse

    async def record(self) -> None:
        """Let the call that is made now have this one among its own, with what it cost."""
        await ask(self, self.messages, options=self.options)

    async def generate(
        self, messages: Sequence[ChatMessage], *, options: GenerationOptions | None = None
    ) -> LLMResponse:
        """See `LLMClient.generate`."""
        del messages, options
        return self.response

    async def generate_stream(
        self, messages: Sequence[ChatMessage], *, options: GenerationOptions | None = None
    ) -> AsyncIterator[StreamEvent]:
        """See `LLMClient.generate_stream`."""
        del messages, options
        yield Completion(response=self.response)

    async def count_tokens(self, messages: Sequence[ChatMessage]) -> int:
        """See `LLMClient.count_tokens`."""
        del messages
        return self.response.usage.input


def preparing(strategy: object) -> tuple[object, ...]:
    """Return those that write summaries ahead, of a strategy and of all that it is made of."""
    inner: Iterable[Any] = getattr(strategy, "strategies", ())
    found = tuple(one for part in inner for one in preparing(part))
    return found if getattr(strategy, "prepare", None) is None else (strategy, *found)
