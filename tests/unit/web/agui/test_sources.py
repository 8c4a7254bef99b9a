"""The events of a run and of those below it: the end of one below comes behind all of its own events."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from actors._kernel.runtime.ids import RunId
from actors.errors import UnknownRunError
from compose._web.agui.stream import MAX_FOLLOWED, EventSources
from tests.unit.web.agui.session_events import CHILD, answer, session_event

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator

    from actors._sessions.events import SessionEvent

DONE = session_event("run_completed", {"output": None})
STARTED = session_event("child_started", {"child": CHILD, "agent": "helper/1"})
FINISHED = session_event("child_finished", {"child": CHILD, "status": "completed"})


async def stream(
    *events: SessionEvent, gate: asyncio.Event | None = None
) -> AsyncGenerator[SessionEvent, None]:
    """These events, the last one when the gate is open."""
    for n, event in enumerate(events):
        if gate is not None and n == len(events) - 1:
            await gate.wait()
        yield event


async def all_of(sources: EventSources) -> list[SessionEvent]:
    """What comes, up to the end."""
    events: list[SessionEvent] = []
    try:
        while (event := await sources.next(5)) is not None:
            events.append(event)
    except StopAsyncIteration:
        await sources.aclose()
    return events


async def test_the_end_of_a_run_below_waits_for_its_events() -> None:
    """The parent's log may be read first, and further than the child's."""
    gate = asyncio.Event()
    answer_event, end_event = (
        answer("hi", run=CHILD),
        session_event("run_completed", {"output": 1}, run=CHILD),
    )
    sources = EventSources(
        stream(STARTED, FINISHED, DONE), lambda _: stream(answer_event, end_event, gate=gate)
    )
    first = [await sources.next(5), await sources.next(5)]
    assert await sources.next(0) is None, "the end of the child is known, and waits"
    gate.set()

    assert first == [STARTED, answer_event]
    assert await all_of(sources) == [end_event, FINISHED, DONE]


async def test_a_run_below_that_cannot_be_read_is_told_by_its_parent() -> None:
    """Its log was swept, for example."""

    async def missing_run(_: str) -> AsyncIterator[SessionEvent]:
        raise UnknownRunError(RunId(CHILD))
        yield STARTED

    sources = EventSources(stream(STARTED, FINISHED, DONE), missing_run)

    assert await all_of(sources) == [STARTED, FINISHED, DONE]


async def test_of_many_runs_below_some_are_read() -> None:
    """The others begin and end by their parent's log."""
    ids = [f"{n:032x}" for n in range(MAX_FOLLOWED + 3)]
    followed: list[str] = []

    def follow(child: str) -> AsyncIterator[SessionEvent]:
        followed.append(child)
        return stream(answer("x", run=child), gate=asyncio.Event())

    starts = [session_event("child_started", {"child": id_, "agent": "helper/1"}) for id_ in ids]
    sources = EventSources(stream(*starts, DONE), follow)

    assert await sources.next(5) == starts[0]
    assert sources.followed_ids == ids[:1]
    assert await all_of(sources) == [*starts[1:], DONE]
    assert followed == ids[:MAX_FOLLOWED]


async def test_an_error_of_the_run_itself_is_raised() -> None:
    """Who reads is told."""

    async def broken() -> AsyncGenerator[SessionEvent, None]:
        raise UnknownRunError(RunId("r"))
        yield STARTED

    sources = EventSources(broken(), lambda _: stream())
    with pytest.raises(UnknownRunError):
        await sources.next(5)
    await sources.aclose()
