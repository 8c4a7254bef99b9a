"""The gateway: takes the requests of outside services, ``ask.v1.>`` and ``api.v1.>``, and answers them.

All hosts are one queue group, so each request comes to one of them. What a host holds when it dies is
asked again by its client, with the same id, and another host waits for the same run. A connection
that is lost takes along the requests that came by it.

Each host is a NATS micro service too, for ``nats micro ls``, ``info`` and ``stats``. The library's own
`Service` runs one request after the other and reads the clock in a way that newer Pythons warn of; its forms
of the answers are used here.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, Literal, NamedTuple, TypeAlias

from nats.aio.subscription import Subscription
from nats.errors import Error as NatsError
from nats.errors import TimeoutError as NatsTimeoutError
from nats.micro import service

from actors._kernel.runtime.ids import token
from actors._kernel.stores.outside import Front
from broker._gateway.handlers import Verbs
from broker._gateway.responses import (
    HEADROOM_BYTES,
    STOPPING,
    TOO_MANY,
    GatewayAnswer,
    GatewayRequest,
    Problem,
    RequestError,
    problem_of,
    refusal,
    too_large,
)
from broker._gateway.streams import EventStreams
from broker._nats.client import NatsConnection, Tasks
from broker._nats.permissions import may_be_answered
from broker._wire import headers as names
from broker._wire.headers import MAX_BODY_BYTES, parse_headers
from broker._wire.subjects import Subjects, parse_api

_log = logging.getLogger("callboard.gateway")

MAX_REQUESTS: Final = 2000
"""Requests that a host holds at once; more are refused with 429."""
MAX_HELD_BYTES: Final = 64 * 1024 * 1024
"""Maximum size of all requests under way, headers included; further requests are refused with 429."""
MAX_STREAMS: Final = 256
"""Streams of events that a host serves at once; more are refused with 429."""
PENDING_BYTES: Final = 8 * 1024 * 1024
"""When more than this waits to be sent, answers wait for the server, and refusals are left unsaid."""
FLUSH_LIMIT_S: Final = 10
MAX_RENEWAL_BYTES: Final = 1024
NO_RESPONDERS: Final = b"NATS/1.0 503"

NAME: Final = "callboard"
QUEUE: Final = "callboard"
"""Queue group of all hosts: of each request one host takes care."""
_DESCRIPTION: Final = "Durable actors: asks agents, and answers for their runs."
_MAX_METADATA: Final = 1024

EVENTS: Final = "events"
RENEW: Final = "renew"
Kind: TypeAlias = Literal["ask", "api"]


class _OpenRequest(NamedTuple):
    """A request that waits for its answer, and how many bytes came with it."""

    request: GatewayRequest
    size: int


class Gateway:
    """A user of a `ReconnectingConnection`: serves external clients through the runtime's client API.

    Args:
        front: The client API, which executes requests.
        subjects: The deployment's names.
        host: The facts of the host that answers of ``$SRV`` show.
        scope: Function that makes a scope for background tasks.
    """

    def __init__(
        self, front: Front, subjects: Subjects, host: HostFacts, *, scope: Callable[[], Tasks]
    ) -> None:
        self._front, self._subjects, self._scope = front, subjects, scope
        self._verbs = Verbs(front, subjects)
        self._endpoints: dict[Kind, Endpoint] = {
            "ask": Endpoint("ask", subjects.prefixed("ask.v1.>")),
            "api": Endpoint("api", subjects.prefixed("api.v1.>")),
        }
        self._service = MicroService(host, subjects.namespace, self._endpoints.values())
        self._client: NatsConnection | None = None
        self._streams: EventStreams | None = None
        self._groups: list[Subscription] = []
        self._is_stopping = False
        self._open_requests: dict[int, _OpenRequest] = {}
        self._open_bytes = 0
        self._numbers = itertools.count()

    @property
    def open_requests(self) -> int:
        """The number of requests that wait for their answers here, streams of events included."""
        return len(self._open_requests)

    @property
    def has_left(self) -> bool:
        """True if the gateway takes no more requests."""
        return self._is_stopping and not self._groups

    async def attach(self, client: NatsConnection, inbox: str, tasks: Tasks) -> None:
        """Subscribe on a new connection; `tasks` end with it."""
        self._client = client
        renewal_prefix = f"{inbox}.renew"
        streams = EventStreams(self._front, self._scope, self._publish, renewal_prefix)
        self._streams = streams

        def on_renewal(subject: bytes, _reply: bytes, _data: bytes, headers: bytes) -> None:
            stream = subject.rpartition(b".")[2].decode(errors="replace")
            # If a beat has no subscriber, NATS sends "no responders" to the beat's reply subject.
            (streams.end if headers.startswith(NO_RESPONDERS) else streams.renew)(stream)

        def on_named_renewal(_subject: bytes, _reply: bytes, data: bytes, _headers: bytes) -> None:
            if len(data) > MAX_RENEWAL_BYTES:  # each host reads each of them, on its event loop
                return
            with contextlib.suppress(ValueError):  # it has no reply subject: there is no answer
                streams.renew_named(data)

        await client.listen(f"{renewal_prefix}.*", on_renewal)
        for subject, answer in self._service.answers().items():
            await client.listen(subject, self._info_sink(answer, tasks))
        await client.listen(self._subjects.prefixed(f"api.v1.*.*.{RENEW}"), on_named_renewal)
        for kind, endpoint in self._endpoints.items():
            if not self._is_stopping:
                # A host that shuts down does not join the queue group again on its next connection.
                sink = self._request_sink(kind, tasks)
                self._groups.append(await client.listen(endpoint.subject, sink, queue=QUEUE))

    def detach(self) -> None:
        """Forget the connection that was lost. Clients that wait for an answer repeat their requests."""
        self._client = self._streams = None
        self._groups.clear()
        self._open_requests.clear()
        self._open_bytes = 0

    async def leave(self) -> None:
        """Leave the queue group, so that no new request comes."""
        self._is_stopping = True
        client = self._client
        while client is not None and self._groups:
            await client.forget(self._groups.pop())

    async def shut(self) -> None:
        """Answer 503 to the requests that still wait."""
        # A copy: `_release` takes each one out.
        for number in list(self._open_requests):
            if (request := self._release(number)) is not None:
                await self._publish(request, refusal(STOPPING, request), "")

    def _info_sink(
        self, answer: Callable[[], bytes], tasks: Tasks
    ) -> Callable[[bytes, bytes, bytes, bytes], None]:
        """Return a sink that answers with what `answer` returns."""

        def sink(subject: bytes, reply: bytes, _data: bytes, _headers: bytes) -> None:
            reply_subject, client = reply.decode(errors="replace"), self._client
            if client is not None and may_be_answered(reply_subject):
                tasks.start(
                    client.publish(reply_subject, answer()), name=subject.decode(errors="replace")
                )

        return sink

    def _request_sink(
        self, kind: Kind, tasks: Tasks
    ) -> Callable[[bytes, bytes, bytes, bytes], None]:
        """Return a sink that serves requests."""
        endpoint = self._endpoints[kind]

        def sink(subject: bytes, reply: bytes, data: bytes, raw_headers: bytes) -> None:
            if not reply:  # there is no reply subject to answer; a renewal looks the same
                return
            endpoint.requests += 1
            request = GatewayRequest(
                subject=subject.decode(errors="replace"),
                reply=reply.decode(errors="replace"),
                headers=parse_headers(raw_headers) if raw_headers else {},
                data=data,
            )
            if not may_be_answered(request.reply):
                endpoint.done(0, f"{request.reply!r} is no inbox")
                return
            size = len(data) + len(raw_headers)
            if len(self._open_requests) >= MAX_REQUESTS or self._open_bytes + size > MAX_HELD_BYTES:
                endpoint.done(0, TOO_MANY.message)
                client = self._client
                # A refusal does not wait: no backlog grows for a client that asks faster than hosts answer.
                if client is not None and client.pending_data_size <= PENDING_BYTES:
                    coro = self._publish(request, refusal(TOO_MANY, request), "")
                    tasks.start(coro, name=request.subject)
                return
            number = next(self._numbers)
            self._open_requests[number] = _OpenRequest(request, size)
            self._open_bytes += size
            tasks.start(self._serve(kind, number, request), name=request.subject)

        return sink

    def _release(self, number: int) -> GatewayRequest | None:
        """Return an open request and close it, or None if another task has done that."""
        open_request = self._open_requests.pop(number, None)
        if open_request is None:
            return None
        self._open_bytes -= open_request.size
        return open_request.request

    async def _serve(self, kind: Kind, number: int, request: GatewayRequest) -> None:
        """Execute a request and answer, unless another task has answered meanwhile."""
        now = asyncio.get_running_loop().time
        started_at, problem = now(), None
        try:
            answer = await self._answer(kind, request)
        except Exception as exc:  # noqa: BLE001 - the boundary: the sender gets the error, the log too
            problem = problem_of(exc)
            answer = refusal(problem, request)
        finally:
            # `shut` may have answered meanwhile: a request gets one answer.
            is_held = self._release(number) is not None
        self._endpoints[kind].done(now() - started_at, None if problem is None else problem.message)
        if answer is not None and is_held:
            await self._publish(request, answer, "")

    async def _answer(self, kind: Kind, request: GatewayRequest) -> GatewayAnswer | None:
        if len(request.data) > MAX_BODY_BYTES:
            raise RequestError(too_large(len(request.data)))
        if kind == "ask":
            return self._check_size(await self._verbs.ask(request))
        origin = parse_api(self._subjects, request.subject)
        streams = self._streams
        if origin.verb != EVENTS or streams is None:
            return self._check_size(await self._verbs.api(request, origin))
        if len(streams) >= MAX_STREAMS:
            raise RequestError(TOO_MANY)
        await streams.serve(request, origin)
        return None

    def _check_size(self, answer: GatewayAnswer) -> GatewayAnswer:
        """Return the answer, if it is not larger than the broker takes."""
        client = self._client
        limit = (1 << 20 if client is None else client.max_payload) - HEADROOM_BYTES
        if len(answer.body) <= limit:
            return answer
        message = f"the answer has {len(answer.body)} bytes, {limit} can be sent"
        remedy = "Let the agent return a reference; `callboard runs show` has the answer."
        run = answer.headers.get(names.RUN)
        raise RequestError(Problem(413, "too_large", message, remedy, run))

    async def _publish(self, request: GatewayRequest, answer: GatewayAnswer, reply: str) -> None:
        """Send an answer; where the connection is gone, its receiver asks again."""
        client = self._client
        if client is None:
            return
        try:
            # A server that takes nothing must not fill this host's memory with answers.
            if client.pending_data_size > PENDING_BYTES:
                await client.flush(FLUSH_LIMIT_S)
            await client.publish(request.reply, answer.body, reply, answer.headers)
        except NatsTimeoutError:
            client.give_up(f"the server takes nothing for {FLUSH_LIMIT_S} s")
        # Not sent again from here: the client repeats its request with the same id, perhaps to another host.
        except (NatsError, OSError, ValueError) as exc:
            _log.debug("an answer was not sent", extra={"error": str(exc)})


@dataclass(slots=True)
class Endpoint:
    """A subject of the service, and its counters."""

    name: str
    subject: str
    requests: int = 0
    errors: int = 0
    seconds: float = 0.0
    last_error: str = ""

    def done(self, seconds: float, error: str | None) -> None:
        """Count a request that was answered."""
        self.seconds += seconds
        if error is not None:
            self.errors += 1
            self.last_error = error

    def info(self) -> service.EndpointInfo:
        """Return the name, subject and queue group for `$SRV.INFO`."""
        return service.EndpointInfo(name=self.name, subject=self.subject, queue_group=QUEUE)

    def stats(self) -> service.EndpointStats:
        """Return the counts of requests and errors, and the processing time, for `$SRV.STATS`."""
        total = int(self.seconds * 1e9)
        return service.EndpointStats(
            name=self.name,
            subject=self.subject,
            queue_group=QUEUE,
            num_requests=self.requests,
            num_errors=self.errors,
            last_error=self.last_error,
            processing_time=total,
            average_processing_time=total // max(1, self.requests),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class HostFacts:
    """The gateway's facts about its host.

    Attributes:
        owner: Its incarnation.
        version: Version of this software.
        started: When it was started.
        serves: Returns the types, and single agents as text, that it serves now.
    """

    owner: str
    version: str
    started: datetime
    serves: Callable[[], Sequence[str]]


class MicroService:
    """Answers ``$SRV.PING``, ``$SRV.INFO`` and ``$SRV.STATS``.

    Args:
        host: The facts that the answers show.
        namespace: The namespace of the deployment.
        endpoints: The subjects of the service.
    """

    def __init__(self, host: HostFacts, namespace: str, endpoints: Iterable[Endpoint]) -> None:
        self._host, self._namespace, self._endpoints = host, namespace, tuple(endpoints)
        self._id = token(host.owner)

    def answers(self) -> dict[str, Callable[[], bytes]]:
        """Return the functions that answer requests, by subject."""
        verbs = (
            (service.ServiceVerb.PING, self._ping),
            (service.ServiceVerb.INFO, self._info),
            (service.ServiceVerb.STATS, self._stats),
        )
        targets = ((None, None), (NAME, None), (NAME, self._id))
        return {
            service.control_subject(verb, *target): answer
            for verb, answer in verbs
            for target in targets
        }

    def _identity(self) -> dict[str, Any]:
        host = self._host
        facts = {
            "namespace": self._namespace,
            "host": host.owner,
            "serves": ",".join(host.serves()),
        }
        metadata = {name: text[:_MAX_METADATA] for name, text in facts.items()}
        return {"id": self._id, "name": NAME, "version": host.version, "metadata": metadata}

    def _ping(self) -> bytes:
        return json.dumps(service.ServicePing(**self._identity()).to_dict()).encode()

    def _info(self) -> bytes:
        endpoints = [endpoint.info() for endpoint in self._endpoints]
        info = service.ServiceInfo(
            **self._identity(), description=_DESCRIPTION, endpoints=endpoints
        )
        return json.dumps(info.to_dict()).encode()

    def _stats(self) -> bytes:
        endpoints = [endpoint.stats() for endpoint in self._endpoints]
        stats = service.ServiceStats(
            **self._identity(), started=self._host.started, endpoints=endpoints
        )
        return json.dumps(stats.to_dict()).encode()
