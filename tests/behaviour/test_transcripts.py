"""How long what a run has said is kept: the retention of its agent's context."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pytest

from actors.kernel.agent.message import ChatMessage, ContentBlock
from actors.kernel.agent.supervision import HistoryRetention
from actors.kernel.runtime.scheduler import RetryPolicy, RunStatus
from actors.runtime.parts import InMemoryHistoryProvider

if TYPE_CHECKING:
    from actors.kernel.agent.message import Message
    from actors.kernel.storage.history import HistoryProvider
    from actors.runtime import RunContext
    from tests.behaviour.bed import Bed


@dataclass
class Memory:
    """An agent's context: where its turns are, and how long a run's are kept."""

    retention: HistoryRetention
    history: HistoryProvider = field(default_factory=InMemoryHistoryProvider)


def say(text: str) -> ChatMessage:
    """One turn."""
    return ChatMessage(role="user", content=[ContentBlock(type="text", text=text)])


def speaking(memory: Memory, session: str | None) -> object:
    """What an agent does that keeps what it hears."""

    async def act(ctx: RunContext, inbox: list[Message]) -> int:
        said = str(inbox[0].payload)
        where = session or ctx.run_id

        async def keep() -> int:
            turn = say(said)
            await memory.history.append(ctx.agent_id, turn, session_id=where, run_id=ctx.run_id)
            return await memory.history.count_messages(ctx.agent_id, session_id=where)

        count: int = await ctx.step("keep", keep)
        if said == "fail":
            raise ValueError("as asked")
        return count

    return act


@pytest.mark.item(55)
@pytest.mark.parametrize("retention", list(HistoryRetention))
async def test_a_runs_turns_are_kept_as_its_context_says(
    bed: Bed, retention: HistoryRetention
) -> None:
    """With RUN they are gone when it has completed; other turns of the session remain."""
    memory = Memory(retention)
    agent = await bed.serve(speaking(memory, "s"), context=memory)  # type: ignore[arg-type]
    await memory.history.append(agent, say("before"), session_id="s", run_id="other")

    counts = [
        await bed.result(await bed.submit(agent, text, session_id="s")) for text in ("one", "two")
    ]

    kept = await memory.history.get_messages(agent, session_id="s")
    is_cleared = retention is HistoryRetention.RUN
    assert counts == ([2, 2] if is_cleared else [2, 3])
    assert [turn.text for turn in kept] == ["before"] + ([] if is_cleared else ["one", "two"])


@pytest.mark.item(55, 268)
async def test_a_run_without_a_session_is_one_of_its_own(bed: Bed) -> None:
    """Its turns go with it, also when it fails."""
    memory = Memory(HistoryRetention.RUN)
    agent = await bed.serve(speaking(memory, None), context=memory)  # type: ignore[arg-type]
    run_id = await bed.submit(agent, "fail", retry_policy=RetryPolicy(max_retries=0))

    assert (await bed.ended(run_id)).status is RunStatus.FAILED
    assert await memory.history.count_messages(agent, session_id=run_id) == 0
    done = await bed.submit(agent, "fine")
    assert await bed.result(done) == 1
    assert await memory.history.count_messages(agent, session_id=done) == 0
