"""Calls that strategies make: of a model, and of other code outside of the process.

Their failure leaves the window usable. A summary may be written ahead, after an answer, for the window of a
later call.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final, TypeVar

from actors._kernel.agent.message import ChatMessage
from actors._kernel.agent.models import (
    Completion,
    GenerationOptions,
    LLMClient,
    LLMResponse,
    PaidCalls,
    StreamEvent,
)
from actors.errors import (
    BrokerError,
    BudgetExhaustedError,
    CancellationError,
    ConflictError,
    ContractError,
    DeadlineExceededError,
    Facts,
    PersistenceError,
)

_paid_calls: ContextVar[PaidCalls | None] = ContextVar("callboard_paid_calls", default=None)


class ModelNotAskedError(Facts, ContractError):
    """A strategy needs a model while model calls are refused."""

    text = "model {model!r} is not called, since the window is only shown"
    model: str


class RefusedCalls:
    """`PaidCalls` of a window that is only shown. It refuses every call."""

    async def ask(
        self,
        llm: LLMClient,
        messages: Sequence[ChatMessage],
        *,
        options: GenerationOptions | None = None,
    ) -> LLMResponse:
        """Refuse the call.

        Raises:
            ModelNotAskedError: Always.
        """
        raise ModelNotAskedError(llm.model)


def may_ask() -> bool:
    """Return True if models may be called. It is False while a window is only shown."""
    return not isinstance(_paid_calls.get(), RefusedCalls)


@contextmanager
def recorded_by(paid_calls: PaidCalls) -> Iterator[None]:
    """Record the calls of `ask` in a run, inside the block and in tasks started there."""
    token = _paid_calls.set(paid_calls)
    try:
        yield
    finally:
        _paid_calls.reset(token)


async def ask(
    llm: LLMClient, messages: Sequence[ChatMessage], *, options: GenerationOptions | None = None
) -> LLMResponse:
    """Return the model's answer. Inside `recorded_by` a recorded answer is used if there is one.

    Any exception of the client is raised. A cancellation abandons the request, which may still be billed.
    """
    paid_calls = _paid_calls.get()
    if paid_calls is None:
        return await llm.generate(messages, options=options)
    return await paid_calls.ask(llm, messages, options=options)


T = TypeVar("T")

_log = logging.getLogger("callboard.context")

_ABOUT_THE_RUN: Final = (
    BrokerError,
    BudgetExhaustedError,
    CancellationError,
    ConflictError,
    ContractError,
    DeadlineExceededError,
    PersistenceError,
)
"""Errors after which the run cannot continue, whatever the window is."""


async def attempted(
    work: Callable[[], Awaitable[T]], *, what: str, timeout_s: float | None
) -> T | None:
    """Return the result of `work`. If it fails or takes too long, log a warning and return None.

    A cancellation cancels the work. Errors about the run itself are raised: an exhausted budget, a deadline, a
    lost lease, an unreachable store.
    """
    try:
        async with asyncio.timeout(timeout_s):
            return await work()
    except _ABOUT_THE_RUN:
        raise
    except Exception:  # noqa: BLE001 - a model client may raise any error; the window is made without it
        _log.warning("a part of the window is left out", extra={"part": what}, exc_info=True)
        return None


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
        """Return the answer of the earlier call."""
        del messages, options
        return self.response

    async def generate_stream(
        self, messages: Sequence[ChatMessage], *, options: GenerationOptions | None = None
    ) -> AsyncIterator[StreamEvent]:
        """Yield the answer of the earlier call, as one event."""
        del messages, options
        yield Completion(response=self.response)

    async def count_tokens(self, messages: Sequence[ChatMessage]) -> int:
        """Return the input tokens that the earlier call was billed for."""
        del messages
        return self.response.usage.input


def preparing(strategy: object) -> tuple[object, ...]:
    """Return the strategies that write summaries ahead: a strategy itself and those inside it."""
    inner: Iterable[Any] = getattr(strategy, "strategies", ())
    inner_strategies = tuple(
        strategy_inside for part in inner for strategy_inside in preparing(part)
    )
    return (
        inner_strategies
        if getattr(strategy, "prepare", None) is None
        else (strategy, *inner_strategies)
    )
