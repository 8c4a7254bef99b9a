"""A client that lets a function choose the client of each request."""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import aclosing
from typing import TypeAlias

from actors.kernel.agent.message import ChatMessage
from actors.kernel.agent.models import (
    GenerationOptions,
    LLMClient,
    LLMResponse,
    StreamEvent,
    collected,
)
from compose.models.retrying_model import stream_of

Picking: TypeAlias = (
    "Callable[[Sequence[ChatMessage], GenerationOptions], LLMClient | Awaitable[LLMClient]]"
)


class Router:
    """A client that forwards each request to a client chosen by a function. See `LLMClient`.

    The function may be `async` and call models itself. The whole request is one effect of the run.

    Args:
        pick: Called with the messages and options of each request. Returns the client to call.
        model: The name that logs record. A response names the model that answered.
    """

    def __init__(self, pick: Picking, *, model: str = "router") -> None:
        self._pick, self._model = pick, model

    @property
    def model(self) -> str:
        """See `LLMClient.model`."""
        return self._model

    async def generate(
        self, messages: Sequence[ChatMessage], *, options: GenerationOptions | None = None
    ) -> LLMResponse:
        """See `LLMClient.generate`."""
        return await collected(self.generate_stream(messages, options=options), model=self.model)

    async def generate_stream(
        self, messages: Sequence[ChatMessage], *, options: GenerationOptions | None = None
    ) -> AsyncIterator[StreamEvent]:
        """See `LLMClient.generate_stream`."""
        client = await self._picked(messages, options)
        async with aclosing(stream_of(client, messages, options)) as events:
            async for event in events:
                yield event

    async def count_tokens(self, messages: Sequence[ChatMessage]) -> int:
        """Return the count of the client that `pick` chooses for the messages without options."""
        return await (await self._picked(messages, None)).count_tokens(messages)

    async def _picked(
        self, messages: Sequence[ChatMessage], options: GenerationOptions | None
    ) -> LLMClient:
        picked = self._pick(messages, options or GenerationOptions())
        return await picked if inspect.isawaitable(picked) else picked
