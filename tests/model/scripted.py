"""The language model and the compaction of programs, which agent and model share as plain functions."""

from __future__ import annotations

import hashlib
import json
from typing import TYPE_CHECKING, Any, Final

from actors._context import calls
from actors._context.compaction import steps
from actors._context.turns import is_derived
from actors._kernel.agent.agent import HistoryRetention
from actors._kernel.agent.message import ChatMessage
from actors.context import CompactionPipeline, ContextConfig, StoreHistory
from actors.testing import FunctionModel

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from actors._kernel.agent.models import GenerationOptions

MODEL: Final = "scripted"
SUMMARISER: Final = "summariser"
SESSIONS: Final = ("main", "side")
"""Names of conversations; the first one is the agents' own."""
MOST: Final = 3
"""A window of more turns is shortened."""
KEPT: Final = 2
"""To so many, behind a summary of the others."""


def name_in(question: str) -> str:
    """Return the name of the effect that asks a question."""
    return question.partition("|")[0]


def answer_to(texts: Sequence[str], value: Any) -> str:
    """Return an answer that tells which window it was given to."""
    digest = hashlib.sha256(json.dumps([*texts]).encode()).hexdigest()
    return f"{value} for {len(texts)} turns {digest[:12]}"


def summary_question(upto: str) -> str:
    """Return the request for a summary of the turns up to one."""
    return f"summary@{upto[:12]}|"


def summary_to(question: str) -> str:
    """Return the answer to it."""
    return f"a {name_in(question)}"


def summary_of(upto: str) -> ChatMessage:
    """Return the turn that stands for those up to one."""
    return steps.summary_message(summary_to(summary_question(upto)), upto=upto)


def embedding_name(text: str, tag: str) -> str:
    """Return the name of the effect that embeds a text, for a run with this tag."""
    return f"{text.replace(' ', '-')}@" + (f"/{tag}" if tag else "")


class Embedder:
    """An `EmbeddingClient`; each request is one execution of the effect that embeds its text."""

    def __init__(self, execute: Callable[[str], Awaitable[Any]]) -> None:
        self._execute = execute

    async def embed(self, texts: Sequence[str]) -> list[tuple[float, ...]]:
        """See `EmbeddingClient.embed`."""
        for text in texts:
            await self._execute(text)
        return [tuple(text.count(vowel) + 0.1 for vowel in "aeiou") for text in texts]


class Shortening:
    """A `CompactionStrategy` that buys a summary whenever there are more turns than `MOST`."""

    def __init__(self, llm: FunctionModel) -> None:
        self._llm = llm

    async def compact(self, raw_history: list[ChatMessage]) -> list[ChatMessage]:
        """See `CompactionStrategy.compact`."""
        turns = [message for message in raw_history if not is_derived(message)]
        if len(turns) <= MOST:
            return raw_history
        upto = turns[-KEPT - 1].turn or ""
        messages = [ChatMessage.of("user", summary_question(upto))]
        response = await calls.ask(self._llm, messages)
        return [steps.summary_message(response.text, upto=upto), *turns[-KEPT:]]


def model_of(execute: Callable[[str], Awaitable[Any]]) -> FunctionModel:
    """Return the model of an agent; each request is one execution of the effect that it names."""

    async def answer(messages: Sequence[ChatMessage], _: GenerationOptions) -> str:
        value = await execute(name_in(messages[-1].text))
        return answer_to([message.text for message in messages], value)

    return FunctionModel(answer, model=MODEL)


def context_of(execute: Callable[[str], Awaitable[Any]], retention: str) -> ContextConfig:
    """Return the context of an agent; each summary is one execution, too."""

    async def answer(messages: Sequence[ChatMessage], _: GenerationOptions) -> str:
        await execute(name_in(messages[-1].text))
        return summary_to(messages[-1].text)

    strategy = Shortening(FunctionModel(answer, model=SUMMARISER))
    history_retention = HistoryRetention(retention or HistoryRetention.PERMANENT)
    return ContextConfig(
        StoreHistory(), CompactionPipeline([strategy]), retention=history_retention
    )
