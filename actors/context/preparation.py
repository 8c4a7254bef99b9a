"""Summaries that are written ahead, after an answer, for the window of a later call."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from actors.context.paid_calls import ask
from actors.kernel.agent.message import ChatMessage
from actors.kernel.agent.models import Completion, GenerationOptions, LLMResponse, StreamEvent


class WindowMode(StrEnum):
    """The modes in which strategies make a window."""

    ASKING = "asking"
    """A call needs the window. Strategies may call models, and the call waits for them."""
    READY = "ready"
    """A call needs the window without a wait. Strategies use only summaries that are ready."""
    AHEAD = "ahead"
    """No call needs the window yet. Answers of models are kept until a call needs them."""


_mode: ContextVar[WindowMode] = ContextVar("callboard_window_mode", default=WindowMode.ASKING)


def current_mode() -> WindowMode:
    """Return the mode in which this task makes a window."""
    return _mode.get()


@contextmanager
def in_mode(mode: WindowMode) -> Iterator[None]:
    """Make windows in this mode inside the block."""
    token = _mode.set(mode)
    try:
        yield
    finally:
        _mode.reset(token)


@dataclass(frozen=True, slots=True)
class AnsweredCall:
    """A model call that a strategy made ahead. It is also a client that returns the answer at once.

    Attributes:
        model: The name of the model that was called.
        messages: The messages of the request.
        options: The options of the request.
        response: The model's answer.
    """

    model: str
    messages: Sequence[ChatMessage]
    options: GenerationOptions | None
    response: LLMResponse

    async def record(self) -> None:
        """Record this call, with its cost, among the calls of the run that makes a window now."""
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
    """Return the strategies that write summaries ahead: a strategy itself and those inside it."""
    inner: Iterable[Any] = getattr(strategy, "strategies", ())
    found = tuple(one for part in inner for one in preparing(part))
    return found if getattr(strategy, "prepare", None) is None else (strategy, *found)
