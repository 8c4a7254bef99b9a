"""Messages as bytes and back; whatever is wrong with bytes becomes a value, never an exception.

A host's message is the stored form of a message. What a stream sourced from EDGE comes from outside:
its sender, its kind, the run and the signal's name are those of the subject to which it was
published, whatever its headers and its body claim.
"""

from __future__ import annotations

import contextlib
import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Final, get_args

import msgpack
from pydantic_core import to_json

from actors._kernel.agent.message import SCHEMA_VERSION, Message, SenderKind, sender_of
from actors._kernel.json import JsonValue
from actors._kernel.runtime.ids import AgentId, RunId, TopicId, derive_id, letters_of, place_of
from actors._kernel.stores.transport import KEPT_BYTES, OutboxRow, Received, SentSignal, Undecodable
from actors.errors import ContractError
from broker._errors import BadMessageError
from broker._wire import bodies
from broker._wire import headers as wire_headers
from broker._wire import subjects as wire_subjects
from broker._wire.headers import MAX_MAIL_BYTES, TEXT, header_text, header_value
from broker._wire.subjects import Subjects, has_hash

NOBODY: Final = AgentId("invalid", "invalid")
"""The owner of the dead letter when the subject names no agent."""

MESSAGE_KIND: Final = "message"
POST_KIND: Final = "post"
DEAD_KIND: Final = "dead_letter"

_FIELDS: Final = frozenset(
    (
        *("v", "id", "target", "sender", "created_at", "payload"),
        *("reply_to", "correlation_id", "causation_id", "metadata"),
    )
)
_SENDERS: Final = tuple(f"{kind}:" for kind in get_args(SenderKind))
_EDGE: Final = re.compile(r"(?:[a-z0-9_-]{1,32}_)?EDGE_[0-9a-z]+")
_ANSWER: Final = "io.nats.jetstream.api."
_ORIGIN: Final = re.compile(r"[!-~]{1,255} [0-9]{1,20}")
_MAX_PROBLEM: Final = 500


@dataclass(slots=True)
class Wire:
    """A message as the stream MAIL delivered it."""

    subject: str
    headers: Mapping[str, str]
    data: bytes
    sequence: int
    stored_at: datetime


def encode(row: OutboxRow) -> tuple[dict[str, str], bytes]:
    """Return headers and body of an outbox row: a message, a dead letter, or a post for observers.

    A body over `MAX_MAIL_BYTES` (of a release that sent more) is cut, and a header has its size: the
    receiver makes one dead letter of it.
    """
    message = row.message
    sender = message.sender or ""
    body, content_type = _pack(message.to_json())
    headers = {
        wire_headers.MESSAGE_ID: header_value(message.id),
        wire_headers.KIND: MESSAGE_KIND,
        wire_headers.SENDER: header_value(sender),
        wire_headers.CONTENT_TYPE: content_type,
    }
    if row.dead_letter is not None:
        headers[wire_headers.KIND] = DEAD_KIND
        letter_id = derive_id("dead", str(message.target), sender, message.id)
        headers[wire_headers.MESSAGE_ID] = letter_id  # clients' ids are not unique in a stream
        headers[wire_headers.REASON] = header_value(row.dead_letter)
    target = message.target
    if not isinstance(target, AgentId):
        headers[wire_headers.KIND] = POST_KIND
        target = place_of(target)
    if has_hash(target):
        headers[wire_headers.TARGET] = header_value(str(target))
    if len(body) > MAX_MAIL_BYTES:
        headers[wire_headers.SIZE] = str(len(body))
        body = body[:KEPT_BYTES]
    if message.metadata:
        headers |= bodies.trace_context(message.metadata)
    return headers, body


def _pack(body: dict[str, JsonValue]) -> tuple[bytes, str]:
    try:
        packed_body: bytes = msgpack.packb(body)
        if len(packed_body) <= MAX_MAIL_BYTES:
            return packed_body, wire_headers.MSGPACK
    except (OverflowError, ValueError, TypeError):  # an integer of more than 64 bits, for example
        pass
    # Short floats are longer as msgpack, and a payload's limit is one of JSON.
    return to_json(body), wire_headers.JSON


