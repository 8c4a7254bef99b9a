"""Messages on the broker for an observer: parse their subjects, headers and bodies.

An invalid message is shown as it is. No function raises because of a published message.
"""

from __future__ import annotations

import asyncio
import json
import secrets
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import asdict, dataclass, field
from typing import Any, Final

import msgpack
from nats.errors import Error as NatsError
from pydantic_core import from_json

from actors._kernel.json import JsonValue
from actors._kernel.runtime.ids import AgentId, token
from actors._kernel.tracing import TRACE_PARENT
from actors.errors import BrokerError, ContractError
from broker._errors import SubjectError
from broker._nats.client import NatsConnection, open_client
from broker._nats_client import NotPermittedError
from broker._wire import headers as wire
from broker._wire.subjects import Subjects, untoken
from compose._assembly.gateway import nats_server
from compose._assembly.settings import Settings

MAX_WAITING: Final = 10_000
"""Greatest number of messages in the queue of a slow terminal. Messages beyond it are dropped."""
MAX_DECODED: Final = 1024 * 1024
INBOX_PREFIX: Final = "_INBOX_tap"
SETTLE_S: Final = 5.0
"""Seconds that the server has to accept or refuse a subscription."""
ALL: Final = ("agent.v1.>", "topic.v1.>", "dead.v1.>", "ask.v1.>", "api.v1.>", "run.v1.>")
_OF_AGENTS: Final = ("agent", "dead", "ask", "run")
_ADDRESS: Final = 5
"""Number of tokens of a subject up to the key: agent.v1.<tenant>.<type>.<key>."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Filter:
    """A filter of messages.

    Attributes:
        pattern: A subject pattern without the namespace.
        type: Only agents of this type.
        agent: Only this agent.
        run: Only messages that name this run.
    """

    pattern: str | None = None
    type: str | None = None
    agent: AgentId | None = None
    run: str | None = None

    def patterns(self) -> tuple[str, ...]:
        """Return the subjects to subscribe to.

        Raises:
            ContractError: The pattern is not a subject pattern, or more than one attribute is given.
        """
        others = [value for value in (self.type, self.agent, self.run) if value is not None]
        if len(others) + (self.pattern is not None) > 1:
            raise ContractError("give one of PATTERN, --type, --agent and --run")
        if self.pattern is not None:
            parts = self.pattern.split(".")
            if not all(parts) or any(c.isspace() for c in self.pattern) or ">" in parts[:-1]:
                problem = f"{self.pattern!r} is not a subject pattern"
                raise ContractError(f"{problem}: write it like agent.v1.default.desk.*.> in quotes")
            return (self.pattern,)
        if self.agent is not None:
            agent = self.agent
            address = f"{token(agent.tenant)}.{token(agent.type)}.{token(agent.key)}"
            return (
                "dead.v1." + address,
                *(f"{head}.v1.{address}.>" for head in ("agent", "ask", "run")),
            )
        if self.type is not None:
            return tuple(f"{head}.v1.*.{token(self.type)}.>" for head in _OF_AGENTS)
        if self.run is not None:
            run = token(self.run)
            live = f"run.v1.*.*.*.{run}"
            return (live, f"{live}.end", f"agent.v1.*.*.*.sig.*.{run}.*")
        return ALL


@dataclass(frozen=True, slots=True, kw_only=True)
class TrafficMessage:
    """A message on the broker.

    Attributes:
        kind: ``mail`` between agents, ``message`` from an external client, ``signal``, ``post``, ``dead``,
            ``ask``, ``api``, ``live`` (tokens of a model call), ``end`` of a run, or ``other``.
        subject: As published, without the namespace.
        place: The agent or topic, or the subject if it names neither.
        sender: The sender, if subject or headers name it.
        run: The run that the message names.
        name: A signal's name, or a request's verb.
        message_id: Id of the message.
        reason: Reason of a dead letter.
        size: Size of the body in bytes.
        trace: The trace context.
        body: The body as published.
        media_type: The content type in the headers.
    """

    kind: str
    subject: str
    place: str
    sender: str = ""
    run: str = ""
    name: str = ""
    message_id: str = ""
    reason: str = ""
    size: int = 0
    trace: str = ""
    body: bytes = field(default=b"", repr=False)
    media_type: str = ""

    def content(self) -> JsonValue:
        """Return the body as data. If it cannot be decoded, return its first 1024 bytes as text."""
        with suppress(ValueError, TypeError, RecursionError, msgpack.UnpackException):
            if len(self.body) <= MAX_DECODED and self.body:
                if self.media_type == wire.MSGPACK:
                    limit = len(self.body)
                    data: JsonValue = msgpack.unpackb(
                        self.body, max_ext_len=0, max_bin_len=0, max_str_len=limit
                    )
                    return data
                value: JsonValue = from_json(self.body, allow_inf_nan=False)
                return value
        return self.body[:1024].decode(errors="replace") if self.body else None

    def content_text(self) -> str:
        """Return the body on one line."""
        content = self.content()
        return "" if content is None else json.dumps(content, ensure_ascii=False, default=str)

    def to_json(self, *, body: bool) -> dict[str, Any]:
        """Return the message as JSON data without empty attributes; with its content if `body`."""
        others = ("size", "body", "media_type")
        fields = {key: value for key, value in asdict(self).items() if value and key not in others}
        return {**fields, "bytes": self.size, **({"body": self.content()} if body else {})}


def read_message(subject: str, headers: Mapping[str, str], body: bytes) -> TrafficMessage:
    """Return a message, parsed from its subject without the namespace, its headers and its body."""
    parts = subject.split(".")
    kind, target, fields = _parse_subject(parts)
    run = fields.pop("run", "") or _text(headers.get(wire.RUN))
    return TrafficMessage(
        kind=kind,
        subject=subject,
        place=target,
        run=run,
        name=fields.get("name", ""),
        sender=fields.get("sender", "") or _text(headers.get(wire.SENDER)),
        message_id=_text(headers.get(wire.MESSAGE_ID) or headers.get("ce-id")),
        reason=_text(headers.get(wire.REASON)),
        size=len(body),
        trace=headers.get(TRACE_PARENT, ""),
        body=body,
        media_type=headers.get(wire.CONTENT_TYPE, ""),
    )


def _parse_subject(parts: list[str]) -> tuple[str, str, dict[str, str]]:
    """Return the kind of a message, its agent or topic, and further fields, from its subject's tokens."""
    words = [_word(part) for part in parts]
    target = ".".join(parts)
    if len(words) >= _ADDRESS:
        _, _, tenant, type_, key = words[:_ADDRESS]
        target = f"{type_}/{key}" if tenant == "default" else f"{tenant}:{type_}/{key}"
    kind, fields = "other", {}
    match [words[0], *words[_ADDRESS:]]:
        case ["agent", "in"]:
            kind = "mail"
        case ["agent", "ext", publisher]:
            kind, fields = "message", {"sender": f"ext:{publisher}"}
        case ["agent", "sig", publisher, run, name]:
            kind, fields = "signal", {"sender": f"ext:{publisher}", "run": run, "name": name}
        case ["topic"]:
            kind = "post"
        case ["topic", "ext", publisher]:
            kind, fields = "post", {"sender": f"ext:{publisher}"}
        case ["dead"]:
            kind = "dead"
        case ["ask", publisher]:
            kind, fields = "ask", {"sender": f"ext:{publisher}"}
        case ["run", run]:
            kind, fields = "live", {"run": run}
        case ["run", run, "end"]:
            kind, fields = "end", {"run": run}
        case ["api"] if len(words) == _ADDRESS:
            _, _, target, publisher, verb = words
            kind, fields = "api", {"sender": f"ext:{publisher}", "name": verb}
        case _:
            target = ".".join(parts)
    return kind, target, fields


