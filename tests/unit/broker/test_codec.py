"""The codec: what goes in comes out, and what is wrong becomes one value."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import msgpack
import pytest

from actors._kernel.agent.message import Message
from actors._kernel.runtime.ids import AgentId, RunId, TopicId, derive_id, letters_of
from actors._kernel.stores.transport import KEPT_BYTES, OutboxRow, SentSignal, Undecodable
from broker._wire.bodies import metadata_from_outside
from broker._wire.codec import NOBODY, Decoder, Wire, encode
from broker._wire.headers import MAX_BODY_BYTES, MAX_MAIL_BYTES
from broker._wire.subjects import Subjects
from tests.unit.broker.wires import (
    DESK,
    NEWS,
    RUN,
    STORED_AT,
    SUBJECTS,
    mail,
    message,
    outside,
    post,
    signal,
)

if TYPE_CHECKING:
    from actors._kernel.stores.transport import Received

MSGPACK = {"Content-Type": "application/msgpack"}
JSON = {"Content-Type": "application/json"}
TRACE = "00-" + "a" * 32 + "-" + "b" * 16 + "-01"


def decode(wire: Wire) -> Received:
    """What the codec makes of it."""
    return Decoder(SUBJECTS).decode(wire)


def problem(wire: Wire) -> str:
    """What is wrong with it; fails when nothing is."""
    content = decode(wire).content
    assert isinstance(content, Undecodable), content
    return content.problem


def body(**changes: Any) -> dict[str, Any]:
    """A message's stored form with changes; None takes a field away."""
    fields = {**message({"n": 1}).to_json(), **changes}
    return {name: value for name, value in fields.items() if value is not None}


@pytest.mark.parametrize(
    "sent",
    [
        message({"n": 1}),
        message([1, 1.0, True, None, "é", -0.0, {}], reply_to=RunId("r"), correlation_id=""),
        message(None, causation_id="c", metadata={"traceparent": TRACE, "x": ""}),
        message(2**70, sender="client:ann b/é%"),
        message("x", id="an id é 100%"),
        message({}, target=AgentId("desk", "k" * 256, "acme")),
        message({}, target=AgentId("a.b", "~fan é/*")),
    ],
)
def test_what_a_host_sends_is_what_a_host_reads(sent: Message) -> None:
    """Every field of a message survives, whatever body form it needs."""
    received = decode(mail(sent))

    assert received.content == sent
    assert repr(received.content) == repr(sent)
    assert (received.agent_id, received.sender) == (sent.target, sent.sender)
    assert (received.message_id, received.sequence, received.sourced) == (sent.id, 7, False)


def test_a_body_is_msgpack_unless_it_cannot_be() -> None:
    """An integer of more than 64 bits travels as JSON."""
    small, large = encode(OutboxRow(1, message(1))), encode(OutboxRow(1, message(2**64)))

    assert msgpack.unpackb(small[1])["payload"] == 1
    assert small[0]["Content-Type"] == "application/msgpack"
    assert json.loads(large[1])["payload"] == 2**64
    assert large[0]["Content-Type"] == "application/json"


def test_headers_name_the_message_and_its_trace() -> None:
    """What an operator sees with a command-line client suffices to follow a message."""
    metadata = {"traceparent": TRACE, "tracestate": "a=b", "other": "x"}
    headers, _ = encode(OutboxRow(1, message(1, metadata=metadata)))

    assert headers == {
        "Nats-Msg-Id": "m1",
        "Actor-Kind": "message",
        "Actor-Sender": "agent:teller/7",
        "Content-Type": "application/msgpack",
        "traceparent": TRACE,
        "tracestate": "a=b",
    }


@pytest.mark.parametrize(
    "trace", ["", "x\r\nNats-Rollup: all", TRACE + "-x", f"00-{'0' * 32}-{'b' * 16}-01"]
)
def test_a_malformed_trace_context_stays_at_home(trace: str) -> None:
    """Metadata of authors cannot put another header in."""
    assert "traceparent" not in encode(OutboxRow(1, message(1, metadata={"traceparent": trace})))[0]


