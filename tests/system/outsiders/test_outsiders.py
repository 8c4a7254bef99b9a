"""External clients publish to agents by the documented subjects, over a socket.

All tests share one host: no test may disturb the next.
"""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Final

import msgpack
import pytest
import pytest_asyncio

from actors._kernel.runtime.ids import AgentId, message_id_of_run, run_id_of_mail
from actors._kernel.runtime.scheduler import RunStatus
from tests.system.outside import make_bed
from tests.system.waiting import until_run

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from tests.harness.servers import TestNats, TestPostgres, TestRedis
    from tests.system.outside import Bed

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def bed(
    postgres_server: TestPostgres, nats_server: TestNats, redis_server: TestRedis
) -> AsyncIterator[Bed]:
    """Yield one host for all tests of this file."""
    async with make_bed(postgres_server, nats_server, redis_server) as new_bed, new_bed.running():
        yield new_bed


def desk(key: str, tenant: str = "default") -> AgentId:
    """Return the address of a desk."""
    return AgentId("desk", key, tenant)


@pytest.mark.item(33, 481)
async def test_a_published_object_is_handled_by_the_agent_that_the_subject_names(bed: Bed) -> None:
    """Without a submit: the message starts the run, and its sender is the publisher."""
    ack = await bed.publish(desk("plain"), {"say": "hello"})
    handled = await bed.handled(desk("plain"))

    assert ack["stream"].startswith(f"{bed.namespace}_EDGE_")
    assert ack["seq"] > 0
    assert [(message.sender, message.payload) for message in handled] == [
        ("ext:crm", {"say": "hello"})
    ]


@pytest.mark.item(201)
async def test_messages_of_a_publisher_are_handled_in_their_order(bed: Bed) -> None:
    """Two concurrent publishers each keep their order."""

    async def publish(publisher: str) -> None:
        for n in range(20):
            await bed.publish(desk("order"), {"n": n}, publisher=publisher)

    await publish("crm")
    await publish("shop")
    handled = await bed.handled(desk("order"))

    for sender in ("ext:crm", "ext:shop"):
        assert [message.payload["n"] for message in handled if message.sender == sender] == list(
            range(20)
        )


BODIES: Final[dict[str, tuple[dict[str, str], bytes, object]]] = {
    "object": ({}, b"{}", {}),
    "spaces": ({}, b' \r\n{"a": 1} \t', {"a": 1}),
    "charset": ({"Content-Type": "application/json; charset=utf-8"}, b'{"a":1}', {"a": 1}),
    "big": ({}, b'{"n":%d}' % 10**400, {"n": 10**400}),
    "floats": ({}, b'{"a":1e308,"b":-0.0}', {"a": 1e308, "b": -0.0}),
    "text": ({}, '{"é":"🎉\\u001f"}'.encode(), {"é": "🎉\x1f"}),
    "twice": ({}, b'{"a":1,"a":2}', {"a": 2}),
    "deep": ({}, b'{"a":' + b"[" * 64 + b"]" * 64 + b"}", None),
    "large": ({}, b'{"a":"' + b"x" * (256 * 1024 - 8) + b'"}', None),
    "msgpack": (
        {"Content-Type": "application/msgpack"},
        msgpack.packb({"n": 2**64 - 1}),
        {"n": 2**64 - 1},
    ),
}


@pytest.mark.parametrize("name", BODIES)
async def test_a_body_reaches_the_agent_unchanged(bed: Bed, name: str) -> None:
    """JSON by default, msgpack if the header says so, up to 256 KiB and 64 levels."""
    headers, body, payload = BODIES[name]
    await bed.publish(desk(f"body-{name}"), body, headers=headers)

    assert await bed.payloads(desk(f"body-{name}")) == [payload or json.loads(body)]
    assert await bed.letters(desk(f"body-{name}")) == []


