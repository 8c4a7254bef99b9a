"""Server-sent events: the open streams of a process, their limits, and their common heartbeat."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter, deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Mapping
from contextlib import aclosing, suppress
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, Final, TypeAlias

from pydantic_core import to_json
from starlette.requests import Request
from starlette.responses import StreamingResponse
from starlette.types import Receive, Scope, Send
from typing_extensions import override

from actors._runtime.loop.tasks import TaskScope
from actors.errors import ActorsError
from compose._web.problems import HttpProblem, ProblemError, problem_of
from compose._web.requests import Principal

_log = logging.getLogger("callboard.web")

BEAT_S: Final = 15.0
"""Seconds between two heartbeats on a stream. A heartbeat also detects clients that have disconnected."""
OVER_S: Final = 2.0
"""Seconds between two checks for principals that have become invalid."""
MAX_STREAMS: Final = 2_000
"""Maximum number of streams of one process; more are refused with 429."""
MAX_STREAMS_OF_ONE: Final = 64
"""Maximum number of streams of one principal in one process."""
MAX_BEHIND: Final = 1_000
"""A stream ends when more than this many lines, or `MAX_BEHIND_BYTES`, wait for its client."""
MAX_BEHIND_BYTES: Final = 1024 * 1024
TURNS: Final = 2
"""Turns of the event loop that a piece of an answer waits for further ones, which are sent with it."""
RETRY_MS: Final = 2_000
"""Milliseconds after which a client reconnects when its stream ended."""
RETRY_AFTER: Final = {"retry-after": "5"}
MEDIA_TYPE: Final = "text/event-stream"
_HEADERS: Final = {"cache-control": "no-store", "x-accel-buffering": "no"}
_RETRY: Final = f"retry: {RETRY_MS}\n\n".encode()
_BEAT: Final = b": beat\n\n"
_SEPARATORS: Final = tuple(
    (chr(code).encode(), rb"\u%04x" % code) for code in (0x85, 0x2028, 0x2029)
)
"""Line separators of Unicode, at which some clients split a stream, and their form in JSON."""


Over: TypeAlias = Callable[[Collection[Principal]], Awaitable[Mapping[Principal, ProblemError]]]


@dataclass(frozen=True)
class EventLine:
    """An event of a stream. Many streams may send the same object.

    Attributes:
        type: The event's name; empty if it has none.
        data: JSON text.
        id: The cursor after this event; None if the event is not stored.
    """

    type: str
    data: bytes
    id: str | None = None

    @cached_property
    def encoded(self) -> bytes:
        """The bytes to send."""
        head = "" if self.id is None else f"id: {self.id}\n"
        name = f"event: {self.type}\n" if self.type else ""
        data = self.data
        if not data.isascii():
            for character, escape in _SEPARATORS:
                data = data.replace(character, escape)
        return b"%b%bdata: %b\n\n" % (head.encode(), name.encode(), data)


class Streams:
    """The open streams of a process.

    They end together when the process stops. Clients then reconnect to another process.

    Args:
        over: Returns those of these principals that have become invalid, with the reason. If None, principals
            never become invalid.
    """

    def __init__(self, over: Over | None = None) -> None:
        self._over = over
        self._open: dict[EventStream, Principal] = {}
        self._count: Counter[tuple[str, str]] = Counter()
        self._tasks = TaskScope()
        self._is_stopping = False

    def check(self, principal: Principal) -> None:
        """Check that a principal may open one more stream.

        Raises:
            ProblemError: There are too many streams, or the process is stopping.
        """
        if self._is_stopping:
            problem, remedy = "this process is stopping", "send it again: another process answers"
            raise ProblemError(HttpProblem(503, "stopping", problem, remedy, headers=RETRY_AFTER))
        limits = (
            (len(self._open), MAX_STREAMS, "this process has"),
            (self._count[_key(principal)], MAX_STREAMS_OF_ONE, f"{principal.name} has"),
        )
        for count, limit, holder in limits:
            if count >= limit:
                problem = f"{holder} {limit} streams, which is the limit"
                remedy = "close one, or come back later"
                raise ProblemError(
                    HttpProblem(429, "too_many_streams", problem, remedy, headers=RETRY_AFTER)
                )

    def add(self, stream: EventStream, principal: Principal) -> None:
        """Register a stream. The first one starts the heartbeat and the checks of principals."""
        if not self._open:
            self._tasks.start(self._beat(), name="beat of streams")
            if self._over is not None:
                ends = partial(self._end_those_over, self._over)
                self._tasks.keep(ends, name="streams of invalid principals")
        self._open[stream] = principal
        self._count[_key(principal)] += 1

    def remove(self, stream: EventStream, principal: Principal) -> None:
        """Remove a stream that has ended, if it is not removed yet."""
        # Called when the last bytes are sent, and again when the response ends: a stream counts once.
        if self._open.pop(stream, None) is None:
            return
        self._count[_key(principal)] -= 1
        if not self._count[_key(principal)]:
            del self._count[_key(principal)]
        if not self._open:
            self._tasks.cancel()

    def end(self) -> None:
        """End all streams and refuse new ones. Clients reconnect to another process."""
        self._is_stopping = True
        for stream in tuple(self._open):
            stream.end(stream.stopping_line())

    async def _beat(self) -> None:
        while True:
            await asyncio.sleep(BEAT_S)
            for stream in tuple(self._open):
                stream.beat()

    async def _end_those_over(self, over: Over) -> None:
        """End the streams of principals that have become invalid, with a reason."""
        while True:
            await asyncio.sleep(OVER_S)
            try:
                reasons = await over(set(self._open.values()))
            # A database that does not answer ends no stream: its principals may still be valid.
            except ActorsError as exc:
                _log.debug(
                    "the tokens of streams could not be checked; the check is repeated",
                    exc_info=exc,
                )
                continue
            for stream, principal in tuple(self._open.items()):
                if (reason := reasons.get(principal)) is not None:
                    stream.end(stream.problem_line(reason))


class EventStream:
    """Buffer of encoded events between their producer and a client that may be slow."""

    def __init__(self) -> None:
        self._lines: deque[bytes] = deque((_RETRY,))
        self._size = 0
        self._is_urgent = True
        """True if a line waits that is not a piece of an answer."""
        self._last_id: str | None = None
        self._news = asyncio.Event()
        self.is_over: bool = False
        """True if no more events are added."""
        self.on_last: Callable[[EventStream], object] = lambda _: None
        """Called when all bytes have been sent, before the end of the response."""

    def beat(self) -> None:
        """Add a heartbeat, unless data already waits to be sent."""
        if not self._lines:
            self._add(_BEAT)

    def end(self, line: EventLine | None = None) -> None:
        """Add a last line and the client's reconnect delay. Nothing is added afterwards."""
        if not self.is_over:
            self._add((b"" if line is None else line.encoded) + _RETRY)
            self.is_over = True

    async def pump(self, events: AsyncGenerator[EventLine, None]) -> None:
        """Add events as they arrive, until they end or the client is too far behind."""
        try:
            async with aclosing(events):
                async for line in events:
                    data = line.encoded
                    if self._is_behind(data):
                        await asyncio.sleep(0)  # a client that is not slow reads all of it now
                        if self._is_behind(data):
                            self.end(self.behind_line())
                    if self.is_over:
                        return
                    self._last_id = line.id or self._last_id
                    self._add(data, is_urgent=line.id is not None)
        # The head of the response is sent: an error can only be the last event of the stream.
        except Exception as exc:  # noqa: BLE001 - the boundary of a request
            self.end(self.problem_line(exc))
        self.is_over = True
        self._news.set()

    def problem_line(self, exc: Exception) -> EventLine:
        """Return the last event of a stream that ends with an error."""
        problem = problem_of(exc)
        body = {"status": problem.status, "code": problem.code, "detail": problem.detail}
        return EventLine("problem", to_json({**body, "remedy": problem.remedy}))

    def behind_line(self) -> EventLine:
        """Return the last event of a stream whose client is too far behind."""
        body = {"reason": "too far behind: go on there", "after": self._last_id}
        return EventLine("resume", to_json(body))

    def stopping_line(self) -> EventLine | None:
        """Return the last event of a stream whose process stops, or None if clients reconnect without one."""
        return None

    def _is_behind(self, data: bytes) -> bool:
        """Return whether these bytes would overfill the buffer. An empty buffer takes an event of any size."""
        is_full = len(self._lines) > MAX_BEHIND or self._size + len(data) > MAX_BEHIND_BYTES
        return self._size > 0 and is_full

    def _add(self, data: bytes, *, is_urgent: bool = True) -> None:
        self._lines.append(data)
        self._size += len(data)
        self._is_urgent |= is_urgent
        self._news.set()

    async def chunks(self) -> AsyncGenerator[bytes, None]:
        """Yield all buffered bytes at once, as soon as there are some.

        If only pieces of answers are buffered, other tasks run first: with a thousand readers, a write for each
        piece costs more than all else.
        """
        while self._lines or not self.is_over:
            if not self._lines:
                self._news.clear()
                await self._news.wait()
                continue
            turns = 0 if self._is_urgent else TURNS
            # Pieces that come within these turns leave with this write.
            for _ in range(turns):
                await asyncio.sleep(0)
            chunk = b"".join(self._lines)
            self._lines.clear()
            self._size, self._is_urgent = 0, False
            yield chunk
        self.on_last(self)