def test_a_dead_letter_has_its_reason_and_an_id_of_its_own() -> None:
    """Two agents' dead letters of the same message id are two."""
    first, _ = encode(OutboxRow(1, message(1), dead_letter="max_retries"))
    second, _ = encode(
        OutboxRow(2, message(1, target=AgentId("desk", "2")), dead_letter="explicit")
    )

    assert (first["Actor-Kind"], first["Actor-Reason"]) == ("dead_letter", "max_retries")
    assert first["Nats-Msg-Id"] != second["Nats-Msg-Id"]


def test_a_body_that_is_too_large_is_cut_and_becomes_one_dead_letter_of_its_sender() -> None:
    """Its outbox row can be found and deleted, so that what comes after it is not held up."""
    sent = message("x" * MAX_MAIL_BYTES)
    wire = mail(sent)
    received = decode(wire)

    assert len(wire.data) == KEPT_BYTES
    assert isinstance(received.content, Undecodable)
    assert "store of yours" in received.content.problem
    assert (received.sender, received.message_id) == (sent.sender, sent.id)


BAD_MAIL = {
    "no kind": (mail(headers={"Actor-Kind": None}), "Actor-Kind is None"),
    "unknown kind": (mail(headers={"Actor-Kind": "reply"}), "Actor-Kind is 'reply'"),
    "other sender": (mail(headers={"Actor-Sender": "agent:x/1"}), "Actor-Sender"),
    "no sender header": (mail(headers={"Actor-Sender": None}), "Actor-Sender"),
    "unknown type": (mail(headers={"Content-Type": "text/plain"}), "Content-Type"),
    "other agent": (mail(subject=SUBJECTS.stored(AgentId("desk", "2"))), "stored for desk/2"),
    "no mailbox": (mail(subject="ns.mail.desk.99.acme.1"), "partition"),
    "foreign namespace": (mail(subject="mail.desk.1.acme.1"), "does not begin"),
    "false claim": (mail(headers={"Actor-Target": "acme:desk/2"}), "not the mailbox"),
    "claim of no agent": (mail(headers={"Actor-Target": "%FF"}), "decode"),
    "strange size": (mail(headers={"Actor-Size": "many"}), "invalid literal"),
    "empty": (mail(data=b""), "no application/msgpack"),
    "truncated": (mail(data=mail().data[:-1]), "incomplete"),
    "two bodies": (mail(data=mail().data * 2), "extra"),
    "random": (mail(data=b"\xc1\xff"), "no application/msgpack"),
    "too deep for msgpack": (mail(data=b"\x91" * 2000), "StackError"),
    "a list": (mail(data=msgpack.packb([1])), "not a map"),
    "a length of 4 GiB": (mail(data=b"\xdd\xff\xff\xff\xff"), "exceeds"),
    "keys that are no text": (mail(data=msgpack.packb({1: 2})), "map key"),
    "not UTF-8": (mail(data=b"\x81\xa1v\xa1\xff"), "utf-8"),
    "surrogates": (mail(data=b"\x81\xa1v\xa3\xed\xa0\x80"), "utf-8"),
}
for _name, _changes, _words in (
    ("no version", {"v": None}, "version None"),
    ("later version", {"v": 2}, "version 2"),
    ("version true", {"v": True}, "version True"),
    ("unknown field", {"verb": "ask"}, "unknown fields ['verb']"),
    ("a post", {"topic": True}, "unknown fields"),
    ("no id", {"id": None}, "id is None"),
    ("empty id", {"id": ""}, "message id"),
    ("long id", {"id": "é" * 129}, "message id"),
    ("id with a line", {"id": "a\nb"}, "message id"),
    ("id of a number", {"id": 5}, "id is 5"),
    ("no target", {"target": None}, "is for None"),
    ("no sender", {"sender": None}, "sender is None"),
    ("sender of no kind", {"sender": "ann"}, "no known kind"),
    ("no payload", {"payload": None}, "no payload"),
    ("no time", {"created_at": "yesterday"}, "isoformat"),
    ("a time without zone", {"created_at": "2026-01-01T00:00:00"}, "time zone"),
    ("reply to a list", {"reply_to": [1]}, "reply_to"),
    ("metadata list", {"metadata": [1]}, "metadata is not"),
    ("metadata number", {"metadata": {"a": 1}}, "a is 1"),
    ("bytes", {"payload": {"a": b"raw"}}, "max_bin_len"),
    ("extension", {"payload": msgpack.ExtType(4, b"x")}, "max_ext_len"),
    ("a date", {"payload": msgpack.Timestamp(1)}, "max_ext_len"),
    ("NaN", {"payload": [float("nan")]}, "NaN"),
    ("infinity", {"payload": {"a": float("-inf")}}, "infinity"),
    ("NUL", {"payload": {"a": "b\x00"}}, "NUL"),
    ("NUL in a key", {"payload": {"a\x00": 1}}, "NUL"),
    ("NUL in metadata", {"metadata": {"a": "\x00"}}, "not a text"),
    ("number as key", {"payload": {"a": {1: 2}}}, "map key"),
):
    BAD_MAIL[_name] = (mail(data=msgpack.packb(body(**_changes))), _words)


