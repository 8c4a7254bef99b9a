"""Models that answer from a script or by a function, and refuse what all providers refuse."""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import aclosing
from typing import Any, Final, TypeAlias

from actors._context.tokens import ESTIMATE
from actors._kernel.agent.message import ChatMessage, ContentBlock
from actors._kernel.agent.models import GenerationOptions, LLMResponse, StreamEvent, collected
from actors._testing.model_reply import Asked, Line, ModelReply, events_of
from actors.errors import ContractError, Facts, ModelError

Answering: TypeAlias = (
    "Callable[[Sequence[ChatMessage], GenerationOptions], Line | Awaitable[Line]]"
)
_CALL: Final = "tool_call"
_RESULT: Final = "tool_result"


class ScriptedModel:
    """A model that gives the answers of a script, one a request, in order. See `LLMClient`.

    Answers are streamed in pieces; usage is estimated unless a `ModelReply` names it.

    Args:
        script: Texts, tool calls, whole responses, errors to raise, or `ModelReply` values for all else.
        otherwise: The answer to every request beyond the script; without one it is a `ScriptEndedError`.
        model: The model's name.
        strict: Refuse what all providers refuse, with their error, see `check_request`. A refused request uses
            up a line of the script.
    """

    def __init__(
        self,
        *script: Line,
        otherwise: Line | None = None,
        model: str = "scripted",
        strict: bool = True,
    ) -> None:
        self._script, self._otherwise = script, otherwise
        self._inner = FunctionModel(self._next, model=model, strict=strict)

    @property
    def model(self) -> str:
        """The model's name."""
        return self._inner.model

    @property
    def asked(self) -> list[Asked]:
        """Each request so far, in order; also those that failed."""
        return self._inner.asked

    @property
    def calls(self) -> int:
        """The number of requests so far."""
        return self._inner.calls

    async def generate(
        self, messages: Sequence[ChatMessage], *, options: GenerationOptions | None = None
    ) -> LLMResponse:
        """Return the whole answer to a request."""
        return await self._inner.generate(messages, options=options)

    def generate_stream(
        self, messages: Sequence[ChatMessage], *, options: GenerationOptions | None = None
    ) -> AsyncIterator[StreamEvent]:
        """Yield the events of the answer to a request."""
        return self._inner.generate_stream(messages, options=options)

    async def count_tokens(self, messages: Sequence[ChatMessage]) -> int:
        """Return the characters of the messages divided by 3."""
        return await self._inner.count_tokens(messages)

    def _next(self, messages: Sequence[ChatMessage], options: GenerationOptions) -> Line:
        del messages, options
        if self.calls <= len(self._script):
            return self._script[self.calls - 1]
        if self._otherwise is None:
            last = self.asked[-1].text[:200]
            raise ScriptEndedError(self.model, self.calls, len(self._script), last)
        return self._otherwise


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
        """The model's name."""
        return self._model

    @property
    def calls(self) -> int:
        """The number of requests so far."""
        return len(self.asked)

    async def generate(
        self, messages: Sequence[ChatMessage], *, options: GenerationOptions | None = None
    ) -> LLMResponse:
        """Return the whole answer to a request."""
        return await collected(self.generate_stream(messages, options=options), model=self.model)

    async def generate_stream(
        self, messages: Sequence[ChatMessage], *, options: GenerationOptions | None = None
    ) -> AsyncIterator[StreamEvent]:
        """Yield the events of the answer to a request."""
        request = Asked(tuple(messages), options or GenerationOptions())
        self.asked.append(request)
        if self._strict:
            check_request(request.messages, request.options)
        line = self._fn(request.messages, request.options)
        reply = ModelReply.of(await line if inspect.isawaitable(line) else line)
        async with aclosing(events_of(reply, request, self.model)) as events:
            async for event in events:
                yield event

    async def count_tokens(self, messages: Sequence[ChatMessage]) -> int:
        """Return the characters of the messages divided by 3."""
        return ESTIMATE.total(messages)


class ScriptEndedError(Facts, ContractError):
    """A scripted model was asked more often than its script has answers."""

    text = (
        "model {model!r} was asked for answer {call}, and its script has {lines}: add a line, or give "
        "`otherwise`, the answer to all further requests. It was asked: {asked!r}"
    )
    model: str
    call: int
    lines: int
    asked: str


def check_request(messages: Sequence[ChatMessage], options: GenerationOptions) -> None:
    """Check that a provider takes a request.

    The rules are those that all providers have in common. What only some refuse (blank texts, ids of other
    providers, made-up names), their clients mend, see `actors._context.fitting`. A request that breaks a common
    rule is a fault of the code that made it.

    Raises:
        ModelError: It does not; the kind is ``invalid``.
    """
    for problem in (*_of_turns(messages), *_of_options(options)):
        raise ModelError("invalid", problem=f"{problem} (ScriptedModel(strict=False) takes it)")


def _of_turns(messages: Sequence[ChatMessage]) -> Iterator[str]:
    if not any(message.role != "system" for message in messages):
        yield "messages: at least one message is required"
    open_ids: list[str] = []
    for n, message in enumerate(messages):
        kinds = [block.type for block in message.content]
        if message.role != "assistant" and _CALL in kinds:
            yield f"messages.{n}: a message with role {message.role!r} has no tool_call"
        results = [_id_of(block) for block in message.content if block.type == _RESULT]
        for id_ in results if message.role != "assistant" else ():
            if id_ not in open_ids:
                yield f"messages.{n}: unexpected id of a tool_result without its call: {id_!r}"
            else:
                open_ids.remove(id_)
        if open_ids and not results:
            yield f"messages.{n}: tool_calls were found without results right behind: {open_ids}"
            open_ids = []
        if message.role == "assistant":
            calls = [block for block in message.content if block.type == _CALL]
            yield from _of_calls(calls, n)
            # A provider may have answered a call itself, within the answer.
            open_ids = [id_ for block in calls if (id_ := _id_of(block)) not in results]
    if open_ids:
        yield f"messages.{len(messages) - 1}: tool_calls were found without results: {open_ids}"


def _of_calls(calls: Sequence[ContentBlock], n: int) -> Iterator[str]:
    ids: set[str] = set()
    for call in calls:
        id_ = _id_of(call)
        if not id_:
            yield f"messages.{n}: a tool_call has no id"
        elif id_ in ids:
            yield f"messages.{n}: ids of tool_calls must be unique: {id_!r}"
        ids.add(id_)


def _of_options(options: GenerationOptions) -> Iterator[str]:
    names = [tool.name for tool in options.tools]
    for tool in options.tools:
        if not tool.name:
            yield "tools: a tool has no name"
        if names.count(tool.name) > 1:
            yield f"tools: names must be unique: {tool.name!r}"
        if tool.parameters.get("type") != "object":
            yield f"tools.{tool.name}: the schema must be of type object"
    schema = options.response_format
    if schema is not None and (schema.get("type") != "object" or "anyOf" in schema):
        yield "response_format: the schema must be of type object, without anyOf at its root"


def _id_of(block: ContentBlock) -> str:
    data: dict[str, Any] = block.model_extra or {}
    return str(data.get("id") or "")