class Decoder:
    """Turns what the stream MAIL holds into messages."""

    def __init__(self, subjects: Subjects) -> None:
        self._subjects = subjects

    def decode(self, wire: Wire) -> Received:
        """Decode a message; its content is `Undecodable` if the bytes are no message. Never raises."""
        source = wire.headers.get(wire_headers.STREAM_SOURCE)
        try:
            if source is None:
                return self._decode_mail(wire)
            is_post = self._subjects.is_post(wire.subject)
            return (
                self._decode_post(wire, source) if is_post else self._decode_sourced(wire, source)
            )
        except (ContractError, ValueError, RecursionError, OverflowError) as exc:
            return self._make_undecodable(wire, source, str(exc))

    def _decode_mail(self, wire: Wire) -> Received:
        """Decode what a host published."""
        headers = wire.headers
        agent = wire_subjects.parse_stored(
            self._subjects, wire.subject, bodies.claimed_target(headers)
        )
        kind = headers.get(wire_headers.KIND)
        if kind != MESSAGE_KIND:
            raise BadMessageError(f"header {wire_headers.KIND} is {kind!r}, not {MESSAGE_KIND!r}")
        bodies.check_size(int(headers.get(wire_headers.SIZE, 0)), MAX_MAIL_BYTES)
        message = _message(bodies.parse_body(wire.data, wire.headers, MAX_MAIL_BYTES), agent)
        sender = message.sender or ""
        if header_value(sender) != headers.get(wire_headers.SENDER):
            raise BadMessageError(f"header {wire_headers.SENDER} is not the body's {sender!r}")
        return Received(wire.sequence, agent, sender, message.id, message)

    def _decode_sourced(self, wire: Wire, source: str) -> Received:
        """Decode what an external client sent to an agent, and EDGE passed on."""
        origin = self._origin(wire, source, bodies.claimed_target(wire.headers))
        agent = origin.agent
        if agent.key.startswith("~"):
            raise BadMessageError("a key that begins with '~' cannot be addressed from outside")
        message_id = _id_from_outside(wire, source)
        sender = sender_of("ext", origin.publisher)
        content: Message | SentSignal
        if origin.run_id is not None and origin.name is not None:
            if origin.name.startswith("~"):
                raise BadMessageError(
                    "a signal's name that begins with '~' is not for external clients"
                )
            payload = _payload_from_outside(wire) if wire.data else None
            content = SentSignal(origin.run_id, origin.name, payload)
        else:
            content = _message_from_outside(wire, agent, sender, message_id)
        return Received(wire.sequence, agent, sender, message_id, content, sourced=True)

    def _decode_post(self, wire: Wire, source: str) -> Received:
        """Decode what an external client posted to a topic, and EDGE passed on."""
        origin = self._post_origin(wire, source, bodies.claimed_target(wire.headers))
        message_id = _id_from_outside(wire, source)
        sender = sender_of("ext", origin.publisher)
        post = _message_from_outside(wire, origin.topic, sender, message_id)
        letters = letters_of(origin.topic)
        return Received(wire.sequence, letters, sender, message_id, post, sourced=True)

    def _post_origin(
        self, wire: Wire, source: str, claimed_agent: AgentId | None
    ) -> wire_subjects.PostOrigin:
        """Return what the origin subject of a post says."""
        topic = wire_subjects.parse_stored_post(self._subjects, wire.subject, claimed_agent)
        origin = wire_subjects.parse_post_origin(self._subjects, _parts(source)[4], claimed_agent)
        if origin.topic != topic:
            raise BadMessageError(f"posted to {origin.topic}, stored for {topic}")
        return origin

    def _origin(
        self, wire: Wire, source: str, claimed_agent: AgentId | None
    ) -> wire_subjects.AgentOrigin:
        """Return what the origin subject says."""
        agent = wire_subjects.parse_stored(self._subjects, wire.subject, claimed_agent)
        origin = wire_subjects.parse_origin(self._subjects, _parts(source)[4], claimed_agent)
        if origin.agent != agent:
            raise BadMessageError(f"published to {origin.agent}, stored for {agent}")
        return origin

    def _make_undecodable(self, wire: Wire, source: str | None, problem: str) -> Received:
        """Return the same for the same bytes at the same position, however often they are read."""
        stream, number = self._subjects.stream("MAIL"), str(wire.sequence)
        agent = self._dead_letter_agent(wire.subject)
        sender, message_id = "ext:invalid", None
        if source is None:
            # With its true sender and id the ingest finds its outbox row, which must go: the rest
            # of what that sender sent waits after it.
            sender, message_id = _claims_of_host(wire.headers) or (sender, None)
        else:
            with contextlib.suppress(ContractError):
                stream, number, *_ = _parts(source)
            # A false claim does not hide its publisher; where the subject holds a hash, only a true
            # one tells whose it is.
            for is_believed in (False, True):
                with contextlib.suppress(ContractError, ValueError):
                    claimed_agent = bodies.claimed_target(wire.headers) if is_believed else None
                    agent, sender = self._claims_of_client(wire, source, claimed_agent)
        if message_id is None:
            message_id = derive_id("undecodable", stream, number, _digest(wire.data))
        problem = problem[:_MAX_PROBLEM].replace("\x00", "")
        content = Undecodable(problem, wire.data[:KEPT_BYTES])
        return Received(
            wire.sequence, agent, sender, message_id, content, sourced=source is not None
        )

    def _dead_letter_agent(self, subject: str) -> AgentId:
        """Return the owner of the dead letter, as far as the stored subject names it."""
        try:
            if self._subjects.is_post(subject):
                return letters_of(wire_subjects.parse_stored_post(self._subjects, subject))
            return wire_subjects.parse_stored(self._subjects, subject)
        except ContractError:
            return NOBODY

    def _claims_of_client(
        self, wire: Wire, source: str, claimed_agent: AgentId | None
    ) -> tuple[AgentId, str]:
        """Return the owner of the dead letter, and its sender."""
        if self._subjects.is_post(wire.subject):
            topic, publisher = self._post_origin(wire, source, claimed_agent)
            return letters_of(topic), sender_of("ext", publisher)
        origin = self._origin(wire, source, claimed_agent)
        return origin.agent, sender_of("ext", origin.publisher)


