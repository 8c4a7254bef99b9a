"""Requests and their answers: JetStream's API, and publishes with their acknowledgements.

One subscription takes all answers and finds the waiting call by the last token of the subject;
nats-py's `request` and `js.publish` cost three to ten times as much and hide why they failed.
"""

from __future__ import annotations

import asyncio
import itertools
import json
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final

from nats.errors import ConnectionClosedError, MaxPayloadError
from nats.errors import Error as NatsError

from broker.client import (
    SEND_BUFFER_BYTES,
    NoAnswerError,
    NotPermittedError,
    RefusedError,
    ServerError,
)

if TYPE_CHECKING:
    from broker.client import Client

API_LIMIT_S: Final = 5.0
PUBLISH_LIMIT_S: Final = 2.0
NO_MESSAGE: Final = 10037
"""JetStream's error code for a sequence at which there is nothing."""
_NO_RESPONDERS: Final = b"NATS/1.0 503"
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


class Requests:
    """Calls over one connection, each answered within its time limit or failed with a reason.

    Args:
        client: The connection.
        inbox: Prefix of the subjects that answers come to; nobody else may know it.
    """

    def __init__(self, client: Client, inbox: str) -> None:
        self._client = client
        self._inbox = inbox
        self._skip = len(inbox) + 1
        self._numbers = itertools.count()
        self._waiting: dict[bytes, tuple[str, asyncio.Future[bytes]]] = {}
        self._loop = asyncio.get_running_loop()

    async def open(self) -> None:
        """Begin to take answers."""
        await self._client.listen(f"{self._inbox}.*", self._answered)

    async def publish(self, subject: str, body: bytes, headers: dict[str, str]) -> int:
        """Publish to a stream and return the sequence under which it was stored.

        Raises:
            BrokerError: The stream refused, or no acknowledgement came within 2 seconds.
        """
        doing = f"publishing to {subject}"
        if self._client.pending_data_size > SEND_BUFFER_BYTES:
            problem = f"{SEND_BUFFER_BYTES >> 20} MiB wait to be sent already"
            raise ServerError(self._client.address, doing, problem, "Send again later.")
        answer = await self.call(doing, subject, body, headers=headers, limit_s=PUBLISH_LIMIT_S)
        ack: dict[str, Any] = json.loads(answer)
        if "error" in ack:
            raise refused(self._client, doing, ack["error"])
        return int(ack["seq"])

    async def api(self, what: str, body: dict[str, Any]) -> dict[str, Any]:
        """Return JetStream's answer to a request, with an ``error`` key if it has one.

        Raises:
            BrokerError: None came within 5 seconds, or JetStream is not there.
        """
        subject = f"$JS.API.{what}"
        answer = await self.call(what, subject, json.dumps(body).encode(), limit_s=API_LIMIT_S)
        parsed: dict[str, Any] = json.loads(answer)
        return parsed

    async def api_or_raise(self, what: str, body: dict[str, Any]) -> dict[str, Any]:
        """Return JetStream's answer to a request that must succeed.

        Raises:
            BrokerError: It did not.
        """
        answer = await self.api(what, body)
        if "error" in answer:
            raise refused(self._client, what, answer["error"])
        return answer

    async def call(
        self,
        doing: str,
        subject: str,
        body: bytes,
        *,
        headers: dict[str, str] | None = None,
        limit_s: float,
    ) -> bytes:
        """Publish with a reply subject of our own and return the answer's data."""
        if self._client.lost.is_set():
            raise self._client.lost_error(doing)
        token = b"%d" % next(self._numbers)
        future: asyncio.Future[bytes] = self._loop.create_future()
        self._waiting[token] = (subject.lower(), future)
        limit = self._loop.call_later(limit_s, self._expired, token, doing, limit_s)
        try:
            reply = f"{self._inbox}.{token.decode()}"
            await self._publish(doing, subject, body, reply=reply, headers=headers)
            return await future
        finally:
            limit.cancel()
            del self._waiting[token]

    async def tell(self, doing: str, subject: str, body: bytes) -> None:
        """Publish without waiting for anything.

        Raises:
            BrokerError: The connection is lost.
        """
        if self._client.lost.is_set():
            raise self._client.lost_error(doing)
        await self._publish(doing, subject, body)

    async def _publish(
        self,
        doing: str,
        subject: str,
        body: bytes,
        *,
        reply: str = "",
        headers: dict[str, str] | None = None,
    ) -> None:
        try:
            await self._client.publish(subject, body, reply, headers)
        except ConnectionClosedError as exc:
            raise self._client.lost_error(doing) from exc
        except MaxPayloadError as exc:
            problem = f"{len(body)} bytes are more than the server takes"
            remedy = f"Its max_payload is {self._client.max_payload} bytes: raise it."
            raise ServerError(self._client.address, doing, problem, remedy) from exc
        except (NatsError, OSError) as exc:
            remedy = "Send again on a new connection."
            raise ServerError(self._client.address, doing, str(exc), remedy) from exc

    def denied(self, subject: str, words: str) -> None:
        """Fail the calls that wait for answers from this subject (in lower case)."""
        for asked, future in self._waiting.values():
            if asked == subject and not future.done():
                future.set_exception(not_permitted(self._client, asked, words))

    def fail_all(self) -> None:
        """Fail every call: the connection is lost."""
        for subject, future in self._waiting.values():
            if not future.done():
                future.set_exception(self._client.lost_error(f"waiting for {subject}"))

    def _answered(self, subject: bytes, _reply: bytes, data: bytes, headers: bytes) -> None:
        asked, future = self._waiting.get(subject[self._skip :], ("", None))
        if future is None or future.done():
            return
        if headers and headers.startswith(_NO_RESPONDERS):
            problem = "nobody there takes it"
            remedy = "Start nats-server with JetStream enabled, and let ensure() make the streams."
            future.set_exception(RefusedError(self._client.address, asked, problem, remedy, 503))
        else:
            future.set_result(data)

    def _expired(self, token: bytes, doing: str, limit_s: float) -> None:
        _, future = self._waiting[token]
        if not future.done():
            problem = f"no answer within {limit_s:g} s"
            remedy = "Try again; if that persists, look at the server's load and log."
            future.set_exception(NoAnswerError(self._client.address, doing, problem, remedy))


def refused(client: Client, doing: str, error: dict[str, Any]) -> RefusedError:
    """Return JetStream's own words as an error."""
    remedy = "Look at the stream's configuration and limits (`callboard doctor`)."
    words, code = str(error.get("description", error)), int(error.get("err_code", 0))
    return RefusedError(client.address, doing, words, remedy, code)


def not_permitted(client: Client, doing: str, words: str) -> NotPermittedError:
    """Return a violation of permissions as an error."""
    remedy = "Grant it to the hosts' user in the server's configuration."
    return NotPermittedError(client.address, doing, words, remedy)


def instant_of(nanoseconds: int) -> datetime:
    """Return the instant, cut to whole microseconds."""
    return _EPOCH + timedelta(microseconds=nanoseconds // 1000)


def parse_nanoseconds(text: str) -> int:
    """Return the nanoseconds since 1970 of an instant that the server wrote as text."""
    whole, _, fraction = text.removesuffix("Z").partition(".")
    since = datetime.fromisoformat(whole).replace(tzinfo=UTC) - _EPOCH
    return (since.days * 86_400 + since.seconds) * 1_000_000_000 + int(fraction.ljust(9, "0"))
