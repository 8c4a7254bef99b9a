"""The function with which strategies call a model."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar

from actors.errors import ContractError, Facts
from actors.kernel.agent.message import ChatMessage
from actors.kernel.agent.models import GenerationOptions, LLMClient, LLMResponse, PaidCalls

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
