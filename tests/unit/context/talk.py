"""Turns, and models that answer as told, for the tests of windows."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from actors._kernel.agent.message import ChatMessage, ContentBlock
from actors._kernel.agent.models import LLMResponse
from actors._kernel.agent.tools import ToolCall, ToolResult
from actors.context import TokenCounter, estimated_tokens

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterable, Sequence

    from actors._kernel.agent.models import GenerationOptions, StreamEvent

CHARS = TokenCounter(estimated_tokens)
"""Counts alike whether a tokenizer is installed or not."""
IMAGE = ContentBlock.model_validate({"type": "image", "data": "aGk=", "media_type": "image/png"})


def say(text: str, role: Literal["user", "assistant"] = "user", /, **metadata: str) -> ChatMessage:
    """A turn of text."""
    return ChatMessage.of(role, text).model_copy(update={"metadata": metadata})


def talk(*texts: str) -> list[ChatMessage]:
    """Turns of user and assistant, one after the other, with ids."""
    roles: tuple[Literal["user"], Literal["assistant"]] = ("user", "assistant")
    return [say(text, roles[n % 2], turn=f"t{n}") for n, text in enumerate(texts)]


def calls(*ids: str, name: str = "look", **metadata: str) -> ChatMessage:
    """A turn of the assistant's that calls a tool."""
    blocks = [ToolCall(id=id_, name=name, arguments={"q": id_}).block() for id_ in ids]
    return ChatMessage(role="assistant", content=blocks, metadata=metadata)


def result(
    id_: str,
    text: str = "seen",
    *media: ContentBlock,
    is_error: bool = False,
    name: str = "look",
    **metadata: str,
) -> ChatMessage:
    """A turn with the result of a call."""
    block = ToolResult(id=id_, name=name, text=text, is_error=is_error).block()
    return ChatMessage(role="tool", content=[block, *media], metadata=metadata)


def texts(window: Iterable[ChatMessage]) -> list[str]:
    """What each turn says: its text, or its calls as `?id` and its results as `!id`."""
    return [" ".join(_block_text(block) for block in turn.content) for turn in window]


def _block_text(block: ContentBlock) -> str:
    extra: dict[str, Any] = block.model_extra or {}
    if block.type == "tool_call":
        return f"?{extra.get('id', '')}"
    if block.type == "tool_result":
        return f"!{extra.get('id', '')}"
    return block.text or block.type


def dumped(turns: Iterable[ChatMessage]) -> list[str]:
    """Turns as bytes on a disk would be."""
    return [turn.model_dump_json() for turn in turns]


@dataclass
class Summariser:
    """A model whose answers a test chooses.

    Attributes:
        answer: Made from the text of the request; an exception is raised.
        requests: The text of each request.
        options: Those of each request.
    """

    answer: Callable[[str], str | Exception] = lambda _: "short"
    model: str = "scripted-1"
    requests: list[str] = field(default_factory=list)
    options: list[GenerationOptions | None] = field(default_factory=list)
    counted: int = 0
    hang: bool = False

    async def generate(
        self, messages: Sequence[ChatMessage], *, options: GenerationOptions | None = None
    ) -> LLMResponse:
        """Answer, and remember what was asked."""
        assert [message.role for message in messages] == ["user"]
        self.requests.append(messages[0].text)
        self.options.append(options)
        if self.hang:
            await asyncio.Event().wait()
        answer = self.answer(messages[0].text)
        if isinstance(answer, Exception):
            raise answer
        return LLMResponse(content=[ContentBlock(type="text", text=answer)], model=self.model)

    def generate_stream(
        self, messages: Sequence[ChatMessage], *, options: GenerationOptions | None = None
    ) -> AsyncIterator[StreamEvent]:
        """Nothing here streams."""
        raise NotImplementedError

    async def count_tokens(self, messages: Sequence[ChatMessage]) -> int:
        """A number that only this model would give."""
        self.counted += len(messages)
        return 77 * len(messages)
