"""Models: what a client of a language model takes, gives and streams, and facts about models.

The kernel knows no provider. Requests and responses are pydantic models because they are recorded in the log
and sent over wires. Facts that do not come with an answer are the size of the context window, and prices.
Here is also an agent's memory of a conversation, and the ways to fit it into a model's window.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from operator import not_
from typing import Any, ClassVar, Final, Literal, Protocol, Self, TypeAlias, runtime_checkable

from pydantic import BaseModel, ConfigDict, Field

from actors._kernel.agent.message import ChatMessage, ContentBlock
from actors._kernel.agent.tools import ToolCall, ToolSpec
from actors.errors import ContractError

STOPPED: Final = "stopped"
"""The type of the last block of an answer whose run was stopped: the answer is what was shown of it."""
CUT_OFF: Final = "cut_off"
"""Type of the block at the end of an answer that a limit of tokens cut off. It is sent to no provider."""
_TOKEN_LIMITS: Final = frozenset(
    (
        "length",
        "max_length",
        "max_output_tokens",
        "max_tokens",
        "model_context_window_exceeded",
        "model_length",
    )
)
"""Reasons, in the words of providers, why an answer has no end."""


class Usage(BaseModel):
    """Tokens and cost of model calls.

    Attributes:
        input: Tokens of the request, `cached` and `cache_written` included.
        cached: Tokens read from the provider's prompt cache.
        cache_written: Tokens written to that cache. A log has the field only if it is not 0, so that hosts of
            the release before read it.
        output: Tokens of the answer, `reasoning` included.
        reasoning: Tokens of the model's reasoning.
        cost_usd: Cost in dollars as the client knows it, or None if it does not know.
    """

    model_config: ClassVar[ConfigDict] = ConfigDict(frozen=True, extra="forbid")

    input: int = Field(default=0, ge=0)
    cached: int = Field(default=0, ge=0)
    cache_written: int = Field(default=0, ge=0, exclude_if=not_)
    output: int = Field(default=0, ge=0)
    reasoning: int = Field(default=0, ge=0)
    cost_usd: float | None = Field(default=None, ge=0, allow_inf_nan=False)

    @property
    def total(self) -> int:
        """Tokens that count against a budget: input and output; reasoning is part of the output."""
        return self.input + self.output

    def __add__(self, other: Usage) -> Usage:
        costs = [usage.cost_usd for usage in (self, other) if usage.cost_usd is not None]
        return Usage(
            input=self.input + other.input,
            cached=self.cached + other.cached,
            cache_written=self.cache_written + other.cache_written,
            output=self.output + other.output,
            reasoning=self.reasoning + other.reasoning,
            cost_usd=sum(costs) if costs else None,
        )


class GenerationOptions(BaseModel):
    """Options of one answer. None leaves a matter to the provider.

    Attributes:
        system_instructions: Put before the messages.
        tools: What the model may call.
        tool_choice: ``auto``, ``none``, ``required`` or one tool's name.
        max_tokens: Upper limit of the answer.
        response_format: JSON schema that the answer has to fit.
        stop: Texts that end the answer.
        extra: Provider options, passed on as they are.
    """

    model_config: ClassVar[ConfigDict] = ConfigDict(frozen=True, extra="forbid")

    system_instructions: str | None = None
    tools: tuple[ToolSpec, ...] = ()
    tool_choice: str | None = None
    temperature: float | None = Field(default=None, ge=0)
    max_tokens: int | None = Field(default=None, ge=1)
    response_format: dict[str, Any] | None = None
    stop: tuple[str, ...] = ()
    extra: dict[str, Any] = Field(default_factory=dict)


class LLMResponse(BaseModel):
    """A whole answer; equal after `model_dump(mode="json")` and back.

    Attributes:
        content: Blocks in their order: text, reasoning, tool calls, and whatever the model gave.
        model: The model that answered, as the provider names it.
        stop_reason: Why it stopped, in the provider's words.
    """

    model_config: ClassVar[ConfigDict] = ConfigDict(frozen=True, extra="forbid")

    content: list[ContentBlock] = Field(default_factory=list)
    usage: Usage = Usage()
    model: str = ""
    stop_reason: str | None = None

    @property
    def text(self) -> str:
        """The text of all text blocks, joined."""
        return "".join(block.text or "" for block in self.content if block.type == "text")

    @property
    def reached_limit(self) -> bool:
        """True if the provider says that a limit of tokens cut the answer off."""
        return (self.stop_reason or "").lower() in _TOKEN_LIMITS

    @property
    def is_cut_off(self) -> bool:
        """True if the answer is marked as cut off. Answers that older releases recorded have no mark."""
        return any(block.type == CUT_OFF for block in self.content)

    def marked(self) -> Self:
        """Return the answer with a mark at its end, if a limit of tokens cut it off."""
        if not self.reached_limit or self.is_cut_off:
            return self
        mark = ContentBlock.model_validate({"type": CUT_OFF, "reason": self.stop_reason})
        return self.model_copy(update={"content": [*self.content, mark]})

    @property
    def tool_calls(self) -> list[ToolCall]:
        """The tools the model wants called, in order."""
        return [ToolCall.of_block(block) for block in self.content if block.type == "tool_call"]

    def message(self) -> ChatMessage:
        """Return the answer as the conversation's next message."""
        return ChatMessage(role="assistant", content=self.content)


