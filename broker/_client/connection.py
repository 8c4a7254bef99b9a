"""The connection of an `ActorClient`: a request until it is answered, and a run's events as one sequence.

A connection that is lost is closed, and the next attempt opens another one: nothing is buffered for a
connection that is away. Requests are repeated with the same id. A stream of events is asked for again from
the first entry that did not come, so hosts may die meanwhile.
"""

from __future__ import annotations

import asyncio
import secrets
from collections import deque
from collections.abc import AsyncGenerator
from contextlib import aclosing, nullcontext
from dataclasses import replace
from typing import Any, Final
from weakref import WeakValueDictionary

from nats.errors import Error as NatsError

from actors._kernel.basics import Backoff
from broker._client.requests import Event, Patience, Request, RequestFactory
from broker._client.responses import (
    STOPPED,
    TOO_MANY,
    MissedError,
    Response,
    Tries,
    event_of,
    failure,
    in_our_words,
    unreachable,
    unserved,
)
from broker._nats.client import ConnectOptions, NatsConnection, open_client
from broker._nats.requests import Reply, Requests
from broker._nats_client import ServerError
from broker._wire.headers import ERROR, EVENT, STREAM

MAX_OPEN_CALLS: Final = 1024
"""Maximum number of open calls of one client; further calls wait, within their time limits."""
FLUSH_LIMIT_S: Final = 5
MAX_WAITING_FRAMES: Final = 4096
MAX_WAITING_BYTES: Final = 16 * 1024 * 1024
"""Maximum bytes that wait for a slow reader of a stream. Beyond them the stream is requested again."""
STALE_BEAT_S: Final = 10.0
"""A beat that was read so late was not answered in time: its host has ended the stream by now."""
CONTINUED: Final = "run.continued"
MAX_CALLS: Final = 256
"""Model calls of a run whose deltas are kept apart at the same time."""


class ClientConnection:
    """Connections to one server or cluster, one at a time.

    Args:
        server: Address and login of the server.
        inbox_prefix: First token of the subjects that answers come to.
        patience: The waiting times.
    """

    def __init__(self, server: ConnectOptions, *, inbox_prefix: str, patience: Patience) -> None:
        self._server = server
        self._prefix = inbox_prefix
        self._patience = patience
        self._requests: Requests | None = None
        self._connect_lock = asyncio.Lock()
        self._is_open = False
        self._call_slots = asyncio.Semaphore(MAX_OPEN_CALLS)
        self._order_locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        self.address = server.address

    async def open(self) -> None:
        """Connect. Raises `UnreachableError` or `NotPermittedError`."""
        self._is_open = True
        try:
            await self.requests()
        # Also a cancellation: a client that was not opened must not connect by itself later.
        except BaseException as exc:
            self._is_open = False
            if isinstance(exc, MissedError):
                raise unreachable(self.address, exc, "connecting") from exc
            raise

    async def close(self) -> None:
        """Close the connection; calls that wait fail."""
        self._is_open = False
        requests, self._requests = self._requests, None
        if requests is not None:
            await requests.client.shut()

    async def requests(self) -> Requests:
        """Return calls over the connection, a new one if the last one is lost.

        Raises:
            MissedError: None came about, or the client is closed.
            NotPermittedError: The user may not subscribe to answers of this prefix.
        """
        # One connects, and all others wait for that connection.
        async with self._connect_lock:
            self._check_open()
            if (requests := self._requests) is not None:
                if not requests.client.lost.is_set():
                    return requests
                self._requests = None
                await requests.client.shut()
            new_requests = await self._connect()
            if not self._is_open:
                # `close` came while this connected, and did not see this connection.
                await new_requests.client.shut()
            self._check_open()
            self._requests = new_requests
            return new_requests

    def _check_open(self) -> None:
        if not self._is_open:
            raise MissedError("closed", "the client is not open")

    async def _connect(self) -> Requests:
        inbox = f"{self._prefix}.{secrets.token_hex(11)}"
        try:
            client = await open_client(self._server, inbox_prefix=inbox)
            try:
                return await _open_requests(client, inbox)
            # Also a cancellation: the connection that is half open has no other owner who would close it.
            except BaseException:
                await client.shut()
                raise
        except ServerError as exc:
            raise in_our_words(exc, "connecting") from exc

    async def exchange(
        self, request: Request, *, limit_s: float, attempt_s: float, may_be_done: bool = False
    ) -> Response:
        """Publish the request until it is answered; cancelling leaves open whether it was done.

        Args:
            request: The same each time.
            limit_s: Seconds for all attempts together.
            attempt_s: Seconds for one attempt.
            may_be_done: A host is known to have taken it before.

        Raises:
            UnreachableError, UnservedError: Nothing was done.
            OutcomeUnknownError: It was sent at least once.
            ClientError: It can never be answered.
        """
        unserved_s = self._patience.unserved_s
        tries = Tries(request, may_be_done=may_be_done, unserved_s=unserved_s)
        order_lock: asyncio.Lock | nullcontext[None] = nullcontext()
        if request.order_key is not None:
            # One request of a key at a time, in order of arrival, and over the network too: a message that is
            # repeated must not come after the next. The lock lives while a caller has it or waits for it.
            order_lock = self._order_locks.setdefault(request.order_key, asyncio.Lock())
        try:
            # The slot last: calls that wait behind one of their key hold none.
            async with asyncio.timeout(limit_s), order_lock, self._call_slots:
                while True:
                    try:
                        requests = await self.requests()
                        tries.is_under_way = True
                        return await _attempt(requests, request, attempt_s)
                    except MissedError as miss:
                        pause_s = tries.pause_after(miss)
                    await asyncio.sleep(pause_s)
        except (TimeoutError, MissedError) as exc:
            raise tries.final_error(self.address, limit_s) from exc


