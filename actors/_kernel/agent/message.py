"""Messages: what agents and external clients send, before it becomes an envelope on a wire."""

from __future__ import annotations

import uuid
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import ClassVar, Final, Literal, Self, TypeAlias, get_args

from pydantic import BaseModel, ConfigDict, Field
from pydantic_core import from_json

from actors._kernel.json import JsonValue, fresh, read_or, sized
from actors._kernel.runtime.ids import AgentId, RunId, TopicId
from actors.errors import ContractError, MessageTooLargeError

SCHEMA_VERSION: Final = 1
SenderKind: TypeAlias = Literal[
    "agent", "ext", "client", "topic", "submit", "spawn", "schedule", "session"
]
_SENDER_KINDS: Final = tuple(f"{kind}:" for kind in get_args(SenderKind))

MAX_PAYLOAD_BYTES: Final = 256 * 1024
"""Largest payload, as JSON text in UTF-8, with and without a broker: a broker can carry each payload of
this size."""
MAX_METADATA_BYTES: Final = 16 * 1024
"""Largest metadata of a message, as JSON."""
MAX_ID_BYTES: Final = 256
"""Largest id in a message."""

SET_BY_RUNTIME: Final = frozenset(
    {"publisher", "sender", "scheduled_at", "triggered_by", "traceparent", "tracestate"}
)
"""Keys of a message's metadata by which the runtime names its origin. External clients cannot set them."""


_NEVER: Final = datetime(1970, 1, 1, tzinfo=UTC)
_set: Final = object.__setattr__
"""Sets an attribute of a frozen model."""


def check_payload_size(size_bytes: int, *, what: str) -> None:
    """Check that a payload of this size may be sent.

    Raises:
        MessageTooLargeError: It may not.
    """
    if size_bytes > MAX_PAYLOAD_BYTES:
        raise MessageTooLargeError(what, size_bytes, MAX_PAYLOAD_BYTES)


def check_metadata(metadata: dict[str, str], *, what: str) -> None:
    """Check that a message may have this metadata.

    Raises:
        NotSerializableError: It is not JSON data.
        MessageTooLargeError: There is too much of it.
    """
    if metadata:
        where = f"metadata of a {what}"
        size_bytes = sized(metadata, where=where)[1]
        if size_bytes > MAX_METADATA_BYTES:
            raise MessageTooLargeError(where, size_bytes, MAX_METADATA_BYTES)


def payload_of(value: object, *, what: str) -> JsonValue:
    """Return JSON data that may be sent, as its receiver will get it.

    Raises:
        NotSerializableError: It is not JSON data.
        MessageTooLargeError: There is too much of it.
    """
    clean_payload, size_bytes = sized(value, where=what)
    check_payload_size(size_bytes, what=what)
    return clean_payload


def sender_of(kind: SenderKind, name: object) -> str:
    """Return a typed sender, for example ``agent:desk/1``: order and dedup are per sender."""
    return f"{kind}:{name}"


@dataclass(frozen=True, slots=True)
class Message:
    """A message to an agent or a topic.

    Attributes:
        id: Unique per (agent, sender); sending the same id again is a no-op for at least 8 days.
        target: The agent that gets the message.
        sender: Typed sender (``agent:type/key``, ``ext:…``, ``client:…``, ``topic:…``, ``submit:…``,
            ``spawn:<parent agent>``, ``schedule:…``, ``session:…``) or None before it is sent.
        payload: JSON data. A registered payload kind is a dict with a ``kind`` key.
        reply_to: The asking run, if this is an ask.
        correlation_id: Connects an ask and its reply: the ask's own id.
        causation_id: Id of the message or effect that caused this one.
        metadata: Small text values, for example trace context. Never message content.
    """

    id: str
    target: AgentId | TopicId
    payload: JsonValue
    sender: str | None = None
    schema_version: int = SCHEMA_VERSION
    created_at: datetime = field(default_factory=lambda: datetime.now(UTC))
    reply_to: RunId | None = None
    correlation_id: str | None = None
    causation_id: str | None = None
    metadata: dict[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, target: AgentId | TopicId, payload: object, *, id: str | None = None) -> Self:  # noqa: A002
        """Return a message with a fresh id (or `id`) and the current time.

        Raises:
            NotSerializableError: `payload` is neither JSON data nor a registered payload.
            MessageTooLargeError: It has more than 256 KiB as JSON.
        """
        if isinstance(payload, BaseModel):
            payload = payload.model_dump(mode="json")
        return cls(
            id=id or uuid.uuid4().hex,
            target=target,
            payload=payload_of(payload, what=f"message to {target}"),
        )

    def checked(self) -> Message:
        """Return this message as it may be sent, its payload as the receiver will get it.

        Raises:
            NotSerializableError: Its payload or its metadata is not JSON data.
            MessageTooLargeError: Its payload, its metadata or one of its ids is too large.
        """
        what = f"message to {self.target}"
        for name in ("id", "reply_to", "correlation_id", "causation_id"):
            size_bytes = len((getattr(self, name) or "").encode(errors="surrogatepass"))
            if size_bytes > MAX_ID_BYTES:
                raise MessageTooLargeError(f"{name} of a {what}", size_bytes, MAX_ID_BYTES)
        check_metadata(self.metadata, what=what)
        return replace(self, payload=payload_of(self.payload, what=what))

    def sent_by(self, sender: str) -> Message:
        """Return this message with its typed sender.

        Raises:
            ContractError: `sender` has no known prefix.
        """
        if not sender.startswith(_SENDER_KINDS):
            msg = f"sender {sender!r} must start with one of {', '.join(_SENDER_KINDS)}"
            raise ContractError(msg)
        return replace(self, sender=sender)

    def copied(self) -> Message:
        """Return this message with a payload and metadata of its own, for code that may change them."""
        return self._copy(self.target, fresh(self.payload), dict(self.metadata))

    def copied_to(self, target: AgentId) -> Message:
        """Return this message for another agent. Payload and metadata are shared."""
        return self._copy(target, self.payload, self.metadata)

    def _copy(
        self, target: AgentId | TopicId, payload: JsonValue, metadata: dict[str, str]
    ) -> Message:
        # Each message that is handled is copied: half the time of `replace`.
        return Message(
            self.id,
            target,
            payload,
            self.sender,
            self.schema_version,
            self.created_at,
            self.reply_to,
            self.correlation_id,
            self.causation_id,
            metadata,
        )

    def to_json(self) -> dict[str, JsonValue]:
        """Return the stored form: only what is set, instants as ISO 8601 text."""
        data: dict[str, JsonValue] = {
            "v": self.schema_version,
            "id": self.id,
            "target": str(self.target),
            "sender": self.sender,
            "created_at": self.created_at.isoformat(),
            "payload": self.payload,
        }
        if isinstance(self.target, TopicId):
            data["topic"] = True
        for name in ("reply_to", "correlation_id", "causation_id"):
            value: str | None = getattr(self, name)
            if value is not None:
                data[name] = value
        if self.metadata:
            data["metadata"] = dict(self.metadata)
        return data

    @classmethod
    def from_json(cls, data: dict[str, JsonValue]) -> Message:
        """Return the message that `to_json` stored."""
        target = AgentId.parse(str(data["target"]))
        meta = data.get("metadata")
        return cls(
            id=str(data["id"]),
            target=TopicId(target.type, target.key, target.tenant) if data.get("topic") else target,
            payload=data["payload"],
            sender=_text(data.get("sender")),
            schema_version=int(str(data.get("v", SCHEMA_VERSION))),
            created_at=datetime.fromisoformat(str(data["created_at"])),
            reply_to=RunId(str(data["reply_to"])) if data.get("reply_to") else None,
            correlation_id=_text(data.get("correlation_id")),
            causation_id=_text(data.get("causation_id")),
            metadata={k: str(v) for k, v in meta.items()} if isinstance(meta, dict) else {},
        )


