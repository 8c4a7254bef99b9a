"""Requests and their answers: JetStream's API, publishes with their acknowledgements, and clients' calls.

One subscription takes all answers and finds the waiting call by the last token of the subject;
nats-py's `request` and `js.publish` cost three to ten times as much and hide why they failed.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import secrets
from collections.abc import AsyncGenerator, Callable, Generator, Mapping
from contextlib import asynccontextmanager, contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any, Final, NamedTuple, TypeAlias

from nats.errors import BadHeaderError, BadSubjectError, ConnectionClosedError, MaxPayloadError
from nats.errors import Error as NatsError

from broker import _nats_client as errors
from broker._errors import SubjectError
from broker._nats.client import SEND_BUFFER_BYTES, ConnectOptions, NatsConnection, open_client
from broker._wire.headers import block_bytes

API_LIMIT_S: Final = 5.0
PUBLISH_LIMIT_S: Final = 2.0
AGAIN_S: Final = 0.25
"""Seconds after which an unanswered request is repeated: new leaders do not know of it."""
_READS: Final = ("INFO", "STREAM.NAMES", "STREAM.INFO.", "STREAM.MSG.GET.", "CONSUMER.CREATE.")
"""Asking twice is as good as asking once: a consumer that is created again as it is stays as it is."""
TOO_LARGE: Final = 10054
"""JetStream's error code for a message that is larger than its stream takes."""
_NO_MESSAGE: Final = 10037
"""JetStream's error code for a sequence at which there is nothing."""
_OFF: Final = frozenset({10039, 10076})
"""JetStream's error codes for an account, and a server, without it."""
TURN_ON: Final = (
    "A server whose disk was full stores nothing until it is restarted: free disk space, then restart it. "
    "Of a cluster most servers have to be there. Where JetStream never was, add `jetstream {}` to the "
    "server's configuration, and enable it for the account."
)
_NO_RESPONDERS: Final = b"NATS/1.0 503"
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


class Reply(NamedTuple):
    """A message that came to a reply subject: the data, and the raw block of headers."""

    data: bytes
    headers: bytes


Taker: TypeAlias = "Callable[[Reply | errors.ServerError], None]"
"""Given what comes to a reply subject, and why nothing more will. It must not raise."""


class BodyTooLargeError(errors.ServerError):
    """The server takes no message of this size: it would close the connection, or the stream refuses."""


