"""Messages as the mail stream delivers them, for tests of the codec."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from actors._kernel.agent.message import Message
from actors._kernel.runtime.ids import AgentId, RunId, TopicId
from actors._kernel.stores.transport import OutboxRow
from broker._wire.codec import Wire, encode
from broker._wire.subjects import Subjects

if TYPE_CHECKING:
    from collections.abc import Mapping

    from actors._kernel.json import JsonValue

SUBJECTS = Subjects("ns")
DESK = AgentId("desk", "1", "acme")
RUN = RunId("b" * 32)
NEWS = TopicId("news", "bbc.uk", "acme")
STORED_AT = datetime(2026, 1, 2, tzinfo=UTC)
CREATED_AT = datetime(2026, 1, 1, 12, 30, 15, 123456, tzinfo=UTC)


def message(payload: JsonValue = None, *, target: AgentId = DESK, **rest: Any) -> Message:
    """A message of another agent."""
    fields = {"id": "m1", "sender": "agent:teller/7", "created_at": CREATED_AT, **rest}
    return Message(target=target, payload=payload, **fields)


def mail(sent: Message | None = None, **changes: Any) -> Wire:
    """A host's message, as `encode` makes it; `headers` are added, None takes one away."""
    sent = sent or message({"n": 1})
    assert isinstance(sent.target, AgentId)
    headers, data = encode(OutboxRow(1, sent))
    return _changed(Wire(SUBJECTS.stored(sent.target), headers, data, 7, STORED_AT), changes)


def outside(data: bytes = b'{"n":1}', *, origin: str = "", number: int = 3, **changes: Any) -> Wire:
    """An outsider's message, as MAIL has it from EDGE."""
    origin = origin or SUBJECTS.external(DESK, "crm")
    source = f"ns_EDGE_1 {number} a.*\x0cb.* c.*\x0cd.* {origin} j93Yei96"
    wire = Wire(SUBJECTS.stored(DESK), {"Nats-Stream-Source": source}, data, 7, STORED_AT)
    return _changed(wire, changes)


def signal(data: bytes = b'{"n":1}', *, name: str = "approve", **changes: Any) -> Wire:
    """An outsider's signal."""
    return outside(data, origin=SUBJECTS.signal(DESK, "crm", RUN, name), **changes)


def post(data: bytes = b'{"n":1}', *, topic: TopicId = NEWS, **changes: Any) -> Wire:
    """An outsider's post."""
    origin = SUBJECTS.external_post(topic, "crm")
    changes = {"subject": SUBJECTS.stored_post(topic), **changes}
    return outside(data, origin=changes.pop("origin", origin), **changes)


def _changed(wire: Wire, changes: Mapping[str, Any]) -> Wire:
    added = {**wire.headers, **changes.get("headers", {})}
    wire.headers = {name: value for name, value in added.items() if value is not None}
    wire.data = changes.get("data", wire.data)
    wire.subject = changes.get("subject", wire.subject)
    wire.sequence = changes.get("sequence", wire.sequence)
    return wire
