"""An agent whose history is summarised after its answers. Each model request appends a line to a ledger."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from actors._kernel.runtime.ids import AgentId
from actors.context import (
    CompactionPipeline,
    ContextConfig,
    StoreHistory,
    SummarizationCompaction,
    TokenBudgetComposedStrategy,
    TokenCounter,
)
from actors.testing import FunctionModel
from compose.demo.desk import append_line

if TYPE_CHECKING:
    from collections.abc import Sequence

    from actors._kernel.agent.message import ChatMessage, Message
    from actors._kernel.agent.models import GenerationOptions
    from actors._runtime import RunContext

HERE: Final = "tests.system.summaries"
SESSION: Final = "s"
_BY_TENS: Final = TokenCounter(lambda _: 6)
"""A turn of one block that a model has not counted has ten tokens."""


class Clerk:
    """An agent with a window of a hundred tokens; above fifty a summary is prepared."""

    id: Final = AgentId("clerk", "a")
    session: Final = SESSION

    def __init__(self) -> None:
        writer = FunctionModel(self._summarise, model="writer")
        summaries = SummarizationCompaction(writer, 20, 20, prepare=0.5, counter=_BY_TENS)
        budget = TokenBudgetComposedStrategy([summaries], 100, counter=_BY_TENS)
        self.context = ContextConfig(StoreHistory(), CompactionPipeline([budget], counter=_BY_TENS))
        self.model = FunctionModel(self._answer)
        self._job: dict[str, Any] = {}

    async def run(self, ctx: RunContext, inbox: list[Message]) -> str:
        """The payload names ledger and gate; the summariser answers once the gate exists."""
        job: Any = inbox[0].payload
        self._job = job
        return (await ctx.chat(job["text"])).text

    def _answer(self, messages: Sequence[ChatMessage], _: GenerationOptions) -> str:
        self._note("answer")
        return f"to {messages[-1].text}"

    async def _summarise(self, _: Sequence[ChatMessage], __: GenerationOptions) -> str:
        self._note("summary")
        while not Path(self._job["gate"]).exists():  # noqa: ASYNC110, ASYNC240 - another process makes it
            await asyncio.sleep(0.02)
        self._note("written")
        return "so far"

    def _note(self, name: str) -> None:
        append_line(self._job["ledger"], f"{name} {os.getpid()}")


CLERKS: Final = [Clerk()]
