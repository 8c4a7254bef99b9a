"""Models that answer from a script or from a function."""

from __future__ import annotations

import asyncio
from contextlib import suppress

import pytest

from actors import ChatMessage, ContentBlock, GenerationOptions, LLMClient, LLMResponse, Usage
from actors._kernel.agent.models import (
    Completion,
    ReasoningDelta,
    StreamEvent,
    TextDelta,
    collected,
)
from actors._kernel.agent.tools import ToolCall
from actors.testing import FunctionModel, ModelReply, ScriptedModel, ScriptEndedError

HI = [ChatMessage.of("user", "hi")]
CALL = ToolCall(id="1", name="book", arguments={"day": "Monday"})


async def events(model: LLMClient) -> list[StreamEvent]:
    """All events of one answer."""
    return [event async for event in model.generate_stream(HI)]


async def events_before(error: type[Exception], model: LLMClient) -> list[StreamEvent]:
    """The events ahead of an error."""
    events = []
    with suppress(error):
        async for event in model.generate_stream(HI):
            events.append(event)  # noqa: PERF401 - what came before the error counts
    return events


@pytest.mark.item(340)
def test_they_are_llm_clients() -> None:
    """Whatever takes an `LLMClient` takes them."""
    assert isinstance(ScriptedModel(), LLMClient)
    assert isinstance(FunctionModel(lambda messages, options: "x"), LLMClient)


@pytest.mark.item(340)
async def test_answers_come_in_the_order_of_the_script() -> None:
    """A text, a tool call, several of them, and a whole response."""
    whole = LLMResponse(content=[ContentBlock(type="text", text="whole")], usage=Usage(output=1))
    model = ScriptedModel("one", CALL, [CALL, CALL], whole)

    answers = [await model.generate(HI) for _ in range(4)]

    assert [answer.text for answer in answers] == ["one", "", "", "whole"]
    assert [len(answer.tool_calls) for answer in answers] == [0, 1, 2, 0]
    assert [answer.stop_reason for answer in answers] == [
        "stop",
        "tool_calls",
        "tool_calls",
        "stop",
    ]
    assert answers[1].tool_calls == [CALL]
    assert (answers[3].usage, answers[3].model) == (whole.usage, "scripted")


async def test_a_text_is_streamed_word_by_word() -> None:
    """The deltas, joined, are the text of the completion, which is the last event."""
    text = "  Good day,\nyour room\tis booked. "
    *deltas, last = await events(ScriptedModel(text))

    assert [delta.text for delta in deltas if isinstance(delta, TextDelta)][:2] == [
        "  Good",
        " day,",
    ]
    assert "".join(delta.text for delta in deltas if isinstance(delta, TextDelta)) == text
    assert isinstance(last, Completion)
    assert last.response.text == text


async def test_a_reply_says_what_a_text_does_not() -> None:
    """Reasoning, pieces, usage with cost, further blocks and the reason for the end."""
    usage = Usage(input=7, output=3, cost_usd=0.5)
    blocks = [ContentBlock.model_validate({"type": "sources", "urls": ["a"]})]
    reply = ModelReply(
        text="abc",
        pieces=("a", "bc"),
        reasoning="hm",
        calls=(CALL,),
        blocks=blocks,
        usage=usage,
        stop_reason="length",
    )

    *deltas, last = await events(ScriptedModel(reply))

    assert deltas == [ReasoningDelta(text="hm"), TextDelta(text="a"), TextDelta(text="bc")]
    assert isinstance(last, Completion)
    kinds = [block.type for block in last.response.content]
    assert kinds == ["reasoning", "text", "sources", "tool_call"]
    assert (last.response.usage, last.response.stop_reason) == (usage, "length")


async def test_an_error_of_the_script_is_raised_and_the_next_line_answers() -> None:
    """At once, or after the first pieces of an answer."""
    model = ScriptedModel(
        ConnectionError("away"), ModelReply(text="half of", error=ConnectionError("cut")), "whole"
    )
    with pytest.raises(ConnectionError, match="away"):
        await model.generate(HI)
    events = await events_before(ConnectionError, model)
    assert (await model.generate(HI)).text == "whole"
    assert events == [TextDelta(text="half"), TextDelta(text=" of")]
    assert model.calls == 3


async def test_a_test_decides_when_an_answer_begins() -> None:
    """`before` is awaited ahead of the first piece, `between` behind each."""
    go, pieces = asyncio.Event(), []

    async def count() -> None:
        pieces.append(1)

    model = ScriptedModel(ModelReply(text="one two", before=go.wait, between=count))
    async with asyncio.TaskGroup() as group:
        answer = group.create_task(model.generate(HI))
        await asyncio.sleep(0)
        assert (answer.done(), len(pieces)) == (False, 0)
        go.set()

    assert (answer.result().text, len(pieces)) == ("one two", 2)


async def test_a_script_that_is_too_short_is_named() -> None:
    """With the number of the request and its text; `otherwise` answers all further ones."""
    short, endless = ScriptedModel("one"), ScriptedModel("one", otherwise="more")
    await short.generate(HI)

    with pytest.raises(ScriptEndedError, match=r"answer 2, and its script has 1.*'hi'"):
        await short.generate(HI)
    assert [(await endless.generate(HI)).text for _ in range(3)] == ["one", "more", "more"]


async def test_what_was_asked_is_remembered() -> None:
    """Messages and options of each request, in order."""
    model = ScriptedModel("one", "two")
    options = GenerationOptions(max_tokens=5)

    await model.generate(HI)
    await model.generate([*HI, ChatMessage.of("user", "there")], options=options)

    assert [request.text for request in model.asked] == ["hi", "there"]
    assert [len(request.messages) for request in model.asked] == [1, 2]
    assert [request.options for request in model.asked] == [GenerationOptions(), options]


@pytest.mark.item(340)
async def test_tokens_are_characters_divided_by_three() -> None:
    """Of all blocks, tool calls included; usage has the same numbers."""
    messages = [ChatMessage.of("user", "sixsix"), ChatMessage.of("assistant", "four")]
    model = ScriptedModel("ninenines")

    answer = await model.generate(messages)

    assert await model.count_tokens(messages) == 12
    assert await model.count_tokens([ChatMessage(role="assistant", content=[CALL.block()])]) > 10
    assert answer.usage == Usage(input=12, output=7)


@pytest.mark.item(340)
async def test_a_function_answers() -> None:
    """By messages and options; plain or async; any line of a script may be what it returns."""

    def plain(messages: object, options: GenerationOptions) -> ToolCall:
        del messages
        return CALL if options.tool_choice == "required" else CALL.model_copy(update={"id": "2"})

    async def later(messages: object, options: GenerationOptions) -> str:
        del options
        await asyncio.sleep(0)
        return str(len(messages))  # type: ignore[arg-type]

    required = GenerationOptions(tool_choice="required")
    first = await FunctionModel(plain).generate(HI, options=required)
    second = await FunctionModel(plain).generate(HI)
    third = await FunctionModel(later, model="counter").generate([*HI, *HI])

    assert [answer.tool_calls[0].id for answer in (first, second)] == ["1", "2"]
    assert (third.text, third.model) == ("2", "counter")


async def test_a_stream_without_an_end_is_an_error_of_the_client() -> None:
    """`collected` names the model."""

    async def stream() -> object:
        yield TextDelta(text="and then")

    with pytest.raises(Exception, match="'odd' ended its stream without a Completion"):
        await collected(stream(), model="odd")  # type: ignore[arg-type]
