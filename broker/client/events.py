"""A run's events as one sequence, over lost connections and hosts that die."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import replace
from typing import Any, Final

from actors.kernel.basics import Backoff
from broker.client.connection import ClientConnection
from broker.client.requests import Event, Patience, Request, RequestFactory
from broker.client.responses import (
    STOPPED,
    TOO_MANY,
    Missed,
    Response,
    event_of,
    failure,
    in_our_words,
    unreachable,
    unserved,
)
from broker.nats.requests import Reply, Requests
from broker.nats_client import ServerError
from broker.wire.headers import EVENT, STREAM

MAX_WAITING_FRAMES: Final = 4096
MAX_WAITING_BYTES: Final = 16 * 1024 * 1024
"""Maximum bytes that wait for a slow reader of a stream. Beyond them the stream is requested again."""
STALE_BEAT_S: Final = 10.0
"""A beat that was read so late was not answered in time: its host has ended the stream by now."""
CONTINUED: Final = "run.continued"
MAX_CALLS: Final = 256
"""Model calls of a run whose deltas are kept apart at the same time."""


class Sequence:
    """Decides what of several answers to the same question is passed on. Pure.

    Attributes:
        next_seq: The entry to ask for, if anything is missing.
        is_over: The end mark was passed on.
    """

    def __init__(self, from_: int) -> None:
        self.next_seq = from_
        self.is_over = False
        self._attempt = 1
        self._calls: dict[str, tuple[int, int]] = {}
        self._is_contiguous = False

    def begin(self) -> None:
        """A new answer begins; its first entry is the next one there is, whatever its number."""
        self._is_contiguous = False

    def take(self, event: Event) -> Event | None:
        """Return what to pass on of an event, if anything.

        Raises:
            Missed: Something is missing before it: ask again from `next_seq`.
        """
        if event.kind == "delta":
            return self._delta(event)
        if event.kind == "entry" and event.seq < self.next_seq:
            return None  # known already
        missing = event.seq > self.next_seq - (event.kind == "end")
        if missing and self._is_contiguous:
            raise Missed("lost", f"entry {self.next_seq} did not come")
        self._is_contiguous = True
        self._attempt = max(self._attempt, event.attempt)
        if event.name == CONTINUED:  # the run begins anew, and counts anew
            self._attempt = event.attempt
            self._calls.clear()
        self.next_seq = max(self.next_seq, event.seq + 1)
        self.is_over = event.kind == "end"
        return event

    def _delta(self, event: Event) -> Event | None:
        if event.attempt < self._attempt:
            return None  # void already
        self._attempt = event.attempt
        data: Any = event.data
        n = int(data.get("n", 0)) if isinstance(data, dict) else 0
        known = self._calls.pop(event.position, None)
        is_restart = known is not None and (event.attempt > known[0] or n <= known[1])
        self._calls[event.position] = (event.attempt, n)
        if len(self._calls) > MAX_CALLS:
            del self._calls[next(iter(self._calls))]
        return replace(event, is_restart=True) if is_restart else event


class Frames:
    """The received frames of a stream of events that are not read yet, in order, up to a limit."""

    def __init__(self) -> None:
        self._waiting: deque[tuple[float, Response]] = deque()
        self._size = 0
        self._why: Exception | None = None
        self._changed = asyncio.Event()
        self._now = asyncio.get_running_loop().time

    def put(self, reply: Reply | ServerError) -> None:
        """Take what came, or why nothing more will; what comes after that is dropped."""
        if self._why is not None:
            return
        if isinstance(reply, ServerError):
            self._why = reply
        elif len(self._waiting) >= MAX_WAITING_FRAMES or self._size > MAX_WAITING_BYTES:
            self._why = Missed("busy", "events are read more slowly than they come")
        else:
            self._size += len(reply.data)
            self._waiting.append((self._now(), Response.of(reply)))
        self._changed.set()

    async def next(self, limit_s: float) -> tuple[float, Response]:
        """Return the next one, and for how many seconds it has waited.

        Raises:
            Missed, ServerError: None came within the limit, or none will.
        """
        try:
            async with asyncio.timeout(limit_s):
                while not self._waiting and self._why is None:
                    self._changed.clear()
                    await self._changed.wait()
        except TimeoutError:
            raise Missed("silent", f"nothing was heard for {limit_s:g} s") from None
        if not self._waiting:
            assert self._why is not None
            raise self._why
        since, answer = self._waiting.popleft()
        self._size -= len(answer.body)
        return self._now() - since, answer


class Watch:
    """Asks for the events of a run, again and again, until the end.

    Args:
        line: The connection.
        factory: The factory of requests.
        run_id: The run.
        patience: See `Patience`.
        limit_s: Seconds without any message after which the stream fails.
    """

    def __init__(
        self,
        line: ClientConnection,
        factory: RequestFactory,
        run_id: str,
        *,
        patience: Patience,
        limit_s: float,
    ) -> None:
        self._line, self._factory, self._run_id = line, factory, run_id
        self._patience, self._limit_s = patience, limit_s
        self._doing = f"events of run {run_id}"
        self._now = asyncio.get_running_loop().time
        self._active_at = 0.0
        self._backoff = Backoff()

    async def events(self, from_: int) -> AsyncGenerator[Event]:
        """Yield them; see `ActorClient.events`."""
        sequence = Sequence(from_)
        self._note_activity()
        while not sequence.is_over:
            sequence.begin()
            try:
                async with aclosing(self._answers(sequence.next_seq)) as answers:
                    async for answer in answers:
                        event = event_of(self._run_id, answer)
                        passed = None if event is None else sequence.take(event)
                        if passed is not None:
                            yield passed
                            self._note_activity()  # its reader's time is no silence of the host
                        if sequence.is_over:
                            return
            except Missed as missed:
                await self._pause(missed)

    async def _answers(self, from_seq: int) -> AsyncGenerator[Response]:
        """Yield what one asking brings, but for beats, until nothing more comes.

        Raises:
            Missed: Nothing more comes.
            ClientError: The hosts refuse it.
        """
        facts = {"run": self._run_id, "from_seq": from_seq}
        request = self._factory.api("events", facts, doing=self._doing)
        requests, frames = await self._line.requests(), Frames()
        try:
            with requests.taking(request.subject, frames.put) as reply:
                await tell(requests, request, reply)
                while True:
                    waited_s, answer = await frames.next(self._patience.silence_s)
                    if answer.code in {TOO_MANY, STOPPED}:
                        raise Missed("busy", "the hosts are busy or shutting down")
                    error = failure(request, answer)
                    if error is not None:
                        raise error
                    self._note_activity()
                    if answer.headers.get(EVENT) != "beat":
                        yield answer
                    elif waited_s > STALE_BEAT_S:
                        raise Missed("silent", "the events were read too slowly")
                    else:
                        stream = answer.headers.get(STREAM, "")
                        renewal = self._factory.api("renew", {"stream": stream}, doing=self._doing)
                        await tell(requests, renewal)
        except ServerError as exc:
            raise in_our_words(exc, self._doing) from exc

    def _note_activity(self) -> None:
        self._active_at = self._now()
        self._backoff.reset()

    async def _pause(self, missed: Missed) -> None:
        """Wait a little before the next asking.

        Raises:
            UnservedError, UnreachableError: Nothing has been heard for too long.
        """
        is_late = self._now() - self._active_at >= self._limit_s
        if missed.why == "closed" or (is_late and missed.why == "unreachable"):
            raise unreachable(self._line.address, missed, self._doing)
        if is_late:
            raise unserved(missed, self._doing)
        await asyncio.sleep(self._backoff.next_s())


async def tell(requests: Requests, request: Request, reply: str = "") -> None:
    """Publish a request; what comes of it goes to the reply subject."""
    await requests.tell(
        request.doing, request.subject, request.body, reply=reply, headers=request.headers
    )