class EventWatch:
    """Asks for the events of a run, again and again, until the end.

    Args:
        line: The connection.
        factory: The factory of requests.
        run_id: The run.
        patience: The waiting times.
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
        order = EventOrder(from_)
        self._note_activity()
        while not order.is_over:
            order.begin()
            try:
                async with aclosing(self._answers(order.next_seq)) as answers:
                    async for answer in answers:
                        event = event_of(self._run_id, answer)
                        new_event = None if event is None else order.take(event)
                        if new_event is not None:
                            yield new_event
                            self._note_activity()  # its reader's time is no silence of the host
                        if order.is_over:
                            return
            except MissedError as miss:
                await self._pause(miss)

    async def _answers(self, from_seq: int) -> AsyncGenerator[Response]:
        """Yield what one asking brings, but for beats, until nothing more comes.

        Raises:
            MissedError: Nothing more comes.
            ClientError: The hosts refuse it.
        """
        facts = {"run": self._run_id, "from_seq": from_seq}
        request = self._factory.api("events", facts, doing=self._doing)
        requests, frames = await self._line.requests(), FrameBuffer()
        try:
            with requests.taking(request.subject, frames.put) as reply:
                await tell(requests, request, reply)
                while True:
                    waited_s, answer = await frames.next(self._patience.silence_s)
                    if answer.code in {TOO_MANY, STOPPED}:
                        raise MissedError("busy", "the hosts are busy or shutting down")
                    error = failure(request, answer)
                    if error is not None:
                        raise error
                    self._note_activity()
                    if answer.headers.get(EVENT) != "beat":
                        yield answer
                    elif waited_s > STALE_BEAT_S:
                        raise MissedError("silent", "the events were read too slowly")
                    else:
                        stream = answer.headers.get(STREAM, "")
                        renewal = self._factory.api("renew", {"stream": stream}, doing=self._doing)
                        await tell(requests, renewal)
        except ServerError as exc:
            raise in_our_words(exc, self._doing) from exc

    def _note_activity(self) -> None:
        self._active_at = self._now()
        self._backoff.reset()

    async def _pause(self, miss: MissedError) -> None:
        """Wait a little before the next asking.

        Raises:
            UnservedError, UnreachableError: Nothing has been heard for too long.
        """
        is_late = self._now() - self._active_at >= self._limit_s
        if miss.why == "closed" or (is_late and miss.why == "unreachable"):
            raise unreachable(self._line.address, miss, self._doing)
        if is_late:
            raise unserved(miss, self._doing)
        await asyncio.sleep(self._backoff.next_s())


async def tell(requests: Requests, request: Request, reply: str = "") -> None:
    """Publish a request; what comes of it goes to the reply subject."""
    await requests.tell(
        request.doing, request.subject, request.body, reply=reply, headers=request.headers
    )


class EventOrder:
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
            MissedError: Something is missing before it: ask again from `next_seq`.
        """
        if event.kind == "delta":
            return self._delta(event)
        if event.kind == "entry" and event.seq < self.next_seq:
            return None  # known already
        has_gap = event.seq > self.next_seq - (event.kind == "end")
        if has_gap and self._is_contiguous:
            raise MissedError("lost", f"entry {self.next_seq} did not come")
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
        previous = self._calls.pop(event.position, None)
        is_restart = previous is not None and (event.attempt > previous[0] or n <= previous[1])
        self._calls[event.position] = (event.attempt, n)
        if len(self._calls) > MAX_CALLS:
            del self._calls[next(iter(self._calls))]
        return replace(event, is_restart=True) if is_restart else event


