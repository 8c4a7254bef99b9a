"""Each message survives encoding and decoding, and the reader accepts any bytes without an exception."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import msgpack
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic_core import to_json

from actors._kernel.agent.message import MAX_METADATA_BYTES, MAX_PAYLOAD_BYTES, Message, payload_of
from actors._kernel.json import canonical_json, recordable
from actors._kernel.runtime.ids import AgentId, RunId
from actors._kernel.stores.transport import KEPT_BYTES, OutboxRow, Received, SentSignal, Undecodable
from actors.errors import MessageTooLargeError
from broker._wire.codec import Decoder, Wire, encode
from broker._wire.headers import MAX_BODY_BYTES, MAX_MAIL_BYTES, NEEDED_PAYLOAD_BYTES, block_bytes
from tests.unit.broker.wires import DESK, STORED_AT, SUBJECTS, mail, message, outside, signal

DECODER = Decoder(SUBJECTS)
WAYS = {
    "mail": mail(),
    "outside": outside(),
    "signal": signal(),
    "none": Wire("", {}, b"", 7, STORED_AT),
}

CONTROL = "".join(map(chr, [*range(32), 127]))

printable = st.characters(exclude_categories=["Cs"], exclude_characters=CONTROL)
names = st.from_regex(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}", fullmatch=True)
agents = st.builds(AgentId, names, st.text(printable, min_size=1, max_size=256), names)
plain_text = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\x00"))
scalars = (
    st.none()
    | st.booleans()
    | st.integers(-(2**80), 2**80)
    | st.floats(allow_nan=False, allow_infinity=False)
    | plain_text
)
json_values = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(plain_text, inner, max_size=4),
    max_leaves=12,
)
messages = st.builds(
    message,
    json_values,
    target=agents,
    id=st.text(printable, min_size=1, max_size=60),
    sender=agents.map(lambda agent: f"agent:{agent}") | names.map(lambda name: f"client:{name}"),
    created_at=st.datetimes(datetime(1970, 1, 1), timezones=st.just(UTC)),  # noqa: DTZ001
    reply_to=st.none() | st.uuids().map(lambda run: RunId(run.hex)),
    correlation_id=st.none() | plain_text,
    causation_id=st.none() | plain_text,
    metadata=st.dictionaries(plain_text, plain_text, max_size=3),
)
headers = st.dictionaries(
    st.sampled_from(
        [
            *("Nats-Msg-Id", "Actor-Kind", "Actor-Sender", "Actor-Target", "Actor-Size", "ce-id"),
            *("Content-Type", "traceparent", "tracestate", "ce-type", "Nats-Stream-Source"),
        ]
    ),
    st.text()
    | st.sampled_from(["message", "application/msgpack", "agent:a/b", "acme:desk/1", "E 1 > > x"]),
)
bodies = (
    st.binary(max_size=200)
    | st.recursive(scalars, lambda x: st.lists(x) | st.dictionaries(scalars, x), max_leaves=6).map(
        lambda value: msgpack.packb(_small(value))
    )
    | json_values.map(lambda value: canonical_json(value).encode())
)


def _small(value: Any) -> Any:
    """Return the value without integers that msgpack cannot encode."""
    if isinstance(value, dict):
        return {_small(key): _small(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_small(item) for item in value]
    return value % 2**63 if type(value) is int else value


@pytest.mark.item(4)
@given(messages)
def test_any_message_survives_the_wire(sent: Message) -> None:
    """Each recordable value arrives with the same value and type."""
    assert recordable(sent.payload, where="test") == sent.payload
    received = DECODER.decode(mail(sent))

    assert received.content == sent, received.content
    assert isinstance(received.content, Message)
    assert canonical_json(received.content.payload) == canonical_json(sent.payload)
    assert (received.agent_id, received.sender) == (sent.target, sent.sender)
    assert received.message_id == sent.id


@given(st.dictionaries(plain_text, json_values, max_size=4), names, st.binary(max_size=3))
def test_any_json_object_from_outside_is_a_payload(
    payload: dict[str, Any], publisher: str, noise: bytes
) -> None:
    """JSON and msgpack give the same payload, of the publisher in the subject."""
    origin = SUBJECTS.external(DESK, publisher)
    wires = [outside(canonical_json(payload).encode(), origin=origin)]
    if _small(payload) == payload:
        kind = {"Content-Type": "application/msgpack"}
        wires.append(outside(msgpack.packb(payload), origin=origin, headers=kind))

    for wire in wires:
        content = DECODER.decode(wire).content
        assert isinstance(content, Message), content
        assert canonical_json(content.payload) == canonical_json(payload)
        assert content.sender == f"ext:{publisher}"
    noisy = DECODER.decode(outside(wires[0].data + noise, origin=origin))
    assert noisy.sender == f"ext:{publisher}"


@pytest.mark.item(4)
@given(
    headers,
    bodies,
    st.sampled_from([SUBJECTS.stored(DESK), "", "mail.x", "ns.mail.a.1.b.*"]) | st.text(),
    st.sampled_from(list(WAYS)),
)
def test_the_reader_accepts_any_bytes(
    more_headers: dict[str, str], data: bytes, subject: str, way: str
) -> None:
    """Any bytes with any headers become a message, a signal or one dead letter, always the same."""
    wire = Wire(subject, {**WAYS[way].headers, **more_headers}, data, 7, STORED_AT)

    received = DECODER.decode(wire)

    assert received == DECODER.decode(wire)
    assert isinstance(received, Received)
    assert received.sender.startswith(("agent:", "ext:", "client:", "topic:", "submit:"))
    assert received.sourced is ("Nats-Stream-Source" in wire.headers)
    _assert_storable(received)


@given(st.data())
def test_a_flipped_byte_of_a_message_raises_nothing(data: st.DataObject) -> None:
    """A damaged message is still a message, or an error that names the damage."""
    wire = mail(data.draw(messages))
    at = data.draw(st.integers(0, len(wire.data) - 1))
    wire.data = wire.data[:at] + data.draw(st.binary(max_size=2)) + wire.data[at + 1 :]

    _assert_storable(DECODER.decode(wire))


def _assert_storable(received: Received) -> None:
    """Fail when Postgres would refuse a part."""
    texts = [received.sender, received.message_id]
    content = received.content
    if isinstance(content, Undecodable):
        texts.append(content.problem)
        assert len(content.data) <= KEPT_BYTES
    elif isinstance(content, SentSignal):
        texts += [content.run_id, content.name]
        recordable(content.payload, where="signal")
    else:
        recordable(content.to_json(), where="message")
    for text in texts:
        assert "\x00" not in text
        text.encode()


large_parts: st.SearchStrategy[Any] = st.sampled_from(
    ["x", "\N{CAT FACE}", "\x01", '"', 0.5, 1e-5, 1e300, 2**70, -1, 200, None, True, "", [], {}]
) | st.lists(scalars, min_size=1, max_size=4)


@pytest.mark.costly
@given(large_parts, st.booleans(), agents, agents)
@settings(max_examples=60)
def test_whatever_a_message_may_hold_fits_into_every_server_and_is_read_again(
    part: Any, as_map: bool, sender: AgentId, target: AgentId
) -> None:
    """At the size limit of the call, in any shape; one byte more is refused."""
    room = MAX_PAYLOAD_BYTES - 64
    if as_map:
        shape: Any = {f"{n:x}": part for n in range(room // (len(to_json(part)) + 9))}
    else:
        shape = [part] * (room // (len(to_json(part)) + 1))
    pad = MAX_PAYLOAD_BYTES - len(to_json([shape, ""]))
    payload = payload_of([shape, "x" * pad], what="message")
    with pytest.raises(MessageTooLargeError):
        payload_of([shape, "x" * (pad + 1)], what="message")
    sent = message(payload, target=target, sender=f"agent:{sender}")

    headers, body = encode(OutboxRow(1, sent))
    assert len(body) + block_bytes(headers) <= NEEDED_PAYLOAD_BYTES
    received = DECODER.decode(mail(sent))

    assert isinstance(received.content, Message), received.content
    assert received.content.payload == payload


def test_the_limits_of_the_wire_follow_from_the_one_at_the_call() -> None:
    """External clients' bodies have the same limit; MAIL has space for the data beside the payload."""
    assert MAX_BODY_BYTES == MAX_PAYLOAD_BYTES
    assert MAX_PAYLOAD_BYTES + MAX_METADATA_BYTES < MAX_MAIL_BYTES < NEEDED_PAYLOAD_BYTES
