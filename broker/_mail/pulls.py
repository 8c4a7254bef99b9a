"""A connection's parts for all its readers: one subscription for their pulls, and calls about consumers."""

from __future__ import annotations

import asyncio
from base64 import b64decode
from datetime import datetime
from typing import Any, Final, Protocol

from nats.errors import Error as NatsError

from actors.errors import BrokerError
from broker._mail.backlog import Delivered, parse_ack_subject
from broker._nats.client import NatsConnection
from broker._nats.requests import Requests, instant_of, not_permitted, parse_nanoseconds
from broker._nats_client import RefusedError
from broker._wire.headers import parse_headers

_ACK: Final = b"$JS.ACK."
_NEVER: Final = "1970-01-01T00:00:00Z"
_NEXT: Final = "$JS.API.CONSUMER.MSG.NEXT"
SETTLE_S: Final = 0.2
"""Seconds that the other servers may take to notice that no server serves a lost one's consumers."""
CREATE_LIMIT_S: Final = 2.0
"""Seconds for the creation of one consumer."""
CATCHING_UP: Final = 16
"""Readers with a backlog that may ask at once: with 3 MiB each they stay below the 64 MiB at which a
server cuts a client off as too slow, and in memory."""

READ_AHEAD_BYTES: Final = 32 * 1024 * 1024
"""Bytes that all readers may buffer. Beyond them, each reader gets only the batch that it hands out next."""


class Reader(Protocol):
    """The reader of one consumer: `broker._mail.reader`. Callbacks of the connection call it; no call waits."""

    def delivered(self, count: int, number: int, message: Delivered) -> None:
        """Take a message: the `number`-th of its consumer, delivered the `count`-th time."""

    def status(self, code: int, text: str, headers: dict[str, str], batch: int) -> None:
        """Take what the server says about a pull request for `batch` messages."""

    def denied(self, error: BrokerError) -> None:
        """The server forbids to pull."""

    def wake(self) -> None:
        """The connection is lost."""

    def check_consumer(self) -> None:
        """A server that held the consumer may be lost."""