@pytest.mark.item(4)
@pytest.mark.parametrize("name", BAD_MAIL)
def test_a_bad_message_of_a_host_is_undecodable(name: str) -> None:
    """It says what is wrong, keeps the bytes, and is the same when it is read again."""
    wire, words = BAD_MAIL[name]
    received = decode(wire)

    assert words in problem(wire)
    assert isinstance(received.content, Undecodable)
    assert received.content.data == wire.data[:KEPT_BYTES]
    assert received == decode(wire)
    assert (received.sequence, received.sourced) == (7, False)


@pytest.mark.parametrize(("depth", "good"), [(64, True), (65, False)])
@pytest.mark.parametrize("build", [mail, outside], ids=["host", "outside"])
def test_data_may_be_nested_64_deep(build: Any, depth: int, *, good: bool) -> None:
    """The limit is that of everything which is recorded, on both ways in."""
    payload: Any = {}
    for _ in range(depth):
        payload = {"a": payload}
    sent = message(payload) if build is mail else json.dumps(payload).encode()
    assert isinstance(decode(build(sent)).content, Message) is good


def test_bare_json_from_outside_is_a_message() -> None:
    """No header is needed; sender, kind and target are those of the subject."""
    received = decode(outside(b'{"n": 1, "sender": "agent:boss/1", "v": 9, "target": "x"}'))

    assert received.sourced
    assert (received.agent_id, received.sender) == (DESK, "ext:crm")
    sent = received.content
    assert isinstance(sent, Message)
    assert (sent.target, sent.sender, sent.created_at) == (DESK, "ext:crm", STORED_AT)
    assert sent.payload == {"n": 1, "sender": "agent:boss/1", "v": 9, "target": "x"}
    assert sent.id == received.message_id


def test_claims_of_an_external_client_change_nothing() -> None:
    """Headers that hosts use mean nothing from outside."""
    claims = {
        "Actor-Sender": "agent:boss/1",
        "Actor-Kind": "cancel",
        "Actor-Run": "r",
        "Actor-Size": "9999999",
        "Actor-Reply-To": "r",
    }
    plain, claiming = decode(outside()), decode(outside(headers=claims))
    assert plain == claiming


@pytest.mark.item(27)
def test_a_missing_id_is_made_from_the_place_in_edge() -> None:
    """Read again, or sourced again into a new mail stream, it is the same message."""
    first, again = decode(outside(sequence=7)), decode(outside(sequence=900))
    other_place, other_body = decode(outside(number=4)), decode(outside(b"{}"))

    assert first.message_id == again.message_id
    assert len({first.message_id, other_place.message_id, other_body.message_id}) == 3


@pytest.mark.parametrize("name", ["Nats-Msg-Id", "ce-id"])
def test_an_external_client_may_give_an_id(name: str) -> None:
    """By the broker's header or by that of a CloudEvent."""
    assert decode(outside(headers={name: "order 17"})).message_id == "order 17"


