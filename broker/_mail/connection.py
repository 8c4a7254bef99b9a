"""A connection to the broker: sends, reads, purges and nudges."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from datetime import datetime
from typing import Final

from nats.errors import Error as NatsError

from actors._kernel.runtime.hints import Nudge
from actors._kernel.runtime.ids import AgentId, HostIncarnation, RunId, ShardId
from actors._kernel.runtime.scheduler import ShardLease
from actors._kernel.stores.transport import Cursor, MailBatch, OutboxRow, StreamState
from actors.errors import ContractError
from broker._errors import SubjectError, UnpublishableError
from broker._mail.pulls import Pulls
from broker._mail.reader import ShardReader
from broker._mail.streams import StreamNames
from broker._nats.client import CLOSE_LIMIT_S, NatsConnection
from broker._nats.requests import BodyTooLargeError, Requests, instant_of, parse_nanoseconds
from broker._wire.codec import Decoder, encode
from broker._wire.subjects import Subjects, mailbox_of

_log = logging.getLogger("callboard.mail")
PAUSE_AFTER: Final = 1000
"""Subjects read from a list at a time: the loop has other things to do."""
_NUDGES: Final = frozenset({"run", "mail", "signal", "cancel", "fanout", "shards"})


class JetStreamConnection:
    """The `MailConnection` of JetStream. Made by `JetStreamTransport.connect`, which closes it too.

    Args:
        client: A connected client; `close` closes it.
        requests: Calls over this client, opened.
        subjects: The deployment's names.
        streams: The streams' names on the server.
        ensure: Function that creates missing streams and corrects their settings.
        inbox: Prefix of reply subjects of this connection.
        serial: Function that returns a number that no other consumer of this process has.
        on_suspect: Called when another server of the cluster is lost.
    """

    def __init__(
        self,
        client: NatsConnection,
        requests: Requests,
        *,
        subjects: Subjects,
        streams: StreamNames,
        ensure: Callable[[], Awaitable[StreamNames]],
        inbox: str,
        serial: Callable[[], int],
        on_suspect: Callable[[], None],
    ) -> None:
        self._client = client
        self._requests = requests
        self._subjects = subjects
        self._mail = streams.mail
        self._ensure = ensure
        self._serial = serial
        self._decoder = Decoder(subjects)
        self._pulls = Pulls(client, requests, f"{inbox}.pull", stream=streams.mail)
        self._readers: dict[tuple[str, int], ShardReader] = {}
        client.on_lost = self._on_lost
        client.on_denied = self._on_denied
        client.on_server_gone = self._on_server_gone
        self._on_suspect = on_suspect

    async def open(self, owner: HostIncarnation | None, on_nudge: Callable[[Nudge], None]) -> None:
        """Begin to receive messages, and nudges for `owner`."""
        await self._pulls.open()
        self._pulls.created = (await self._state()).created
        if owner is None:
            return

        def on_message(_subject: bytes, _reply: bytes, data: bytes, _headers: bytes) -> None:
            if (nudge := _parse_nudge(data)) is not None:
                on_nudge(nudge)

        await self._client.listen(self._subjects.host(owner), on_message)

    async def close(self) -> None:
        """Delete this connection's consumers and close it, within a few seconds."""
        if not self._client.lost.is_set():
            with contextlib.suppress(TimeoutError, NatsError, OSError):
                async with asyncio.timeout(CLOSE_LIMIT_S):
                    await self._pulls.close()
                    await self._client.flush()
        await self._client.shut()

    def _on_lost(self) -> None:
        self._requests.fail_all()
        self._pulls.wake()

    def _on_server_gone(self) -> None:
        self._pulls.server_gone()
        self._on_suspect()

    def _on_denied(self, subject: str, problem: str) -> None:
        self._requests.denied(subject, problem)
        self._pulls.denied(subject, problem)

    async def send(self, row: OutboxRow) -> int:
        """Publish a row and return the stream sequence under which the broker stored it.

        If it is cancelled, whether the broker has it is unknown.

        Raises:
            ContractError: The broker will never take it, however often it is sent.
            BrokerError: It was not stored, or that is unknown.
        """
        target = row.message.target
        try:
            headers, body = encode(row)
        except (ValueError, TypeError, RecursionError) as exc:
            raise UnpublishableError(str(exc)) from exc
        if not isinstance(target, AgentId):
            subject = self._subjects.topic(target)
        elif row.dead_letter is None:
            subject = self._subjects.inbox(target)
        else:
            subject = self._subjects.dead(target)
        try:
            return await self._requests.publish(subject, body, headers)
        except BodyTooLargeError as exc:
            raise UnpublishableError(str(exc)) from exc

    def read(self, lease: ShardLease, cursor: Cursor) -> AsyncGenerator[MailBatch, None]:
        """Yield the messages of a shard after `cursor` and then new ones, contiguous, in batches."""
        reader = ShardReader(
            self._pulls,
            lease,
            cursor,
            filter_subject=self._subjects.filter_of(lease.shard),
            tenant_of=self._subjects.tenant_token_of,
            decoder=self._decoder,
            serial=self._serial,
        )
        return self._batches(reader, (lease.shard, lease.epoch))

    async def _batches(
        self, reader: ShardReader, key: tuple[str, int]
    ) -> AsyncGenerator[MailBatch, None]:
        self._readers[key] = reader
        try:
            async with contextlib.aclosing(reader.batches()) as batches:
                async for batch in batches:
                    yield batch
        finally:
            if self._readers.get(key) is reader:
                del self._readers[key]

    def ack(self, batch: MailBatch) -> None:
        """Tell the broker that the batch is in rows. It goes out when the reader takes its next step."""
        reader = self._readers.get((batch.lease.shard, batch.lease.epoch))
        if reader is not None and batch.received:
            reader.acked(batch.upto.sequence)

    async def nudge(self, owner: HostIncarnation, nudge: Nudge) -> None:
        """Hint another host that something changed; the hint may be lost."""
        agent = None if nudge.agent_id is None else str(nudge.agent_id)
        facts = [nudge.kind, agent, nudge.run_id, *([nudge.shard] if nudge.shard else ())]
        body = json.dumps(facts).encode()
        await self._requests.tell("a nudge", self._subjects.host(owner), body)

    async def lost(self) -> None:
        """Return when the connection is lost."""
        await self._client.lost.wait()

    async def stream_state(self, *, read_only: bool = False) -> StreamState:
        """Return the state of the stream MAIL. Streams that were deleted are created again.

        With `read_only` nothing is changed: the leaders of stream and cluster have answered.
        """
        if read_only:
            await self._requests.api_or_raise("STREAM.NAMES", {})
        else:
            await self._ensure()
        return await self._state()

    async def _state(self) -> StreamState:
        info = await self._requests.api_or_raise(f"STREAM.INFO.{self._mail}", {})
        state = info["state"]
        if state["messages"]:
            self._pulls.stored(state["last_seq"], parse_nanoseconds(state["last_ts"]))
        return StreamState(
            name=self._mail,
            created=instant_of(parse_nanoseconds(info["created"])),
            first_sequence=state["first_seq"],
            last_sequence=state["last_seq"],
            deployment=info["config"].get("metadata", {}).get("deployment", ""),
        )

    async def stored_at(self, sequence: int) -> datetime | None:
        """Return when this message of the stream MAIL was stored; None if it is not there."""
        message = await self._requests.stored(self._mail, {"seq": sequence})
        return None if message is None else instant_of(parse_nanoseconds(message["time"]))

    async def forget_stream(self, state: StreamState) -> None:
        """Delete the stream MAIL if it is still this one, and give the connection up."""
        if (await self._state()).created == state.created:
            # Only the stream that was judged: another host may have deleted it, and made it anew, meanwhile.
            await self._requests.api_or_raise(f"STREAM.DELETE.{self._mail}", {})
        self._client.give_up(f"stream {self._mail} was rolled back, and is made anew")

    async def waiting(self) -> Sequence[AgentId]:
        """Return the agents that have messages in the stream MAIL.

        An agent whose subject holds a hash is returned as an agent of its shard.
        """
        agents: list[AgentId] = []
        strange_count = seen_count = 0
        total = 1
        while seen_count < total:
            query = {"subjects_filter": self._subjects.prefixed("mail.>"), "offset": seen_count}
            page = await self._requests.api_or_raise(f"STREAM.INFO.{self._mail}", query)
            subjects: dict[str, int] = page["state"].get("subjects") or {}
            for n, subject in enumerate(subjects, 1):
                if n % PAUSE_AFTER == 0:
                    # There may be a subject for each agent: other tasks get the event loop in between.
                    await asyncio.sleep(0)
                if self._subjects.is_post(subject):
                    continue  # a reader of messages has shards for all topics
                try:
                    agents.append(mailbox_of(self._subjects, subject))
                except SubjectError:
                    strange_count += 1
            seen_count += len(subjects)
            total = page.get("total", 0) if subjects else 0
        if strange_count:
            _log.warning(
                "the stream MAIL has subjects of no agent", extra={"subjects": strange_count}
            )
        return agents

    async def purge(self, below: int) -> int:
        """Remove all messages with a smaller sequence; return their number."""
        if below <= 1:
            return 0  # A purge below 0 would remove every message of the stream.
        what = f"STREAM.PURGE.{self._mail}"
        answer = await self._requests.api_or_raise(what, {"seq": below})
        return int(answer["purged"])


def _parse_nudge(data: bytes) -> Nudge | None:
    # A hint of another host, perhaps of another version: what cannot be read is no hint.
    try:
        kind, agent, run_id, *rest = json.loads(data)
        if kind not in _NUDGES:
            return None
        shard = ShardId(rest[0]) if rest and rest[0] else None
        return Nudge(kind, agent and AgentId.parse(agent), run_id and RunId(run_id), shard)
    except (ValueError, TypeError, AttributeError, ContractError, RecursionError):
        return None
