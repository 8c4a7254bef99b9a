"""The stream of an AG-UI run: from the first event new to the client, until it ends or waits for the client.

The events of the run and of its descendants are merged as they arrive.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from typing import Any, Final

from ag_ui.core import (
    PROTOCOL_VERSION,
    BaseEvent,
    MessagesSnapshotEvent,
    RunErrorEvent,
    RunStartedEvent,
    ToolCallArgsEvent,
    ToolCallEndEvent,
    ToolCallResultEvent,
    ToolCallStartEvent,
)
from typing_extensions import override

from actors._kernel.runtime.ids import RunId
from actors._runtime.loop.tasks import Ahead
from actors._runtime.runtime import Runtime
from actors._sessions.errors import CursorError
from actors._sessions.events import SessionEvent
from actors.errors import ActorsError, UnknownRunError
from compose._web.agui.events import RunTree, ShownMessages
from compose._web.agui.intake import AguiInput
from compose._web.endpoint import FoundSession, WebCall
from compose._web.problems import problem_of
from compose._web.streams import EventLine, EventStream

_log = logging.getLogger("callboard.web")

QUIET_S: Final = 0.25
"""Seconds without events after which a run that also does other work is reported as waiting for its client."""
MOST_QUIET_S: Final = 4.0
"""The same, at most, while the store's waits differ from the events that were read."""
MAX_FOLLOWED: Final = 32
"""Maximum number of descendants that are read at once. For further ones only start and end are sent."""


class AguiStream(EventStream):
    """A stream whose last line is an event of the protocol, also if the stream is cut off."""

    @override
    def problem_line(self, exc: Exception) -> EventLine:
        return error_line(exc)

    @override
    def behind_line(self) -> EventLine:
        text = "the client is too far behind: run it again with the same runId"
        return line_of(RunErrorEvent(message=text, code="too_far_behind"))

    @override
    def stopping_line(self) -> EventLine | None:
        text = "this process is stopping: run it again with the same runId, another process answers"
        return line_of(RunErrorEvent(message=text, code="stopping"))


def line_of(event: BaseEvent, id_: str | None = None) -> EventLine:
    """Return an event as a line of a stream."""
    return EventLine("", event.model_dump_json(by_alias=True).encode(), id_)


def error_line(exc: Exception) -> EventLine:
    """Return an error as the last line of a stream."""
    problem = problem_of(exc)
    text = f"{problem.detail}: {problem.remedy}"
    return line_of(RunErrorEvent(message=text, code=problem.code))


def start_line(agui_input: AguiInput) -> EventLine:
    """Return the first line of a stream."""
    start_event = RunStartedEvent(
        thread_id=agui_input.thread_id, run_id=agui_input.run_id, protocol_version=PROTOCOL_VERSION
    )
    return line_of(start_event)


@dataclass(slots=True)
class Gate:
    """Filter of events that the client has already received.

    Attributes:
        answered_ids: Ids of interrupts and tool calls. The filter ends when all of them were read.
        cursor: The id of the last event that the client has. If set, the filter ends there instead.
        messages: Ids of messages after that point that the client has.
        results: Ids of calls whose results the client has.
    """

    answered_ids: frozenset[str] = frozenset()
    cursor: str | None = None
    messages: frozenset[str] = frozenset()
    results: frozenset[str] = frozenset()
    _filtered_calls: set[str] = field(default_factory=set)
    """Tool calls whose start events were filtered out."""

    def is_behind(self, event: SessionEvent | None, tree: RunTree) -> bool:
        """Return True if the events after this event are new to the client."""
        if self.cursor is not None:
            return event is not None and event.event_id == self.cursor
        return self.answered_ids <= tree.answerable_ids

    def lets_in(self, event: BaseEvent) -> bool:
        """Return True unless the client has the event's content."""
        match event:
            case ToolCallResultEvent():
                return event.tool_call_id not in self.results
            case ToolCallStartEvent():
                if event.parent_message_id in self.messages:
                    self._filtered_calls.add(event.tool_call_id)
                return event.tool_call_id not in self._filtered_calls
            case ToolCallArgsEvent() | ToolCallEndEvent():
                return event.tool_call_id not in self._filtered_calls
            case _:
                return getattr(event, "message_id", None) not in self.messages