def _word(part: str) -> str:
    try:
        return untoken(part)
    except SubjectError:
        return part


def _text(value: str | None) -> str:
    if not value:
        return ""
    try:
        return wire.header_text(value)
    except ValueError:
        return value


@asynccontextmanager
async def listen(
    url: str, settings: Settings, message_filter: Filter
) -> AsyncIterator[AsyncIterator[TrafficMessage]]:
    """Yield an iterator over the messages that are published from now on.

    The iterator raises an error when the connection is lost.

    Raises:
        ContractError: The filter has several attributes, or its pattern is not a subject pattern.
        UnreachableError: No server answers at the URL.
        NotPermittedError: The user may not subscribe to one of the subjects.
    """
    patterns = message_filter.patterns()
    subjects = Subjects(settings.namespace)
    server = nats_server(url, settings, name="callboard tap")
    client = await open_client(server, inbox_prefix=f"{INBOX_PREFIX}.{secrets.token_hex(8)}")
    queue: asyncio.Queue[TrafficMessage | None] = asyncio.Queue(MAX_WAITING)
    prefix_length = len(subjects.prefixed(""))

    def sink(subject: bytes, _: bytes, data: bytes, raw: bytes) -> None:
        if not queue.full():
            name = subject.decode(errors="replace")[prefix_length:]
            queue.put_nowait(read_message(name, wire.parse_headers(raw), data))

    def wake_reader() -> None:
        # The reader must see the end also if the queue is full: a message is dropped for it.
        if queue.full():
            queue.get_nowait()
        queue.put_nowait(None)

    try:
        client.on_lost = wake_reader
        for pattern in patterns:
            await client.listen(subjects.prefixed(pattern), sink)
        await _await_subscriptions(client, patterns)
        yield _read(client, queue)
    finally:
        client.on_lost = None  # a close of our own is no loss
        await client.shut()


async def _await_subscriptions(client: NatsConnection, patterns: tuple[str, ...]) -> None:
    """Wait until the server has accepted the subscriptions, which it does before it answers a later ping."""
    try:
        async with asyncio.timeout(SETTLE_S):
            # The first ping of nats-py may overtake waiting subscriptions, which it sends then. The
            # second ping comes after them.
            await client.flush()
            await client.flush()
    except (NatsError, OSError, TimeoutError) as exc:
        if not client.lost.is_set():
            raise BrokerError(f"NATS at {client.address} does not answer: {exc}") from exc
    if client.lost.is_set():
        error_text = str(client.lost_error("listening"))
        if "ermissions" in error_text:
            remedy = "Use a user who may subscribe to it, or give a narrower PATTERN."
            raise NotPermittedError(
                client.address, f"listening to {', '.join(patterns)}", error_text, remedy
            )
        raise client.lost_error("listening")


async def _read(
    client: NatsConnection, queue: asyncio.Queue[TrafficMessage | None]
) -> AsyncIterator[TrafficMessage]:
    while (message := await queue.get()) is not None:
        yield message
    raise client.lost_error("listening")
