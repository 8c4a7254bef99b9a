"""How long the turns of a run are kept: the retention of its agent's context."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pytest

from actors._kernel.agent.agent import HistoryRetention
from actors._kernel.agent.message import ChatMessage, ContentBlock
from actors._kernel.runtime.scheduler import RetryPolicy, RunStatus
from actors._runtime.parts import InMemoryHistoryProvider

if TYPE_CHECKING:
    from actors._kernel.agent.message import Message
    from actors._kernel.stores.conversations import HistoryProvider
    from actors._runtime import RunContext
    from tests.behaviour.bed import Bed


@dataclass
class Memory:
    """An agent's context: the store of its turns, and how long a run's are kept."""

    retention: HistoryRetention
    history: HistoryProvider = field(default_factory=InMemoryHistoryProvider)


def say(text: str) -> ChatMessage:
    """Return one turn."""
    return ChatMessage(role="user", content=[ContentBlock(type="text", text=text)])


def speaking(memory: Memory, session: str | None) -> object:
    """Return an agent function that keeps its messages as turns."""

    async def act(ctx: RunContext, inbox: list[Message]) -> int:
        text = str(inbox[0].payload)
        where = session or ctx.run_id

        async def keep() -> int:
            turn = say(text)
            await memory.history.append(ctx.agent_id, turn, session_id=where, run_id=ctx.run_id)
            return await memory.history.count_messages(ctx.agent_id, session_id=where)

        count: int = await ctx.step("keep", keep)
        if text == "fail":
            raise ValueError("as asked")
        return count

    return act


@pytest.mark.item(55)
@pytest.mark.parametrize("retention", list(HistoryRetention))
async def test_a_runs_turns_have_the_retention_of_its_context(
    bed: Bed, retention: HistoryRetention
) -> None:
    """With RUN they are deleted when it has completed; other turns of the session remain."""
    memory = Memory(retention)
    agent = await bed.serve(speaking(memory, "s"), context=memory)  # type: ignore[arg-type]
    await memory.history.append(agent, say("before"), session_id="s", run_id="other")

    counts = [
        await bed.result(await bed.submit(agent, text, session_id="s")) for text in ("one", "two")
    ]

    turns = await memory.history.get_messages(agent, session_id="s")
    is_cleared = retention is HistoryRetention.RUN
    assert counts == ([2, 2] if is_cleared else [2, 3])
    assert [turn.text for turn in turns] == ["before"] + ([] if is_cleared else ["one", "two"])


@pytest.mark.item(55, 268)
async def test_a_run_without_a_session_has_its_own_conversation(bed: Bed) -> None:
    """Its turns are deleted with it, also if it fails."""
    memory = Memory(HistoryRetention.RUN)
    agent = await bed.serve(speaking(memory, None), context=memory)  # type: ignore[arg-type]
    run_id = await bed.submit(agent, "fail", retry_policy=RetryPolicy(max_retries=0))

    assert (await bed.ended(run_id)).status is RunStatus.FAILED
    assert await memory.history.count_messages(agent, session_id=run_id) == 0
    done = await bed.submit(agent, "fine")
    assert await bed.result(done) == 1
    assert await memory.history.count_messages(agent, session_id=done) == 0
