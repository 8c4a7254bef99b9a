"""A client that calls the next of several clients after a transient failure."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import aclosing, suppress

from actors.errors import ContractError, ModelError, RetryAfter
from actors.kernel.agent.message import ChatMessage
from actors.kernel.agent.models import (
    GenerationOptions,
    LLMClient,
    LLMResponse,
    Restart,
    StreamEvent,
    collected,
    prepare,
)
from compose.models.retrying_model import (
    RetryingModel,
    TryLimits,
    close,
    context_window_of,
    patient_stream,
)


class FallbackModel:
    """A client that calls several clients in order until one answers. See `LLMClient`.

    If a client is rate limited, overloaded, unreachable or too slow, and has not yielded a piece of an answer
    yet, the next client is called at once. If a client refuses to answer, the next one is called, also after
    pieces of an answer: then `Restart` is yielded first. If all clients fail, and not all refuse, the first one
    is called again after a pause: each try within `tries` calls all clients once. The tries of a
    `RetryingModel`, as `model()` returns it, are not used. Any other error is raised at once.

    Args:
        clients: The clients in the order of calls; at least one.
        tries: Limits of one call.
        model: The name that logs record; by default the first client's. A response names the model that
            answered.
    """

    def __init__(
        self,
        clients: Sequence[LLMClient],
        *,
        tries: TryLimits | None = None,
        model: str | None = None,
    ) -> None:
        if not clients:
            raise ContractError("FallbackModel([]): give at least one client")
        self._clients = tuple(
            client.client if isinstance(client, RetryingModel) else client for client in clients
        )
        self._model = model or clients[0].model
        limits = tries or TryLimits()
        self._retrying = RetryingModel(_Chain(self._clients, self._model, limits), tries=limits)

    @property
    def model(self) -> str:
        """See `LLMClient.model`."""
        return self._model

    @property
    def context_window(self) -> int | None:
        """The smallest known context window of the clients, in tokens; None if none is known."""
        sizes = [size for client in self._clients if (size := context_window_of(client))]
        return min(sizes, default=None)

    async def generate(
        self, messages: Sequence[ChatMessage], *, options: GenerationOptions | None = None
    ) -> LLMResponse:
        """See `LLMClient.generate`; raises as `RetryingModel.generate` does."""
        return await self._retrying.generate(messages, options=options)

    def generate_stream(
        self, messages: Sequence[ChatMessage], *, options: GenerationOptions | None = None
    ) -> AsyncIterator[StreamEvent]:
        """See `LLMClient.generate_stream`; raises as `RetryingModel.generate` does."""
        return self._retrying.generate_stream(messages, options=options)

    async def count_tokens(self, messages: Sequence[ChatMessage]) -> int:
        """Return the first client's count."""
        return await self._clients[0].count_tokens(messages)

    async def prepare(self) -> None:
        """Let the clients load what they need. A client that cannot may never be called."""
        for client in self._clients:
            with suppress(ModelError, ContractError):
                await prepare(client)

    async def aclose(self) -> None:
        """Close the clients' connections."""
        for client in self._clients:
            await close(client)


class _Chain:
    """The clients of one try. Each is called once, in order, within its own limits of time."""

    is_chain = True

    def __init__(self, clients: Sequence[LLMClient], model: str, limits: TryLimits) -> None:
        self._clients, self._model, self._limits = clients, model, limits

    @property
    def model(self) -> str:
        return self._model

    async def generate(
        self, messages: Sequence[ChatMessage], *, options: GenerationOptions | None = None
    ) -> LLMResponse:
        return await collected(self.generate_stream(messages, options=options), model=self.model)

    async def generate_stream(
        self, messages: Sequence[ChatMessage], *, options: GenerationOptions | None = None
    ) -> AsyncIterator[StreamEvent]:
        failures: list[ModelError] = []
        is_void = False
        for client in self._clients:
            is_shown = False
            if is_void:
                yield Restart()
            try:
                await prepare(client)
                latest = asyncio.get_running_loop().time() + self._limits.within_s
                async with aclosing(
                    patient_stream(client, messages, options, limits=self._limits, latest=latest)
                ) as events:
                    async for event in events:
                        is_shown = True
                        yield event
            except (ModelError, RetryAfter) as exc:
                failure = _failure(exc)
                is_refused = failure.kind == "refused"
                if not is_refused and (is_shown or not failure.retryable):
                    raise
                is_void = is_void or is_shown
                failures.append(failure)
            else:
                return
        raise _all_failed(failures)

    async def count_tokens(self, messages: Sequence[ChatMessage]) -> int:
        return await self._clients[0].count_tokens(messages)


def _failure(exc: ModelError | RetryAfter) -> ModelError:
    if isinstance(exc, ModelError):
        return exc
    return ModelError("rate_limited", exc.delay_s, exc.reason)


def _all_failed(failures: Sequence[ModelError]) -> ModelError:
    """Return one error for all failures. Its pause is the shortest one, if each failure names a pause.

    It is transient if one of them is.
    """
    if len(failures) == 1:
        return failures[0]
    kind = next((one.kind for one in failures if one.retryable), failures[0].kind)
    waits = [failure.retry_after for failure in failures]
    known = [wait for wait in waits if wait is not None]
    wait = min(known) if len(known) == len(waits) else None
    said = " | ".join(str(failure) for failure in failures)
    return ModelError(kind, wait, f"no client answered: {said}")
