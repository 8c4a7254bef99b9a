"""What all readers of a connection share: one subscription for their pulls, and calls about consumers."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from nats.errors import Error as NatsError

from broker.api import NO_MESSAGE, instant_of, not_permitted, parse_nanoseconds, refused
from broker.headers import parse_headers
from broker.nats_client import RefusedError

if TYPE_CHECKING:
    from datetime import datetime

    from broker.api import Requests
    from broker.nats_client import Client
    from broker.reader import ShardReader

_ACK: Final = b"$JS.ACK."
_ACK_TOKENS: Final = 9
"""Of ``$JS.ACK.<stream>.<consumer>.<count>.<sequence>.<number>.<time>.<pending>``; the form of
servers from 2.16 on has domain and account before the stream, and perhaps a token at the end."""
_NEXT: Final = "$JS.API.CONSUMER.MSG.NEXT"
CATCHING_UP: Final = 16
"""Readers with a backlog that may ask at once: with 3 MiB each they stay below the 64 MiB at which a
server cuts a client off as too slow, and in memory."""


def parse_ack_subject(reply: bytes) -> tuple[bytes, int, int, int, int]:
    """Return consumer, delivery count, stream sequence, consumer's number and time in nanoseconds."""
    tokens = reply.split(b".")
    at = 3 if len(tokens) == _ACK_TOKENS else 5
    count, sequence, number, stored_ns = map(int, tokens[at + 1 : at + 5])
    return tokens[at], count, sequence, number, stored_ns


def parse_pending(reply: bytes) -> int:
    """Return how many messages were left for the consumer when this one was delivered."""
    tokens = reply.split(b".")
    return int(tokens[8 if len(tokens) == _ACK_TOKENS else 10])


class Delivered(NamedTuple):
    """A message as it came."""

    sequence: int
    stored_ns: int
    subject: bytes
    reply: bytes
    """Where to acknowledge it."""
    headers: bytes
    data: bytes


class Pulls:
    """Consumers of the mail stream, and what they deliver.

    Args:
        client: The connection.
        requests: Calls over it.
        inbox: Prefix of the subjects that pulls are answered to; nobody else may know it.
        stream: The mail stream's name.
    """

    def __init__(self, client: Client, requests: Requests, inbox: str, *, stream: str) -> None:
        self._client = client
        self._requests = requests
        self._inbox = inbox
        self._stream = stream
        self.created: datetime | None = None
        """When this stream was made, as the connection found it."""
        self.turns = asyncio.Semaphore(CATCHING_UP)
        """Of readers with a backlog."""
        self._readers: dict[bytes, ShardReader] = {}
        self._newest = (0, 0)

    async def open(self) -> None:
        """Begin to take what comes."""
        await self._client.listen(f"{self._inbox}.>", self._arrived)

    async def close(self) -> None:
        """Delete the consumers that are left, without waiting."""
        for consumer in tuple(self._readers):
            await self.drop_consumer(consumer.decode())

    # --- what came ------------------------------------------------------------------------------

    def _arrived(self, subject: bytes, reply: bytes, data: bytes, headers: bytes) -> None:
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
                words = headers[13:].partition(b"\r\n")[0].decode(errors="replace")
                reader.status(int(headers[9:12]), words, parse_headers(headers), int(batch))

    def stored(self, sequence: int, stored_ns: int) -> None:
        """Note that the stream holds this message, or held it."""
        if sequence > self._newest[0]:
            self._newest = (sequence, stored_ns)

    @property
    def newest(self) -> tuple[int, int]:
        """The newest message known to be stored: sequence (0 = none), time in nanoseconds."""
        return self._newest

    def denied(self, subject: str, words: str) -> None:
        """Tell the reader whose pulls the server forbids; `subject` is in lower case."""
        for consumer, reader in self._readers.items():
            if subject.endswith("." + consumer.decode().lower()):
                reader.denied(not_permitted(self._client, f"pulling by {subject}", words))

    def wake(self) -> None:
        """Let every reader look again: the connection is lost."""
        for reader in self._readers.values():
            reader.wake()

    # --- calls of readers -----------------------------------------------------------------------

    def check(self) -> None:
        """Raise BrokerError if the connection is lost."""
        if self._client.lost.is_set():
            raise self._client.lost_error("reading mail")

    async def create_consumer(self, name: str, reader: ShardReader, config: dict[str, Any]) -> int:
        """Create a consumer that delivers to the reader; return how many messages wait for it.

        Raises:
            BrokerError: It was not created, or another one stands under its name.
        """
        self._readers[name.encode()] = reader
        what = f"CONSUMER.CREATE.{self._stream}.{name}"
        body = {"stream_name": self._stream, "config": config, "action": "create"}
        answer = await self._requests.api_or_raise(what, body)
        # The server answers with the old one if a consumer of this name and configuration exists,
        # and older servers do so whatever its configuration.
        made = answer["config"]
        if any(made.get(key) != config[key] for key in ("filter_subject", "opt_start_seq")):
            problem = f"it reads {made.get('filter_subject')} from {made.get('opt_start_seq')}"
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
                self._client.give_up(str(exc))

    async def first_stored(self, filter_subject: str, sequence: int) -> int | None:
        """Return the first sequence, from `sequence` on, that is stored under the filter."""
        what = f"STREAM.MSG.GET.{self._stream}"
        answer = await self._requests.api(what, {"seq": sequence, "next_by_subj": filter_subject})
        if (error := answer.get("error")) is None:
            return int(answer["message"]["seq"])
        if error.get("err_code") == NO_MESSAGE:
            return None
        raise refused(self._client, what, error)

    async def check_stream(self) -> None:
        """Give the connection up if the stream is not the one that was connected to.

        Raises:
            BrokerError: It is another one now, or gone; it has to be guarded before it is read.
        """
        info = await self._requests.api(f"STREAM.INFO.{self._stream}", {})
        if "error" in info or instant_of(parse_nanoseconds(info["created"])) != self.created:
            self._client.give_up(f"stream {self._stream} was deleted or made anew")
            self.check()