class Requests:
    """Calls over one connection, each answered within its time limit or failed with a reason.

    Args:
        client: The connection.
        inbox: Prefix of the subjects that answers come to; it is secret.
    """

    def __init__(self, client: NatsConnection, inbox: str) -> None:
        self.client = client
        self._inbox = inbox
        self._skip = len(inbox) + 1
        self._numbers = itertools.count()
        self._takers: dict[bytes, tuple[str, Taker]] = {}
        self._loop = asyncio.get_running_loop()

    async def open(self) -> None:
        """Begin to take answers, and to hear what becomes of the connection."""
        self.client.on_lost, self.client.on_denied = self.fail_all, self.denied
        await self.client.listen(f"{self._inbox}.*", self._on_answer)

    async def publish(self, subject: str, body: bytes, headers: dict[str, str]) -> int:
        """Publish to a stream and return the sequence under which it was stored.

        Raises:
            BodyTooLargeError: It is larger than the server, or the stream, takes.
            JetStreamOffError: No acknowledgement came within 2 seconds, though the server is there.
            BrokerError: The stream refused, or the server did not answer.
        """
        doing = f"publishing to {subject}"
        answer = await self._ask(doing, subject, body, headers, limit_s=PUBLISH_LIMIT_S)
        ack = self._object(doing, answer.data)
        if "error" in ack:
            refusal = refused(self.client, doing, ack["error"])
            if refusal.code == TOO_LARGE:
                problem = f"{refusal.problem}: {_size(body, headers)}"
                remedy = "Set the stream's max_msg_size right: a host does, when it connects."
                raise BodyTooLargeError(self.client.address, doing, problem, remedy, TOO_LARGE)
            raise refusal
        if type(ack.get("seq")) is not int:
            raise self._no_answer_of_jetstream(doing, answer.data)
        return int(ack["seq"])

    async def api(
        self, what: str, body: dict[str, Any], *, limit_s: float | None = None
    ) -> dict[str, Any]:
        """Return JetStream's answer to a request, with an ``error`` key if it has one.

        Raises:
            JetStreamOffError: There is no JetStream, or only the server itself answers.
            BrokerError: No answer came within `limit_s`, 5 seconds when left out.
        """
        subject = f"$JS.API.{what}"
        payload, again_s = json.dumps(body).encode(), AGAIN_S if what.startswith(_READS) else None
        answer = await self._ask(
            what, subject, payload, limit_s=limit_s or API_LIMIT_S, again_s=again_s
        )
        response = self._object(what, answer.data)
        if (error := response.get("error", {})).get("err_code") in _OFF:
            raise refused(self.client, what, error)
        return response

    async def api_or_raise(
        self, what: str, body: dict[str, Any], *, limit_s: float | None = None
    ) -> dict[str, Any]:
        """Return JetStream's answer to a request that must succeed.

        Raises:
            BrokerError: It did not.
        """
        answer = await self.api(what, body, limit_s=limit_s)
        if "error" in answer:
            raise refused(self.client, what, answer["error"])
        return answer

    async def stored(self, stream: str, query: dict[str, Any]) -> dict[str, Any] | None:
        """Return a message of a stream as the server's answer has it, or None if there is none.

        Raises:
            BrokerError: It cannot be read.
        """
        what = f"STREAM.MSG.GET.{stream}"
        answer = await self.api(what, query)
        error = answer.get("error", {})
        if error and error.get("err_code") != _NO_MESSAGE:
            raise refused(self.client, what, error)
        message: dict[str, Any] | None = answer.get("message")
        return message

    async def _ask(
        self,
        doing: str,
        subject: str,
        body: bytes,
        headers: Mapping[str, str] | None = None,
        *,
        limit_s: float,
        again_s: float | None = None,
    ) -> Reply:
        """Return JetStream's answer. If NATS answers and JetStream does not, the error names JetStream."""
        try:
            return await self.request(
                doing, subject, body, headers=headers, limit_s=limit_s, again_s=again_s
            )
        except errors.NoAnswerError as exc:
            if not await self.client.is_answered(limit_s):
                raise
            problem = f"the server answers, its JetStream does not within {limit_s:g} s"
            raise errors.JetStreamOffError(exc.server, doing, problem, TURN_ON) from exc

    def _object(self, doing: str, answer: bytes) -> dict[str, Any]:
        try:
            value = json.loads(answer)
        except ValueError:
            value = None
        if not isinstance(value, dict):
            raise self._no_answer_of_jetstream(doing, answer)
        return value

    def _no_answer_of_jetstream(self, doing: str, answer: bytes) -> errors.ServerError:
        problem = f"the answer is none of JetStream's: {answer[:80]!r}"
        return errors.ServerError(
            self.client.address, doing, problem, "Look for who else answers there."
        )

    async def request(
        self,
        doing: str,
        subject: str,
        body: bytes,
        *,
        headers: Mapping[str, str] | None = None,
        limit_s: float,
        again_s: float | None = None,
    ) -> Reply:
        """Publish with a reply subject of our own and return what comes there first.

        With `again_s` the request is published every `again_s` seconds until an answer comes. Use it only for
        requests that may be executed twice: a cluster without a leader drops requests.

        Raises:
            NoAnswerError: No answer came in time.
            RefusedError: The subject has no subscriber. The request was not delivered.
            BrokerError: As for `tell`.
        """
        future: asyncio.Future[Reply] = self._loop.create_future()

        def take(reply: Reply | errors.ServerError) -> None:
            if future.done():
                return
            if isinstance(reply, errors.ServerError):
                future.set_exception(reply)
            else:
                future.set_result(reply)

        def expire() -> None:
            remedy = "Try again; if that persists, look at the server's load and log."
            problem = f"no answer within {limit_s:g} s"
            take(errors.NoAnswerError(self.client.address, doing, problem, remedy))

        limit = self._loop.call_later(limit_s, expire)
        token, reply = self._expect(subject, take)
        try:
            await self.tell(doing, subject, body, reply=reply, headers=headers)
            # `wait` leaves the future as it is when the time is over; `wait_for` would cancel it.
            while again_s is not None and not (await asyncio.wait([future], timeout=again_s))[0]:
                await self.tell(doing, subject, body, reply=reply, headers=headers)
            return await future
        finally:
            limit.cancel()
            del self._takers[token]
            if future.done() and not future.cancelled():
                future.exception()  # it is raised above, or no caller waits for it any more

    @contextmanager
    def taking(self, subject: str, taker: Taker) -> Generator[str]:
        """Let `taker` have what is answered from `subject`; yields the reply subject."""
        token, reply = self._expect(subject, taker)
        try:
            yield reply
        finally:
            del self._takers[token]

    def _expect(self, subject: str, taker: Taker) -> tuple[bytes, str]:
        token = b"%d" % next(self._numbers)
        self._takers[token] = (subject.lower(), taker)
        return token, f"{self._inbox}.{token.decode()}"

    async def tell(
        self,
        doing: str,
        subject: str,
        body: bytes,
        *,
        reply: str = "",
        headers: Mapping[str, str] | None = None,
    ) -> None:
        """Publish without waiting for anything.

        Raises:
            BodyTooLargeError: With its headers it is larger than the server takes.
            ConnectionLostError: It is, and perhaps was not before the message went out.
            SubjectError: Nobody could publish to this subject.
            BrokerError: It was not sent.
        """
        client = self.client
        if client.lost.is_set():
            raise client.lost_error(doing)
        if client.pending_data_size > SEND_BUFFER_BYTES:
            problem = f"{SEND_BUFFER_BYTES >> 20} MiB wait to be sent already"
            raise errors.ServerError(client.address, doing, problem, "Send again later.")
        try:
            await client.publish(subject, body, reply, dict(headers) if headers else None)
        except ConnectionClosedError as exc:
            raise client.lost_error(doing) from exc
        except MaxPayloadError as exc:
            problem = f"{_size(body, headers)}, the server takes {client.max_payload}"
            remedy = "Raise max_payload in its configuration."
            raise BodyTooLargeError(client.address, doing, problem, remedy) from exc
        except (BadSubjectError, BadHeaderError) as exc:
            raise SubjectError(subject, str(exc)) from exc
        except (NatsError, OSError) as exc:
            remedy = "Send again on a new connection."
            raise errors.ServerError(client.address, doing, str(exc), remedy) from exc

    def denied(self, subject: str, problem: str) -> None:
        """Fail the calls that wait for answers from this subject (in lower case)."""
        for request_subject, taker in tuple(self._takers.values()):
            if request_subject == subject:
                taker(not_permitted(self.client, request_subject, problem))

    def fail_all(self) -> None:
        """Fail every call: the connection is lost."""
        for subject, taker in tuple(self._takers.values()):
            taker(self.client.lost_error(f"waiting for {subject}"))

    def _on_answer(self, subject: bytes, _reply: bytes, data: bytes, headers: bytes) -> None:
        request_subject, taker = self._takers.get(subject[self._skip :], ("", None))
        if taker is None:
            return
        address = self.client.address
        if not headers.startswith(_NO_RESPONDERS):
            taker(Reply(data, headers))
        elif request_subject.startswith("$js.api."):  # it is in lower case
            taker(
                errors.JetStreamOffError(address, request_subject, "JetStream is off", TURN_ON, 503)
            )
        else:
            remedy = "See that JetStream is on and that the streams are there (`callboard doctor`)."
            taker(
                errors.RefusedError(address, request_subject, "nobody there takes it", remedy, 503)
            )


