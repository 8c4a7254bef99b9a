"""Events of sessions, of runs and of descendant runs, as a stream or in pages."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from typing import Final

from starlette.responses import Response

from actors._kernel.runtime.ids import RunId
from actors._sessions.errors import CursorError
from actors._sessions.events import EVENTS, SessionEvent
from actors._sessions.run import ENDS
from compose._web.endpoint import Endpoints, WebCall
from compose._web.resources.readers import (
    EventsJson,
    EventsQuery,
    OnDisconnect,
    cursor_of,
    feed_of_run,
    feed_of_session,
    respond_with_feed,
    stream_response,
)
from compose._web.resources.runs import RUN, child_of, on_gone, run_of
from compose._web.streams import EventLine, wants_stream

endpoint: Final = Endpoints()

_EVENTS: Final = "/v1/sessions/{session}/events"
_PLACE: Final = re.compile(r"(\d{1,15})\.(\d{1,9})", re.ASCII)


class RunEventsQuery(EventsQuery):
    """The query of a run's events. `on_disconnect`: whether to cancel the run if its reader disconnects."""

    on_disconnect: OnDisconnect = "continue"


@endpoint.get(_EVENTS, scope="sessions:own", streams=True)
async def of_session(call: WebCall, query: EventsQuery) -> EventsJson | Response:
    """Read the events of a session.

    A stream of them does not end.
    """
    session = await call.session(query.app)
    cursor = cursor_of(call.request, query.after)
    feed = await feed_of_session(call, session.agent, cursor, live=query.live)
    return await respond_with_feed(call, feed, limit=query.limit)


@endpoint.get(f"{RUN}/events", scope="sessions:own", streams=True)
async def of_run(call: WebCall, query: RunEventsQuery) -> EventsJson | Response:
    """Read the events of a run.

    A stream of them ends with the run's last event.
    """
    session = await call.session(query.app)
    row = await run_of(call, session)
    cursor = cursor_of(call.request, query.after)
    feed = await feed_of_run(call, session.agent, row.run_id, cursor, live=query.live)
    cancel_run = on_gone(call, row.run_id, query.on_disconnect)
    return await respond_with_feed(call, feed, limit=query.limit, on_gone=cancel_run)


@endpoint.get(f"{RUN}/children/{{child}}/events", scope="sessions:own", streams=True)
async def of_child(call: WebCall, query: EventsQuery) -> EventsJson | Response:
    """Read the events of a child run.

    Their ids are positions in the child's log.
    """
    run, child_id = await child_of(call, query.app)
    cursor = cursor_of(call.request, query.after)
    after = (-1, -1) if cursor is None else parse_log_place(cursor, run.session_id)
    if wants_stream(call.request):
        call.api.streams.check(call.principal)
        await run.inspect_child(child_id)  # raises if there is no such child
        events = run.child_events(child_id)
        return stream_response(
            call, _lines(_events_after(events, after, child_id=child_id), live=query.live)
        )
    inspection = await run.inspect_child(child_id)
    child_events = [
        event
        async for event in _events_after(_yield_all(inspection.events), after, child_id=child_id)
    ]
    page = child_events[: query.limit]
    last = page[-1].event_id if page else cursor
    next_cursor = last if len(child_events) > query.limit else None
    return EventsJson(events=page, next=next_cursor, cursor=last)


async def _yield_all(events: list[SessionEvent]) -> AsyncIterator[SessionEvent]:
    for event in events:
        yield event


async def _events_after(
    events: AsyncIterator[SessionEvent], after: tuple[int, int], *, child_id: RunId
) -> AsyncGenerator[SessionEvent, None]:
    """Yield a child's events after a position in its log: an entry, and the event's number within the entry."""
    of_entry: Counter[int] = Counter()
    async for event in events:
        if event.run_id != child_id or event.seq < 0:
            yield event
            continue
        position = event.seq, of_entry[event.seq]
        of_entry[event.seq] += 1
        if position > after:
            yield event.model_copy(update={"event_id": f"{position[0]}.{position[1]}"})


async def _lines(
    events: AsyncGenerator[SessionEvent, None], *, live: bool
) -> AsyncGenerator[EventLine, None]:
    async with aclosing(events):
        async for event in events:
            if live or event.event_id is not None:
                yield EventLine(event.type, EVENTS.dump_json(event), event.event_id)
            if event.type in ENDS:
                return


def parse_log_place(text: str, owner: str) -> tuple[int, int]:
    """Return the position in a log that an event's id names: an entry, and a number within the entry.

    Raises:
        CursorError: The text is not such an id.
    """
    id_match = _PLACE.fullmatch(text)
    if id_match is None:
        raise CursorError(text[:60], owner, "it is not the id of an event there")
    return int(id_match[1]), int(id_match[2])
