"""Server-sent events: streams of one process, their limits, and the one beat of all of them."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter, deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Mapping
from contextlib import aclosing
from functools import partial
from typing import Any, Final, NamedTuple, TypeAlias

from pydantic_core import to_json
from starlette.requests import Request
from starlette.responses import StreamingResponse
from starlette.types import Receive, Scope, Send
from typing_extensions import override

from actors.errors import ActorsError
from actors.runtime.loop.tasks import TaskScope
from compose.web.principal import Principal
from compose.web.problems import HttpProblem, ProblemError, problem_of

_log = logging.getLogger("callboard.web")

BEAT_S: Final = 15.0
"""Seconds between two heartbeats on a stream, and between two checks for clients that are gone."""
OVER_S: Final = 2.0
"""Seconds between two checks for principals that have become invalid."""
MAX_STREAMS: Final = 2_000
"""Of one process; more are refused with 429."""
MAX_STREAMS_OF_ONE: Final = 64
"""Of one principal in one process."""
MAX_BEHIND: Final = 1_000
"""A client that has not taken so many events is cut off."""
MAX_BEHIND_BYTES: Final = 1024 * 1024
RETRY_MS: Final = 2_000
"""After so long a client that was cut off comes back."""
RETRY_AFTER: Final = {"retry-after": "5"}
MEDIA_TYPE: Final = "text/event-stream"
_HEADERS: Final = {"cache-control": "no-store", "x-accel-buffering": "no"}
_RETRY: Final = f"retry: {RETRY_MS}\n\n".encode()
_BEAT: Final = b": beat\n\n"


Over: TypeAlias = Callable[[Collection[Principal]], Awaitable[Mapping[Principal, ProblemError]]]


class EventLine(NamedTuple):
    """An event of a stream.

    Attributes:
        type: Its name; empty: it has none.
        data: JSON text.
        id: A cursor behind it; None: it was never stored.
    """

    type: str
    data: bytes
    id: str | None = None

    def encoded(self) -> bytes:
        """Return it as it is sent."""
        head = "" if self.id is None else f"id: {self.id}\n"
        name = f"event: {self.type}\n" if self.type else ""
        return b"%b%bdata: %b\n\n" % (head.encode(), name.encode(), self.data)


class Streams:
    """The streams of one process.

    They end together when the process is to end: clients come back to another one.

    Args:
        over: Returns those of these principals that have become invalid; None: all are valid for ever.
    """

    def __init__(self, over: Over | None = None) -> None:
        self._over = over
        self._open: dict[EventStream, Principal] = {}
        self._count: Counter[tuple[str, str]] = Counter()
        self._tasks = TaskScope()
        self._is_stopping = False

    def check(self, principal: Principal) -> None:
        """Check that one more may be opened.

        Raises:
            ProblemError: There are too many, or the process is about to end.
        """
        if self._is_stopping:
            problem, remedy = "this process is about to end", "ask again: another one answers"
            raise ProblemError(HttpProblem(503, "stopping", problem, remedy, headers=RETRY_AFTER))
        limits = (
            (len(self._open), MAX_STREAMS, "this process has"),
            (self._count[_key(principal)], MAX_STREAMS_OF_ONE, f"{principal.name} has"),
        )
        for count, most, who in limits:
            if count >= most:
                problem = f"{who} {most} streams, which is the limit"
                remedy = "close one, or come back later"
                raise ProblemError(
                    HttpProblem(429, "too_many_streams", problem, remedy, headers=RETRY_AFTER)
                )

    def add(self, stream: EventStream, principal: Principal) -> None:
        """Count a stream, and let it live."""
        if not self._open:
            self._tasks.start(self._beat(), name="beat of streams")
            if self._over is not None:
                ends = partial(self._end_those_over, self._over)
                self._tasks.keep(ends, name="streams of invalid principals")
        self._open[stream] = principal
        self._count[_key(principal)] += 1

    def remove(self, stream: EventStream, principal: Principal) -> None:
        """Drop a stream that has ended."""
        self._open.pop(stream, None)
        self._count[_key(principal)] -= 1
        if not self._count[_key(principal)]:
            del self._count[_key(principal)]
        if not self._open:
            self._tasks.cancel()

    def end(self) -> None:
        """End all streams, and take no more: their clients go on elsewhere."""
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
            except ActorsError as exc:
                _log.debug("tokens of streams are checked again", exc_info=exc)
                continue
            for stream, principal in tuple(self._open.items()):
                if (reason := reasons.get(principal)) is not None:
                    stream.end(stream.problem_line(reason))


class EventStream:
    """The events of one answer, between their producer and a client that may be slow."""

    def __init__(self) -> None:
        self._lines: deque[bytes] = deque((_RETRY,))
        self._size = 0
        self._last_id: str | None = None
        self._news = asyncio.Event()
        self.is_over = False
        """True if nothing more is added."""

    def beat(self) -> None:
        """Send a heartbeat, unless something waits to be sent."""
        if not self._lines:
            self._add(_BEAT)

    def end(self, line: EventLine | None = None) -> None:
        """Add nothing behind this line; the line says when the client may come back."""
        if not self.is_over:
            self._add((b"" if line is None else line.encoded()) + _RETRY)
            self.is_over = True

    async def pump(self, events: AsyncGenerator[EventLine, None]) -> None:
        """Add events as they come, up to their end, or until the client is too far behind."""
        try:
            async with aclosing(events):
                async for line in events:
                    data = line.encoded()
                    if self._is_behind(data):
                        await asyncio.sleep(0)  # a client that is not slow takes all of it now
                    if self.is_over:
                        return
                    if self._is_behind(data):
                        self.end(self.behind_line())
                        return
                    self._last_id = line.id or self._last_id
                    self._add(data)
        except Exception as exc:  # noqa: BLE001 - the boundary of a request
            self.end(self.problem_line(exc))
        self.is_over = True
        self._news.set()

    def problem_line(self, exc: Exception) -> EventLine:
        """Return the last event of a stream that ends with an error."""
        problem = problem_of(exc)
        said = {"status": problem.status, "code": problem.code, "detail": problem.detail}
        return EventLine("problem", to_json({**said, "remedy": problem.remedy}))

    def behind_line(self) -> EventLine:
        """Return the last event of a stream whose client is too far behind."""
        where = {"reason": "too far behind: go on there", "after": self._last_id}
        return EventLine("resume", to_json(where))

    def stopping_line(self) -> EventLine | None:
        """Return the last event of a stream whose process ends; None: clients come back by themselves."""
        return None

    def _is_behind(self, data: bytes) -> bool:
        """Return whether these bytes are too many for what waits already; alone they never are."""
        is_full = len(self._lines) > MAX_BEHIND or self._size + len(data) > MAX_BEHIND_BYTES
        return self._size > 0 and is_full

    def _add(self, data: bytes) -> None:
        self._lines.append(data)
        self._size += len(data)
        self._news.set()

    async def chunks(self) -> AsyncGenerator[bytes, None]:
        """Yield what waits to be sent, all at once, as soon as there is something."""
        while self._lines or not self.is_over:
            if not self._lines:
                self._news.clear()
                await self._news.wait()
                continue
            chunk = b"".join(self._lines)
            self._lines.clear()
            self._size = 0
            yield chunk


class StreamResponse(StreamingResponse):
    """An answer of server-sent events.

    Args:
        streams: Of this process.
        principal: Who reads.
        events: The events; closed at the end.
        on_gone: Called when the client is gone before the last event.
        stream: Between the events and the client.
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
        super().__init__(self._stream.chunks(), headers=_HEADERS, media_type=MEDIA_TYPE)
        self._streams, self._principal = streams, principal
        self._events, self._on_gone = events, on_gone

    @override
    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self._streams.add(self._stream, self._principal)
        try:
            async with TaskScope() as tasks:
                tasks.start(self._stream.pump(self._events), name="events of a stream")
                await super().__call__(scope, receive, send)
        finally:
            self._streams.remove(self._stream, self._principal)
        if self._on_gone is not None and not self._stream.is_over:
            await self._on_gone()


def wants_stream(request: Request, *, unless_said: bool = True) -> bool:
    """Return whether the client takes server-sent events; `unless_said` if it asks for neither form."""
    accept = request.headers.get("accept", "")
    if MEDIA_TYPE in accept:
        return True
    return unless_said and "application/json" not in accept


def _key(principal: Principal) -> tuple[str, str]:
    return principal.tenant, principal.name
