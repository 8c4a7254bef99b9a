"""2,000 hostile messages: each has a visible outcome, valid ones are handled, memory stays constant."""

from __future__ import annotations

import gc
import json
import os
import random
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgpack
import pytest

from actors._kernel.runtime.ids import AgentId
from tests.system.outside import make_bed
from tests.system.waiting import until

if TYPE_CHECKING:
    from collections.abc import Iterator

    from actors._kernel.agent.message import Message
    from actors._kernel.runtime.rows import DeadLetter
    from actors._runtime import RunContext
    from tests.harness.rawnats import Frame
    from tests.harness.servers import TestNats, TestPostgres, TestRedis
    from tests.system.outside import Bed

COUNT: Final = 2000
WARM_UP: Final = 500
GOOD_EVERY: Final = 20
GROWTH_BYTES: Final = 24 * 1024 * 1024
GOOD: Final = AgentId("sink", "good")

DEEP: Final = (
    b"[" * 5000,
    b'{"a":' * 3000,
    b"[" * 70 + b"]" * 70,
    b'{"a":' * 70 + b"1" + b"}" * 70,
)
BOMBS: Final = (
    b"\xdd\xff\xff\xff\xff",  # a list of 4 billion
    b"\xdf\xff\xff\xff\xff\xa1a",  # a map of 4 billion
    b"\xdb\xff\xff\xff\xffabc",  # a text of 4 GB
    b"\x91" * 4000,  # lists in lists
    b"\x81\xa1a" * 2000,  # maps in maps
    b"\x81\xa1a\xc7\x05\x01abcde",  # an extension type
    b"\x81\xa1a\xc4\x02ab",  # bytes
    b"\x81\x01\x02",  # a key that is no text
    msgpack.packb({"a": 1}) + b"\xc1",
)
ODD: Final = (
    b"",
    b"null",
    b"7",
    b'"a"',
    b"[]",
    b"{",
    b'{"a":NaN}',
    b'{"a":1e999}',
    b'{"a":"\\u0000"}',
    b'{"a":"\\ud800"}',
    b"\xef\xbb\xbf{}",
    b"\xff\xfe",
    b"{}{}",
    b"1" * 5000,
    b'{"a":"' + b"x" * 300_000 + b'"}',
)
TOKENS: Final = (
    "a",
    "%41",
    "%7Efan",
    "%7e",
    "a%2",
    "%00",
    "%FF",
    "h-" + "0" * 32,
    "k" * 300,
    "\u00fc",
    "*",
    "%20",
)
HEADERS: Final = (
    b"Content-Type: application/json\r\n",
    b"Content-Type: application/msgpack\r\n",
    b"Content-Type: application/x-python-pickle\r\n",
    b"Nats-Msg-Id: \r\n",
    b"Nats-Msg-Id: " + b"i" * 300 + b"\r\n",
    b"Nats-Msg-Id: a\x00b\r\n",
    b"Actor-Kind: cancel\r\nActor-Sender: agent:boss/1\r\nActor-Run: r\r\n",
    b"Actor-Target: sink/other\r\n",
    b"Nats-Stream-Source: MAIL 1\r\n",
    b"Nats-Rollup: all\r\n",
    b"Nats-Schedule: @at 2009-11-10T23:00:00Z\r\nNats-Schedule-Target: mail.x\r\n",
    b"Nats-Expected-Stream: MAIL\r\n",
    b"no colon\r\n",
    b": no name\r\n",
    b"traceparent: 00-zz-zz-01\r\ntracestate: " + b"t" * 2000 + b"\r\n",
    b"ce-id: e\xff\r\nce-source: \xff\xfe\r\n",
    b"Actor-Timeout: 0.2\r\nActor-On-Conflict: explode\r\n",
    b"Actor-Timeout: -1\r\n",
    b"Actor-Timeout: nan\r\n",
    b"Actor-Priority: 99999999999999999999\r\n",
    b"Accept: text/html\r\n",
)
VERBS: Final = (
    "submit",
    "result",
    "status",
    "cancel",
    "signal",
    "follow",
    "unfollow",
    "events",
    "describe",
    "no-such",
    "%7Ex",
    "*",
)
FIELDS: Final[tuple[Any, ...]] = (
    None,
    1,
    -1.5,
    "",
    "a",
    "sink/x",
    "acme:sink/x",
    "~fan/x",
    "r" * 300,
    [],
    {},
    ["x"],
    {"run": {}},
    True,
)


class Sink:
    """Counts its messages, the valid ones by number."""

    good: list[int]
    count: int

    def __init__(self, agent_id: AgentId) -> None:
        self.id = agent_id

    async def run(self, ctx: RunContext, inbox: list[Message]) -> str:
        """See `Sink`."""
        del ctx
        for message in inbox:
            if self.id == GOOD:
                payload: Any = message.payload
                Sink.good.append(payload["good"])
            else:
                Sink.count += 1
        return "ok"