def test_a_cloud_event_in_binary_mode_is_a_message() -> None:
    """Its attributes and trace context go to the metadata, cut to a sane length."""
    headers = {
        "ce-specversion": "1.0",
        "ce-id": "e1",
        "ce-source": "/shop",
        "ce-type": "x" * 5000,
        "ce-subject": "a\x00b",
        "content-type": "application/json; charset=utf-8",
        "traceparent": TRACE,
    }
    sent = decode(outside(headers=headers)).content

    assert isinstance(sent, Message)
    assert sent.id == "e1"
    assert sent.metadata == {
        "ce-id": "e1",
        "ce-source": "/shop",
        "ce-type": "x" * 1024,
        "traceparent": TRACE,
    }


def test_a_trace_is_continued_though_nothing_else_is_said() -> None:
    """Of a later version, as this one writes it; a state without a trace means nothing."""
    later = decode(outside(headers={"traceparent": f"cc{TRACE[2:]}-more", "tracestate": "a=b"}))
    without = decode(outside(headers={"traceparent": "none", "tracestate": "a=b"}))

    assert isinstance(later.content, Message)
    assert isinstance(without.content, Message)
    assert later.content.metadata == {"traceparent": TRACE, "tracestate": "a=b"}
    assert metadata_from_outside({"traceparent": TRACE}) == {"traceparent": TRACE}
    assert without.content.metadata == {}


@pytest.mark.parametrize(
    "ack",
    [
        {"stream": "EDGE_mwrse1wt", "seq": 4},
        {"stream": "shop_EDGE_1", "seq": 4, "domain": "hub"},
        {"error": {"code": 400, "err_code": 10071}, "stream": "EDGE_mwrse1wt", "seq": 0},
    ],
)
def test_an_acknowledgement_of_the_broker_is_no_message(ack: dict[str, Any]) -> None:
    """It stands wherever its publisher wanted it, under whatever name; what only looks alike is one."""
    data = json.dumps(ack).encode()

    for wire in (outside(data), signal(data), post(data)):
        assert "acknowledgement" in problem(wire)
    for like in (b'{"stream": "news", "seq": 4}', b'{"stream": {}, "seq": 4}', b'{"seq": 4}'):
        assert isinstance(decode(outside(like)).content, Message)


def test_an_external_client_may_send_msgpack() -> None:
    """By its content type, also with parameters and in capitals."""
    for kind in ("application/msgpack", "Application/MsgPack; x=1"):
        wire = outside(msgpack.packb({"n": 1}), headers={"Content-Type": kind})
        assert isinstance(decode(wire).content, Message)


@pytest.mark.parametrize("data", [b'{"n":1}', b"[1]", b'"ok"', b"null", b"", b"7"])
def test_any_json_is_a_signal(data: bytes) -> None:
    """An empty body is null; run and name are those of the subject."""
    received = decode(signal(data, headers={"Nats-Msg-Id": "s1"}))

    payload = json.loads(data or b"null")
    assert received.content == SentSignal(RUN, "approve", payload)
    assert (received.sender, received.message_id, received.sourced) == ("ext:crm", "s1", True)


def test_an_agent_behind_a_hash_is_told_by_a_header() -> None:
    """The header is compared with the hash, so it cannot address anybody else."""
    long = AgentId("desk", "k" * 200)
    origin, subject = SUBJECTS.external(long, "crm"), SUBJECTS.stored(long)

    true_message = outside(origin=origin, subject=subject, headers={"Actor-Target": str(long)})
    false_message = outside(origin=origin, subject=subject, headers={"Actor-Target": "desk/1"})
    assert decode(true_message).agent_id == long
    assert isinstance(decode(true_message).content, Message)
    assert decode(false_message).agent_id == NOBODY
    assert "Actor-Target" in problem(outside(origin=origin, subject=subject))


