"""Conversations that an agent has for itself: no reader of the session takes them for its answer."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from typing_extensions import override

from actors._kernel.agent.message import ChatMessage
from actors._kernel.agent.tools import Tool, ToolCall
from actors.agents import ReActAgent
from actors.errors import ContractError
from actors.testing import FunctionModel, ModelReply, ScriptedModel
from compose._web.pages.cards import cards_of_nodes
from tests.behaviour.talks import all_of, past_of, payload_of, sessions_on

if TYPE_CHECKING:
    from collections.abc import Sequence

    from actors._kernel.agent.message import Message
    from actors._kernel.agent.models import GenerationOptions
    from actors._runtime import RunContext
    from tests.behaviour.bed import Bed


async def look() -> str:
    """Return what the tool saw."""
    return "seen"


class Desk(ReActAgent):
    """Classifies a question in a conversation of its own, and answers it."""

    @override
    async def run(self, ctx: RunContext, inbox: list[Message]) -> str:
        """Answer."""
        del inbox
        kind = await ctx.chat("which kind?", session="inner", tools=())
        await ctx.history.append(ChatMessage.of("system", f"It is {kind.text}."))
        return (await ctx.chat("the question")).text


def answer(messages: Sequence[ChatMessage], options: GenerationOptions) -> ModelReply:
    """Answer, and call the tool where one is offered."""
    if messages[-1].text == "which kind?":
        return ModelReply(text=f"secret kind, {len(options.tools)} tools")
    if messages[-1].role == "tool":
        return ModelReply(text="the answer")
    return ModelReply(calls=[ToolCall(id="c1", name="look", arguments={})])


async def test_an_inner_conversation_and_a_system_text_are_no_answers(bed: Bed, app: str) -> None:
    """Neither live nor stored, nor on the page. A chat without tools offers none."""
    desk = Desk("desk", model=FunctionModel(answer), tools=[Tool("look", "", look)])
    async with sessions_on(bed, desk, app=app) as talks:
        run = await talks.start("hi", session_id="s")
        live, past = await all_of(run), await past_of(talks, "s")
        turns = await talks.path("s")

    system = ("system", "It is secret kind, 0 tools.")
    rest = [("user", "the question"), ("assistant", ""), ("tool", ""), ("assistant", "the answer")]
    for events in (live, past):
        messages = [payload_of(event) for event in events if event.type == "message"]
        assert [(message["role"], message["text"]) for message in messages] == [system, *rest]
    pieces = [payload_of(event)["text"] for event in live if event.type.startswith("text_")]
    assert "".join(pieces) == "the answer"
    assert [(turn.message.role, turn.message.text) for turn in turns] == [system, *rest]
    cards = cards_of_nodes(turns)
    assert [(card.kind, card.title) for card in cards] == [
        ("message", "user"),
        ("tool", "look"),
        ("message", "assistant"),
    ]


async def test_a_call_of_a_tool_that_is_not_offered_is_an_error_that_the_model_reads(
    bed: Bed,
) -> None:
    """The tool is not called. A name that no tool has is a mistake of the author."""

    async def act(ctx: RunContext, inbox: list[Message]) -> str:
        del inbox
        with pytest.raises(ContractError, match=r"'guess'.*declared: look"):
            await ctx.chat("x", tools=["guess"])
        return (await ctx.chat("go", tools=())).text

    model = ScriptedModel(ToolCall(id="c", name="look", arguments={}), "fine")
    agent = await bed.serve(act, model=model, tools=[Tool("look", "", look)])

    assert await bed.result(await bed.submit(agent)) == "fine"
    assert model.asked[0].options.tools == ()
    assert "is not offered" in str(model.asked[1].messages[-1].content)
