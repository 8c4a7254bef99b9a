"""Messages of runs that end before an answer: they are nodes of the session."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from actors._kernel.agent.hooks import Allow, Block, GuardStage, GuardVerdict
from actors._kernel.agent.message import ContentBlock
from actors._kernel.agent.tools import Tool, ToolCall
from actors._kernel.runtime.scheduler import RetryPolicy
from actors.agents import ReActAgent
from actors.sessions import UserMessage
from actors.testing import ModelReply, ScriptedModel
from tests.behaviour.talks import Echo, all_of, past_of, path_texts, sessions_on, types_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from actors._kernel.agent.message import ChatMessage, Message
    from actors._runtime import RunContext
    from tests.behaviour.bed import Bed


class Broken:
    """Fails before it calls a model."""

    def __init__(self, bed: Bed) -> None:
        self.id = bed.name()

    async def run(self, ctx: RunContext, inbox: list[Message]) -> None:
        """Fail."""
        raise ValueError("no")


@pytest.mark.item(356, 377)
async def test_a_message_is_a_node_when_its_run_is_cancelled_in_its_first_answer(
    bed: Bed, app: str
) -> None:
    """It is the active node, an event of the run, and in the next window. A queued run leaves no node."""
    echo = Echo()
    echo.hold("1")
    async with sessions_on(bed, echo.agent(), app=app) as talks:
        run = await talks.start("1", session_id="s")
        queued = await talks.start("2", session_id="s")
        await bed.until(lambda: echo.asked)
        await queued.cancel()
        await run.cancel()
        [node] = await talks.path("s")
        assert (node.message.text, node.run_id) == ("1", run.run_id)
        assert (await talks.session("s")).head == node.id
        events = [event for event in await past_of(talks, "s") if event.run_id == run.run_id]
        assert types_of(events) == ["loop_started", "cancel_requested", "message", "run_cancelled"]
        assert [event.node_id for event in events] == [None, None, node.id, None]
        again = [event for event in await past_of(talks, "s", events[2].event_id) if event.seq >= 0]
        assert types_of(again)[-1] == "run_cancelled"
        assert "message" not in types_of(again)
        assert await (await talks.start("3", session_id="s")).result() == "echo: 3"
        assert echo.asked[-1] == ["1", "3"]


@pytest.mark.item(355, 377)
async def test_a_message_is_a_node_when_its_run_fails_before_a_model_call(
    bed: Bed, app: str
) -> None:
    """With all of its blocks. A working mode continues after it, or from another node."""
    echo, never = Echo(), RetryPolicy(max_retries=0)
    picture = ContentBlock.model_validate({"type": "image", "url": "x"})
    blocks = [ContentBlock(type="text", text="look"), picture]
    async with sessions_on(
        bed, {"normal": echo.agent(), "broken": Broken(bed)}, app=app, retry=never
    ) as talks:
        await (await talks.start("1", session_id="s")).result()
        first = (await talks.path("s"))[-1]
        message = UserMessage(content=tuple(blocks))
        failed = await talks.start(message, session_id="s", mode="broken")
        assert types_of(await all_of(failed))[-2:] == ["message", "run_failed"]
        node = (await talks.path("s"))[-1]
        assert (node.parent, node.message.content) == (first.id, blocks)
        await (await talks.start("2", session_id="s")).result()
        assert await path_texts(talks, "s") == ["1", "echo: 1", "look", "2", "echo: 2"]


async def test_a_message_that_a_guard_blocks_is_a_node_and_in_no_window(bed: Bed, app: str) -> None:
    """The session shows it, and its next run answers without it."""
    echo, never = Echo(), RetryPolicy(max_retries=0)

    class Words:
        async def check(self, stage: GuardStage, messages: Sequence[ChatMessage]) -> GuardVerdict:
            return Block("no") if stage == "input" and messages[-1].text == "bad" else Allow()

    agent = echo.agent(guards=[Words()])
    async with sessions_on(bed, agent, app=app, retry=never) as talks:
        failed = await talks.start("bad", session_id="s")
        assert types_of(await all_of(failed))[-2:] == ["message", "run_failed"]
        await (await talks.start("good", session_id="s")).result()
        assert await path_texts(talks, "s") == ["bad", "good", "echo: good"]
        assert echo.asked == [["good"]]


@pytest.mark.item(356, 377)
async def test_the_next_window_has_what_was_done_and_shown_before_a_stop(
    bed: Bed, app: str
) -> None:
    """Calls without a text, their results, and the text that the user was shown, as nodes of the session."""
    is_shown = asyncio.Event()

    async def hang() -> None:
        is_shown.set()
        await asyncio.Event().wait()

    async def book(day: str) -> str:
        return f"booked {day}"

    call = ToolCall(id="c1", name="book", arguments={"day": "Monday"})
    half = ModelReply(
        text="I have booked Monday", pieces=["I have ", "booked Monday"], between=hang
    )
    model = ScriptedModel(call, half, otherwise="ok")
    agent = ReActAgent(bed.name(), model=model, tools=[Tool("book", "Book a day.", book)])
    async with sessions_on(bed, agent, app=app) as talks:
        run = await talks.start("book Monday", session_id="s")
        await bed.until(is_shown.is_set)
        await run.cancel()
        path = await talks.path("s")
        roles = [node.message.role for node in path]
        assert roles == ["user", "assistant", "tool", "assistant"]
        assert (path[-1].message.text, path[-1].run_id) == ("I have ", run.run_id)
        assert (await talks.session("s")).head == path[-1].id
        [*_, last, end] = [
            event for event in await past_of(talks, "s") if event.run_id == run.run_id
        ]
        assert (last.node_id, end.type) == (path[-1].id, "run_cancelled")
        assert isinstance(last.payload, dict)
        assert (last.payload["text"], last.payload["stopped"]) == ("I have ", "cancelled")
        await (await talks.start("go on", session_id="s")).result()
        window = model.asked[-1].messages
        assert [message.role for message in window] == [*roles, "user"]
        assert (window[2].content[0].text, window[3].text) == ("booked Monday", "I have ")
