"""An answer as tests write it, and the stream of events that it becomes."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, Self, TypeAlias

from actors._context.tokens import ESTIMATE
from actors._kernel.agent.message import ChatMessage, ContentBlock
from actors._kernel.agent.models import (
    Completion,
    GenerationOptions,
    LLMResponse,
    ReasoningDelta,
    StreamEvent,
    TextDelta,
    Usage,
)
from actors._kernel.agent.tools import ToolCall

MAX_PIECES: Final = 1_000
"""Maximum number of pieces of a text whose pieces are not given: megabytes would take minutes."""
_WORDS: Final = re.compile(r"\s*\S+|\s+$")


@dataclass(frozen=True, slots=True)
class Asked:
    """A request to a model: what it was asked, and how it was to answer."""

    messages: tuple[ChatMessage, ...]
    options: GenerationOptions

    @property
    def text(self) -> str:
        """The text of the last message."""
        return self.messages[-1].text if self.messages else ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelReply:
    """An answer in all its details. Plain texts and tool calls do for most tests, see `Line`.

    Attributes:
        text: The answer's text.
        calls: Tools that the model wants called.
        reasoning: Shown before the text.
        blocks: Further content blocks, after the text and before the calls.
        pieces: The text as it is streamed, or None if it is streamed word by word, several words each if there
            are more than `MAX_PIECES`. Joined they have to be the text.
        usage: Tokens and cost, or None for estimates from the messages and the answer, without a cost.
        stop_reason: None stands for ``tool_calls`` if there are calls, else ``stop``.
        before: Awaited before the first piece. With an `asyncio.Event` as ``event.wait`` a test decides when
            the answer begins.
        between: Awaited after each piece.
        error: Raised after the last piece, in place of the end of the stream.
    """

    text: str = ""
    calls: Sequence[ToolCall] = ()
    reasoning: str = ""
    blocks: Sequence[ContentBlock] = ()
    pieces: Sequence[str] | None = None
    usage: Usage | None = None
    stop_reason: str | None = None
    before: Callable[[], Awaitable[Any]] | None = None
    between: Callable[[], Awaitable[Any]] | None = None
    error: BaseException | None = None

    @classmethod
    def of(cls, line: Line) -> ModelReply:
        """Return the reply that a line of a script stands for."""
        match line:
            case ModelReply():
                return line
            case str():
                return cls(text=line)
            case ToolCall():
                return cls(calls=(line,))
            case BaseException():
                return cls(error=line, pieces=())
            case LLMResponse():
                return cls._of_response(line)
            case _:
                return cls(calls=tuple(line))

    @classmethod
    def _of_response(cls, response: LLMResponse) -> Self:
        pieces = [block.text or "" for block in response.content if block.type == "text"]
        return cls(
            blocks=response.content,
            pieces=pieces,
            usage=response.usage,
            stop_reason=response.stop_reason,
        )

    def streamed(self) -> Sequence[str]:
        """Return the pieces of the text in the order in which they are streamed."""
        if self.pieces is not None:
            return self.pieces
        words: list[str] = _WORDS.findall(self.text)
        size = -(-len(words) // MAX_PIECES)
        if size <= 1:
            return words
        return ["".join(words[n : n + size]) for n in range(0, len(words), size)]

    def response(self, asked: Asked, model: str) -> LLMResponse:
        """Return the whole answer to a request."""
        content: list[ContentBlock] = []
        if self.reasoning:
            content.append(ContentBlock(type="reasoning", text=self.reasoning))
        if self.text:
            content.append(ContentBlock(type="text", text=self.text))
        content += [*self.blocks, *(call.block() for call in self.calls)]
        message = ChatMessage(role="assistant", content=content)
        usage = self.usage or Usage(
            input=ESTIMATE.total(asked.messages), output=ESTIMATE.total([message])
        )
        stop_reason = self.stop_reason or ("tool_calls" if self.calls else "stop")
        return LLMResponse(content=content, usage=usage, model=model, stop_reason=stop_reason)


Line: TypeAlias = "str | ToolCall | Sequence[ToolCall] | LLMResponse | BaseException | ModelReply"
"""An answer of a script: a text, one or several tool calls, a whole response, an error, or a `ModelReply`."""


async def events_of(
    reply: ModelReply, request: Asked, model: str
) -> AsyncGenerator[StreamEvent, None]:
    """Yield the reply's pieces, then its `Completion`.

    Raises:
        BaseException: The reply's error, after its pieces.
    """
    if reply.before is not None:
        await reply.before()
    if reply.reasoning:
        yield ReasoningDelta(text=reply.reasoning)
    for piece in reply.streamed():
        # As between two pieces from a network, other tasks run: else a whole answer would be one step.
        await asyncio.sleep(0)
        yield TextDelta(text=piece)
        if reply.between is not None:
            await reply.between()
    if reply.error is not None:
        raise reply.error
    yield Completion(response=reply.response(request, model))