def hostile(chance: random.Random) -> bytes:
    """Return a body that is invalid, or may be."""
    kind = chance.randrange(6)
    if kind == 0:
        return chance.randbytes(chance.randrange(200))
    if kind == 1:
        valid = bytearray(json.dumps({"a": [1, {"b": "c"}], "run": "r"}).encode())
        valid[chance.randrange(len(valid))] = chance.randrange(256)
        return bytes(valid)
    if kind == 2:
        fields = {
            chance.choice(
                ("run", "agent", "payload", "name", "topic", "from_seq", "timeout")
            ): chance.choice(FIELDS)
            for _ in range(3)
        }
        return json.dumps(fields).encode()
    return chance.choice((DEEP, BOMBS, ODD)[kind - 3])


def headers(chance: random.Random) -> bytes:
    """Return no headers, or up to three blocks of invalid ones."""
    return b"".join(chance.choices(HEADERS, k=chance.randrange(3)))


def subjects(chance: random.Random, prefix: str) -> Iterator[tuple[str, str]]:
    """Yield kind and subject of one message after the other."""
    while True:
        # Mostly valid, or only the subject would ever be checked.
        key, service = (
            right if chance.random() < 0.9 else chance.choice(TOKENS) for right in ("a", "fuzz")
        )
        match chance.randrange(10):
            case 0 | 1:
                yield "ask", f"{prefix}ask.v1.default.sink.{key}.fuzz"
            case 2:
                verb = chance.choice(VERBS)
                yield "api", f"{prefix}api.v1.{chance.choice(('default', 'acme'))}.fuzz.{verb}"
            case 3:
                yield "stored", f"{prefix}agent.v1.default.sink.{key}.sig.{service}.r1.{key}"
            case 4:
                yield "posted", f"{prefix}topic.v1.default.news.{key}.ext.{service}"
            case _:
                yield ("stored", f"{prefix}agent.v1.default.sink.{key}.ext.{service}")


def resident_bytes() -> int:
    """Return this process's memory in bytes."""
    gc.collect()
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


class Attack:
    """Sends hostile messages, and counts the reactions of server and host."""

    def __init__(self, bed: Bed, seed: int) -> None:
        self._bed, self._chance = bed, random.Random(seed)
        self._subjects = subjects(self._chance, f"{bed.namespace}.")
        self.ends: Counter[str] = Counter()
        self.good: list[int] = []

    async def send(self, count: int) -> None:
        """Send this many; each is acknowledged, or answered."""
        for _ in range(count):
            number = len(self.good) * GOOD_EVERY
            if self.ends.total() >= number:
                self.good.append(number)
                ack = await self._bed.publish(GOOD, {"good": number})
                assert "error" not in ack
            kind, subject = next(self._subjects)
            body, head = hostile(self._chance), headers(self._chance)
            try:
                frame = await self._bed.outsider.request(subject, body, head)
            except TimeoutError:
                pytest.fail(f"no answer to {kind} {subject} {head!r} {body[:500]!r}, {self.ends}")
            self.ends[self._end(kind, frame)] += 1

    @staticmethod
    def _end(kind: str, frame: Frame) -> str:
        if frame.head.startswith(b"NATS/1.0 503"):
            return "nobody takes it"
        if kind in {"stored", "posted"}:
            return "refused" if "error" in json.loads(frame.body) else kind
        if b"Nats-Service-Error-Code: " in frame.head:
            code = frame.head.partition(b"Error-Code: ")[2][:3].decode()
            assert code[0] == "4", frame
            assert b"Traceback" not in frame.body
            return f"answered {code}"
        return "asked" if kind == "ask" else "answered"


@pytest.mark.costly
@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="reads memory from /proc")
async def test_each_of_two_thousand_hostile_messages_has_an_outcome(
    postgres_server: TestPostgres, nats_server: TestNats, redis_server: TestRedis
) -> None:
    """Stored ones are handled or dead letters with a reason, requests are answered, nothing grows."""
    Sink.good, Sink.count = [], 0
    async with make_bed(postgres_server, nats_server, redis_server) as bed, bed.running():
        await bed.runtime.register_type("sink", Sink)
        attack = Attack(bed, seed=5)
        await attack.send(WARM_UP)
        before = resident_bytes()
        await attack.send(COUNT - WARM_UP)
        letters = await ended(bed, attack)
        grown = resident_bytes() - before

    assert Sink.good == attack.good
    assert all(letter.last_error for letter in letters)
    # A valid post without followers leaves no row; a submitted message is handled, too.
    assert sum(letter.times for letter in letters) + Sink.count <= sum(
        attack.ends[end] for end in ("stored", "asked", "posted", "answered")
    )
    assert attack.ends["stored"] > COUNT / 2
    assert attack.ends["answered 400"] > COUNT / 20
    assert grown < GROWTH_BYTES, f"{grown / 1024 / 1024:.0f} MiB more after {COUNT} messages"


async def ended(bed: Bed, attack: Attack) -> list[DeadLetter]:
    """Return the dead letters once each stored message is one of them, or was handled."""
    letters: list[DeadLetter] = []

    async def has_ended() -> bool:
        letters[:] = await bed.runtime.store.lists.dead_letters(limit=10 * COUNT)
        letter_count = sum(letter.times for letter in letters)
        is_read = letter_count + Sink.count >= attack.ends["stored"] + attack.ends["asked"]
        return is_read and len(Sink.good) == len(attack.good)

    await until(has_ended, "every stored message is handled, or a dead letter")
    return letters