class AguiReader:
    """Reads a run for a client.

    Args:
        call: The request.
        session: The session.
        run_id: The run.
        agui_input: The input.
        gate: Filter of events that the client has.
        first: Events that are sent before the run's events.
    """

    def __init__(  # noqa: PLR0917 - the parts of one stream
        self,
        call: WebCall,
        session: FoundSession,
        run_id: RunId,
        agui_input: AguiInput,
        gate: Gate | None = None,
        first: Iterable[BaseEvent] = (),
    ) -> None:
        self._call, self._session, self._run_id, self._input = call, session, run_id, agui_input
        self._gate, self._first = gate or Gate(), tuple(first)
        snapshots = [
            event.messages for event in self._first if isinstance(event, MessagesSnapshotEvent)
        ]
        messages = ShownMessages(snapshots[-1] if snapshots else agui_input.messages)
        self._tree = RunTree(run_id, messages=messages, answered_ids=self._gate.answered_ids)
        self._is_open = self._is_quiet = False
        self._quiet_s = QUIET_S

    async def lines(self) -> AsyncGenerator[EventLine, None]:
        """Yield the lines of the stream."""
        yield start_line(self._input)
        for event in self._first:
            yield line_of(event)
        run = await self._session.agents.run(self._run_id)
        async with aclosing(EventSources(run.tail(), run.child_events)) as sources:
            async for line in self._all(sources):
                yield line
        thread_id = self._input.thread_id
        if not self._is_open:  # no event of the run has the cursor
            raise CursorError(str(self._gate.cursor), thread_id, "the run has no such event")
        last = self._tree.last_event(thread_id, self._input.run_id)
        for event in (*self._tree.close(), last):
            yield line_of(event)

    async def _all(self, sources: EventSources) -> AsyncGenerator[EventLine, None]:
        """Yield the events until the run ends or waits for the client."""
        for line in self._pass(None):
            yield line
        while self._tree.end is None and not await self._is_waiting(sources.followed_ids):
            try:
                event = await sources.next(self._quiet_s if self._tree.pending() else None)
            except StopAsyncIteration:
                raise UnknownRunError(self._run_id) from None  # deleted with its session
            self._is_quiet = event is None
            if event is None:
                continue
            self._quiet_s = QUIET_S
            lines = self._lines_of(event)
            if event.type == "run_waiting" and await self._is_waiting(sources.followed_ids):
                return  # the last line says so
            for line in lines:
                yield line

    def _lines_of(self, event: SessionEvent) -> list[EventLine]:
        """Return the lines of an event, the last one with the event's id; none if the client has the event."""
        # Filtered events are part of the tree, too: its questions decide where the filter ends.
        agui_events = self._tree.of(event)
        if not self._is_open:
            return self._pass(event)
        agui_events = [e for e in agui_events if self._gate.lets_in(e)]
        lines = [line_of(e) for e in agui_events]
        if lines and event.event_id is not None and event.run_id == self._run_id:
            lines[-1] = replace(lines[-1], id=event.event_id)
        return lines

    def _pass(self, event: SessionEvent | None) -> list[EventLine]:
        """End the filter if the next event is new to the client; then return start events of open content."""
        self._is_open = self._gate.is_behind(event, self._tree)
        if not self._is_open:
            return []
        return [line_of(e) for e in self._tree.reopen()]

    async def _is_waiting(self, followed_ids: Iterable[str]) -> bool:
        """Return True if the stream should end because the run or a descendant waits for the client.

        It compares the pending answers that were read with the store's waits, so that no question is missing
        and none has an answer already. If they differ, it compares them again after the next event, or later.
        """
        tree = self._tree
        pending = tree.pending()
        if not pending or not self._is_open or not (self._is_quiet or tree.is_idle()):
            return False
        pending_ids = {*pending.calls, *(interrupt.id for interrupt in pending.interrupts)}
        runtime = self._call.runtime
        open_ids = await open_interrupts(runtime, (self._run_id, *followed_ids))
        open_ids |= (await runtime.approvals.open_calls(self._run_id)).keys()
        # The store may show a wait after the last event of the run: then no event starts the next comparison.
        self._quiet_s = min(2 * self._quiet_s, MOST_QUIET_S)
        return open_ids - self._gate.answered_ids == pending_ids