def stored_message(text: str, *, id_: str, target: AgentId, sender: str | None) -> Message:
    """Return a stored message. If its body cannot be read, its payload is an `Unreadable`.

    Args:
        text: The body.
        id_: The message's id as its row has it; so for target and sender.
        target: The receiver.
        sender: The sender.
    """
    return read_or(
        text,
        lambda body: Message.from_json(from_json(body)),
        lambda problem: Message(id_, target, problem, sender=sender, created_at=_NEVER),
    )


def _text(value: JsonValue) -> str | None:
    return None if value is None else str(value)


@dataclass(frozen=True, slots=True, order=True)
class MessageKey:
    """The identity of a message: agent, sender and id together."""

    agent: AgentId
    sender: str
    message_id: str


class ContentBlock(BaseModel):
    """A part of a chat message. Unknown block types are kept as they came, never dropped."""

    model_config: ClassVar[ConfigDict] = ConfigDict(frozen=True, extra="allow")

    type: str = Field(examples=["text", "image", "audio", "file", "tool_call", "tool_result"])
    text: str | None = None

    def copied(self) -> Self:
        """Return this block; one with more than a text with values of its own."""
        return self.model_copy(update=fresh(self.model_extra)) if self.model_extra else self


class ChatMessage(BaseModel):
    """A message of a conversation with a model: a turn.

    Keys of `metadata` that have a meaning: ``turn`` and ``parent`` (ids of this turn and of the one
    before it), ``pinned`` (compaction keeps the turn), ``tokens`` (its size, counted once).
    """

    model_config: ClassVar[ConfigDict] = ConfigDict(frozen=True, extra="forbid")

    role: Literal["system", "user", "assistant", "tool"]
    content: list[ContentBlock] = Field(default_factory=list)
    name: str | None = None
    metadata: dict[str, str] = Field(default_factory=dict)

    @classmethod
    def of(cls, role: Literal["system", "user", "assistant", "tool"], text: str) -> Self:
        """Return a message with one text block."""
        return cls(role=role, content=[ContentBlock(type="text", text=text)])

    @property
    def text(self) -> str:
        """The text of all text blocks, joined."""
        return "".join(block.text or "" for block in self.content if block.type == "text")

    def with_metadata(self, metadata: dict[str, str]) -> Self:
        """Return this message with other metadata. Content and its blocks are shared."""
        # As `model_copy`, in a quarter of its time: it is called for each turn of a window.
        copy = self.__class__.__new__(self.__class__)
        _set(copy, "__dict__", {**self.__dict__, "metadata": metadata})
        _set(copy, "__pydantic_fields_set__", self.__pydantic_fields_set__ | {"metadata"})
        _set(copy, "__pydantic_extra__", self.__pydantic_extra__)
        _set(copy, "__pydantic_private__", self.__pydantic_private__)
        return copy

    def copied(self) -> Self:
        """Return this message with content and metadata of its own, for a holder that keeps it."""
        content = [block.copied() for block in self.content]
        return self.model_copy(update={"content": content, "metadata": {**self.metadata}})

    @property
    def turn(self) -> str | None:
        """The turn's id, by which a `HistoryProvider` drops it when it comes again, or None if it has none."""
        return self.metadata.get("turn") or None

    @property
    def parent(self) -> str | None:
        """The id of the turn that this one follows, or None for the one before it in the session."""
        return self.metadata.get("parent") or None
