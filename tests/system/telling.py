"""An agent whose model streams half of its answer, waits for a file if it is the first, and ends."""

from __future__ import annotations

import asyncio
import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from actors._kernel.agent.message import ContentBlock
from actors._kernel.agent.models import Completion, LLMResponse, TextDelta, collected
from actors.context import CompactionPipeline, ContextConfig, StoreHistory, SummarizationCompaction
from actors.testing import FunctionModel
from compose.demo.desk import append_line
from tests.system.agents import executed

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Sequence

    from actors._kernel.agent.agent import Agent
    from actors._kernel.agent.message import ChatMessage, Message
    from actors._kernel.agent.models import GenerationOptions, StreamEvent
    from actors._kernel.runtime.ids import AgentId
    from actors._runtime import RunContext

HERE: Final = f"{__name__}:TYPES"
BEGAN, LEFT = 0, 1
"""Numbers in the ledger: a stream has emitted its half; a stream has ended, complete or not."""


def answer_of(pid: int) -> str:
    """Return the answer of the model in a process."""
    return f"told by {pid}"


class Streaming:
    """An `LLMClient` that answers with the number of its process."""

    model = "streaming"

    async def generate(
        self, messages: Sequence[ChatMessage], *, options: GenerationOptions | None = None
    ) -> LLMResponse:
        """See `LLMClient.generate`."""
        return await collected(self.generate_stream(messages, options=options), model=self.model)

    async def generate_stream(
        self, messages: Sequence[ChatMessage], *, options: GenerationOptions | None = None
    ) -> AsyncIterator[StreamEvent]:
        """See `LLMClient.generate_stream`. The question names the ledger and the gate."""
        del options
        job, text = json.loads(messages[-1].text), answer_of(os.getpid())
        is_first = not executed(Path(job["ledger"]))
        yield TextDelta(text=text[:4])
        append_line(job["ledger"], f"{BEGAN} {os.getpid()}")
        try:
            while is_first and not Path(job["gate"]).exists():  # noqa: ASYNC110, ASYNC240 - another process makes it
                await asyncio.sleep(0.01)
            yield TextDelta(text=text[4:])
            yield Completion(response=LLMResponse(content=[ContentBlock(type="text", text=text)]))
        finally:
            append_line(job["ledger"], f"{LEFT} {os.getpid()}")

    async def count_tokens(self, messages: Sequence[ChatMessage]) -> int:
        """Return the number of characters."""
        return sum(len(message.text) for message in messages)


class Teller:
    """Answers in the session "main", whose old turns are summarised."""

    session = "main"

    def __init__(self, agent_id: AgentId) -> None:
        self.id, self.model = agent_id, Streaming()
        summariser = FunctionModel(lambda *_: "a summary", model="summariser")
        strategy = SummarizationCompaction(summariser, recent_token_budget=80, min_old_tokens=100)
        self.context = ContextConfig(StoreHistory(), CompactionPipeline([strategy]))

    async def run(self, ctx: RunContext, inbox: list[Message]) -> str:
        """Return the answer to its message."""
        job: Any = inbox[0].payload
        return (await ctx.generate(json.dumps(job))).text


TYPES: Final[dict[str, Callable[[AgentId], Agent]]] = {"teller": Teller}
