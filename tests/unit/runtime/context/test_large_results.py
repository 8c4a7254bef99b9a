"""Results of tools that are too large for a turn."""

from __future__ import annotations

import pytest

from actors import Runtime, Tool, ToolCall
from actors._kernel.agent import transcript
from actors._runtime.verbs.conversation import chat
from actors.agents import ReActAgent
from actors.testing import ScriptedModel


async def test_the_model_gets_the_beginning_of_a_result_that_no_turn_holds(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The tool has acted, so the run goes on."""
    monkeypatch.setattr(transcript, "MAX_TURN_BYTES", 8_000)
    monkeypatch.setattr(chat, "MAX_RESULT", 100)

    def read() -> str:
        return "page " * 2_000

    model = ScriptedModel(ToolCall(id="1", name="read", arguments={}), otherwise="done")
    agent = ReActAgent("reader", model=model, tools=[Tool("read", "Reads.", read)])
    async with Runtime() as runtime:
        await runtime.register(agent)

        assert await runtime.result(await runtime.submit(agent.id, "Read it.")) == "done"

    [block] = model.asked[-1].messages[-1].content
    cut = "[cut: 100 of 10,000 characters are shown; ask for less]"
    assert block.text == f"{'page ' * 20}\n{cut}"