FAN = AgentId("desk", "~fan", "acme")
BAD_OUTSIDE = {
    "empty": (outside(b""), "no application/json"),
    "text": (outside(b"hello"), "no application/json"),
    "truncated": (outside(b'{"n":'), "no application/json"),
    "a list": (outside(b"[1]"), "not a JSON object"),
    "a number": (outside(b"1"), "not a JSON object"),
    "null": (outside(b"null"), "not a JSON object"),
    "msgpack list": (outside(msgpack.packb([1]), headers=MSGPACK), "not a JSON object"),
    "msgpack unsaid": (outside(msgpack.packb({"n": 1})), "no application/json"),
    "unknown type": (outside(headers={"Content-Type": "text/plain"}), "Content-Type"),
    "structured event": (
        outside(headers={"Content-Type": "application/cloudevents+json"}),
        "Content-Type",
    ),
    "not UTF-8": (outside(b'{"a":"\xff"}'), "no application/json"),
    "lone surrogate": (outside(b'{"a":"\\ud800"}'), "no application/json"),
    "NUL": (outside(b'{"a":"\\u0000"}'), "NUL"),
    "NUL in a key": (outside(b'{"\\u0000":1}'), "NUL"),
    "NaN": (outside(b'{"a":NaN}'), "no application/json"),
    "infinity": (outside(b'{"a":Infinity}'), "no application/json"),
    "a number beyond floats": (outside(b'{"a":1e999}'), "infinity"),
    "a number of 5,000 digits": (outside(b'{"a":' + b"9" * 5000 + b"}"), "out of range"),
    "too large": (outside(b'{"a":"' + b"x" * MAX_BODY_BYTES + b'"}'), "store of yours"),
    "very deep": (outside(b'{"a":' * 5000), "recursion"),
    "bytes": (outside(msgpack.packb({"a": b"x"}), headers=MSGPACK), "max_bin_len"),
    "pickle": (outside(b"\x80\x04K\x01."), "no application/json"),
    "to the fan": (
        outside(origin=SUBJECTS.external(FAN, "crm"), subject=SUBJECTS.stored(FAN)),
        "'~'",
    ),
    "signal of ours": (signal(name="~fan"), "'~'"),
    "signal of no JSON": (signal(b"ok"), "no application/json"),
    "signal with NaN": (signal(b"NaN"), "no application/json"),
    "long id": (outside(headers={"Nats-Msg-Id": "x" * 257}), "message id"),
    "id with NUL": (outside(headers={"ce-id": "a\x00"}), "message id"),
    "source without an origin": (outside(headers={"Nats-Stream-Source": "E 1"}), "Source"),
    "source with no number": (
        outside(headers={"Nats-Stream-Source": f"E x > > {SUBJECTS.external(DESK, 'crm')}"}),
        "Source",
    ),
    "origin of a host": (outside(origin=SUBJECTS.inbox(DESK)), "neither"),
    "origin of a post": (outside(origin="ns.topic.v1.acme.news.x.ext.crm"), "does not begin"),
    "other agent": (
        outside(origin=SUBJECTS.external(AgentId("desk", "2"), "crm")),
        "published to desk/2",
    ),
    "other tenant": (
        outside(origin=SUBJECTS.external(replace(DESK, tenant="evil"), "crm")),
        "published to evil:desk/1",
    ),
    "literal star": (
        outside(
            subject="ns.agent.v1.acme.desk.*.ext.crm", origin="ns.agent.v1.acme.desk.*.ext.crm"
        ),
        "does not begin",
    ),
}


@pytest.mark.item(4)
@pytest.mark.parametrize("name", BAD_OUTSIDE)
def test_bad_input_from_outside_is_undecodable(name: str) -> None:
    """It is one dead letter of who was addressed, the same when it is read or sourced again."""
    wire, words = BAD_OUTSIDE[name]
    received = decode(wire)

    assert words in problem(wire)
    assert received == decode(wire)
    assert received.sourced
    assert isinstance(received.content, Undecodable)
    assert received.content.data == wire.data[:KEPT_BYTES]


def test_bad_input_belongs_to_whom_it_was_addressed() -> None:
    """Agent and sender are kept where the subject tells them, else they are nobody's."""
    good, bad = decode(outside(b"[]")), decode(outside(subject="x", origin="y"))

    assert (good.agent_id, good.sender) == (DESK, "ext:crm")
    assert (bad.agent_id, bad.sender) == (NOBODY, "ext:invalid")


