"""The contract of every `HistoryProvider`: turns in order, by agent and session, tagged with their run."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from actors.kernel.agent.message import ChatMessage, ContentBlock
from actors.kernel.runtime.ids import AgentId
from actors.kernel.storage.history import HistoryProvider
from actors.runtime.parts import InMemoryHistoryProvider

if TYPE_CHECKING:
    from collections.abc import Callable

DESK, CLERK = AgentId("desk", "1"), AgentId("clerk", "1")


@pytest.fixture(params=[InMemoryHistoryProvider], ids=["memory"])
def history(request: pytest.FixtureRequest) -> HistoryProvider:
    """An empty one."""
    make: Callable[[], HistoryProvider] = request.param
    return make()


def say(text: str) -> ChatMessage:
    """One turn."""
    return ChatMessage(role="user", content=[ContentBlock(type="text", text=text)])


async def texts(history: HistoryProvider, agent: AgentId, session: str) -> list[str]:
    """What is kept of a session."""
    return [turn.text for turn in await history.get_messages(agent, session_id=session)]


async def test_turns_come_back_in_order(history: HistoryProvider) -> None:
    """One by one or many; in pages too."""
    await history.append(DESK, say("0"), session_id="s")
    await history.append_many(DESK, [say("1"), say("2"), say("3")], session_id="s", run_id="r")

    page = await history.get_messages(DESK, session_id="s", limit=2, offset=1)

    assert isinstance(history, HistoryProvider)
    assert await texts(history, DESK, "s") == ["0", "1", "2", "3"]
    assert [turn.text for turn in page] == ["1", "2"]
    assert await history.count_messages(DESK, session_id="s") == 4
    assert await history.count_messages(DESK, session_id="other") == 0


async def test_sessions_and_agents_do_not_meet(history: HistoryProvider) -> None:
    """Clearing one leaves the others; clearing nothing is no error."""
    for agent, session in ((DESK, "s"), (DESK, "t"), (CLERK, "s")):
        await history.append(agent, say(f"{agent} {session}"), session_id=session)

    await history.clear(DESK, session_id="s")
    await history.clear(DESK, session_id="never")

    assert await texts(history, DESK, "s") == []
    assert await texts(history, DESK, "t") == ["desk/1 t"]
    assert await texts(history, CLERK, "s") == ["clerk/1 s"]


@pytest.mark.item(55)
async def test_one_runs_turns_are_cleared(history: HistoryProvider) -> None:
    """Those of other runs, and those of none, keep their order."""
    for text, run in (("0", "a"), ("1", "b"), ("2", "a"), ("3", "")):
        await history.append(DESK, say(text), session_id="s", run_id=run)

    await history.clear_run(DESK, session_id="s", run_id="a")
    await history.clear_run(DESK, session_id="other", run_id="b")

    assert await texts(history, DESK, "s") == ["1", "3"]


async def test_what_is_kept_is_not_shared(history: HistoryProvider) -> None:
    """Changing a list that came back changes nothing."""
    await history.append(DESK, say("0"), session_id="s")
    (await history.get_messages(DESK, session_id="s")).clear()

    assert await texts(history, DESK, "s") == ["0"]