def _parts(source: str) -> list[str]:
    # nats-server: stream, sequence, filters, transforms, subject, and since 2.15 a sixth part.
    # Several filters are parted by form feeds: only a single space ends a part.
    parts = source.split(" ")
    if len(parts) < 5 or _ORIGIN.fullmatch(" ".join(parts[:2])) is None:  # noqa: PLR2004
        raise BadMessageError(f"header {wire_headers.STREAM_SOURCE} is {source!r}")
    return parts


def _message(body: JsonValue, agent: AgentId) -> Message:
    """Return the message in the body of a host.

    Raises:
        BadMessageError: The bytes are no message, or one for another agent.
    """
    if type(body) is not dict:
        raise BadMessageError(f"the body is a {type(body).__name__}, not a map")
    version = body.get("v")
    if type(version) is not int or version != SCHEMA_VERSION:
        raise BadMessageError(f"version {version!r} of a message is not known here")
    if not body.keys() <= _FIELDS:
        raise BadMessageError(f"unknown fields {sorted(body.keys() - _FIELDS)}")
    if body.get("target") != str(agent):
        raise BadMessageError(f"is for {body.get('target')!r}, stored for {agent}")
    if "payload" not in body:
        raise BadMessageError("has no payload")
    payload = bodies.json_data(body["payload"])
    sender = _text(body, "sender")
    if not sender.startswith(_SENDERS):
        raise BadMessageError(f"sender {sender!r} is of no known kind")
    created_at = datetime.fromisoformat(_text(body, "created_at"))
    if created_at.tzinfo is None:
        raise BadMessageError("created_at has no time zone")
    return Message(
        id=bodies.checked_id(_text(body, "id")),
        target=agent,
        payload=payload,
        sender=sender,
        created_at=created_at,
        reply_to=RunId(_text(body, "reply_to")) if "reply_to" in body else None,
        correlation_id=_text(body, "correlation_id") if "correlation_id" in body else None,
        causation_id=_text(body, "causation_id") if "causation_id" in body else None,
        metadata=_metadata(body["metadata"]) if "metadata" in body else {},
    )


def _text(body: dict[str, JsonValue], name: str) -> str:
    value = body.get(name)
    if type(value) is not str or "\x00" in value:
        raise BadMessageError(f"{name} is {value!r}, not a text")
    return value


def _metadata(value: JsonValue) -> dict[str, str]:
    if type(value) is not dict:
        raise BadMessageError("metadata is not a map")
    for name in value:
        if type(name) is not str or "\x00" in name:
            raise BadMessageError(f"metadata has a key {name!r}")
    return {name: _text(value, name) for name in value}


def _id_from_outside(wire: Wire, source: str) -> str:
    """Return the publisher's id; of a message without one, made of its position in EDGE."""
    message_id = wire.headers.get(wire_headers.MESSAGE_ID) or wire.headers.get("ce-id")
    if message_id:
        return bodies.external_id(message_id)
    stream, number, *_ = _parts(source)
    return derive_id("edge", stream, number, _digest(wire.data))


def _payload_from_outside(wire: Wire) -> JsonValue:
    """Return the body, which an external client wrote.

    JetStream's answers go wherever the request says, without a check of permissions: to an agent of another
    tenant, too, as if another publisher had written them.
    """
    payload = bodies.json_data(bodies.parse_body(wire.data, wire.headers))
    if type(payload) is dict and _EDGE.fullmatch(str(payload.get("stream"))):
        raise BadMessageError("is the broker's acknowledgement of another message")
    if type(payload) is dict and str(payload.get("type")).startswith(_ANSWER):
        raise BadMessageError("is the broker's answer to somebody's question")
    return payload


def _message_from_outside(
    wire: Wire, target: AgentId | TopicId, sender: str, message_id: str
) -> Message:
    payload = _payload_from_outside(wire)
    if type(payload) is not dict:
        raise BadMessageError(f"the body is a {type(payload).__name__}, not a JSON object")
    return Message(
        id=message_id,
        target=target,
        payload=payload,
        sender=sender,
        created_at=wire.stored_at,
        metadata=bodies.metadata_from_outside(wire.headers),
    )


def _claims_of_host(headers: Mapping[str, str]) -> tuple[str, str] | None:
    """Return sender and id that a host set, if they could be true."""
    sender, message_id = headers.get(wire_headers.SENDER), headers.get(wire_headers.MESSAGE_ID)
    if not sender or not message_id:
        return None
    try:
        sender, message_id = header_text(sender), bodies.checked_id(header_text(message_id))
    except (BadMessageError, ValueError):
        return None
    is_valid = sender.startswith(_SENDERS) and TEXT.fullmatch(sender) is not None
    return (sender, message_id) if is_valid else None


def _digest(data: bytes) -> str:
    return hashlib.blake2b(data, digest_size=16).hexdigest()
