"""A model whose answers a function of the test decides."""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import aclosing
from typing import TypeAlias

from actors.context.tokens import ESTIMATE
from actors.kernel.agent.message import ChatMessage
from actors.kernel.agent.models import GenerationOptions, LLMResponse, StreamEvent, collected
from actors.testing.model_reply import Asked, Line, ModelReply, events_of
from actors.testing.strict_requests import check_request

Answering: TypeAlias = (
    "Callable[[Sequence[ChatMessage], GenerationOptions], Line | Awaitable[Line]]"
)


class FunctionModel:
    """A model that answers with what a function returns for the messages and options. See `LLMClient`.

    Args:
        fn: Called with the messages and the options (the defaults, if none were given). May be `async`; what it
            raises fails the call.
        model: The model's name.
        strict: Refuse what all providers refuse, with their error, see `check_request`.

    Attributes:
        asked: Each request, in order; also those that failed.
    """

    def __init__(self, fn: Answering, *, model: str = "function", strict: bool = True) -> None:
        self._fn, self._model, self._strict = fn, model, strict
        self.asked: list[Asked] = []

    @property
    def model(self) -> str:
        """See `LLMClient.model`."""
        return self._model

    @property
    def calls(self) -> int:
        """The number of requests so far."""
        return len(self.asked)

    async def generate(
        self, messages: Sequence[ChatMessage], *, options: GenerationOptions | None = None
    ) -> LLMResponse:
        """See `LLMClient.generate`."""
        return await collected(self.generate_stream(messages, options=options), model=self.model)

    async def generate_stream(
        self, messages: Sequence[ChatMessage], *, options: GenerationOptions | None = None
    ) -> AsyncIterator[StreamEvent]:
        """See `LLMClient.generate_stream`."""
        asked = Asked(tuple(messages), options or GenerationOptions())
        self.asked.append(asked)
        if self._strict:
            check_request(asked.messages, asked.options)
        line = self._fn(asked.messages, asked.options)
        reply = ModelReply.of(await line if inspect.isawaitable(line) else line)
        async with aclosing(events_of(reply, asked, self.model)) as events:
            async for event in events:
                yield event

    async def count_tokens(self, messages: Sequence[ChatMessage]) -> int:
        """Return the characters of the messages divided by 3."""
        return ESTIMATE.total(messages)