async def open_interrupts(runtime: Runtime, run_ids: Iterable[str]) -> set[str]:
    """Return the ids of approvals that these runs wait for."""
    requests_of_runs = [await runtime.approvals.open(run_id=RunId(run_id)) for run_id in run_ids]
    return {request.id for requests in requests_of_runs for request in requests}


class EventSources:
    """Session events of a run, and of its descendants while they are open.

    The end of a descendant is returned after all of its own events.

    Args:
        root: Events of the run, up to its last one.
        follow: Returns the events of a descendant.
    """

    def __init__(
        self,
        root: AsyncGenerator[SessionEvent, None],
        follow: Callable[[str], AsyncIterator[SessionEvent]],
    ) -> None:
        self._follow = follow
        self._news = asyncio.Event()
        self._sources: dict[str, Ahead[SessionEvent]] = {"": Ahead(root, self._news)}
        self._pending_ends: dict[str, SessionEvent] = {}
        """End events of descendants that are still read, by the source that sent them."""

    @property
    def followed_ids(self) -> list[str]:
        """Ids of the descendants that are being read."""
        return [key for key in self._sources if key]

    async def next(self, timeout_s: float | None) -> SessionEvent | None:
        """Return the next event; None if there was none for `timeout_s` seconds.

        Raises:
            StopAsyncIteration: The run has ended.
        """
        while True:
            key = await self._ready_key(timeout_s)
            if key is None:
                return None
            event = await self._take(key)
            if event is None:
                continue
            payload: Any = event.payload
            if event.type == "child_started" and len(self._sources) <= MAX_FOLLOWED:
                child = self._follow(payload["child"])
                self._sources[payload["child"]] = Ahead(child, self._news)
            elif event.type == "child_finished" and payload["child"] in self._sources:
                self._pending_ends[key] = event
                continue
            return event

    async def _ready_key(self, timeout_s: float | None) -> str | None:
        """Return a source that has an event or has ended, descendants first; None at the timeout."""
        keys = [key for key in reversed(self._sources) if key not in self._pending_ends]
        try:
            async with asyncio.timeout(timeout_s):
                while True:
                    # No await between this check and `clear`: news in between would be lost.
                    ready_keys = [key for key in keys if self._sources[key].has_next()]
                    if ready_keys:
                        return ready_keys[0]
                    self._news.clear()
                    await self._news.wait()
        except TimeoutError:
            return None

    async def _take(self, key: str) -> SessionEvent | None:
        """Return the event of a source. At the source's end return the end event held for it, or None."""
        try:
            return await self._sources[key].take()
        except StopAsyncIteration:
            if not key:
                raise
        # A descendant's log may be swept or deleted: its end then comes from its parent's log.
        except ActorsError as exc:
            if not key:
                raise
            _log.info("a descendant run cannot be read", extra={"run": key, "error": str(exc)})
        await self._sources.pop(key).aclose()
        for source, event in self._pending_ends.items():
            payload: Any = event.payload
            if payload["child"] == key:
                del self._pending_ends[source]
                return event
        return None

    async def aclose(self) -> None:
        """Stop all reads."""
        for source in self._sources.values():
            await source.aclose()
