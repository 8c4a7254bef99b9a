"""Clients that call other clients: with retries, with a fallback, by a choice per request, or from a cache."""

from __future__ import annotations

import asyncio
import hashlib
import inspect
from collections import OrderedDict
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Sequence
from contextlib import aclosing, suppress
from dataclasses import dataclass
from typing import Any, Final, TypeAlias, cast

from actors._kernel.agent.message import ChatMessage
from actors._kernel.agent.models import (
    Completion,
    GenerationOptions,
    LLMClient,
    LLMResponse,
    Restart,
    StreamEvent,
    TextDelta,
    Usage,
    collected,
    prepare,
)
from actors._kernel.basics import Backoff, Clock, Entropy
from actors._kernel.json import canonical_json
from actors._runtime.loop.clock import SystemClock, SystemEntropy
from actors._runtime.telemetry.span_attributes import executing
from actors.errors import ContractError, ModelError, RetryAfter

Picking: TypeAlias = (
    "Callable[[Sequence[ChatMessage], GenerationOptions], LLMClient | Awaitable[LLMClient]]"
)
Similarity: TypeAlias = "Callable[[str, str], float | Awaitable[float]]"
"""Returns the similarity of two texts from 0 to 1, for example by embeddings."""

_FREE: Final = Usage(cost_usd=0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class TryLimits:
    """Limits of the tries within one call.

    Attributes:
        count: Maximum number of tries, including the first.
        within_s: Seconds from the start of the first try until an answer has begun. No further try starts after
            them, and a try that is silent until then fails.
        silent_s: Seconds for which one try may be silent, before and within its answer. A client of a provider
            counts everything that it receives, and another client the pieces that it yields.
        answer_s: Seconds that one try takes at most, with all of its answer.
        first_pause_s: Pause in seconds after the first try, if the provider names none. Each further pause
            doubles, less a random part of up to a half.
        longest_pause_s: Longest such pause, in seconds.
    """

    count: int = 4
    within_s: float = 60.0
    silent_s: float = 60.0
    answer_s: float = 600.0
    first_pause_s: float = 0.5
    longest_pause_s: float = 8.0

    def __post_init__(self) -> None:
        if self.count < 1:
            msg = f"TryLimits(count={self.count}): a call has at least one try"
            raise ContractError(msg)
        for name in ("within_s", "silent_s", "answer_s"):
            if not getattr(self, name) > 0:
                msg = f"TryLimits({name}={getattr(self, name)}): give seconds above 0"
                raise ContractError(msg)


class RetryingModel:
    """A client that retries another client after a transient `ModelError`. See `LLMClient`.

    A try that is silent for too long fails with the kind ``timeout``.

    Only kinds in `TRANSIENT_MODEL_ERRORS` are retried, and never after the first piece of an answer was
    yielded. A pause that the provider names is used. If the limits allow no further try after such a pause, the
    call raises `RetryAfter`: the run is evicted from memory and continues after the pause.

    Args:
        client: The client, called up to `tries.count` times.
        tries: Limits of one call.
        entropy: Source of the jitter; by default the machine's.
    """

    client: LLMClient

    def __init__(
        self, client: LLMClient, *, tries: TryLimits | None = None, entropy: Entropy | None = None
    ) -> None:
        self.client, self._tries = client, tries or TryLimits()
        self._entropy = entropy or SystemEntropy()

    @property
    def model(self) -> str:
        """The name of the client's model, as logs and traces have it."""
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
        """Return one whole answer.

        Raises:
            ModelError: The error of the last try, without a pause, or an error that is not transient.
            RetryAfter: The provider names a pause, and the limits allow no further try after it.
        """
        return await collected(self.generate_stream(messages, options=options), model=self.model)

    async def generate_stream(
        self, messages: Sequence[ChatMessage], *, options: GenerationOptions | None = None
    ) -> AsyncIterator[StreamEvent]:
        """Yield the pieces of an answer, then its `Completion`; raises as `generate` does."""
        await self.prepare()
        time, limits = asyncio.get_running_loop().time, self._tries
        pauses = Backoff(limits.first_pause_s, limits.longest_pause_s)
        begin_deadline = time() + limits.within_s
        tries_left = limits.count
        while True:
            tries_left -= 1
            has_yielded = False
            try:
                async with aclosing(
                    patient_stream(
                        self.client, messages, options, limits=limits, begin_deadline=begin_deadline
                    )
                ) as events:
                    async for event in events:
                        has_yielded = True
                        yield event
            except ModelError as exc:
                # The caller has shown the pieces so far: a further try would put a second answer behind them.
                if has_yielded or not exc.retryable:
                    raise
                # A random part less, so that runs that a provider refused at one time do not call again at
                # one time.
                jittered_s = pauses.next_s() * (1 - self._entropy.random() / 2)
                pause_s = jittered_s if exc.retry_after is None else exc.retry_after
                if tries_left < 1 or time() + pause_s > begin_deadline:
                    if exc.retry_after is None:
                        raise
                    raise RetryAfter(exc.retry_after, str(exc)) from exc
            else:
                return
            await asyncio.sleep(pause_s)

    async def count_tokens(self, messages: Sequence[ChatMessage]) -> int:
        """Return the client's count of the messages' tokens."""
        return await self.client.count_tokens(messages)

    async def prepare(self) -> None:
        """Let the client load what it needs, if it has a method for that."""
        await prepare(self.client)

    async def aclose(self) -> None:
        """Close the client's connections, if it has any."""
        await close(self.client)


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
            # Without its own retries, because they would keep the next client waiting.
            client.client if isinstance(client, RetryingModel) else client
            for client in clients
        )
        self._model = model or clients[0].model
        limits = tries or TryLimits()
        self._retrying = RetryingModel(_Chain(self._clients, self._model, limits), tries=limits)

    @property
    def model(self) -> str:
        """The name that logs and traces have for a call."""
        return self._model

    @property
    def context_window(self) -> int | None:
        """The smallest known context window of the clients, in tokens; None if none is known."""
        sizes = [size for client in self._clients if (size := context_window_of(client))]
        return min(sizes, default=None)

    async def generate(
        self, messages: Sequence[ChatMessage], *, options: GenerationOptions | None = None
    ) -> LLMResponse:
        """Return one whole answer; raises as `RetryingModel.generate` does."""
        return await self._retrying.generate(messages, options=options)

    def generate_stream(
        self, messages: Sequence[ChatMessage], *, options: GenerationOptions | None = None
    ) -> AsyncIterator[StreamEvent]:
        """Yield the pieces of an answer, then its `Completion`; raises as `RetryingModel.generate` does."""
        return self._retrying.generate_stream(messages, options=options)

    async def count_tokens(self, messages: Sequence[ChatMessage]) -> int:
        """Return the first client's count of the messages' tokens."""
        return await self._clients[0].count_tokens(messages)

    async def prepare(self) -> None:
        """Let the clients load what they need. A client that cannot may never be called."""
        for client in self._clients:
            # The client may never be needed; if it is, its call raises the same error.
            with suppress(ModelError, ContractError):
                await prepare(client)

    async def aclose(self) -> None:
        """Close the clients' connections."""
        for client in self._clients:
            await close(client)


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
        """The name that logs and traces have for a call."""
        return self._model

    async def generate(
        self, messages: Sequence[ChatMessage], *, options: GenerationOptions | None = None
    ) -> LLMResponse:
        """Return the answer of the client that `pick` chooses."""
        return await collected(self.generate_stream(messages, options=options), model=self.model)

    async def generate_stream(
        self, messages: Sequence[ChatMessage], *, options: GenerationOptions | None = None
    ) -> AsyncIterator[StreamEvent]:
        """Yield the events of the client that `pick` chooses."""
        client = await self._pick_client(messages, options)
        async with aclosing(stream_of(client, messages, options)) as events:
            async for event in events:
                yield event

    async def count_tokens(self, messages: Sequence[ChatMessage]) -> int:
        """Return the count of the client that `pick` chooses for the messages without options."""
        return await (await self._pick_client(messages, None)).count_tokens(messages)

    async def _pick_client(
        self, messages: Sequence[ChatMessage], options: GenerationOptions | None
    ) -> LLMClient:
        client = self._pick(messages, options or GenerationOptions())
        return await client if inspect.isawaitable(client) else client


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
        self._answers: dict[str, OrderedDict[str, _CachedAnswer]] = {}

    @property
    def model(self) -> str:
        """The name of the client's model, as logs and traces have it."""
        return self._client.model

    @property
    def context_window(self) -> int | None:
        """The size of the client's context window in tokens; None if unknown."""
        return context_window_of(self._client)

    async def generate(
        self, messages: Sequence[ChatMessage], *, options: GenerationOptions | None = None
    ) -> LLMResponse:
        """Return one whole answer, from memory or of the client."""
        return await collected(self.generate_stream(messages, options=options), model=self.model)

    async def generate_stream(
        self, messages: Sequence[ChatMessage], *, options: GenerationOptions | None = None
    ) -> AsyncIterator[StreamEvent]:
        """Yield the pieces of an answer, then its `Completion`. An answer from memory is one piece."""
        run = executing.get()
        tenant = self._tenant or (run.agent_id.tenant if run is not None else None)
        answers = None if tenant is None else self._answers.setdefault(tenant, OrderedDict())
        context_digest = _digest(self.model, messages[:-1], options)
        text = messages[-1].text if messages else ""
        key = _digest(context_digest, messages[-1:], None)
        response = (
            None if answers is None else await self._find_answer(answers, key, context_digest, text)
        )
        if response is not None:
            if response.text:
                yield TextDelta(text=response.text)
            yield Completion(response=response.model_copy(update={"usage": _FREE}))
            return
        async with aclosing(stream_of(self._client, messages, options)) as events:
            async for event in events:
                if answers is not None and isinstance(event, Completion):
                    self._store_answer(
                        answers,
                        key,
                        _CachedAnswer(
                            context_digest, text, event.response, self._clock.monotonic()
                        ),
                    )
                yield event

    async def count_tokens(self, messages: Sequence[ChatMessage]) -> int:
        """Return the client's count of the messages' tokens."""
        return await self._client.count_tokens(messages)

    async def prepare(self) -> None:
        """Let the client load what it needs."""
        await prepare(self._client)

    async def aclose(self) -> None:
        """Close the client's connections, and drop all answers."""
        self._answers.clear()
        await close(self._client)

    async def _find_answer(
        self, answers: OrderedDict[str, _CachedAnswer], key: str, context_digest: str, text: str
    ) -> LLMResponse | None:
        oldest_at = self._clock.monotonic() - self._keep_s
        equal_entry = answers.get(key)
        if equal_entry is not None and equal_entry.stored_at > oldest_at:
            answers.move_to_end(key)
            return equal_entry.response
        if self._similarity is None or not text:
            return None
        # A copy, because `similarity` may await, and other requests change the answers meanwhile.
        for other_key, entry in list(answers.items()):
            if (
                entry.context_digest == context_digest
                and entry.text
                and entry.stored_at > oldest_at
            ):
                similarity = self._similarity(entry.text, text)
                similarity = await similarity if inspect.isawaitable(similarity) else similarity
                if similarity >= self._threshold:
                    if other_key in answers:  # another request may have dropped it meanwhile
                        answers.move_to_end(other_key)
                    return entry.response
        return None

    def _store_answer(
        self, answers: OrderedDict[str, _CachedAnswer], key: str, entry: _CachedAnswer
    ) -> None:
        # Half an answer is not an answer, so later requests must not get it.
        if entry.response.tool_calls or entry.response.reached_limit:
            return
        answers[key] = entry
        answers.move_to_end(key)
        while len(answers) > self._max_entries:
            answers.popitem(last=False)


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
        needs_restart = False
        for client in self._clients:
            has_yielded = False
            if needs_restart:
                yield Restart()
            try:
                await prepare(client)
                begin_deadline = asyncio.get_running_loop().time() + self._limits.within_s
                async with aclosing(
                    patient_stream(
                        client,
                        messages,
                        options,
                        limits=self._limits,
                        begin_deadline=begin_deadline,
                    )
                ) as events:
                    async for event in events:
                        has_yielded = True
                        yield event
            except (ModelError, RetryAfter) as exc:
                failure = (
                    exc
                    if isinstance(exc, ModelError)
                    else ModelError("rate_limited", exc.delay_s, exc.reason)
                )
                is_refused = failure.kind == "refused"
                # After a piece only a refusal goes on to the next client: `Restart` voids the pieces of a
                # refused answer.
                if not is_refused and (has_yielded or not failure.retryable):
                    raise
                needs_restart = needs_restart or has_yielded
                failures.append(failure)
            else:
                return
        raise _joint_failure(failures)

    async def count_tokens(self, messages: Sequence[ChatMessage]) -> int:
        return await self._clients[0].count_tokens(messages)


