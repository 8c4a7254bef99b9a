"""Live events of runs: streams to the reply subjects of clients, and deltas from host to host.

A stream has beats while nothing happens in its run. Deltas and hints of ends go over core NATS: they are never
stored, and lost without a subscriber.
"""

from __future__ import annotations

import asyncio
import itertools
import json
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import aclosing
from typing import Final, get_args

from pydantic_core import from_json, to_json
from typing_extensions import override

from actors._kernel.json import JsonValue
from actors._kernel.json_data import check_json
from actors._kernel.runtime.hints import Delta, DeltaKind
from actors._kernel.runtime.ids import AgentId, RunId
from actors._kernel.stores.outside import Caller, Front, RunEvent
from actors.errors import ContractError, NotSerializableError
from broker._gateway.handlers import Fields
from broker._gateway.log_hints import CoreSubjects, Handler
from broker._gateway.responses import MAX_PAGE_BYTES, GatewayAnswer, GatewayRequest, encoded
from broker._nats.client import NatsConnection, Tasks
from broker._wire import headers as names
from broker._wire.subjects import ApiOrigin, Subjects, hint_subject

BEAT_EVERY_S: Final = 5.0
FORGET_AFTER_S: Final = 15.0
"""A reader that answers no beat for so long has gone."""
MAX_BEHIND: Final = 1_000
"""Maximum number of pieces kept for a slow reader; above it the oldest are dropped."""
_KINDS: Final = get_args(DeltaKind)
_ALL_ANSWERED: Final = b""
"""The message after the last whole answer."""


class EventStreams:
    """The streams of one connection.

    Args:
        front: The client API, which has the events.
        scope: Function that makes a scope for background tasks.
        publish: Sends an answer to the request, with a reply subject if one is given.
        inbox: Prefix of the subjects on which readers answer beats.
    """

    def __init__(
        self,
        front: Front,
        scope: Callable[[], Tasks],
        publish: Callable[[GatewayRequest, GatewayAnswer, str], Awaitable[None]],
        inbox: str,
    ) -> None:
        self._front, self._scope, self._publish, self._inbox = front, scope, publish, inbox
        self._name = inbox.split(".")[-2]
        """Random, so that streams of two hosts are distinguished."""
        self._numbers = itertools.count(1)
        self._renewed_at: dict[str, float] = {}
        self._limits: dict[str, asyncio.Timeout] = {}
        self._now = asyncio.get_running_loop().time

    def __len__(self) -> int:
        return len(self._renewed_at)

    def renew(self, stream: str) -> None:
        """The reader of this stream is there."""
        if stream in self._renewed_at:
            self._renewed_at[stream] = self._now()

    def renew_named(self, data: bytes) -> None:
        """The reader of the stream that this body names is there, if that is one of these.

        Raises:
            ValueError: The body is not JSON.
        """
        body = from_json(data)
        name, _, stream = str(body.get("stream") if isinstance(body, dict) else "").partition(".")
        if name == self._name:
            self.renew(stream)

    def end(self, stream: str) -> None:
        """The reader of this stream has gone."""
        limit = self._limits.get(stream)
        if self._renewed_at.pop(stream, None) is not None and limit is not None:
            limit.reschedule(self._now())

    async def serve(self, request: GatewayRequest, origin: ApiOrigin) -> None:
        """Send what happens in the run that the request names, until its end or the reader's.

        Raises:
            ActorsError: Such as `Front.events` raises.
        """
        fields = Fields.of(request)
        run_id, from_seq = fields.run(), fields.number("from_seq", 0)
        fields.refuse_others()
        caller = Caller(origin.tenant, origin.publisher, origin.sees)
        stream = str(next(self._numbers))
        self._renewed_at[stream] = self._now()
        try:
            await self._front.status(caller, run_id)  # before the first beat: is there such a run?
            # The limit is left last: until then, and not longer, `end` may set it.
            async with asyncio.timeout(None) as limit, self._scope() as beats:
                self._limits[stream] = limit
                beats.start(self._beat(request, stream), name=f"beats {run_id}")
                async with aclosing(
                    self._front.events(caller, run_id, from_seq=from_seq)
                ) as events:
                    async for event in events:
                        await self._publish(request, _page(event, request), "")
        except TimeoutError:
            # `end` takes the stream out before it sets the limit: any other timeout is an error of the request.
            if stream in self._renewed_at:
                raise
        finally:
            self._renewed_at.pop(stream, None)
            self._limits.pop(stream, None)

    async def _beat(self, request: GatewayRequest, stream: str) -> None:
        """Send heartbeats of the stream, and end it when the client does not answer."""
        beat = GatewayAnswer(b"", {names.EVENT: "beat", names.STREAM: f"{self._name}.{stream}"})
        while self._now() - self._renewed_at.get(stream, 0.0) < FORGET_AFTER_S:
            await self._publish(request, beat, f"{self._inbox}.{stream}")
            await asyncio.sleep(BEAT_EVERY_S)
        self.end(stream)


def _page(event: RunEvent, request: GatewayRequest) -> GatewayAnswer:
    page: dict[str, JsonValue] = {
        "kind": event.kind,
        "run": event.run_id,
        "seq": event.seq,
        "attempt": event.attempt,
        "name": event.name,
        "position": event.position,
        "data": event.data,
        "at": event.at,
    }
    body, media_type = encoded(page, request)
    if len(body) > MAX_PAGE_BYTES:
        body, media_type = encoded({**page, "data": None, "truncated": True}, request)
    return GatewayAnswer(body, {names.EVENT: event.kind, names.CONTENT_TYPE: media_type})


