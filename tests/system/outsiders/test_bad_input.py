"""An invalid message becomes one dead letter, whoever published it, and its mailbox continues.

All tests share one host: no bad message may block the next one.
"""

from __future__ import annotations

import base64
import json
from typing import TYPE_CHECKING, Any, Final

import msgpack
import pytest
import pytest_asyncio

from actors._kernel.runtime.ids import AgentId, token
from actors.errors import ContractError
from compose import Settings
from compose._assembly.runtime import build_postgres_runtime
from tests.harness.rawnats import RawNatsError, raw_nats
from tests.system.outside import escaped, make_bed
from tests.system.waiting import until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from actors._kernel.runtime.rows import DeadLetter
    from tests.harness.servers import TestNats, TestPostgres, TestRedis
    from tests.system.outside import Bed

pytestmark = pytest.mark.asyncio(loop_scope="module")

KEPT_BYTES: Final = 4 * 1024
NOBODY: Final = AgentId("invalid", "invalid")
PACKED: Final = {"Content-Type": "application/msgpack"}
LONG: Final = "k" * 200
HASHED: Final = "h-" + "0" * 32


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


def original(letter: DeadLetter) -> bytes:
    """Return the published bytes that the dead letter keeps."""
    payload: Any = letter.message.payload
    return base64.b64decode(payload["data"])


BAD_BODIES: Final = {
    "empty": (b"", "application/json"),
    "words": (b"hello", "application/json"),
    "truncated": (b'{"a": 1', "application/json"),
    "two objects": (b"{} {}", "trailing"),
    "a byte order mark": (b"\xef\xbb\xbf{}", "application/json"),
    "a list": (b"[{}]", "not a JSON object"),
    "a text": (b'"a"', "not a JSON object"),
    "a number": (b"7", "not a JSON object"),
    "null": (b"null", "not a JSON object"),
    "no UTF-8": (b'{"a": "\xff"}', "application/json"),
    "a NUL": (b'{"a": "\\u0000"}', "NUL"),
    "a NUL in a key": (b'{"\\u0000": 1}', "NUL"),
    "a bare NUL": (b'{"a": "\x00"}', "control character"),
    "NaN": (b'{"a": NaN}', "application/json"),
    "infinity": (b'{"a": -Infinity}', "application/json"),
    "more than a float": (b'{"a": 1e999}', "NaN and infinity"),
    "half a surrogate pair": (b'{"a": "\\ud800"}', "application/json"),
    "half a pair in a key": (b'{"\\udc00": 1}', "application/json"),
    "65 levels": (b'{"a":' + b"[" * 65 + b"]" * 65 + b"}", "deeper than 64"),
    "5000 levels": (b"[" * 5000, "recursion"),
    "5000 digits": (b'{"a": %b}' % (b"9" * 5000), "number out of range"),
    "too large": (b'{"a": "%b"}' % (b"x" * 300_000), "store of yours"),
}
BAD_PACKED: Final = {
    "empty": (b"", "msgpack"),
    "truncated": (msgpack.packb({"a": "text"})[:-2], "incomplete"),
    "two objects": (msgpack.packb({}) * 2, "extra"),
    "a list": (msgpack.packb([{}]), "not a JSON object"),
    "bytes": (msgpack.packb({"a": b"x"}), "exceeds"),
    "an extension": (msgpack.packb({"a": msgpack.ExtType(1, b"x")}), "exceeds"),
    "keys that are no text": (msgpack.packb({1: 2}), "map key"),
    "no UTF-8": (b"\x81\xa1a\xa1\xff", "utf-8"),
    "a NUL": (msgpack.packb({"a": "\0"}), "NUL"),
    "NaN": (msgpack.packb({"a": float("nan")}), "NaN"),
    "5000 levels": (b"\x91" * 5000, "StackError"),
    "a length of 4 GiB": (b"\x81\xa1a\xdd\xff\xff\xff\xff", "exceeds"),
    "JSON": (b'{"a": 1}', "msgpack"),
}
BODIES: Final[dict[str, tuple[dict[str, str], bytes, str]]] = {
    name: ({}, *case) for name, case in BAD_BODIES.items()
} | {f"msgpack: {name}": (PACKED, *case) for name, case in BAD_PACKED.items()}


@pytest.mark.item(142)
@pytest.mark.parametrize("name", BODIES)
async def test_a_body_that_is_no_message_is_one_dead_letter(bed: Bed, name: str) -> None:
    """It has the error and the bytes; earlier and later messages are handled."""
    headers, body, words = BODIES[name]
    agent = desk(name)
    await bed.publish(agent, {"n": 1})
    ack = await bed.publish(agent, body, headers=headers, message_id="same")
    await bed.publish(agent, {"n": 2}, message_id="same")
    payloads = await bed.payloads(agent)
    [letter] = await bed.letters(agent)

    assert "error" not in ack
    assert payloads == [{"n": 1}, {"n": 2}]
    assert letter.reason == "undecodable"
    assert letter.message.sender == "ext:crm"
    assert words in letter.last_error
    assert original(letter) == body[:KEPT_BYTES]


