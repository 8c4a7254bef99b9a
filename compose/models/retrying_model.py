"""A client that asks another one again after failures that pass."""

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
        count: Tries at most, the first included.
        within_s: Seconds from the first try after which no further one begins.
        first_pause_s: Pause after the first try, in seconds, if the provider names none; each further pause
            is twice as long, less up to a half by chance.
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
    """A client that asks another one again after a `ModelError` that passes. See `LLMClient`.

    Only kinds in `TRANSIENT_MODEL_ERRORS` are tried again, and never after the first piece of an answer was
    shown. A pause is as long as the provider asks for. If it asks for a longer one than the limits allow,
    the call raises `RetryAfter`: the run is evicted from memory and continues then.

    Args:
        client: Asked up to `tries.count` times.
        tries: Limits of one call.
        entropy: Source of the jitter; None: the machine's.
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
        """True if the client makes answers fit `GenerationOptions.response_format` by itself."""
        return bool(getattr(self.client, "has_response_format", False))

    @property
    def context_window(self) -> int | None:
        """The size of the client's context window in tokens; None: not known."""
        return context_window_of(self.client)

    async def generate(
        self, messages: Sequence[ChatMessage], *, options: GenerationOptions | None = None
    ) -> LLMResponse:
        """See `LLMClient.generate`.

        Raises:
            ModelError: The last try's, or one that no further try mends.
            RetryAfter: The provider asks for a longer pause than the limits allow.
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
    """Raise the error, or the provider's wish as `RetryAfter`."""
    if exc.retry_after is not None:
        raise RetryAfter(exc.retry_after, str(exc)) from exc
    raise exc


def stream_of(
    client: LLMClient, messages: Sequence[ChatMessage], options: GenerationOptions | None
) -> AsyncGenerator[StreamEvent, None]:
    """Return a client's stream as a generator, which `aclosing` can close."""
    events = client.generate_stream(messages, options=options)
    if hasattr(events, "aclose"):
        return cast("AsyncGenerator[StreamEvent, None]", events)
    return _closable(events)


async def _closable(events: AsyncIterator[StreamEvent]) -> AsyncGenerator[StreamEvent, None]:
    async for event in events:
        yield event


def context_window_of(client: object) -> int | None:
    """Return the size of a client's context window in tokens; None if the client does not say."""
    size = getattr(client, "context_window", None)
    return size if isinstance(size, int) else None


async def close(client: object) -> None:
    """Call the client's `aclose`, if it has one."""
    aclose = getattr(client, "aclose", None)
    if aclose is not None:
        await aclose()
