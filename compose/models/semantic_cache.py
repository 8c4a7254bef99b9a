"""A client that answers from memory what it was asked before."""

from __future__ import annotations

import hashlib
import inspect
from collections import OrderedDict
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Final, TypeAlias

from actors.kernel.agent.llm import (
    Completion,
    GenerationOptions,
    LLMClient,
    LLMResponse,
    StreamEvent,
    TextDelta,
    Usage,
    collected,
)
from actors.kernel.agent.message import ChatMessage
from actors.kernel.clock import Clock
from actors.kernel.json import canonical_json
from actors.runtime.loop.clock import SystemClock
from actors.runtime.telemetry.trace_context import executing
from compose.models.retrying_model import close, context_window_of, stream_of

Similarity: TypeAlias = "Callable[[str, str], float | Awaitable[float]]"
"""Returns how alike two texts are, from 0 to 1; by embeddings, for example."""

_FREE: Final = Usage(cost_usd=0.0)


@dataclass(frozen=True, slots=True)
class _Kept:
    """An answer: to which text, after which earlier messages, and when (by the clock's `monotonic`)."""

    before: str
    text: str
    response: LLMResponse
    at: float


class SemanticCache:
    """A client that answers from memory what it was asked before; else asks another. See `LLMClient`.

    Nothing is cached unless an author wraps a client in it. Answers are kept per tenant and never shared
    between tenants. A request is the same if model, messages and options are. With `similarity` a request
    also counts as the same if the text of its last message is like enough and all else is equal. Answers
    with tool calls are not kept. An answer from memory has no tokens and costs nothing.

    Args:
        client: Asked for what is not in memory.
        tenant: Owner of the answers; None: the tenant of the run that asks. Outside a run nothing is cached
            then.
        similarity: Compares the texts of the last messages; None: only equal requests count.
        threshold: Least similarity.
        keep_s: Seconds that an answer is kept.
        max_entries: Answers kept for each tenant; the one that was not used for the longest time goes first.
        clock: Source of time; None: the machine's.
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
        """The size of the client's context window in tokens; None: not known."""
        return context_window_of(self._client)

    async def generate(
        self, messages: Sequence[ChatMessage], *, options: GenerationOptions | None = None
    ) -> LLMResponse:
        """See `LLMClient.generate`."""
        return await collected(self.generate_stream(messages, options=options), model=self.model)

    async def generate_stream(
        self, messages: Sequence[ChatMessage], *, options: GenerationOptions | None = None
    ) -> AsyncIterator[StreamEvent]:
        """See `LLMClient.generate_stream`. An answer from memory is one piece."""
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

    async def aclose(self) -> None:
        """Close the client's connections, and drop the answers."""
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
                    if other in kept:  # another request may have pushed it out meanwhile
                        kept.move_to_end(other)
                    return entry.response
        return None

    def _keep(self, kept: OrderedDict[str, _Kept], key: str, entry: _Kept) -> None:
        if entry.response.tool_calls:
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