class NatsDeltaBus(CoreSubjects):
    """The `DeltaBus` of NATS. Deltas and ends of a run have a subject each; nothing is stored."""

    def __init__(self, subjects: Subjects) -> None:
        super().__init__(subjects)
        self._open_answers: Callable[[AgentId, RunId], Sequence[Delta]] = lambda *_: ()
        self._inbox = ""
        self._numbers = itertools.count()
        self._questions: dict[str, tuple[bytes, Handler]] = {}
        """Questions for whole answers, by their number, and what takes the answers."""

    def publish(self, delta: Delta) -> None:
        """Publish a piece for readers in other processes; return at once, never raise."""
        if self._client is not None:
            self._send(self._subjects.live(delta.agent_id, delta.run_id), _data_of(delta))

    def announce_end(self, agent_id: AgentId, run_id: RunId) -> None:
        """Tell other processes that a run has ended; return at once, never raise."""
        self._send(self._subjects.live_end(agent_id, run_id), b"")

    async def subscribe(
        self, agent_id: AgentId, run_id: RunId, *, whole: bool = False
    ) -> AsyncGenerator[Delta | None, None]:
        """Yield the pieces of a run from now on, until closed; a slow reader misses the oldest.

        With `whole`, ask other processes for the answers that are under way there. Each comes whole, after its
        pieces up to `Delta.n` and before later ones; None follows the last one.
        """
        deltas: deque[Delta | None] = deque(maxlen=MAX_BEHIND)
        news = asyncio.Event()

        def take(data: bytes) -> None:
            if (delta := _parse_delta(data, agent_id, run_id)) is not None:
                put(delta)

        def take_answer(data: bytes) -> None:
            put(None) if data == _ALL_ANSWERED else take(data)

        def put(delta: Delta | None) -> None:
            deltas.append(delta)
            news.set()

        forget = self._subscribe_local(self._subjects.live(agent_id, run_id), take)
        question = str(next(self._numbers))
        if whole:
            body = to_json({"agent": str(agent_id), "run": run_id})
            self._questions[question] = body, take_answer
            self._ask(question)
        try:
            while True:
                await news.wait()
                news.clear()
                while deltas:
                    yield deltas.popleft()
        finally:
            self._questions.pop(question, None)
            forget()

    def answer_by(self, open_answers: Callable[[AgentId, RunId], Sequence[Delta]]) -> None:
        """Answer processes that ask for the open answers of a run by what this function returns."""
        self._open_answers = open_answers

    def watch_end(
        self, agent_id: AgentId, run_id: RunId, on_end: Callable[[], None]
    ) -> Callable[[], None]:
        """Call `on_end` when another process announces the run's end; return what ends the watch."""
        return self._subscribe_local(self._subjects.live_end(agent_id, run_id), lambda _: on_end())

    @override
    async def attach(self, client: NatsConnection, inbox: str, tasks: Tasks) -> None:
        self._inbox = f"{inbox}.open"
        await client.listen(f"{self._inbox}.*", self._on_answer)
        await client.listen(hint_subject(self._subjects, "open"), self._on_question)
        await super().attach(client, inbox, tasks)
        for question in self._questions:
            self._ask(question)

    def _ask(self, question: str) -> None:
        """Ask all processes, after the subscription to the pieces that follow the answer."""
        body, _ = self._questions[question]
        self._send(hint_subject(self._subjects, "open"), body, f"{self._inbox}.{question}")

    def _on_answer(self, subject: bytes, _reply: bytes, data: bytes, _headers: bytes) -> None:
        question = self._questions.get(subject.rpartition(b".")[2].decode())
        if question is not None:
            question[1](data)

    def _on_question(self, _subject: bytes, reply: bytes, data: bytes, _headers: bytes) -> None:
        """Send the answers after the pieces that they contain, and before later pieces."""
        try:
            question = json.loads(data)
            deltas = self._open_answers(AgentId.parse(question["agent"]), RunId(question["run"]))
        except (ValueError, TypeError, KeyError, RecursionError, ContractError):
            return  # of another version
        if deltas and reply:
            for delta in deltas:
                self._send(reply.decode(), _data_of(delta))
            self._send(reply.decode(), _ALL_ANSWERED)


def _data_of(delta: Delta) -> bytes:
    facts = {
        "kind": delta.kind,
        "run": delta.run_id,
        "attempt": delta.attempt,
        "position": delta.position,
        "n": delta.n,
        "text": delta.text,
        **({} if delta.data is None else {"data": delta.data}),
        **({"whole": True} if delta.is_whole else {}),
        **({} if delta.after is None else {"after": delta.after}),
    }
    return to_json(facts)


def _parse_delta(data: bytes, agent_id: AgentId, run_id: RunId) -> Delta | None:
    # Of another host, perhaps of another version: what cannot be read is nothing to show.
    try:
        facts = json.loads(data)
        if facts["kind"] not in _KINDS:
            return None
        delta_data = facts.get("data")
        check_json(delta_data, where="delta")
        return Delta(
            run_id=run_id,
            agent_id=agent_id,
            attempt=int(facts["attempt"]),
            position=str(facts["position"]),
            n=int(facts["n"]),
            kind=facts["kind"],
            text=str(facts["text"]),
            data=delta_data,
            is_whole=bool(facts.get("whole")),
            after=None if facts.get("after") is None else int(facts["after"]),
        )
    except (ValueError, TypeError, KeyError, OverflowError, RecursionError, NotSerializableError):
        return None