class TextDelta(BaseModel):
    """The next piece of the answer's text."""

    model_config: ClassVar[ConfigDict] = ConfigDict(frozen=True, extra="forbid")

    type: Literal["text"] = "text"
    text: str


class ReasoningDelta(BaseModel):
    """The next piece of the model's reasoning."""

    model_config: ClassVar[ConfigDict] = ConfigDict(frozen=True, extra="forbid")

    type: Literal["reasoning"] = "reasoning"
    text: str


class Restart(BaseModel):
    """The answer begins again, for example at another provider: the pieces so far are void."""

    model_config: ClassVar[ConfigDict] = ConfigDict(frozen=True, extra="forbid")

    type: Literal["restart"] = "restart"


class Completion(BaseModel):
    """The end of a stream: the whole answer. Its text equals the text deltas after the last `Restart`."""

    model_config: ClassVar[ConfigDict] = ConfigDict(frozen=True, extra="forbid")

    type: Literal["completion"] = "completion"
    response: LLMResponse


StreamEvent: TypeAlias = TextDelta | ReasoningDelta | Restart | Completion


@runtime_checkable
class LLMClient(Protocol):
    """A language model. Implementations live outside the kernel."""

    @property
    def model(self) -> str:
        """The model's name, as recorded in the log and in traces."""

    async def generate(
        self, messages: Sequence[ChatMessage], *, options: GenerationOptions | None = None
    ) -> LLMResponse:
        """Return one whole answer.

        Any exception fails the call; cancelling it gives up the request, which may still be billed.
        """

    def generate_stream(
        self, messages: Sequence[ChatMessage], *, options: GenerationOptions | None = None
    ) -> AsyncIterator[StreamEvent]:
        """Yield deltas as they come, then exactly one `Completion`, which is the last event.

        An answer that its provider refuses to finish, or that breaks off, is an error and has no `Completion`.
        """

    async def count_tokens(self, messages: Sequence[ChatMessage]) -> int:
        """Return how many input tokens the messages are, as nearly as the client can tell."""


async def prepare(client: object) -> None:
    """Let a client load what its first call and its attributes need, if it has a method `prepare`.

    Await this before `context_window` or `has_response_format` is read: a client may import the SDK of its
    provider for them, which would block the event loop.
    """
    method = getattr(client, "prepare", None)
    if method is not None:
        await method()


async def collected(events: AsyncIterator[StreamEvent], *, model: str) -> LLMResponse:
    """Return the answer with which a stream ends: what `LLMClient.generate` returns for a client that streams.

    Raises:
        ContractError: The stream ended without a `Completion`.
    """
    response: LLMResponse | None = None
    # To its end, not only to the `Completion`: else the client's connection stays open.
    async for event in events:
        if isinstance(event, Completion):
            response = event.response
    if response is None:
        msg = f"model {model!r} ended its stream without a Completion"
        raise ContractError(msg)
    return response