def test_bad_input_without_an_id_is_named_by_its_place_in_edge() -> None:
    """A mail stream made anew has it under another sequence, and it is the same dead letter."""
    first, again = decode(outside(b"[]", sequence=7)), decode(outside(b"[]", sequence=8))
    host = decode(mail(data=b"", headers={"Nats-Msg-Id": None}))

    assert first.message_id == again.message_id
    assert host.message_id != first.message_id
    assert len(host.message_id) == len(derive_id("x"))


def test_a_namespace_reads_only_its_own_messages() -> None:
    """What another deployment's subjects say is not decoded as ours."""
    assert Decoder(Subjects()).decode(mail()).agent_id == NOBODY


def test_a_post_from_outside_is_a_message_to_its_topic() -> None:
    """Topic and publisher are those of the subject, whatever headers and body claim."""
    headers = {"Actor-Sender": "agent:boss/1", "Actor-Kind": "cancel", "Nats-Msg-Id": "p-1"}
    received = decode(post(b'{"sender": "agent:boss/1"}', headers=headers))

    assert received.content == Message(
        id="p-1",
        target=NEWS,
        payload={"sender": "agent:boss/1"},
        sender="ext:crm",
        created_at=STORED_AT,
    )
    assert (received.sender, received.message_id, received.sourced) == ("ext:crm", "p-1", True)


def test_a_post_without_an_id_has_the_same_one_whenever_it_is_read() -> None:
    """It is made of its place in EDGE, not of where MAIL has it."""
    first, again = decode(post(sequence=7)), decode(post(sequence=9))

    assert first.message_id == again.message_id
    assert first.message_id != decode(post(number=4)).message_id


def test_a_topic_behind_a_hash_is_told_by_the_header() -> None:
    """A source of 200 characters needs Actor-Target, which is compared with the subject."""
    topic = TopicId("news", "k" * 200)
    claim = {"Actor-Target": "news/" + "k" * 200}

    content = decode(post(topic=topic, headers=claim)).content

    assert isinstance(content, Message)
    assert content.target == topic
    assert "Actor-Target" in problem(post(topic=topic))
    assert "does not address" in problem(post(topic=topic, headers={"Actor-Target": "news/k"}))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"data": b"[1]"}, "not a JSON object"),
        ({"data": b"hello"}, "the body is no application/json"),
        ({"data": b'{"n": NaN}'}, "the body is no application/json"),
        ({"data": b"x" * 300_000}, "store of yours"),
        ({"headers": {"Content-Type": "text/plain"}}, "text/plain"),
        ({"headers": {"Nats-Msg-Id": "x" * 300}}, "message id"),
        ({"origin": SUBJECTS.external_post(TopicId("news", "cnn", "acme"), "crm")}, "posted to"),
        ({"origin": SUBJECTS.external(DESK, "crm")}, "does not begin with"),
    ],
    ids=str,
)
def test_a_post_that_is_no_message_is_a_dead_letter_of_its_topic(
    changes: dict[str, Any], words: str
) -> None:
    """It names what is wrong, and never has the id of a message to an agent of the same names."""
    wire = post(**{"headers": {"Nats-Msg-Id": "p-1"}, **changes})
    received = decode(wire)

    assert words in problem(wire)
    assert received.agent_id == letters_of(NEWS) == AgentId("topic", "news/bbc.uk", "acme")
    assert received.message_id != "p-1"
    assert received == decode(wire)


def test_a_post_that_no_stream_sourced_is_refused() -> None:
    """Hosts' posts are rows: nobody inside publishes where outsiders' posts are stored."""
    assert "mail" in problem(post(headers={"Nats-Stream-Source": None}))


def test_observers_get_a_post_with_its_kind_and_sender() -> None:
    """The body is the stored form; a topic behind a hash is told by a header."""
    topic = TopicId("news", "k" * 200)
    headers, data = encode(OutboxRow(1, replace(message({"n": 1}), target=topic)))

    assert (headers["Actor-Kind"], headers["Actor-Sender"]) == ("post", "agent:teller/7")
    assert headers["Actor-Target"] == str(topic)
    assert msgpack.unpackb(data)["topic"] is True
