"""Streams of events: what happens in a run, to one reply subject, with beats while nothing does."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from typing import Final

from pydantic_core import from_json

from actors.kernel.json import JsonValue
from actors.kernel.stores.outside import Caller, Front, RunEvent
from broker.gateway.handlers import Fields
from broker.gateway.responses import MAX_PAGE_BYTES, GatewayAnswer, GatewayRequest, encoded
from broker.nats.reconnecting import Tasks
from broker.wire import headers as names
from broker.wire.parsing import ApiOrigin

BEAT_EVERY_S: Final = 5.0
FORGET_AFTER_S: Final = 15.0
"""A reader that answers no beat for so long has gone."""


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
        self._renewed: dict[str, float] = {}
        self._limits: dict[str, asyncio.Timeout] = {}
        self._now = asyncio.get_running_loop().time

    def __len__(self) -> int:
        return len(self._renewed)

    def renew(self, stream: str) -> None:
        """The reader of this stream is there."""
        if stream in self._renewed:
            self._renewed[stream] = self._now()

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
        if self._renewed.pop(stream, None) is not None and limit is not None:
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
        self._renewed[stream] = self._now()
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
            if stream in self._renewed:
                raise
        finally:
            self._renewed.pop(stream, None)
            self._limits.pop(stream, None)

    async def _beat(self, request: GatewayRequest, stream: str) -> None:
        """Send heartbeats of the stream, and end it when the client does not answer."""
        beat = GatewayAnswer(b"", {names.EVENT: "beat", names.STREAM: f"{self._name}.{stream}"})
        while self._now() - self._renewed.get(stream, 0.0) < FORGET_AFTER_S:
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