class FrameBuffer:
    """The received frames of a stream of events that are not read yet, in order, up to a limit."""

    def __init__(self) -> None:
        self._frames: deque[tuple[float, Response]] = deque()
        self._size = 0
        self._end_error: Exception | None = None
        self._changed = asyncio.Event()
        self._now = asyncio.get_running_loop().time

    def put(self, reply: Reply | ServerError) -> None:
        """Take what came, or why nothing more will; what comes after that is dropped."""
        if self._end_error is not None:
            return
        if isinstance(reply, ServerError):
            self._end_error = reply
        elif len(self._frames) >= MAX_WAITING_FRAMES or self._size > MAX_WAITING_BYTES:
            self._end_error = MissedError("busy", "events are read more slowly than they come")
        else:
            self._size += len(reply.data)
            self._frames.append((self._now(), Response.of(reply)))
        self._changed.set()

    async def next(self, limit_s: float) -> tuple[float, Response]:
        """Return the next one, and for how many seconds it has waited.

        Raises:
            MissedError, ServerError: None came within the limit, or none will.
        """
        try:
            async with asyncio.timeout(limit_s):
                while not self._frames and self._end_error is None:
                    self._changed.clear()
                    await self._changed.wait()
        except TimeoutError:
            raise MissedError("silent", f"nothing was heard for {limit_s:g} s") from None
        if not self._frames:
            assert self._end_error is not None
            raise self._end_error
        since, answer = self._frames.popleft()
        self._size -= len(answer.body)
        return self._now() - since, answer


async def _open_requests(client: NatsConnection, inbox: str) -> Requests:
    """Return calls over the connection, once the server is known to have their inbox.

    Raises:
        ServerError: It is not: the server refused it, or is gone already.
    """
    requests = Requests(client, inbox)
    try:
        await requests.open()
        await client.flush(FLUSH_LIMIT_S)
    except (NatsError, OSError) as exc:
        client.give_up(str(exc))
    if client.lost.is_set():
        raise client.lost_error("waiting for answers")
    return requests


async def _attempt(requests: Requests, request: Request, limit_s: float) -> Response:
    """Publish the request once, and return the answer.

    Raises:
        MissedError: None came, or that the host cannot now.
        ClientError: The request can never be answered.
    """
    try:
        reply = await requests.request(
            request.doing, request.subject, request.body, headers=request.headers, limit_s=limit_s
        )
    except ServerError as exc:
        raise in_our_words(exc, request.doing, request.id) from exc
    answer = Response.of(reply)
    if answer.code == STOPPED:
        raise MissedError("lost", answer.headers.get(ERROR, "the host is shutting down"))
    if answer.code == TOO_MANY:
        raise MissedError("busy", answer.headers.get(ERROR, "the hosts are busy"))
    return answer
