"""Crashes at each write of a chatting agent: no turn is lost or doubled, no answer is paid for twice."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pytest

from actors._kernel.agent.agent import HistoryRetention
from actors._kernel.agent.tools import Tool, ToolCall
from actors._kernel.runtime.commit import Commit
from actors._kernel.runtime.log_entry import EntryKind as K
from actors._kernel.runtime.scheduler import Lease
from actors.context import CompactionPipeline, ContextConfig, StoreHistory, SummarizationCompaction
from actors.testing import FunctionModel, ModelReply
from tests.harness.faulty_store import Faults, Manner

if TYPE_CHECKING:
    from collections.abc import Sequence

    from actors._kernel.agent.message import ChatMessage, Message
    from actors._kernel.agent.models import GenerationOptions
    from actors._runtime import RunContext
    from tests.behaviour.bed import Bed

QUESTIONS = [f"{n}: " + "word " * 40 for n in range(4)]


@dataclass
class Talk:
    """An agent that answers questions with a tool, and whose history is summarised."""

    calls: int = 0
    """Calls of the models, those of the summariser included."""
    used: list[int] = field(default_factory=list)

    def answer(self, messages: Sequence[ChatMessage], _: GenerationOptions) -> ModelReply:
        """Return a tool call for a question, and a text for a tool result."""
        self.calls += 1
        if messages[-1].role == "user":
            n = int(messages[-1].text[0])
            return ModelReply(calls=[ToolCall(id=f"c{n}", name="look", arguments={"n": n})])
        return ModelReply(text=f"seen {messages[-1].content[0].text}")

    def summary(self, messages: Sequence[ChatMessage], _: GenerationOptions) -> ModelReply:
        """Return a short text."""
        self.calls += 1
        return ModelReply(text=f"of {len(messages[-1].text) // 1000} kB")

    async def look(self, n: int) -> int:
        """Return the tool's result."""
        self.used.append(n)
        return n * 10

    def attributes(self, retention: HistoryRetention) -> dict[str, Any]:
        """Return the agent's attributes."""
        strategy = SummarizationCompaction(
            FunctionModel(self.summary, model="summariser"),
            recent_token_budget=80,
            min_old_tokens=100,
        )
        context = ContextConfig(StoreHistory(), CompactionPipeline([strategy]), retention=retention)
        return {
            "model": FunctionModel(self.answer),
            "context": context,
            "tools": [Tool("look", "", self.look, idempotent=True)],
            "session": "main",
        }

    @staticmethod
    async def act(ctx: RunContext, inbox: list[Message]) -> list[str]:
        """Ask four questions in one conversation."""
        del inbox
        return [(await ctx.chat(question)).text for question in QUESTIONS]


def is_a_runs(*args: object) -> bool:
    """Return whether a call of the store is a commit of a run."""
    return bool(args) and isinstance(args[0], Commit | Lease)


async def talk(bed: Bed, faults: Faults, retention: HistoryRetention) -> tuple[Any, ...]:
    """Return the conversation's turns with a crash at `faults`, and how often each model was called."""
    died, story, open_store = asyncio.Event(), Talk(), bed.open_store
    bed.go_wrong(faults, died.set)
    await bed.restart()
    bed.open_store = open_store
    agent = await bed.serve(story.act, **story.attributes(retention))
    run_id = await bed.submit(agent)
    ended, dead = (asyncio.ensure_future(work) for work in (bed.runtime.wait(run_id), died.wait()))
    await asyncio.wait({ended, dead}, return_when=asyncio.FIRST_COMPLETED)
    for task in (ended, dead):
        task.cancel()
    await asyncio.wait({ended, dead})
    await bed.restart()
    output = await bed.result(run_id)
    recorded = await bed.log(run_id, K.LLM_CALL)
    turns = await bed.runtime.store.data.transcripts.page(agent, "main")
    transcript = [(turn.ordinal, turn.message.role, turn.message.text) for turn in turns]
    assert any("~" in entry.position for entry in recorded), "no summary was bought"
    return output, transcript, len({turn.id for turn in turns}), story.calls - len(recorded)


@pytest.mark.item(286, 300)
@pytest.mark.parametrize("retention", [HistoryRetention.PERMANENT, HistoryRetention.RUN])
@pytest.mark.parametrize("manner", [Manner.DIE_BEFORE, Manner.DIE_AFTER])
async def test_a_conversation_survives_a_crash_at_each_write(
    bed: Bed, manner: Manner, retention: HistoryRetention
) -> None:
    """Of the answered model calls at most the current one is repeated."""
    if bed.backend != "memory":
        pytest.skip("in memory each call is a place to die; system tests kill processes")
    reference = await talk(bed, Faults(), retention)
    assert reference[3] == 0
    assert len(reference[1]) == (16 if retention is HistoryRetention.PERMANENT else 0)
    nth, is_struck = 0, True
    while is_struck:
        faults = Faults(nth=nth, manner=manner, wanted=is_a_runs)
        output, transcript, ids, again = await talk(bed, faults, retention)
        assert (output, transcript, ids) == reference[:3], f"died {manner} at call {nth}"
        assert again <= 1, f"died {manner} at call {nth}: {again} calls were paid twice"
        is_struck, nth = faults.struck, nth + 1
    assert nth > 15
