"""What `ActorClient` sends, what it refuses to send, and how it reads answers."""

from __future__ import annotations

import json
import pickle
from typing import TYPE_CHECKING, Any

import pytest
from opentelemetry.sdk.trace import TracerProvider

from actors._kernel.runtime.ids import AgentId, TopicId
from broker import client as clients
from broker._client.requests import Request, RequestFactory, trace_headers
from broker._client.responses import (
    Response,
    event_of,
    failure,
    read,
    read_object,
    status_of,
    stored_failure,
)
from broker._errors import BadMessageError
from broker._wire import bodies
from broker._wire.headers import MAX_BODY_BYTES
from broker.client import (
    ActorClient,
    BadRequestError,
    ClientError,
    ConflictError,
    NotPermittedError,
    RunCancelledError,
    RunFailedError,
    RunRef,
    TooLargeError,
    UnknownRunError,
    UnservedError,
)

if TYPE_CHECKING:
    from collections.abc import Callable

DESK = RequestFactory.of(namespace="", tenant="default", publisher="crm")
ACME = RequestFactory.of(namespace="shop", tenant="acme", publisher="my service")
ASKED = Request(doing="ask desk/a", subject="s", headers={}, id="m-1")


def nested(depth: int) -> Any:
    """Lists in lists."""
    return [nested(depth - 1)] if depth else None


def ask(**changes: Any) -> Request:
    """A question with these changes."""
    options = {"message_id": "m", "on_conflict": "queue", "priority": 5, **changes}
    agent, payload = options.pop("agent", "desk/a"), options.pop("payload", {})
    return DESK.ask(agent, payload, **options)


def test_the_limits_are_those_of_the_hosts() -> None:
    """The client refuses what a host would make a dead letter of for its size, and nothing else."""
    bodies.check_size(MAX_BODY_BYTES)
    with pytest.raises(BadMessageError):
        bodies.check_size(MAX_BODY_BYTES + 1)


def test_subjects_name_tenant_agent_and_publisher() -> None:
    """Tokens are escaped as everywhere, and the namespace goes before."""
    subjects = [
        ACME.send("desk/a.b", {}, "m").subject,
        ACME.publish("news/eu", {}, "m").subject,
        ACME.signal(RunRef("r1", "acme:desk/a"), "go", None, "m").subject,
        ACME.ask("desk/a", {}, message_id="m", on_conflict="queue", priority=5).subject,
        ACME.api("status", {}, doing="status").subject,
    ]

    assert subjects == [
        "shop.agent.v1.acme.desk.a%2Eb.ext.my%20service",
        "shop.topic.v1.acme.news.eu.ext.my%20service",
        "shop.agent.v1.acme.desk.a.sig.my%20service.r1.go",
        "shop.ask.v1.acme.desk.a.my%20service",
        "shop.api.v1.acme.my%20service.status",
    ]


def test_an_agent_behind_a_hash_is_told_in_a_header() -> None:
    """A key over 128 bytes as a token is hashed in the subject, so a header has it."""
    request = DESK.send(f"desk/{'k' * 200}", {}, "m")

    assert request.headers["Actor-Target"] == f"desk/{'k' * 200}"
    assert "Actor-Target" not in DESK.send("desk/k", {}, "m").headers


def test_a_question_that_is_put_again_is_the_same_one() -> None:
    """It was read when it was asked: what becomes of the payload then does not matter."""
    payload = {"n": 1}
    question = ask(payload=payload)
    payload["n"] = 2
    first, again = question.waiting(5), question.waiting(0.25)

    assert first.body == again.body == b'{"n":1}'
    assert (first.headers["Actor-Timeout"], again.headers["Actor-Timeout"]) == ("5.000", "0.250")
    assert first.id == again.id == again.headers["Nats-Msg-Id"]


def test_names_may_be_values() -> None:
    """`AgentId` and `TopicId` of the tenant are as good as text; a topic needs no source."""
    assert ACME.agent(AgentId("desk", "a", "acme")) == ACME.agent("desk/a")
    assert ACME.agent("acme:desk/a") == ACME.agent("desk/a")
    assert ACME.topic(TopicId("news", "eu", "acme")) == ACME.topic("news/eu")
    assert ACME.topic("news") == TopicId("news", "default", "acme")


def test_each_message_without_an_id_gets_one_of_its_own() -> None:
    """It is made once for a message, so sending that one again is safe."""
    message, other = DESK.send("desk/a", {}, None), DESK.send("desk/a", {}, None)

    assert message.id
    assert message.id == message.headers["Nats-Msg-Id"]
    assert message.id != other.id