async def test_a_cloud_event_keeps_its_id_and_its_attributes(bed: Bed) -> None:
    """Binary mode: the id is used for deduplication, the attributes are metadata, the body is the data."""
    trace = "00-" + "a" * 32 + "-" + "b" * 16 + "-01"
    event = {
        "ce-specversion": "1.0",
        "ce-id": "event-1",
        "ce-source": "/orders",
        "ce-type": "order.paid",
        "content-type": "application/json",
        "traceparent": trace,
    }
    for _ in range(2):
        await bed.publish(desk("event"), {"order": 17}, headers=event)
    handled = await bed.handled(desk("event"))

    assert [(message.id, message.payload) for message in handled] == [("event-1", {"order": 17})]
    assert handled[0].metadata == {
        "ce-id": "event-1",
        "ce-source": "/orders",
        "ce-type": "order.paid",
        "traceparent": trace,
    }


@pytest.mark.item(199)
async def test_an_id_is_accepted_once_per_agent_and_publisher(bed: Bed) -> None:
    """Two publishers, two tenants and two agents may use the same id; a repeat of one publisher is dropped."""
    places = [
        (desk("ids"), "crm"),
        (desk("ids"), "shop"),
        (desk("ids"), "crm"),
        (desk("ids-2"), "crm"),
        (desk("ids", "acme"), "crm"),
        (desk("ids", "acme"), "crm"),
    ]
    for agent, publisher in places:
        ack = await bed.publish(agent, {"n": 1}, publisher=publisher, message_id="m-1")
        assert "error" not in ack

    assert [message.sender for message in await bed.handled(desk("ids"))] == ["ext:crm", "ext:shop"]
    assert [message.sender for message in await bed.handled(desk("ids-2"))] == ["ext:crm"]
    assert [message.sender for message in await bed.handled(desk("ids", "acme"))] == ["ext:crm"]


async def test_concurrent_messages_of_one_id_are_accepted_once(bed: Bed) -> None:
    """Twenty publishers send the same id in one packet; each is acknowledged and handled once."""
    subjects = [bed.subject(desk("burst"), f"ext.p{n % 20}") for n in range(40)]
    body = b'{"n":1}'
    for subject in subjects:
        head = b"NATS/1.0\r\nNats-Msg-Id: same\r\n\r\n"
        sizes = b"%d %d" % (len(head), len(head) + len(body))
        raw = b"HPUB %b %b\r\n%b%b\r\n" % (subject.encode(), sizes, head, body)
        await bed.outsider.send(raw)
    handled = await bed.handled(desk("burst"))

    assert sorted(message.sender for message in handled) == sorted(f"ext:p{n}" for n in range(20))


async def test_messages_without_an_id_are_all_handled(bed: Bed) -> None:
    """The same bytes twice are two messages, each with an id of its own."""
    for _ in range(2):
        await bed.publish(desk("no-id"), {"n": 1})
    handled = await bed.handled(desk("no-id"))

    assert [message.payload for message in handled] == [{"n": 1}, {"n": 1}]
    assert handled[0].id != handled[1].id


@pytest.mark.item(199, 486)
async def test_an_external_id_does_not_block_an_agents_message_of_the_same_id(bed: Bed) -> None:
    """The client's message came first, and both are handled: an id belongs to its sender."""
    run_id = run_id_of_mail(desk("from"), "ext:crm", "start")
    ids = [message_id_of_run(run_id, str(position)) for position in range(3)]
    for message_id in ids:
        await bed.publish(desk("to"), {"forwarded": False}, message_id=message_id)
    await bed.handled(desk("to"))
    await bed.publish(desk("from"), {"forward": "desk/to"}, message_id="start")
    await bed.notes.until(desk("to"), {"forwarded": True})
    true = [
        message
        for message in await bed.handled(desk("to"))
        if message.payload == {"forwarded": True}
    ]

    assert [(message.sender, message.id in ids) for message in true] == [("agent:desk/from", True)]


