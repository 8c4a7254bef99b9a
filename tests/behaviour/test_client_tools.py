"""Client tools: the message brings them, the model calls them, and the run waits for the client's result."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from typing import TYPE_CHECKING, Any

import pytest
from typing_extensions import override

from actors import ToolCall
from actors._kernel.agent.message import ContentBlock
from actors._kernel.agent.tools import InvocationResult
from actors._kernel.runtime.ids import RunId
from actors.errors import MessageTooLargeError
from actors.sessions import UserMessage
from actors.testing import ModelReply
from tests.behaviour.agui import PICK, Counter
from tests.behaviour.bed import LIMIT_S
from tests.behaviour.talks import all_of, payload_of, sessions_on

if TYPE_CHECKING:
    from collections.abc import Sequence

    from actors import ChatMessage, GenerationOptions
    from actors._runtime import Runtime
    from tests.behaviour.bed import Bed


class Twice(Counter):
    """A model that calls two client tools at once, then returns their results."""

    @override
    def __call__(self, messages: Sequence[ChatMessage], options: GenerationOptions) -> ModelReply:
        """Answer the last message."""
        self.asked.append(([message.text for message in messages], []))
        if messages[-1].role != "tool":
            calls = [ToolCall(id=id_, name="pick_color") for id_ in ("a", "b")]
            return ModelReply(calls=calls)
        results = [message.content[0] for message in messages if message.role == "tool"]
        return ModelReply(text=" and ".join(block.text or "" for block in results))


def wanting(text: str, *tools: Any, **more: Any) -> UserMessage:
    """Return a message with tools."""
    content = (ContentBlock(type="text", text=text),)
    return UserMessage(content=content, client={"tools": [*tools], **more})


async def calls_of(runtime: Runtime, run: RunId, *ids: str) -> None:
    """Wait until a run waits for the results of these calls."""
    async with asyncio.timeout(LIMIT_S):
        while {*ids} - (await runtime.approvals.open_calls(run)).keys():  # noqa: ASYNC110 - rows
            await asyncio.sleep(0.001)


async def test_two_calls_wait_for_their_results_over_a_crash(bed: Bed, app: str) -> None:
    """Each result counts once, posted by any process; the model is not called again."""
    desk = Twice()
    async with sessions_on(bed, desk.agent(), app=app) as talks:
        run = await talks.start(wanting("go", PICK), session_id="s")
        await calls_of(bed.runtime, run.run_id, "a", "b")
        red = InvocationResult(status="ok", text="red")
        async with bed.client() as other:
            assert await other.approvals.give(run.run_id, "b", red)
            assert not await other.approvals.give(run.run_id, "b", red)
            assert not await other.approvals.give(run.run_id, "c", red)
        await bed.crash()
    await bed.start()
    async with sessions_on(bed, desk.agent(), app=app) as talks:
        await calls_of(bed.runtime, run.run_id, "a")
        assert set(await bed.runtime.approvals.open_calls(run.run_id)) == {"a"}
        blue = InvocationResult(status="error", text="blue")
        assert await bed.runtime.approvals.give(run.run_id, "a", blue)
        assert await bed.result(run.run_id) == "blue and red"
        assert len(desk.asked) == 2
        assert await bed.runtime.approvals.open_calls(run.run_id) == {}
        assert await bed.runtime.approvals.open_calls(RunId("\x00")) == {}
        assert await bed.runtime.approvals.open(run_id=run.run_id) == []


async def test_events_have_a_client_call_and_its_result(bed: Bed, app: str) -> None:
    """The call's event has a flag for client tools; later readers get the same events."""
    async with sessions_on(bed, Counter().agent(), app=app) as talks:
        run = await talks.start(wanting("pick_color", PICK), session_id="s")
        await calls_of(bed.runtime, run.run_id, "pick_color-1")
        red = InvocationResult(status="ok", text="red")
        await bed.runtime.approvals.give(run.run_id, "pick_color-1", red)
        events = await all_of(run)
        async with aclosing(talks.replay_run(run.run_id)) as again:
            past = [event async for event in again]

        tools = [event for event in events if event.type.startswith("tool_")]
        assert [event.type for event in tools] == ["tool_started", "tool_finished"]
        assert {event.tool_call_id for event in tools} == {"pick_color-1"}
        assert payload_of(tools[0]) == {"name": "pick_color", "arguments": {}, "client": True}
        assert (payload_of(tools[1])["status"], payload_of(tools[1])["result"]["text"]) == (
            "ok",
            "red",
        )
        assert [event for event in past if event.type.startswith("tool_")] == tools


async def test_invalid_client_tools_are_left_out(bed: Bed, app: str) -> None:
    """Any client can write payloads: the agent's code gets the whole list, and the turn has no invalid tool."""
    desk = Counter()
    odd: list[Any] = [
        7,
        {},
        {"name": 1},
        {"name": "x", "more": 1},
        {"name": "final_result"},
        PICK,
        PICK,
    ]
    message = wanting("hello", *odd, state={"n": 1})
    picture = ContentBlock.model_validate({"type": "image", "url": "https://x/y.png"})
    both = UserMessage(content=(*message.content, picture), client=message.client)
    async with sessions_on(bed, desk.agent(), app=app) as talks:
        run = await talks.start(both, session_id="s")
        assert await bed.result(run.run_id) == "You said hello."
        [entry] = [entry for entry in await bed.log(run.run_id) if entry.kind == "msg.received"]
        path = await talks.path("s")

        assert desk.asked[0][1] == ["refund", "look_up", "pick_color"]
        assert entry.payload["message"]["payload"]["client"]["state"] == {"n": 1}  # type: ignore[call-overload,index]
        assert [block.type for block in path[0].message.content] == ["text", "image"]


async def test_a_result_that_cannot_be_read_or_kept(bed: Bed, app: str) -> None:
    """An unreadable result is an error that the model reads.

    One that is too large is refused, and can be sent shorter.
    """
    async with sessions_on(bed, Counter().agent(), app=app) as talks:
        run = await talks.start(wanting("pick_color", PICK), session_id="s")
        await calls_of(bed.runtime, run.run_id, "pick_color-1")
        large = InvocationResult(status="ok", text="x" * 300_000)
        with pytest.raises(MessageTooLargeError):
            await bed.runtime.approvals.give(run.run_id, "pick_color-1", large)
        short = InvocationResult(status="ok", text="red")
        assert await bed.runtime.approvals.give(run.run_id, "pick_color-1", short)
        assert await bed.result(run.run_id) == "Done: red."


async def test_a_run_that_waits_for_its_client_can_be_cancelled(bed: Bed, app: str) -> None:
    """A result that comes afterwards is dropped."""
    async with sessions_on(bed, Counter().agent(), app=app) as talks:
        run = await talks.start(wanting("pick_color", PICK), session_id="s")
        await calls_of(bed.runtime, run.run_id, "pick_color-1")
        done = await run.cancel(reason="enough")
        late = InvocationResult(status="ok", text="red")

        assert done.status == "cancelled"
        assert not await bed.runtime.approvals.give(run.run_id, "pick_color-1", late)