def _joint_failure(failures: Sequence[ModelError]) -> ModelError:
    """Return one error for all failures. Its pause is the shortest one, if each failure names a pause.

    It is transient if one of them is.
    """
    if len(failures) == 1:
        return failures[0]
    kind = next((failure.kind for failure in failures if failure.retryable), failures[0].kind)
    pauses_s = [failure.retry_after for failure in failures]
    known_pauses_s = [pause_s for pause_s in pauses_s if pause_s is not None]
    pause_s = min(known_pauses_s) if len(known_pauses_s) == len(pauses_s) else None
    problems = " | ".join(str(failure) for failure in failures)
    return ModelError(kind, pause_s, f"no client answered: {problems}")


class _EventLimit:
    """The time limit of the next event of a try, which each sign of life moves.

    Args:
        limits: Limits of one call.
        latest: The instant until which the answer has to begin, by the loop's clock.
    """

    def __init__(self, limits: TryLimits, begin_deadline: float) -> None:
        self._time, self._silent_s = asyncio.get_running_loop().time, limits.silent_s
        self._answer_deadline = self._time() + limits.answer_s
        self._event_deadline = min(
            self._time() + limits.silent_s, begin_deadline, self._answer_deadline
        )
        self._has_begun = False
        self._timeout: asyncio.Timeout | None = None

    def note_sign(self) -> None:
        """Note a sign of life."""
        self._has_begun = True
        self._event_deadline = min(self._time() + self._silent_s, self._answer_deadline)
        # A limit that has just expired cannot be moved any more: `reschedule` would raise a RuntimeError.
        if self._timeout is not None and not self._timeout.expired():
            self._timeout.reschedule(self._event_deadline)

    async def next(self, events: AsyncGenerator[StreamEvent, None], model: str) -> StreamEvent:
        """Return the next event.

        Raises:
            StopAsyncIteration: There is none.
            ModelError: It does not come in time.
        """
        started_at = self._time()
        if self._has_begun:  # the time that the reader took for the last event is no silence
            self._event_deadline = min(started_at + self._silent_s, self._answer_deadline)
        self._timeout = timeout = asyncio.timeout_at(self._event_deadline)
        try:
            async with timeout:
                event = await anext(events)
        except TimeoutError as exc:
            # Raised by the client itself, which has limits of its own.
            if not timeout.expired():
                raise
            waited_s = self._time() - started_at
            problem = f"{model}: no answer within the limits of TryLimits, after {waited_s:.3g} s"
            raise ModelError("timeout", problem=problem) from exc
        finally:
            self._timeout = None
        self.note_sign()
        return event