BAD_HEADERS: Final = {
    "an unknown type": (b"Content-Type: text/plain\r\n", "text/plain"),
    "a long id": (b"Nats-Msg-Id: %b\r\n" % (b"x" * 257), "256"),
    "an id that is no UTF-8": (b"Nats-Msg-Id: \xff\r\n", "id"),
    "an id with a control character": (b"Nats-Msg-Id: a\x07b\r\n", "id"),
    "another agent's name": (b"Actor-Target: desk/other\r\n", "desk/other"),
    "another tenant's name": (b"Actor-Target: acme:desk/x\r\n", "acme:desk/x"),
    "the name of no agent": (b"Actor-Target: nobody\r\n", "nobody"),
    "a name that is no UTF-8": (b"Actor-Target: %FF\r\n", "decode"),
}


@pytest.mark.parametrize("name", BAD_HEADERS)
async def test_invalid_headers_make_one_dead_letter(bed: Bed, name: str) -> None:
    """Nothing is guessed, no other mailbox gets a message, and equal ones are one dead letter."""
    lines, words = BAD_HEADERS[name]
    agent = desk(name)
    for body in (b'{"n": 1}', b'{"n": 2}'):
        await bed.outsider.publish(bed.subject(agent, "ext.crm"), body, lines)
    payloads = await bed.payloads(agent)
    [letter] = await bed.letters(agent)

    assert payloads == []
    assert (original(letter), letter.times) == (b'{"n": 1}', 2)
    assert words in letter.last_error
    assert letter.message.sender == "ext:crm"


HOST_HEADERS: Final = {
    "Actor-Kind": "message",
    "Actor-Sender": "agent:boss/1",
    "Nats-Msg-Id": "m",
    **PACKED,
}


BAD_MAIL: Final[dict[str, tuple[dict[str, Any], dict[str, str], str]]] = {
    "version": ({"v": 2}, {}, "version 2"),
    "no version": ({"v": None}, {}, "version None"),
    "kind": ({}, {"Actor-Kind": "reply"}, "Actor-Kind is 'reply'"),
    "field": ({"cancel": True}, {}, "unknown fields ['cancel']"),
    "target": ({"target": "desk/other"}, {}, "is for 'desk/other'"),
    "sender": ({"sender": "agent:x/1"}, {}, "Actor-Sender"),
    "sender's kind": ({"sender": "root"}, {"Actor-Sender": "root"}, "no known kind"),
    "time": ({"created_at": "now"}, {}, "isoformat"),
}


@pytest.mark.parametrize("name", BAD_MAIL)
async def test_an_unreadable_message_of_a_host_is_one_dead_letter(bed: Bed, name: str) -> None:
    """Another version's message, for example, is kept for an operator and stops nothing."""
    changes, headers, words = BAD_MAIL[name]
    agent = desk(f"host-{name}")
    message = {
        "v": 1,
        "id": "m",
        "target": str(agent),
        "sender": "agent:boss/1",
        "created_at": "2030-01-01T00:00:00+00:00",
        "payload": {},
        **changes,
    }
    body = msgpack.packb({key: value for key, value in message.items() if value is not None})
    ack = await bed.outsider.publish(bed.subject(agent, "in"), body, HOST_HEADERS | headers)
    # It was published to MAIL directly: only messages stored later come after it.
    await until(lambda: _is_there(bed, agent), "the dead letter")
    payloads = await bed.payloads(agent)
    [letter] = await bed.letters(agent)

    assert "error" not in ack
    assert payloads == []
    assert words in letter.last_error
    assert original(letter) == body


async def _is_there(bed: Bed, agent: AgentId) -> bool:
    return bool(await bed.letters(agent))


@pytest.mark.parametrize("key", ["~fan", "~"])
async def test_a_reserved_key_is_not_for_external_clients(bed: Bed, key: str) -> None:
    """The fan-out uses such keys; an external client's message to one is a dead letter."""
    agent = desk(key, "acme")
    await bed.publish(agent, {"n": 1})
    await until(lambda: _is_there(bed, agent), "the dead letter")
    [letter] = await bed.letters(agent)

    assert "'~'" in letter.last_error
    assert bed.notes.handled[agent] == []


@pytest.mark.parametrize("spelling", ["~fan", "%7Efan%", "%7efan", "a=b", "%41", "%FF"])
async def test_a_misspelt_key_is_a_dead_letter_without_an_agent(bed: Bed, spelling: str) -> None:
    """Two spellings of one key would be two mailboxes: only one is valid."""
    body = json.dumps({"key": spelling}).encode()
    subject = bed.subject(desk("x"), "ext.crm").replace(".x.", f".{spelling}.")
    await bed.outsider.publish(subject, body)

    async def has_come() -> bool:
        return body in [original(letter) for letter in await bed.letters(NOBODY)]

    await until(has_come, "the dead letter")
    letters = [letter for letter in await bed.letters(NOBODY) if original(letter) == body]

    assert len(letters) == 1
    assert spelling in letters[0].last_error


