"""Readers of events of a session or a run: a stream, or a page of stored events."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import aclosing
from typing import Annotated, Any, Final, Literal, TypeAlias

from pydantic import Field
from starlette.requests import Request
from starlette.responses import Response

from actors._kernel.runtime.ids import AgentId, RunId
from actors._sessions.events import EVENTS, EventCursor, SessionEvent
from actors._sessions.feed import SessionFeed
from compose._web.endpoint import ShownModel, WebCall
from compose._web.resources.pages import Limit, OfApp
from compose._web.streams import EventLine, EventStream, StreamResponse, wants_stream

OnDisconnect: TypeAlias = Literal["continue", "cancel"]
"""The effect of a reader's disconnect on the run: the run continues, or it is cancelled."""
CURSOR_HEADER = "last-event-id"
MOST_SHARED: Final = 256
"""Number of pieces of answers whose lines are kept for further readers."""


class EventsQuery(OfApp):
    """The query of events.

    Attributes:
        after: The id of the event after which to start. The header Last-Event-ID takes precedence.
        live: Whether a stream also sends text deltas of answers.
        limit: Maximum number of events of a page.
    """

    after: str | None = None
    live: bool = True
    limit: Limit = 100


class EventsJson(ShownModel):
    """A page of stored events, oldest first.

    Attributes:
        events: Events in the form of docs/session-events.schema.json.
        next: `after` of the next page; null if there are no more events so far.
        cursor: `after` for later events; null if there are no events yet.
    """

    events: list[Annotated[SessionEvent, Field(discriminator="type")]]
    next: str | None
    cursor: str | None


def cursor_of(request: Request, after: str | None) -> str | None:
    """Return the cursor of a request. A client that reconnects by itself sends it as a header."""
    return request.headers.get(CURSOR_HEADER) or after or None


async def feed_of_session(
    call: WebCall, agent: AgentId, cursor: str | None, *, live: bool
) -> SessionFeed:
    """Return the feed of a session after a cursor.

    Raises:
        CursorError: The session has no such event.
    """
    position = EventCursor() if cursor is None else EventCursor.parse(cursor, agent.key)
    feed = SessionFeed(call.runtime, agent, position, live=live)
    await feed.take_position()
    return feed


async def feed_of_run(
    call: WebCall, agent: AgentId, run_id: RunId, cursor: str | None, *, live: bool
) -> SessionFeed:
    """Return the feed of one run of a session, from the run's start or after a cursor.

    Raises:
        CursorError: The session has no such event.
    """
    if cursor is None:
        queued_fact = await call.runtime.store.data.sessions.queued(agent, run_id)
        position = EventCursor(0 if queued_fact is None else queued_fact.number - 1)
    else:
        position = EventCursor.parse(cursor, agent.key)
    resumes = cursor is not None
    feed = SessionFeed(call.runtime, agent, position, live=live, only=run_id, resumes=resumes)
    await feed.take_position()
    return feed


async def respond_with_feed(
    call: WebCall,
    feed: SessionFeed,
    *,
    limit: int,
    on_gone: Callable[[], Awaitable[Any]] | None = None,
) -> EventsJson | Response:
    """Return a feed's events in the form that the client accepts: a stream, or a page.

    If the client has read a run to its end, a stream is answered 204, so that a browser does not reconnect.
    """
    if not wants_stream(call.request):
        return await _page(feed, limit)
    if feed.only is not None and await feed.is_over():
        return Response(status_code=204)
    return stream_response(call, lines_of(feed.follow()), on_gone=on_gone)


def stream_response(
    call: WebCall,
    lines: AsyncGenerator[EventLine, None],
    *,
    on_gone: Callable[[], Awaitable[Any]] | None = None,
    headers: Mapping[str, str] | None = None,
    stream: EventStream | None = None,
) -> StreamResponse:
    """Return a stream of these lines.

    Raises:
        ProblemError: There are too many streams.
    """
    call.api.streams.check(call.principal)
    response = StreamResponse(
        call.api.streams, call.principal, lines, on_gone=on_gone, stream=stream
    )
    response.headers.update(headers or {})
    return response


async def lines_of(events: AsyncGenerator[SessionEvent, None]) -> AsyncGenerator[EventLine, None]:
    """Yield events as lines of a stream."""
    async with aclosing(events):
        async for event in events:
            yield _shared_lines.of(event)


class _SharedLines:
    """The lines of the last pieces of answers. All readers of an answer get the same event for a piece."""

    def __init__(self) -> None:
        # With the event, so that no other event gets its id while the line is kept.
        self._lines: dict[int, tuple[SessionEvent, EventLine]] = {}

    def of(self, event: SessionEvent) -> EventLine:
        """Return an event as a line of a stream."""
        if entry := self._lines.get(id(event)):
            return entry[1]
        line = EventLine(event.type, EVENTS.dump_json(event), event.event_id)
        # Pieces only: all readers get the same object of a piece, but each its own of a stored event.
        if line.id is None:
            self._lines[id(event)] = event, line
            if len(self._lines) > MOST_SHARED:
                del self._lines[next(iter(self._lines))]
        return line


_shared_lines: Final = _SharedLines()


async def _page(feed: SessionFeed, limit: int) -> EventsJson:
    begin = str(feed.at) if feed.at != EventCursor() else None
    stored_events: list[SessionEvent] = []
    async with aclosing(feed.past()) as events:
        async for event in events:
            stored_events.append(event)
            if len(stored_events) > limit:
                break
    page = stored_events[:limit]
    last = page[-1].event_id if page else begin
    return EventsJson(events=page, next=last if len(stored_events) > limit else None, cursor=last)