class StreamResponse(StreamingResponse):
    """A response of server-sent events.

    Args:
        streams: The open streams of this process.
        principal: The principal that reads the stream.
        events: The events. The generator is closed at the end.
        on_gone: Called when the client disconnects before the last event.
        stream: The buffer between the events and the client.
    """

    def __init__(
        self,
        streams: Streams,
        principal: Principal,
        events: AsyncGenerator[EventLine, None],
        *,
        on_gone: Callable[[], Awaitable[Any]] | None = None,
        stream: EventStream | None = None,
    ) -> None:
        self._stream = stream or EventStream()
        # A client that has the end of the response may open its next stream at once.
        self._stream.on_last = partial(streams.remove, principal=principal)
        super().__init__(self._stream.chunks(), headers=_HEADERS, media_type=MEDIA_TYPE)
        self._streams, self._principal = streams, principal
        self._events, self._on_gone = events, on_gone

    @override
    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self._streams.add(self._stream, self._principal)
        try:
            async with TaskScope() as tasks:
                tasks.start(self._stream.pump(self._events), name="events of a stream")
                # Only `_until_gone` sets a time, once the client has left.
                with suppress(TimeoutError):
                    async with asyncio.timeout(None) as limit:
                        tasks.start(_until_gone(receive, limit), name="client of a stream")
                        await self.stream_response(send)
        finally:
            self._streams.remove(self._stream, self._principal)
        if self._on_gone is not None and not self._stream.is_over:
            await self._on_gone()


async def _until_gone(receive: Receive, limit: asyncio.Timeout) -> None:
    """Let a response end at once when its client has disconnected."""
    while (await receive())["type"] != "http.disconnect":
        pass
    limit.reschedule(0)


def wants_stream(request: Request, *, default: bool = True) -> bool:
    """Return whether the client accepts server-sent events; `default` if it names neither media type."""
    accept = request.headers.get("accept", "")
    if MEDIA_TYPE in accept:
        return True
    return default and "application/json" not in accept


def _key(principal: Principal) -> tuple[str, str]:
    return principal.tenant, principal.name