async def test_the_sender_comes_from_the_subject_and_not_from_headers(bed: Bed) -> None:
    """Our own header names neither change the sender nor cancel anything."""
    forged = {
        "Actor-Sender": "agent:boss/1",
        "Actor-Kind": "cancel",
        "Actor-Run": "r",
        "Actor-Verb": "x",
        "Actor-Reply-To": "r",
        "Actor-Corr": "c",
        "Actor-Reason": "x",
        "Actor-Size": "9999999",
    }
    body = {"v": 1, "sender": "agent:boss/1", "id": "x", "target": "desk/other", "payload": 1}
    await bed.publish(desk("forged"), body, headers=forged)
    handled = await bed.handled(desk("forged"))

    assert [(message.sender, message.payload) for message in handled] == [("ext:crm", body)]
    assert handled[0].metadata == {}


@pytest.mark.parametrize(
    ("header", "value"),
    [
        ("Nats-Rollup", "all"),
        ("Nats-Rollup", "sub"),
        ("Nats-TTL", "1s"),
        ("Nats-Schedule", "@at 2030-01-01T00:00:00Z"),
        ("Nats-Expected-Last-Sequence", "0"),
        ("Nats-Expected-Stream", "MAIL"),
        ("Nats-Stream-Source", "EDGE 1 > > agent.v1.acme.desk.k.ext.boss"),
    ],
)
async def test_headers_that_control_the_stream_are_refused(
    bed: Bed, header: str, value: str
) -> None:
    """The PubAck has the error, nothing is stored, and stored messages stay."""
    agent = desk(f"steer-{header}-{value.partition(' ')[0].strip('@')}")
    before = (await bed.publish(agent, {"n": 1}))["seq"]
    ack = await bed.publish(agent, {"n": 2}, headers={header: value})
    after = (await bed.publish(agent, {"n": 3}))["seq"]

    assert ack["error"]["code"] in {400, 500}
    assert after == before + 1
    assert await bed.payloads(agent) == [{"n": 1}, {"n": 3}]


async def test_without_permissions_any_client_can_use_any_name(bed: Bed) -> None:
    """It reaches any tenant as any publisher; on `.in` it is no sender, because no commit has sent that."""
    body = msgpack.packb(
        {
            "v": 1,
            "id": "x",
            "target": "acme:desk/open",
            "sender": "agent:acme:boss/1",
            "created_at": "2030-01-01T00:00:00+00:00",
            "payload": {"n": 2},
        }
    )
    headers = {
        "Actor-Kind": "message",
        "Actor-Sender": "agent:acme:boss/1",
        "Nats-Msg-Id": "x",
        "Content-Type": "application/msgpack",
    }
    await bed.publish(desk("open", "acme"), {"n": 1}, publisher="acme-billing")
    await bed.outsider.publish(bed.subject(desk("open", "acme"), "in"), body, headers)
    await bed.publish(desk("open", "acme"), {"n": 3}, publisher="acme-billing")
    await bed.notes.until(desk("open", "acme"), {"n": 3})
    handled = await bed.handled(desk("open", "acme"))

    assert {message.sender for message in handled} == {"ext:acme-billing"}


@pytest.mark.item(212)
@pytest.mark.parametrize(
    "key",
    [
        "a b",
        "a.b.c",
        "ünïcødé 🎉",
        "100%",
        "%41",
        "*",
        ">",
        "a/b:c",
        "a~b",
        "-",
        "_",
        "$JS",
        "'",
        '"\\',
        "x" * 128,
        "é" * 21,
        "\u2028",
        "\u202e",
        "h-1",
    ],
)
async def test_any_key_can_be_addressed(bed: Bed, key: str) -> None:
    """The agent that runs has exactly that key."""
    await bed.publish(desk(key), {"key": key})

    assert await bed.payloads(desk(key)) == [{"key": key}]


@pytest.mark.item(159, 168, 226)
async def test_a_signal_wakes_the_run_that_waits_for_it(bed: Bed) -> None:
    """It is suspended when the signal comes."""
    agent = AgentId("waiter", "waits")
    run_id = await bed.started(agent, "m", {"count": 1})
    await until_run(bed.runtime, run_id, lambda r: r.status is RunStatus.SUSPENDED, "suspended")
    await bed.signal(run_id, {"yes": True}, agent=agent)

    assert (await bed.ended(run_id)).result == [{"yes": True}]


