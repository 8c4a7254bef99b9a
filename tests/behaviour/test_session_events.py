"""The events of a session for any number of readers: order, cursors, live pieces."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from typing import TYPE_CHECKING, Any

import pytest
from pydantic import ValidationError

from actors._kernel.agent.message import ChatMessage
from actors.agents import ReActAgent
from actors.sessions import EVENT_TYPES, EVENTS, ConsumedError, CursorError, SessionEvent
from actors.testing import FunctionModel, ModelReply, ScriptedModel
from compose._commands.sessions.look import lines_of_blocks
from compose._web.pages.cards import message_card
from tests.behaviour.bed import FAST, LIMIT_S
from tests.behaviour.talks import Echo, all_of, past_of, payload_of, sessions_on, types_of

if TYPE_CHECKING:
    from actors.sessions import AgentRuntime
    from tests.behaviour.bed import Bed


def content_of(event: SessionEvent) -> str:
    """Return an event without its place: two readers may get a fact between different entries."""
    return event.model_copy(update={"event_id": None}).model_dump_json()


async def filled(talks: AgentRuntime, echo: Echo) -> list[SessionEvent]:
    """Play three runs, one of them cancelled in the queue, and return the stored events."""
    gate = echo.hold("1")
    runs = [await talks.start(text, session_id="s") for text in ("1", "2", "3")]
    await runs[1].cancel()
    gate.set()
    for run in (runs[0], runs[2]):
        await run.result()
    return await past_of(talks, "s")


@pytest.mark.item(371)
async def test_the_events_of_a_run_have_one_reader(bed: Bed, app: str) -> None:
    """`start` makes the subscription: no event of the run is missing, however late it is read."""
    async with sessions_on(bed, Echo().agent(), app=app) as talks:
        run = await talks.start("1", session_id="s")
        await run.result()
        events = run.events()
        with pytest.raises(ConsumedError):
            run.events()
        assert types_of([event async for event in events]) == [
            "loop_started",
            "message",
            "message",
            "run_completed",
        ]
        assert [content_of(event) async for event in run.tail()] == [
            content_of(event) for event in await past_of(talks, "s")
        ]


@pytest.mark.item(374, 375)
async def test_every_reader_sees_every_event_once(bed: Bed, app: str) -> None:
    """Readers from the start, and readers that come after the end."""
    echo = Echo()
    async with sessions_on(bed, echo.agent(), app=app) as talks:

        async def read() -> list[SessionEvent]:
            read_events: list[SessionEvent] = []
            async with aclosing(talks.tail_session("s", live=False)) as events:
                async for event in events:
                    read_events.append(event)
                    if [event.type for event in read_events].count("run_completed") == 2:
                        return read_events
            raise AssertionError("the tail ended")

        async with asyncio.timeout(LIMIT_S), asyncio.TaskGroup() as group:
            readers = [group.create_task(read()) for _ in range(3)]
            stored = await filled(talks, echo)
        for reader in (*readers, asyncio.ensure_future(read())):
            assert sorted(map(content_of, await reader)) == sorted(map(content_of, stored))


@pytest.mark.item(375)
async def test_a_reader_can_continue_after_any_event(bed: Bed, app: str) -> None:
    """No event is repeated and none is missing, from each place and in another process."""
    echo = Echo()
    async with sessions_on(bed, echo.agent(), app=app) as talks:
        stored = await filled(talks, echo)
        assert len({event.event_id for event in stored}) == len(stored)
    await bed.restart()
    async with sessions_on(bed, Echo().agent(), app=app) as talks:
        for index, event in enumerate(stored):
            rest = await past_of(talks, "s", event.event_id)
            assert rest == stored[index + 1 :]


@pytest.mark.item(374, 375)
async def test_a_following_reader_can_continue_after_any_event(bed: Bed, app: str) -> None:
    """Also after the last entry of a run, and while other runs are queued before its end."""
    echo = Echo()
    async with sessions_on(bed, echo.agent(), app=app) as talks:
        stored = await filled(talks, echo)
        last = await (await talks.start("last", session_id="s")).wait()
        assert last == "completed"
        whole = await past_of(talks, "s")
        for index, event in enumerate(stored):
            rest, read_events = whole[index + 1 :], list[SessionEvent]()
            async with (
                asyncio.timeout(LIMIT_S),
                aclosing(talks.tail_session("s", cursor=event.event_id, live=False)) as events,
            ):
                while len(read_events) < len(rest):
                    read_events.append(await anext(events))
            assert sorted(map(content_of, read_events)) == sorted(map(content_of, rest))


@pytest.mark.item(375)
async def test_a_run_can_be_replayed_alone(bed: Bed, app: str) -> None:
    """Its events are those that it has in the session."""
    async with sessions_on(bed, Echo().agent(), app=app) as talks:
        for text in ("1", "2"):
            await (await talks.start(text, session_id="s")).result()
        stored = await past_of(talks, "s")
        run_id = stored[-1].run_id
        alone = [event async for event in talks.replay_run(run_id)]
        assert alone == [event for event in stored if event.run_id == run_id]


async def test_pieces_of_an_answer_come_live_and_are_not_stored(bed: Bed, app: str) -> None:
    """Joined they are the answer; none has an id."""
    echo = Echo()
    gate = echo.hold("one two three")
    async with sessions_on(bed, echo.agent(), app=app) as talks:
        run = await talks.start("one two three", session_id="s")
        reading = asyncio.ensure_future(all_of(run))
        await bed.until(lambda: echo.asked)
        await asyncio.sleep(0.01)
        gate.set()
        events = await reading
        pieces = [event for event in events if event.type == "text_delta"]
        assert "".join(payload_of(event)["text"] for event in pieces) == "echo: one two three"
        assert {event.event_id for event in pieces} == {None}
        assert "text_delta" not in {event.type for event in await past_of(talks, "s")}


async def test_an_answer_that_a_limit_cut_off_says_so(bed: Bed, app: str) -> None:
    """Live and afterwards, at every door: its text alone looks like a whole answer."""
    model = ScriptedModel(ModelReply(text="one two", stop_reason="max_tokens"), "whole")
    async with sessions_on(bed, ReActAgent("cut", model=model), app=app) as talks:
        for text in ("a", "b"):
            await (await talks.start(text, session_id="s")).result()
        answers = [
            event
            for event in await past_of(talks, "s")
            if event.type == "message" and payload_of(event)["role"] == "assistant"
        ]
        [first, _] = answers
        assert [payload_of(event).get("stopped") for event in answers] == ["length", None]
        card = message_card("1", "assistant", payload_of(first)["content"], first.at)
        assert (card.text, card.extra) == ("one two", ("cut_off",))
        message = ChatMessage(role="assistant", content=payload_of(first)["content"])
        assert [*lines_of_blocks(message)] == ["(a limit of tokens cut the answer off)"]


async def test_a_late_reader_gets_the_text_so_far_once(bed: Bed, app: str) -> None:
    """Then the rest, piece by piece: snapshot and pieces together are the answer."""
    begun, go_on = asyncio.Event(), asyncio.Event()

    async def between() -> None:
        begun.set()
        await go_on.wait()

    async with sessions_on(bed, Echo(between=between).agent(), app=app) as talks:
        run = await talks.start("one two three", session_id="s")
        async with asyncio.timeout(LIMIT_S):
            await begun.wait()

        async def read() -> list[SessionEvent]:
            read_events: list[SessionEvent] = []
            async with aclosing(talks.tail_session("s")) as events:
                async for event in events:
                    read_events.append(event)
                    if event.type == "text_snapshot":
                        go_on.set()
                    if event.type == "run_completed":
                        break
            return read_events

        async with asyncio.timeout(LIMIT_S):
            read_events = await read()
        text_events = [
            event for event in read_events if event.type in ("text_snapshot", "text_delta")
        ]
        assert [event.type for event in text_events].count("text_snapshot") == 1
        assert text_events[0].type == "text_snapshot"
        assert "".join(payload_of(event)["text"] for event in text_events) == "echo: one two three"
        await run.result()


async def test_a_repeated_answer_starts_with_an_empty_snapshot(bed: Bed, app: str) -> None:
    """A reader shows no text twice: an empty snapshot replaces the first attempt."""
    tries = iter([ValueError("cut off"), None])

    def reply(messages: Any, options: Any) -> ModelReply:
        return ModelReply(text="whole answer", error=next(tries, None))

    agent = ReActAgent("again", model=FunctionModel(reply))
    async with sessions_on(bed, agent, app=app, retry=FAST) as talks:
        read_events = await all_of(await talks.start("hello", session_id="s"))
    text = ""
    for event in read_events:
        if (
            event.type == "text_snapshot"
        ):  # empty in front of the second try; or all so far, for a late reader
            text = payload_of(event)["text"]
        elif event.type == "text_delta":
            text += payload_of(event)["text"]
    assert text in ("whole answer", "")


@pytest.mark.parametrize(
    "cursor", ["", "x", "1", "1:2:3", "99:0", "-1:0", "1:-2", "0:2147483648", "\u0661:\u0662"]
)
async def test_an_invalid_cursor_is_refused(bed: Bed, app: str, cursor: str) -> None:
    """Also a cursor behind the end, for example of another session."""
    async with sessions_on(bed, Echo().agent(), app=app) as talks:
        await (await talks.start("1", session_id="s")).result()
        with pytest.raises(CursorError):
            await past_of(talks, "s", cursor)


@pytest.mark.item(342, 343)
async def test_only_events_of_the_closed_list_reach_a_reader(bed: Bed, app: str) -> None:
    """They are the same after a round trip through JSON: no object of a provider is among them."""
    echo = Echo()
    async with sessions_on(bed, echo.agent(), app=app) as talks:
        stored = await filled(talks, echo)
    assert {event.type for event in stored} <= {*EVENT_TYPES}
    assert [EVENTS.validate_json(event.model_dump_json()) for event in stored] == stored
    with pytest.raises(ValidationError):
        EVENTS.validate_python({**stored[0].model_dump(), "type": "response.output_text.delta"})
