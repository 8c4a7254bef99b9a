"""Agents that strangers write to: `callboard host examples.outside.agents:AGENTS`.

The agent `desk` answers questions; it asks a librarian first, and streams its thoughts. Readers follow topics.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from actors import AgentId, Completion, ContentBlock, LLMResponse, TerminalError, TextDelta, Usage

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Sequence

    from actors import Agent, ChatMessage, GenerationOptions, Message, RunContext, StreamEvent

LIBRARIAN = AgentId("librarian", "main")
PACE_S = 0.02


class Echo:
    """Stands for a language model: repeats its input word by word, in capitals."""

    model = "echo-1"

    async def generate_stream(
        self, messages: Sequence[ChatMessage], *, options: GenerationOptions | None = None
    ) -> AsyncIterator[StreamEvent]:
        """See `LLMClient.generate_stream`."""
        del options
        words = messages[-1].text.upper().split()
        for n, word in enumerate(words):
            await asyncio.sleep(PACE_S)
            yield TextDelta(text=f" {word}" if n else word)
        said = ContentBlock(type="text", text=" ".join(words))
        usage = Usage(input=len(words), output=len(words))
        yield Completion(response=LLMResponse(content=[said], usage=usage, model=self.model))

    async def generate(
        self, messages: Sequence[ChatMessage], *, options: GenerationOptions | None = None
    ) -> LLMResponse:
        """See `LLMClient.generate`."""
        async for event in self.generate_stream(messages, options=options):
            if isinstance(event, Completion):
                return event.response
        raise AssertionError

    async def count_tokens(self, messages: Sequence[ChatMessage]) -> int:
        """See `LLMClient.count_tokens`."""
        return sum(len(message.text.split()) for message in messages)


class Desk:
    """Answers `{"text": …}`; with `"wait": true` not before the signal `ok`."""

    model = Echo()

    def __init__(self, id: AgentId) -> None:  # noqa: A002
        self.id = id

    async def run(self, ctx: RunContext, inbox: list[Message]) -> dict[str, Any]:
        """Return the answer and where it was found."""
        question: Any = inbox[0].payload
        if not isinstance(question.get("text"), str):
            raise TerminalError('a question is {"text": "…"}')
        found = await ctx.ask(LIBRARIAN, {"about": question["text"]}, timeout=30)
        if question.get("wait"):
            await ctx.sleep_until_signal("ok")
        said = await ctx.llm(question["text"])
        return {"answer": said.text, "source": found.result}


class Librarian:
    """Knows on which shelf everything is."""

    def __init__(self, id: AgentId) -> None:  # noqa: A002
        self.id = id

    async def run(self, ctx: RunContext, inbox: list[Message]) -> None:
        """Answer each question."""
        for message in inbox:
            question: Any = message.payload
            shelf = await ctx.step("look up", look_up, question["about"])
            await ctx.reply(message, shelf)


class Reader:
    """Returns the posts of the topics that it follows."""

    def __init__(self, id: AgentId) -> None:  # noqa: A002
        self.id = id

    async def run(self, ctx: RunContext, inbox: list[Message]) -> list[Any]:
        """Read all that has come."""
        del ctx
        return [message.payload for message in inbox]


def look_up(about: str) -> str:
    """Return the shelf."""
    return f"shelf {len(about)}"


AGENTS: dict[str, Callable[[AgentId], Agent]] = {
    "desk": Desk,
    "librarian": Librarian,
    "reader": Reader,
}