def _size(body: bytes, headers: Mapping[str, str] | None) -> str:
    extra = block_bytes(headers) if headers else 0
    return f"the message has {len(body)} bytes and {extra} of headers"


def refused(client: NatsConnection, doing: str, error: dict[str, Any]) -> errors.ServerError:
    """Return JetStream's own words as an error."""
    remedy = "Look at the stream's configuration and limits (`callboard doctor`)."
    problem, code = str(error.get("description", error)), int(error.get("err_code", 0))
    if code in _OFF:
        return errors.JetStreamOffError(client.address, doing, problem, TURN_ON, code)
    return errors.RefusedError(client.address, doing, problem, remedy, code)


def not_permitted(client: NatsConnection, doing: str, problem: str) -> errors.NotPermittedError:
    """Return a violation of permissions as an error."""
    remedy = "Grant it to this user in the server's configuration (`callboard nats-config`)."
    if ".stream." in doing.lower():
        remedy = f"Let `callboard migrate --streams` do it with the admin's login. Or: {remedy}"
    return errors.NotPermittedError(client.address, doing, problem, remedy)


def instant_of(nanoseconds: int) -> datetime:
    """Return the instant, cut to whole microseconds."""
    return _EPOCH + timedelta(microseconds=nanoseconds // 1000)


def parse_nanoseconds(text: str) -> int:
    """Return the nanoseconds since 1970 of an instant that the server wrote as text."""
    whole, _, fraction = text.removesuffix("Z").partition(".")
    since = datetime.fromisoformat(whole).replace(tzinfo=UTC) - _EPOCH
    return (since.days * 86_400 + since.seconds) * 1_000_000_000 + int(fraction.ljust(9, "0"))


@asynccontextmanager
async def connected(server: ConnectOptions, prefix: str) -> AsyncGenerator[tuple[Requests, str]]:
    """Yield calls over a connection of their own, and the prefix of its subjects for answers.

    Raises:
        UnreachableError: No server could be used.
    """
    inbox = f"{prefix}.{secrets.token_hex(11)}"
    client = await open_client(server, inbox_prefix=inbox)
    requests = Requests(client, f"{inbox}.call")
    try:
        await requests.open()
        yield requests, inbox
    finally:
        await client.shut()