@pytest.mark.item(132)
@pytest.mark.parametrize("body", [None, b"", 7, "text", [1, 2], {"a": None}])
async def test_a_signal_that_comes_before_the_wait_is_kept(bed: Bed, body: object) -> None:
    """Any JSON is its payload, and an empty body is null."""
    agent = AgentId("waiter", f"early-{body}")
    run_id = await bed.started(agent, "m", {"count": 1, "late_s": 0.2})
    await bed.signal(run_id, body, agent=agent)

    assert (await bed.ended(run_id)).result == [body or None]


async def test_a_signals_id_is_accepted_once_per_run_and_publisher(bed: Bed) -> None:
    """A repeated id wakes nothing; another publisher, or a message, may use it."""
    agent = AgentId("waiter", "ids")
    run_id = await bed.started(agent, "m", {"count": 3})
    for n, message_id, publisher in (
        (1, "m", "crm"),
        (2, "m", "crm"),
        (3, "m", "shop"),
        (4, "n", "crm"),
    ):
        await bed.signal(run_id, n, agent=agent, message_id=message_id, publisher=publisher)

    assert (await bed.ended(run_id)).result == [1, 3, 4]


async def test_a_signal_to_a_run_that_has_ended_is_dropped(bed: Bed) -> None:
    """It is no dead letter, and the agent handles later messages."""
    agent = AgentId("waiter", "ended")
    run_id = await bed.started(agent, "m", {"count": 1})
    await bed.signal(run_id, 1, agent=agent)
    await bed.ended(run_id)
    await bed.signal(run_id, 2, agent=agent)
    await bed.handled(agent)

    assert await bed.letters(agent) == []
    assert (await bed.ended(run_id)).result == [1]


@pytest.mark.parametrize(
    "addressed",
    [AgentId("waiter", "x"), AgentId("waiter", "mine", "acme"), AgentId("desk", "mine")],
)
async def test_a_signal_reaches_only_a_run_of_the_addressed_agent(
    bed: Bed, addressed: AgentId
) -> None:
    """Through another agent or tenant it is one dead letter, and the run waits on."""
    agent = AgentId("waiter", "mine")
    message_id = str(addressed)
    run_id = await bed.started(agent, message_id, {"count": 1, "for": message_id})
    await bed.signal(run_id, "wrong", agent=addressed)
    await bed.handled(addressed)
    letters = await bed.letters(addressed)
    await bed.signal(run_id, "right", agent=agent)

    assert (await bed.ended(run_id)).result == ["right"]
    assert [letter.reason for letter in letters] == ["explicit"]
    assert f"has no run {run_id}" in letters[0].last_error


async def test_a_signal_to_an_unknown_run_is_a_dead_letter_without_redrive(bed: Bed) -> None:
    """It keeps the content."""
    agent = AgentId("waiter", "nobody")
    await bed.signal(run_id_of_mail(agent, "ext:x", "none"), {"a": 1}, agent=agent)
    await bed.handled(agent)
    [letter] = await bed.letters(agent)
    payload = letter.message.payload
    assert isinstance(payload, dict)

    assert (payload["name"], payload["payload"]) == ("go", {"a": 1})
    assert letter.message.sender == "ext:crm"


async def test_external_clients_at_once_do_not_disturb_each_other(bed: Bed) -> None:
    """A hundred messages in one packet to ten agents are handled once each, in order."""
    body = [json.dumps({"n": n}).encode() for n in range(100)]
    packet = b"".join(
        b"PUB %b %d\r\n%b\r\n"
        % (bed.subject(desk(f"many-{n % 10}"), "ext.crm").encode(), len(body[n]), body[n])
        for n in range(100)
    )
    await bed.outsider.send(packet)
    async with asyncio.timeout(30):
        payloads = [await bed.payloads(desk(f"many-{key}")) for key in range(10)]

    assert payloads == [[{"n": n} for n in range(key, 100, 10)] for key in range(10)]