BAD: dict[str, tuple[Callable[[], object], str]] = {
    "no agent": (lambda: DESK.send("desk", {}, "m"), "type/key"),
    "agent of no text": (lambda: DESK.send(7, {}, "m"), "type/key"),  # type: ignore[arg-type]
    "reserved key": (lambda: DESK.send("desk/~fan", {}, "m"), "'~'"),
    "another tenant": (lambda: DESK.send("acme:desk/a", {}, "m"), "tenant 'acme'"),
    "topic of another tenant": (
        lambda: DESK.publish(TopicId("news", "eu", "acme"), {}, "m"),
        "tenant 'acme'",
    ),
    "no topic": (lambda: DESK.publish("", {}, "m"), "type/source"),
    "topic of no text": (lambda: DESK.publish(7, {}, "m"), "type/source"),  # type: ignore[arg-type]
    "no object": (lambda: DESK.send("desk/a", [1], "m"), "JSON object"),
    "post of no object": (lambda: DESK.publish("news/eu", "x", "m"), "JSON object"),
    "no JSON": (lambda: DESK.send("desk/a", {"a": object()}, "m"), "no JSON data"),
    "NaN": (lambda: ask(payload={"a": float("nan")}), "NaN"),
    "NUL": (lambda: ask(payload={"a": "\0"}), "NUL"),
    "half a pair": (lambda: ask(payload="\ud800"), "surrogate"),
    "key of no text": (lambda: ask(payload={1: 2}), "keys must be str"),
    "too deep": (lambda: ask(payload=nested(65)), "deeper than 64"),
    "huge number": (lambda: ask(payload=10**5000), "as text"),
    "empty id": (lambda: DESK.send("desk/a", {}, ""), "printable"),
    "id with a line end": (lambda: DESK.send("desk/a", {}, "a\r\nX: y"), "printable"),
    "id with a space at the end": (lambda: DESK.send("desk/a", {}, "a "), "printable"),
    "long id": (lambda: DESK.send("desk/a", {}, "é" * 200), "400 bytes"),
    "conflict": (lambda: ask(on_conflict="wait"), "queue, join, reject, interrupt"),
    "priority": (lambda: ask(priority="high"), "an int"),
    "negative priority": (lambda: ask(priority=-1), "from 0 to 1000"),
    "reserved signal": (lambda: DESK.signal_by_id("r1", "~x", 1, "m"), "'~'"),
    "no signal": (lambda: DESK.signal_by_id("r1", "", 1, "m"), "printable"),
    "long signal": (lambda: DESK.signal_by_id("r1", "x" * 129, 1, "m"), "128 bytes"),
    "no run": (lambda: DESK.signal_by_id("r 1", "go", 1, "m"), "no id of a run"),
    "tenant": (lambda: RequestFactory.of(namespace="", tenant="a b", publisher="crm"), "tenant"),
    "namespace": (
        lambda: RequestFactory.of(namespace="A", tenant="t", publisher="crm"),
        "namespace",
    ),
    "publisher": (lambda: RequestFactory.of(namespace="", tenant="t", publisher=""), "publisher"),
    "timeout": (lambda: ActorClient("nats://x", publisher="crm", timeout=0), "seconds above 0"),
    "prefix": (
        lambda: ActorClient("nats://x", publisher="crm", inbox_prefix="REPLY"),
        "only to inboxes",
    ),
    "publisher like hosts": (lambda: ActorClient("nats://x", publisher="host"), "not to their own"),
}


@pytest.mark.parametrize("name", BAD)
def test_what_is_malformed_is_not_sent(name: str) -> None:
    """It is refused at once, with what is wrong and what to do."""
    call, words = BAD[name]

    with pytest.raises(BadRequestError) as caught:
        call()

    assert words in str(caught.value)
    assert caught.value.remedy
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ["send", "ask", "signal", "submit"])
def test_what_is_too_large_is_not_sent(name: str) -> None:
    """256 KiB are the limit of a whole body, and the error says both numbers."""
    calls: dict[str, Callable[[object], Request]] = {
        "send": lambda payload: DESK.send("desk/a", payload, "m"),
        "ask": lambda payload: ask(payload=payload),
        "signal": lambda payload: DESK.signal_by_id("r1", "go", payload, "m"),
        "submit": lambda payload: DESK.submit(
            "desk/a", payload, message_id="m", on_conflict="queue", priority=5
        ),
    }
    call = calls[name]
    room = MAX_BODY_BYTES - len(call({"a": ""}).body)
    fits = call({"a": "x" * room})

    with pytest.raises(TooLargeError, match=r"262145 bytes, 262144 are the limit") as caught:
        call({"a": "x" * (room + 1)})

    assert len(fits.body) == MAX_BODY_BYTES
    assert "store of yours" in caught.value.remedy


