"""A client that retries the calls of another client after transient failures."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import NoReturn, cast

from actors.errors import ContractError, ModelError, RetryAfter
from actors.kernel.agent.llm import (
    GenerationOptions,
    LLMClient,
    LLMResponse,
    StreamEvent,
    collected,
)
from actors.kernel.agent.message import ChatMessage
from actors.kernel.backoff import Backoff
from actors.kernel.clock import Entropy
from actors.runtime.loop.clock import SystemEntropy


@dataclass(frozen=True, slots=True, kw_only=True)
class TryLimits:
    """Limits of the tries within one call.

    Attributes:
        count: Maximum number of tries, including the first.
        within_s: Seconds after the start of the first try until which further tries may start.
        first_pause_s: Pause in seconds after the first try, if the provider names none. Each further pause
            doubles, less a random part of up to a half.
        longest_pause_s: Longest such pause, in seconds.
    """

    count: int = 4
    within_s: float = 60.0
    first_pause_s: float = 0.5
    longest_pause_s: float = 8.0

    def __post_init__(self) -> None:
        if self.count < 1:
            msg = f"TryLimits(count={self.count}): a call has at least one try"
            raise ContractError(msg)


class RetryingModel:
    """A client that retries another client after a transient `ModelError`. See `LLMClient`.

    Only kinds in `TRANSIENT_MODEL_ERRORS` are retried, and never after the first piece of an answer was
    yielded. A pause that the provider names is used. If the limits allow no further try after such a pause, the
    call raises `RetryAfter`: the run is evicted from memory and continues after the pause.

    Args:
        client: The client, called up to `tries.count` times.
        tries: Limits of one call.
        entropy: Source of the jitter; by default the machine's.
    """

    def __init__(
        self, client: LLMClient, *, tries: TryLimits | None = None, entropy: Entropy | None = None
    ) -> None:
        self.client, self._tries = client, tries or TryLimits()
        self._entropy = entropy or SystemEntropy()

    @property
    def model(self) -> str:
        """See `LLMClient.model`."""
        return self.client.model

    @property
    def has_response_format(self) -> bool:
        """True if the client enforces `GenerationOptions.response_format` itself."""
        return bool(getattr(self.client, "has_response_format", False))

    @property
    def context_window(self) -> int | None:
        """The size of the client's context window in tokens; None if unknown."""
        return context_window_of(self.client)

    async def generate(
        self, messages: Sequence[ChatMessage], *, options: GenerationOptions | None = None
    ) -> LLMResponse:
        """See `LLMClient.generate`.

        Raises:
            ModelError: The error of the last try, without a pause, or an error that is not transient.
            RetryAfter: The provider names a pause, and the limits allow no further try after it.
        """
        return await collected(self.generate_stream(messages, options=options), model=self.model)

    async def generate_stream(
        self, messages: Sequence[ChatMessage], *, options: GenerationOptions | None = None
    ) -> AsyncIterator[StreamEvent]:
        """See `LLMClient.generate_stream`; raises as `generate` does."""
        time, limits = asyncio.get_running_loop().time, self._tries
        pauses = Backoff(limits.first_pause_s, limits.longest_pause_s)
        latest = time() + limits.within_s
        left = limits.count
        while True:
            left -= 1
            is_shown = False
            try:
                async with aclosing(stream_of(self.client, messages, options)) as events:
                    async for event in events:
                        is_shown = True
                        yield event
            except ModelError as exc:
                if is_shown or not exc.retryable:
                    raise
                pause_s = self._pause_s(exc, pauses)
                if left < 1 or time() + pause_s > latest:
                    _give_up(exc)
            else:
                return
            await asyncio.sleep(pause_s)

    async def count_tokens(self, messages: Sequence[ChatMessage]) -> int:
        """See `LLMClient.count_tokens`."""
        return await self.client.count_tokens(messages)

    async def aclose(self) -> None:
        """Close the client's connections, if it has any."""
        await close(self.client)

    def _pause_s(self, exc: ModelError, pauses: Backoff) -> float:
        pause_s = pauses.next_s() * (1 - self._entropy.random() / 2)
        return pause_s if exc.retry_after is None else exc.retry_after


def _give_up(exc: ModelError) -> NoReturn:
    """Raise the error, or `RetryAfter` if the provider names a pause."""
    if exc.retry_after is not None:
        raise RetryAfter(exc.retry_after, str(exc)) from exc
    raise exc


def stream_of(
    client: LLMClient, messages: Sequence[ChatMessage], options: GenerationOptions | None
) -> AsyncGenerator[StreamEvent, None]:
    """Return a client's stream as a generator that `aclosing` can close."""
    events = client.generate_stream(messages, options=options)
    if hasattr(events, "aclose"):
        return cast("AsyncGenerator[StreamEvent, None]", events)
    return _closable(events)


async def _closable(events: AsyncIterator[StreamEvent]) -> AsyncGenerator[StreamEvent, None]:
    async for event in events:
        yield event


def context_window_of(client: object) -> int | None:
    """Return the size of a client's context window in tokens; None if it is unknown."""
    size = getattr(client, "context_window", None)
    return size if isinstance(size, int) else None


async def close(client: object) -> None:
    """Call the client's `aclose`, if it has one."""
    aclose = getattr(client, "aclose", None)
    if aclose is not None:
        await aclose()
