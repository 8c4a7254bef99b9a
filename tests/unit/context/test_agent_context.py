"""Reading a session, and making a window of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from actors import AgentId, ContextConfig, InMemoryHistoryProvider, SlidingWindowCompaction
from actors._kernel.agent.models import AgentContextProtocol
from actors.context import AgentContext
from tests.unit.context.talk import dumped, talk, texts

if TYPE_CHECKING:
    from actors._kernel.agent.message import ChatMessage

DESK = AgentId("desk", "1")


class Steps:
    """A history and a strategy that tell in which order they are used."""

    def __init__(self) -> None:
        self.done: list[str] = []
        self.history = InMemoryHistoryProvider()

    async def get_messages(
        self, agent_id: AgentId, *, session_id: str, limit: int | None = None, offset: int = 0
    ) -> list[ChatMessage]:
        """Read."""
        assert (limit, offset) == (None, 0)
        self.done.append(f"read {agent_id} {session_id}")
        return await self.history.get_messages(agent_id, session_id=session_id)

    async def compact(self, raw_history: list[ChatMessage]) -> list[ChatMessage]:
        """Leave out the oldest."""
        self.done.append(f"compact {len(raw_history)}")
        return raw_history[1:]


@pytest.mark.item(271, 272)
async def test_a_window_is_read_and_then_compacted() -> None:
    """Those two steps, once each, and nothing else."""
    steps = Steps()
    await steps.history.append_many(DESK, talk("a", "b", "c"), session_id="s")
    context = AgentContext(DESK, ContextConfig(steps, steps))  # type: ignore[arg-type]
    checked: AgentContextProtocol = context

    window = await checked.get_prompt_window("s")

    assert isinstance(context, AgentContextProtocol)
    assert steps.done == ["read desk/1 s", "compact 3"]
    assert texts(window) == ["b", "c"]


@pytest.mark.item(273)
async def test_two_sessions_of_one_agent_do_not_meet() -> None:
    """Nor do two agents in a session of the same name."""
    config = ContextConfig.default()
    await config.history.append_many(DESK, talk("mine"), session_id="s")
    await config.history.append_many(DESK, talk("other session"), session_id="t")
    await config.history.append_many(AgentId("clerk", "1"), talk("other agent"), session_id="s")

    context = AgentContext(DESK, config)

    assert texts(await context.get_prompt_window("s")) == ["mine"]
    assert texts(await context.get_prompt_window("t")) == ["other session"]
    assert await context.get_prompt_window("new") == []


@pytest.mark.item(256, 257, 258)
async def test_a_window_takes_nothing_from_the_history() -> None:
    """All turns stay, byte for byte, and what a caller does to a window reaches neither of them."""
    config = ContextConfig(InMemoryHistoryProvider(), SlidingWindowCompaction(2))
    await config.history.append_many(DESK, talk(*"abcde"), session_id="s")
    before = dumped(await config.history.get_messages(DESK, session_id="s"))
    context = AgentContext(DESK, config)

    window = await context.get_prompt_window("s")
    assert texts(window) == ["d", "e"]
    window[0].content.clear()
    window.clear()

    assert dumped(await config.history.get_messages(DESK, session_id="s")) == before
    assert texts(await context.get_prompt_window("s")) == ["d", "e"]