_DATED: Final = re.compile(r"-(\d{4}-?\d{2}-?\d{2}|latest)$")
_MILLION: Final = 1_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFacts:
    """Facts about one model. A fact is None if it is not known.

    Attributes:
        context_window: Tokens that request and answer may have together.
        input_usd: Dollars for a million tokens of a request.
        cached_usd: Dollars for a million tokens read from the prompt cache, or None if they cost `input_usd`.
        cache_written_usd: Dollars for a million tokens written to it, or None if they cost `input_usd`.
        output_usd: Dollars for a million tokens of an answer.
    """

    context_window: int | None = None
    input_usd: float | None = None
    cached_usd: float | None = None
    cache_written_usd: float | None = None
    output_usd: float | None = None

    def cost_usd(self, usage: Usage) -> float | None:
        """Return the cost of a call in dollars; None if a price is not known."""
        if self.input_usd is None or self.output_usd is None:
            return None
        cached_usd = self.input_usd if self.cached_usd is None else self.cached_usd
        written_usd = self.input_usd if self.cache_written_usd is None else self.cache_written_usd
        plain_tokens = max(0, usage.input - usage.cached - usage.cache_written)
        total = plain_tokens * self.input_usd + usage.output * self.output_usd
        return (total + usage.cached * cached_usd + usage.cache_written * written_usd) / _MILLION


FactSource: TypeAlias = Callable[[str], ModelFacts | None]
"""Returns the facts about a model of this name, or None if it has none."""


class ModelRegistry:
    """Facts about models by name. What a program registers goes before what the sources know.

    Names are ``provider:model`` or ``model``. A name is looked up as it is, without its provider, and then
    without the date or ``-latest`` at its end.

    Args:
        sources: Sources that are asked, in order, for names that are not registered, such as a price list.
    """

    def __init__(self, *sources: FactSource) -> None:
        self._facts: dict[str, ModelFacts] = {}
        self._sources: Sequence[FactSource] = sources

    def register(self, name: str, facts: ModelFacts) -> None:
        """Keep these facts under this name; they replace earlier ones."""
        self._facts[name] = facts

    def find(self, name: str) -> ModelFacts | None:
        """Return the facts about a model; None if they are not known."""
        bare_name = name.rpartition(":")[2]
        for spelling in (name, bare_name, _DATED.sub("", name), _DATED.sub("", bare_name)):
            if (facts := self._facts.get(spelling)) is not None:
                return facts
        known_facts = (facts for source in self._sources if (facts := source(name)) is not None)
        return next(known_facts, None)

    def context_window(self, name: str) -> int | None:
        """Return how many tokens request and answer may have together; None if it is not known."""
        facts = self.find(name)
        return None if facts is None else facts.context_window

    def cost_usd(self, name: str, usage: Usage) -> float | None:
        """Return the cost of a call of this model in dollars; None if its prices are not known."""
        facts = self.find(name)
        return None if facts is None else facts.cost_usd(usage)


@runtime_checkable
class CompactionStrategy(Protocol):
    """A way to make a view of a history that is cheaper to send."""

    async def compact(self, raw_history: list[ChatMessage]) -> list[ChatMessage]:
        """Return the view. Neither `raw_history` nor its messages are changed.

        The turns that stay keep their order. A tool call and its results stay or go together. A turn
        with `metadata["pinned"]` stays. Compacting a view again changes nothing.
        """


@runtime_checkable
class AgentContextProtocol(Protocol):
    """An agent's memory of its conversations: a `HistoryProvider` seen through a strategy."""

    async def get_prompt_window(self, session_id: str) -> list[ChatMessage]:
        """Return the session's history as the model is to see it, oldest first."""


@runtime_checkable
class PaidCalls(Protocol):
    """The model calls of strategies, as a run records them. A runtime that has a log offers this."""

    async def ask(
        self,
        llm: LLMClient,
        messages: Sequence[ChatMessage],
        *,
        options: GenerationOptions | None = None,
    ) -> LLMResponse:
        """Return the recorded answer to this very call, else ask `llm` and record its answer."""