@pytest.mark.parametrize("key", [LONG, "é" * 22, HASHED, "🎉" * 256])
async def test_a_long_key_needs_its_header(bed: Bed, key: str) -> None:
    """The subject holds a hash, which is compared with the header."""
    agent, subject = desk(key), f"{bed.namespace}.agent.v1.default.desk.{token(key)}.ext.crm"
    target = {"Actor-Target": f"desk/{escaped(key)}"}
    body = json.dumps({"without": key}).encode()
    await bed.outsider.publish(subject, body)
    await bed.outsider.publish(subject, b'{"with": 1}', target)
    await bed.outsider.publish(subject, b'{"with": 2}', {"Actor-Target": "desk/other"})
    await bed.notes.until(agent, {"with": 1})
    await until(lambda: _has(bed, body), "the dead letter")

    assert [message.payload for message in bed.notes.handled[agent]] == [{"with": 1}]


async def _has(bed: Bed, body: bytes) -> bool:
    return body in [original(letter) for letter in await bed.letters(NOBODY)]


@pytest.mark.parametrize(
    ("name", "body", "words"),
    [
        ("~retry", b"{}", "'~'"),
        ("~resolve:0", b"{}", "'~'"),
        ("go", b"{", "application/json"),
        ("go", b"NaN", "application/json"),
        ("go", b'"\\u0000"', "NUL"),
        ("go", b"[" * 66 + b"]" * 66, "deeper"),
        ("x" * 200, b"1", "hash"),
    ],
)
async def test_an_invalid_signal_is_one_dead_letter_and_the_run_waits_on(
    bed: Bed, name: str, body: bytes, words: str
) -> None:
    """Operators' signals are not for external clients."""
    agent = AgentId("waiter", f"bad {name[:20]} {body[:20]!r}")
    run_id = await bed.started(agent, "m", {"count": 1})
    if len(name) > 128:
        subject = bed.subject(agent, f"sig.crm.{run_id}.{HASHED}")
        await bed.outsider.publish(subject, body)
    else:
        await bed.signal(run_id, body, agent=agent, name=name)
    await bed.signal(run_id, "right", agent=agent)

    assert (await bed.ended(run_id)).result == ["right"]
    [letter] = await bed.letters(agent)
    assert words in letter.last_error
    assert letter.reason == "undecodable"
    assert original(letter) == body


async def test_a_body_over_512_kib_is_refused_and_not_stored(bed: Bed) -> None:
    """The PubAck has the error; there is no dead letter, because there was no message."""
    agent = desk("half-a-megabyte")
    ack = await bed.publish(agent, {"a": "x" * 512 * 1024})
    payloads = await bed.payloads(agent)

    assert ack["error"]["err_code"] == 10054
    assert payloads == []
    assert await bed.letters(agent) == []


async def test_a_body_over_a_megabyte_closes_the_clients_connection(bed: Bed) -> None:
    """No other client is affected."""
    agent = desk("a-megabyte")
    async with raw_nats(bed.nats_url) as other:
        with pytest.raises(
            (RawNatsError, ConnectionError), match=r"aximum|closed|reset|Broken pipe|lost"
        ):
            await other.publish(bed.subject(agent, "ext.crm"), b"x" * (1 << 20 | 1))

    assert await bed.payloads(agent) == []


@pytest.mark.item(488)
async def test_invalid_bytes_cannot_be_redriven_and_failed_messages_can(bed: Bed) -> None:
    """The refusal has the remedy; the redriven message keeps its sender and is handled once."""
    agent = desk("redrive")
    await bed.publish(agent, b"oops", message_id="bad")
    await bed.publish(agent, {"fail": True}, message_id="fails")

    async def has_failed() -> bool:
        return len(await bed.letters(agent)) == 2

    await until(has_failed, "two dead letters")
    failed, undecodable = await bed.letters(agent)
    settings = Settings(db_schema=bed.schema)
    async with build_postgres_runtime(bed.postgres_url, settings=settings, serve=False) as person:
        with pytest.raises(ContractError, match="let its sender send it again"):
            await person.store.operators.redrive([undecodable.id])
        bed.notes.is_repaired = True
        redriven_messages = await person.store.operators.redrive([failed.id])
        await bed.notes.until(agent, {"fail": True})
        bed.notes.is_repaired = False
        again = await person.store.operators.redrive([failed.id])

    assert [message.sender for message in redriven_messages] == ["ext:crm"]
    assert [message.payload for message in await bed.handled(agent)] == [{"fail": True}]
    assert again == []
    assert [letter.id for letter in await bed.letters(agent)] == [undecodable.id]
