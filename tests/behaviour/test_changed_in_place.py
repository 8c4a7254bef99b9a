"""Values that code changes in place: what it was given, or has given, is not what is recorded."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final

import pytest
from pydantic_core import to_json

from actors._kernel.agent.agent import HistoryRetention
from actors._kernel.agent.hooks import Allow, GuardStage, GuardVerdict
from actors._kernel.agent.message import ChatMessage
from actors._kernel.agent.tools import Tool, ToolCall
from actors.context import ContextConfig, StoreHistory
from actors.errors import RetryAfter
from actors.testing import ModelReply, ScriptedModel
from tests.behaviour.agents import Acting
from tests.model.agent import spoiled

if TYPE_CHECKING:
    from collections.abc import Sequence

    from actors._kernel.agent.message import Message
    from actors._runtime import RunContext
    from tests.behaviour.bed import Bed

ITEMS: Final = {"items": [1, {"two": [2]}]}
"""A payload that code can change in all its parts."""


async def test_state_that_is_changed_in_place_is_read_and_written_as_it_was(bed: Bed) -> None:
    """A list that is read, grown and set survives a retry; a list that is not set again stays as it was."""
    tries: list[int] = []

    async def act(ctx: RunContext, inbox: list[Message]) -> Any:
        items = await ctx.state.get("items") or []
        items.append(inbox[0].payload)
        await ctx.step("reserve", lambda: 1)
        await ctx.state.set("items", items)
        (await ctx.state.get("items")).append("not set")
        tries.append(1)
        if len(tries) == 1:
            raise RetryAfter(0.01, "once")
        return await ctx.state.get("items")

    agent = await bed.serve(act)

    assert await bed.result(await bed.submit(agent, 1)) == [1]
    assert await bed.result(await bed.submit(agent, 2)) == [1, 2]
    assert len(tries) == 3


async def test_what_waits_return_is_not_what_is_recorded(bed: Bed) -> None:
    """Messages, signals, answers, results of joins and of steps are the same on each replay."""
    other = bed.name()

    async def echo(_: RunContext, inbox: list[Message]) -> Any:
        return inbox[0].payload

    async def act(ctx: RunContext, inbox: list[Message]) -> Any:
        child = await ctx.spawn(other, ITEMS)
        received = await ctx.receive()
        assert received is not None
        results = [
            spoiled(inbox[0].payload),
            spoiled(received.payload),
            spoiled(await ctx.sleep_until_signal("go")),
            spoiled((await ctx.join(child)).output),
            spoiled((await ctx.join(child)).output),
            spoiled((await ctx.ask(other, ITEMS, timeout=30, idempotency_key="k")).result),
            spoiled((await ctx.ask(other, ITEMS, timeout=30, idempotency_key="k")).result),
            spoiled(await ctx.step("s", lambda: ITEMS)),
        ]
        await ctx.step("mark", bed.world.do, "mark")
        return [results, await ctx.sleep_until_signal("again")]

    bed.agents[other] = served = Acting(other, echo)
    await bed.runtime.register(served)
    agent = await bed.serve(act)
    run_id = await bed.submit(agent, ITEMS)
    await bed.runtime.send(agent, ITEMS)
    await bed.runtime.signal(run_id, "go", ITEMS)
    await bed.marked(run_id, times=2 if bed.drops else 1)
    await bed.restart()
    await bed.runtime.signal(run_id, "again", ITEMS)

    assert await bed.result(run_id) == [[ITEMS] * 8, ITEMS]


async def test_what_was_handed_in_is_recorded_as_it_was(bed: Bed) -> None:
    """A payload that is changed after it was sent, set or given to a step arrives as it was."""
    arrived: list[Any] = []

    async def keep(_: RunContext, inbox: list[Message]) -> None:
        arrived.extend(message.payload for message in inbox)

    target = await bed.serve(keep)

    async def act(ctx: RunContext, inbox: list[Message]) -> Any:
        payload: Any = inbox[0].payload
        await ctx.step("s", spoiled, payload)
        await ctx.send(target, payload)
        await ctx.state.set("k", payload)
        spoiled(payload)
        return await ctx.state.get("k")

    agent = await bed.serve(act)

    assert await bed.result(await bed.submit(agent, ITEMS)) == ITEMS
    await bed.until(lambda: arrived)
    assert arrived == [ITEMS]


async def test_each_waiter_gets_a_result_of_its_own(bed: Bed) -> None:
    """What one caller does with a result, another one does not see."""

    async def act(ctx: RunContext, _: list[Message]) -> Any:
        await ctx.sleep(0.01)
        return ITEMS

    run_id = await bed.submit(await bed.serve(act))
    results = await asyncio.gather(bed.result(run_id), bed.result(run_id))

    assert [spoiled(result) for result in results] == [ITEMS, ITEMS]


@pytest.mark.parametrize("retention", [HistoryRetention.NONE, HistoryRetention.PERMANENT])
async def test_turns_that_are_changed_in_place_are_shown_as_they_were(
    bed: Bed, retention: HistoryRetention
) -> None:
    """The model's next window has the turns and answers as they were said."""
    model = ScriptedModel("one", "two")

    async def act(ctx: RunContext, _: list[Message]) -> Any:
        first = ChatMessage.of("user", "first")
        answer = await ctx.generate(first)
        first.content.clear()
        answer.content.clear()
        noted = ChatMessage.of("user", "noted")
        await ctx.history.append(noted)
        noted.content.clear()
        return (await ctx.generate("last")).text

    agent = await bed.serve(
        act, model=model, context=ContextConfig(StoreHistory(), retention=retention)
    )

    assert await bed.result(await bed.submit(agent)) == "two"
    assert [message.text for message in model.asked[-1].messages] == [
        "first",
        "one",
        "noted",
        "last",
    ]


async def test_what_guards_and_tools_change_in_place_is_not_what_is_shown_or_approved(
    bed: Bed,
) -> None:
    """A guard gets copies, and a tool arguments of its own: the conversation keeps what was said."""
    model = ScriptedModel(
        ModelReply(calls=[ToolCall(id="c", name="use", arguments=ARGUMENTS)]), "end"
    )

    async def use(what: dict[str, Any]) -> Any:
        return spoiled(what)

    async def act(ctx: RunContext, _: list[Message]) -> Any:
        return (await ctx.chat("go")).text

    tool = Tool("use", "", use, idempotent=True)
    agent = await bed.serve(act, model=model, tools=[tool], guards=[Careless()])

    assert await bed.result(await bed.submit(agent)) == "end"
    user, answer, result = model.asked[-1].messages
    assert user.text == "go"
    assert answer.content[0].model_extra == {"id": "c", "name": "use", "arguments": ARGUMENTS}
    assert result.content[0].text == to_json(ITEMS).decode()


ARGUMENTS: Final = {"what": ITEMS}


class Careless:
    """A guard that empties what it is shown, and lets everything pass."""

    async def check(self, stage: GuardStage, messages: Sequence[ChatMessage]) -> GuardVerdict:
        """See `Guard.check`."""
        for message in messages:
            for block in message.content:
                spoiled(block.model_extra)
            message.content.clear()
        return Allow()