async def patient_stream(
    client: LLMClient,
    messages: Sequence[ChatMessage],
    options: GenerationOptions | None,
    *,
    limits: TryLimits,
    begin_deadline: float,
) -> AsyncGenerator[StreamEvent, None]:
    """Yield the events of one try of a client.

    Args:
        client: The client.
        messages: The messages of the request.
        options: The options of the request; None for the client's own.
        limits: Limits of one call.
        begin_deadline: The instant until which the answer has to begin, by the loop's clock.

    Raises:
        ModelError: The client fails, or is silent for too long.
    """
    if getattr(client, "is_chain", False):  # it limits each of its clients
        async with aclosing(stream_of(client, messages, options)) as events:
            async for event in events:
                yield event
        return
    event_limit = _EventLimit(limits, begin_deadline)
    async with aclosing(
        stream_of(client, messages, options, on_sign=event_limit.note_sign)
    ) as events:
        while True:
            try:
                event = await event_limit.next(events, client.model)
            except StopAsyncIteration:
                return
            yield event


def stream_of(
    client: LLMClient,
    messages: Sequence[ChatMessage],
    options: GenerationOptions | None,
    *,
    on_sign: Callable[[], None] | None = None,
) -> AsyncGenerator[StreamEvent, None]:
    """Return a client's stream as a generator that `aclosing` can close.

    Args:
        client: The client.
        messages: The messages of the request.
        options: The options of the request; None for the client's own.
        on_sign: Called for everything that a client receives, if the client has an attribute `reports_signs`.
    """
    if on_sign is not None and getattr(client, "reports_signs", False):
        events = cast("Any", client).generate_stream(messages, options=options, on_sign=on_sign)
    else:
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


@dataclass(frozen=True, slots=True)
class _CachedAnswer:
    """A cached answer: digest of the context, text of the last message, and time by the clock's `monotonic`."""

    context_digest: str
    text: str
    response: LLMResponse
    stored_at: float


def _digest(
    model_or_context: str, messages: Sequence[ChatMessage], options: GenerationOptions | None
) -> str:
    data = options.model_dump(mode="json", exclude_defaults=True) if options else {}
    turns = [message.model_dump(mode="json", exclude={"metadata"}) for message in messages]
    text = canonical_json([model_or_context, turns, data])
    return hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()
