"""An agent with a real small model and a small window, for conversations that exceed it.

The agent's key is the size of its model's window in tokens.
"""

from __future__ import annotations

import json
import os
import re
import signal
from functools import cache
from typing import TYPE_CHECKING, Any, Final

from actors._kernel.agent.models import GenerationOptions, collected
from actors.context import (
    CompactionPipeline,
    ContextConfig,
    SlidingWindowCompaction,
    StoreHistory,
    SummarizationCompaction,
    TokenBudgetComposedStrategy,
)
from actors.testing import FunctionModel
from compose.demo.desk import append_line, lines_of
from compose.models import local

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Sequence

    from actors._kernel.agent.agent import Agent
    from actors._kernel.agent.message import ChatMessage, Message
    from actors._kernel.agent.models import LLMResponse, StreamEvent
    from actors._kernel.runtime.ids import AgentId
    from actors._runtime import RunContext
    from compose.models import RetryingModel

HERE: Final = "tests.system.long_talking"
TRIGGER: Final = 0.8
"""Part of the window above which a summary is written."""
RECENT: Final = 76
"""Number of last tokens that are not summarised: the model finds a fact in a short window only."""
_FACT: Final = re.compile(r"Remember: [^\n]*")


def facts(messages: Sequence[ChatMessage], _: GenerationOptions) -> str:
    """Return a summary of the marked sentences only.

    The local model of these tests has 135 million parameters. It changes numbers and names in its
    summaries, so a test of a summary's content needs another writer.
    """
    return "\n".join(dict.fromkeys(_FACT.findall(messages[-1].text))) or "Small talk."


@cache
def model(window: int) -> RetryingModel:
    """Return the process's model with a window of this many tokens; its cache holds the last request."""
    # Further threads would spin while they wait for a core.
    return local(context_window=window, threads=1)


def note(job: dict[str, Any], event: str) -> None:
    """Append a line to the ledger of a job: its number, the event, and this process."""
    append_line(job["ledger"], json.dumps([job["n"], event, os.getpid()]))


def noted(ledger: str) -> list[tuple[int, str, int]]:
    """Return the lines of a ledger, in order."""
    return [(n, event, pid) for n, event, pid in map(json.loads, lines_of(ledger))]


def die_once(job: dict[str, Any]) -> None:
    """Kill this process, unless this job has killed one before."""
    if not any(n == job["n"] and event == "died" for n, event, _ in noted(job["ledger"])):
        note(job, "died")
        os.kill(os.getpid(), signal.SIGKILL)


class WatchedModel:
    """A client that records each request in the job's ledger, and can crash in mid-stream."""

    def __init__(self, inner: RetryingModel) -> None:
        self._inner = inner
        self.job: dict[str, Any] = {}

    @property
    def model(self) -> str:
        """See `LLMClient.model`."""
        return self._inner.model

    @property
    def context_window(self) -> int | None:
        """See `RetryingModel.context_window`."""
        return self._inner.context_window

    async def generate(
        self, messages: Sequence[ChatMessage], *, options: GenerationOptions | None = None
    ) -> LLMResponse:
        """See `LLMClient.generate`."""
        return await collected(self.generate_stream(messages, options=options), model=self.model)

    async def generate_stream(
        self, messages: Sequence[ChatMessage], *, options: GenerationOptions | None = None
    ) -> AsyncIterator[StreamEvent]:
        """See `LLMClient.generate_stream`."""
        note(self.job, "asked")
        async for event in self._inner.generate_stream(messages, options=options):
            if self.job["dies"] == "asked":
                die_once(self.job)
            yield event

    async def count_tokens(self, messages: Sequence[ChatMessage]) -> int:
        """See `LLMClient.count_tokens`."""
        return await self._inner.count_tokens(messages)


class Pupil:
    """Answers each message by the local model, in one conversation."""

    session = "main"

    def __init__(self, agent_id: AgentId) -> None:
        self.id, window = agent_id, int(agent_id.key)
        self.model = WatchedModel(model(window))
        writer = SummarizationCompaction(
            FunctionModel(facts, model="facts"), recent_token_budget=RECENT, min_old_tokens=25
        )
        budget = TokenBudgetComposedStrategy(
            [writer, SlidingWindowCompaction(40)], int(window * TRIGGER), target_tokens=window // 2
        )
        self.context = ContextConfig(StoreHistory(), CompactionPipeline([budget]))

    async def run(self, ctx: RunContext, inbox: list[Message]) -> str:
        """Answer with the likeliest tokens; crash in mid-stream or after the answer if the job asks for it."""
        job: Any = inbox[0].payload
        self.model.job = job
        options = GenerationOptions(temperature=0.0, max_tokens=job["tokens"])
        answer = await ctx.generate(job["text"], options=options)
        if job["dies"] == "answered":
            await ctx.step("die", die_once, job)
        return answer.text


TYPES: Final[dict[str, Callable[[AgentId], Agent]]] = {"pupil": Pupil}