class Pulls:
    """Consumers of the stream MAIL, and what they deliver.

    Args:
        client: The connection.
        requests: Calls over it.
        inbox: Prefix of the subjects that pulls are answered to; it is secret.
        stream: The name of the stream MAIL.
    """

    def __init__(
        self, client: NatsConnection, requests: Requests, inbox: str, *, stream: str
    ) -> None:
        self._client = client
        self._requests = requests
        self._inbox = inbox
        self._stream = stream
        self.created: datetime | None = None
        """When this stream was made, as the connection found it."""
        self.permits = asyncio.Semaphore(CATCHING_UP)
        """Permits of readers that have a backlog."""
        self.asking = 0
        """Number of readers that have a permit."""
        self.buffered_bytes = 0
        """Bytes of the messages that readers have received and not handed out."""
        self._readers: dict[bytes, Reader] = {}
        self.newest = (0, 0)
        """The newest message known to be stored: sequence (0 = none), time in nanoseconds."""

    async def open(self) -> None:
        """Subscribe to the inbox, so that delivered messages reach their readers."""
        await self._client.listen(f"{self._inbox}.>", self._on_message)

    async def close(self) -> None:
        """Delete the consumers that are left, without waiting."""
        # A copy: `drop_consumer` takes each one out.
        for consumer in tuple(self._readers):
            await self.drop_consumer(consumer.decode())

    def _on_message(self, subject: bytes, reply: bytes, data: bytes, headers: bytes) -> None:
        if reply.startswith(_ACK):
            consumer, count, sequence, number, stored_ns = parse_ack_subject(reply)
            self.stored(sequence, stored_ns)
            reader = self._readers.get(consumer)
            if reader is None:
                return  # A consumer given up had it on its way.
            reader.delivered(
                count, number, Delivered(sequence, stored_ns, subject, reply, headers, data)
            )
        else:
            _, consumer, batch = subject.rsplit(b".", 2)
            if (reader := self._readers.get(consumer)) is not None:
                text = headers[13:].partition(b"\r\n")[0].decode(errors="replace")
                reader.status(int(headers[9:12]), text, parse_headers(headers), int(batch))

    def stored(self, sequence: int, stored_ns: int) -> None:
        """Note that the stream holds this message, or held it."""
        if sequence > self.newest[0]:
            self.newest = (sequence, stored_ns)

    def denied(self, subject: str, problem: str) -> None:
        """Tell the reader whose pulls the server forbids; `subject` is in lower case."""
        for consumer, reader in self._readers.items():
            if subject.endswith("." + consumer.decode().lower()):
                reader.denied(not_permitted(self._client, f"pulling by {subject}", problem))

    def wake(self) -> None:
        """Let every reader ask again: the connection is lost."""
        for reader in self._readers.values():
            reader.wake()

    @property
    def has_capacity(self) -> bool:
        """True if readers may read ahead."""
        return self.buffered_bytes < READ_AHEAD_BYTES

    def server_gone(self) -> None:
        """Let every reader see soon whether its consumer was on the server that the cluster lost."""
        asyncio.get_running_loop().call_later(SETTLE_S, self._check_consumers)

    def _check_consumers(self) -> None:
        for reader in self._readers.values():
            reader.check_consumer()

    def check(self) -> None:
        """Raise BrokerError if the connection is lost."""
        if self._client.lost.is_set():
            raise self._client.lost_error("reading messages")

    async def create_consumer(self, name: str, reader: Reader, config: dict[str, Any]) -> int:
        """Create a consumer that delivers to the reader; return how many messages wait for it.

        Raises:
            JetStreamOffError: Nobody said that it is created; in a cluster, perhaps because it was
                given to a server that is lost.
            BrokerError: It was not created, or another one stands under its name.
        """
        self._readers[name.encode()] = reader
        what = f"CONSUMER.CREATE.{self._stream}.{name}"
        body = {"stream_name": self._stream, "config": config, "action": "create"}
        answer = await self._requests.api_or_raise(what, body, limit_s=CREATE_LIMIT_S)
        # The server answers with the old one if a consumer of this name and configuration exists,
        # and older servers do so whatever its configuration.
        actual = answer["config"]
        if any(actual.get(key) != config[key] for key in ("filter_subject", "opt_start_seq")):
            problem = f"it reads {actual.get('filter_subject')} from {actual.get('opt_start_seq')}"
            remedy = "Delete that consumer: its name is one of ours."
            raise RefusedError(self._client.address, what, problem, remedy)
        return int(answer.get("num_pending", 0))

    async def drop_consumer(self, name: str) -> None:
        """Take no more from the consumer, and delete it without waiting for the answer."""
        if self._readers.pop(name.encode(), None) is not None:
            await self._send(f"$JS.API.CONSUMER.DELETE.{self._stream}.{name}", b"", "")

    async def ask(self, consumer: str, batch: int, request: bytes) -> None:
        """Send a pull request for `batch` messages."""
        reply = f"{self._inbox}.{consumer}.{batch}"
        await self._send(f"{_NEXT}.{self._stream}.{consumer}", request, reply)

    async def acknowledge(self, reply: bytes) -> None:
        """Acknowledge the message, and with it all that its consumer delivered before."""
        await self._send(reply.decode(), b"+ACK", "")

    async def _send(self, subject: str, body: bytes, reply: str) -> None:
        if not self._client.lost.is_set():
            try:
                await self._client.publish(subject, body, reply)
            except (NatsError, OSError) as exc:
                # Not repeated: on the next connection readers begin anew behind their cursors.
                self._client.give_up(str(exc))

    async def first_stored(self, filter_subject: str, sequence: int) -> int | None:
        """Return the first sequence, from `sequence` on, that is stored under the filter."""
        query = {"seq": sequence, "next_by_subj": filter_subject}
        message = await self._requests.stored(self._stream, query)
        return None if message is None else int(message["seq"])

    async def whole(self, message: Delivered) -> Delivered:
        """Return the message with its headers and data, read from the stream where they were let go.

        Raises:
            BrokerError: They cannot be read, or the stream is another one now.
        """
        if not message.let_go_bytes:
            return message
        stored_message = await self._requests.stored(self._stream, {"seq": message.sequence}) or {}
        # Another message, or none, has this sequence now: the stream was made anew, or lost its end.
        if parse_nanoseconds(stored_message.get("time", _NEVER)) != message.stored_ns:
            self._client.give_up(f"stream {self._stream} lost message {message.sequence}")
            self.check()
        headers, data = (b64decode(stored_message.get(part, "")) for part in ("hdrs", "data"))
        return message._replace(headers=headers, data=data, let_go_bytes=0)

    async def check_stream(self) -> None:
        """Give the connection up if the stream is not the one that was connected to.

        Raises:
            BrokerError: It is another one now, or gone; it has to be guarded before it is read.
        """
        info = await self._requests.api(f"STREAM.INFO.{self._stream}", {})
        if "error" in info or instant_of(parse_nanoseconds(info["created"])) != self.created:
            self._client.give_up(f"stream {self._stream} was deleted or made anew")
            self.check()
