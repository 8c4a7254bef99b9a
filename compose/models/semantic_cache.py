"""A client that caches answers in memory."""

from __future__ import annotations

import hashlib
import inspect
from collections import OrderedDict
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Final, TypeAlias

from actors.kernel.agent.message import ChatMessage
from actors.kernel.agent.models import (
    Completion,
    GenerationOptions,
    LLMClient,
    LLMResponse,
    StreamEvent,
    TextDelta,
    Usage,
    collected,
    prepare,
)
from actors.kernel.basics import Clock
from actors.kernel.json import canonical_json
from actors.runtime.loop.clock import SystemClock
from actors.runtime.telemetry.span_attributes import executing
from compose.models.combined import close, context_window_of, stream_of

Similarity: TypeAlias = "Callable[[str, str], float | Awaitable[float]]"
"""Returns the similarity of two texts from 0 to 1, for example by embeddings."""

_FREE: Final = Usage(cost_usd=0.0)


@dataclass(frozen=True, slots=True)
class _Kept:
    """A cached answer: digest of the context, text of the last message, and time by the clock's `monotonic`."""

    before: str
    text: str
    response: LLMResponse
    at: float


class SemanticCache:
    """A client that answers repeated requests from memory, and calls another client otherwise. See `LLMClient`.

    Answers are kept per tenant and never shared between tenants. A request is repeated if model, messages and
    options are the same. With `similarity`, a request is also repeated if the text of its last message is
    similar enough, and model, earlier messages and options are the same. Answers with tool calls are not kept,
    and no answer that a limit of tokens cut off. An answer from memory has no tokens and no cost.

    Args:
        client: Called for requests that are not in memory.
        tenant: Owner of the answers; None for the tenant of the calling run. With None, calls outside of a run
            are not cached.
        similarity: Compares the texts of the last messages. If None, only equal requests are repeated.
        threshold: Minimum similarity.
        keep_s: Seconds for which an answer is kept.
        max_entries: Maximum number of answers per tenant. The least recently used answer is dropped first.
        clock: Source of time; by default the machine's.
    """

    def __init__(
        self,
        client: LLMClient,
        *,
        tenant: str | None = None,
        similarity: Similarity | None = None,
        threshold: float = 0.95,
        keep_s: float = 3_600.0,
        max_entries: int = 1_000,
        clock: Clock | None = None,
    ) -> None:
        self._client, self._tenant = client, tenant
        self._similarity, self._threshold = similarity, threshold
        self._keep_s, self._max_entries = keep_s, max_entries
        self._clock = clock or SystemClock()
        self._kept: dict[str, OrderedDict[str, _Kept]] = {}

    @property
    def model(self) -> str:
        """See `LLMClient.model`."""
        return self._client.model

    @property
    def context_window(self) -> int | None:
        """The size of the client's context window in tokens; None if unknown."""
        return context_window_of(self._client)

    async def generate(
        self, messages: Sequence[ChatMessage], *, options: GenerationOptions | None = None
    ) -> LLMResponse:
        """See `LLMClient.generate`."""
        return await collected(self.generate_stream(messages, options=options), model=self.model)

    async def generate_stream(
        self, messages: Sequence[ChatMessage], *, options: GenerationOptions | None = None
    ) -> AsyncIterator[StreamEvent]:
        """See `LLMClient.generate_stream`. An answer from memory is yielded as one piece."""
        kept = self._of_tenant()
        before = _digest(self.model, messages[:-1], options)
        text = messages[-1].text if messages else ""
        key = _digest(before, messages[-1:], None)
        found = None if kept is None else await self._found(kept, key, before, text)
        if found is not None:
            if found.text:
                yield TextDelta(text=found.text)
            yield Completion(response=found.model_copy(update={"usage": _FREE}))
            return
        async with aclosing(stream_of(self._client, messages, options)) as events:
            async for event in events:
                if kept is not None and isinstance(event, Completion):
                    self._keep(
                        kept, key, _Kept(before, text, event.response, self._clock.monotonic())
                    )
                yield event

    async def count_tokens(self, messages: Sequence[ChatMessage]) -> int:
        """See `LLMClient.count_tokens`."""
        return await self._client.count_tokens(messages)

    async def prepare(self) -> None:
        """Let the client load what it needs."""
        await prepare(self._client)

    async def aclose(self) -> None:
        """Close the client's connections, and drop all answers."""
        self._kept.clear()
        await close(self._client)

    def _of_tenant(self) -> OrderedDict[str, _Kept] | None:
        run = executing.get()
        tenant = self._tenant or (run.agent_id.tenant if run is not None else None)
        return None if tenant is None else self._kept.setdefault(tenant, OrderedDict())

    async def _found(
        self, kept: OrderedDict[str, _Kept], key: str, before: str, text: str
    ) -> LLMResponse | None:
        oldest = self._clock.monotonic() - self._keep_s
        same = kept.get(key)
        if same is not None and same.at > oldest:
            kept.move_to_end(key)
            return same.response
        if self._similarity is None or not text:
            return None
        for other, entry in list(kept.items()):
            if entry.before == before and entry.text and entry.at > oldest:
                likeness = self._similarity(entry.text, text)
                likeness = await likeness if inspect.isawaitable(likeness) else likeness
                if likeness >= self._threshold:
                    if other in kept:  # another request may have dropped it meanwhile
                        kept.move_to_end(other)
                    return entry.response
        return None

    def _keep(self, kept: OrderedDict[str, _Kept], key: str, entry: _Kept) -> None:
        if entry.response.tool_calls or entry.response.reached_limit:
            return
        kept[key] = entry
        kept.move_to_end(key)
        while len(kept) > self._max_entries:
            kept.popitem(last=False)


def _digest(first: str, messages: Sequence[ChatMessage], options: GenerationOptions | None) -> str:
    chosen = options.model_dump(mode="json", exclude_defaults=True) if options else {}
    said = [message.model_dump(mode="json", exclude={"metadata"}) for message in messages]
    text = canonical_json([first, said, chosen])
    return hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()