def refused(code: int, body: object = None, **headers: str) -> Response:
    """An answer that tells an error."""
    data = json.dumps(body).encode() if body is not None else b""
    return Response({"Nats-Service-Error-Code": str(code), **headers}, data)


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (400, BadRequestError),
        (403, NotPermittedError),
        (404, UnknownRunError),
        (409, ConflictError),
        (413, TooLargeError),
        (422, RunFailedError),
        (499, RunCancelledError),
        (500, ClientError),
    ],
)
def test_each_code_is_an_error_of_its_own(code: int, kind: type[ClientError]) -> None:
    """With the host's words and remedy where it gives them, and ours where it does not."""
    body = {"message": "so it is.", "remedy": "Do this.", "run": "r9", "details": {"n": 1}}
    error = failure(ASKED, refused(code, {"error": body}))
    short = failure(ASKED, refused(code, **{"Nats-Service-Error": "so", "Actor-Run": "r8"}))

    assert error is not None
    assert short is not None
    assert type(error) is type(short) is kind
    assert str(error) == "ask desk/a: so it is. Do this."
    assert (error.run_id, error.id, error.details) == ("r9", "m-1", {"n": 1})
    assert short.run_id == "r8"
    assert short.remedy
    again = pickle.loads(pickle.dumps(error))
    assert (str(again), again.run_id, again.id) == (str(error), "r9", "m-1")


@pytest.mark.parametrize("body", [b"", b"nonsense", b"[1]", b'{"error": 7}', b"\xff"])
def test_an_error_without_a_readable_body_is_still_one(body: bytes) -> None:
    """Code and headers are enough."""
    error = failure(ASKED, Response({"Nats-Service-Error-Code": "404"}, body))

    assert isinstance(error, UnknownRunError)


def test_an_answer_that_is_cut_off_says_so() -> None:
    """It is a clear error, not a traceback of the JSON module."""
    with pytest.raises(ClientError, match=r"ask desk/a: the answer is no JSON \(7 bytes\)"):
        read(ASKED, Response({}, b'{"a": 1'))
    with pytest.raises(ClientError, match="not an object"):
        read_object(ASKED, Response({}, b"[]"))


def test_an_acknowledgement_is_stored_or_says_why_not() -> None:
    """What is no acknowledgement at all is an error, too."""
    kinds = [
        (b'{"stream": "E", "seq": 1}', None),
        (b'{"error": {"code": 400, "err_code": 10054, "description": "d"}}', TooLargeError),
        (b'{"error": {"code": 503, "err_code": 10077, "description": "d"}}', UnservedError),
        (b'{"error": {"code": 400, "err_code": 10071, "description": "d"}}', BadRequestError),
        (b'{"error": {"code": 400, "description": "d"}, "seq": 0}', BadRequestError),
        (b'{"error": "d"}', BadRequestError),
        (b"{}", BadRequestError),
        (b"+OK", BadRequestError),
    ]
    errors = [stored_failure(ASKED, Response({}, body)) for body, _ in kinds]

    assert [type(e) if e else None for e in errors] == [kind for _, kind in kinds]


def test_a_newer_host_may_tell_more() -> None:
    """Fields that this version does not know are left out, and unknown events are none."""
    status = status_of("r1", {"run_id": "r1", "status": "RUNNING", "last_seq": 4, "new": 1})
    event = event_of("r1", Response({}, b'{"kind": "entry", "run": "r1", "seq": 3, "new": 1}'))

    assert (status.status, status.last_seq) == ("RUNNING", 4)
    assert event is not None
    assert event.seq == 3
    for body in (b'{"kind": "new", "seq": 1}', b"", b"[]", b'{"kind": "entry", "seq": "x"}'):
        assert event_of("r1", Response({}, body)) is None


def test_the_current_span_goes_along() -> None:
    """A caller's span is the parent of what its message causes."""
    tracer = TracerProvider().get_tracer("test")
    with tracer.start_as_current_span("caller") as span:
        headers = trace_headers()
        sent = DESK.send("desk/a", {}, "m").headers
        started = DESK.submit("desk/a", {}, message_id="m", on_conflict="queue", priority=5).headers

    assert f"{span.get_span_context().trace_id:032x}" in headers["traceparent"]
    assert sent["traceparent"] == started["traceparent"] == headers["traceparent"]
    assert trace_headers() == {}


def test_all_that_a_caller_needs_is_in_one_module() -> None:
    """Errors and values come from `broker.client`."""
    assert set(clients.__all__) <= set(vars(clients))
