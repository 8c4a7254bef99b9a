"""The streams on a real server: made, made again, mended, and what flows through them."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import nats
import pytest

from actors._kernel.agent.message import Message
from actors._kernel.runtime.ids import AgentId, RunId, TopicId, partition_hash
from actors._kernel.stores.transport import OutboxRow, SentSignal, Undecodable
from broker._errors import StreamMismatchError
from broker._mail.streams import StreamNames, StreamPlan, differing, ensure
from broker._wire.codec import Decoder, Wire, encode
from broker._wire.headers import parse_headers
from broker._wire.subjects import Subjects

if TYPE_CHECKING:
    from nats.aio.client import Client

    from actors._kernel.stores.transport import Received
    from tests.harness.servers import TestNats

DESK = AgentId("desk", "1", "acme")
NEWS = TopicId("news", "bbc", "acme")
RUN = RunId("c" * 32)


class Bed:
    """One namespace on the server."""

    def __init__(self, client: Client, namespace: str) -> None:
        self.client = client
        self.js = client.jetstream()
        self.subjects = Subjects(namespace)

    async def api(self, subject: str, body: dict[str, Any]) -> dict[str, Any]:
        """A request to JetStream."""
        answer = await self.client.request(f"$JS.API.{subject}", json.dumps(body).encode(), 20)
        reply: dict[str, Any] = json.loads(answer.data)
        return reply

    async def ensure(self, deployment: str = "d1") -> StreamNames:
        """Make the streams."""
        return await ensure(self.api, self.subjects, deployment=deployment)

    async def ask(self, subject: str, **body: Any) -> dict[str, Any]:
        """A request that must succeed."""
        answer = await self.api(subject, body)
        assert "error" not in answer, answer
        return answer

    async def config(self, stream: str) -> dict[str, Any]:
        """A stream's configuration."""
        config: dict[str, Any] = (await self.ask(f"STREAM.INFO.{stream}"))["config"]
        return config

    async def outside(self, subject: str, body: bytes = b'{"n":1}', message_id: str = "") -> int:
        """Publish as an outsider; the sequence in EDGE."""
        headers = {"Nats-Msg-Id": message_id} if message_id else None
        return (await self.js.publish(subject, body, headers=headers)).seq

    async def host(self, target: AgentId, message_id: str) -> int:
        """Publish as a host; the sequence in MAIL."""
        message = Message(message_id, target, {"n": 1}, "agent:teller/1", created_at=NOW)
        headers, body = encode(OutboxRow(1, message))
        return (await self.js.publish(self.subjects.inbox(target), body, headers=headers)).seq

    async def state(self, stream: str, count: int) -> dict[str, Any]:
        """The stream's state once it holds so many messages: sourcing tells nobody when it did."""
        deadline = asyncio.get_running_loop().time() + 25
        while True:
            info = await self.ask(f"STREAM.INFO.{stream}", subjects_filter=">")
            state: dict[str, Any] = info["state"]
            if state["messages"] >= count:
                return state
            assert asyncio.get_running_loop().time() < deadline, state
            await asyncio.sleep(0.01)

    async def mail(self, count: int) -> list[Received]:
        """All of MAIL, decoded, once it holds so many messages."""
        stream = self.subjects.stream("MAIL")
        await self.state(stream, count)
        decoder, messages = Decoder(self.subjects), []
        for sequence in range(1, count + 1):
            raw = await self.js.get_msg(stream, sequence)
            headers = {name: str(value) for name, value in (raw.headers or {}).items()}
            assert raw.subject is not None
            wire = Wire(raw.subject, headers, raw.data or b"", sequence, NOW)
            messages.append(decoder.decode(wire))
        return messages


NOW = datetime(2026, 1, 1, tzinfo=UTC)


@pytest.fixture
async def bed(namespace: str, nats_server: TestNats) -> AsyncIterator[Bed]:
    """A connection and a namespace."""
    client = await nats.connect(nats_server.url, allow_reconnect=False, connect_timeout=20)
    try:
        yield Bed(client, namespace)
    finally:
        await client.close()


async def test_streams_have_the_documented_settings(bed: Bed) -> None:
    """No dedup in any mailbox, EDGE synced and undeletable, MAIL fast and in partitions."""
    names = await bed.ensure()
    edge, mail, topic = [
        await bed.config(stream) for stream in (names.edge, names.mail, names.topic)
    ]

    assert not any(config.get("duplicate_window") for config in (edge, mail, topic))
    assert (edge["deny_delete"], edge["deny_purge"], edge.get("persist_mode")) == (True, True, None)
    assert edge["max_age"] == 7 * 86_400 * 10**9
    assert mail["persist_mode"] == topic["persist_mode"] == "async"
    assert (mail["compression"], mail["max_consumers"], mail["discard"]) == ("s2", 6000, "new")
    assert mail["metadata"]["deployment"] == "d1"
    for config in (edge, mail, topic):
        assert not any(config.get(name) for name in ("allow_rollup_hdrs", "allow_msg_ttl"))


async def test_ensuring_again_asks_and_changes_nothing(bed: Bed) -> None:
    """Every host does it on every connection."""
    first = await bed.ensure()
    subjects: list[str] = []

    async def listen(subject: str, body: dict[str, Any]) -> dict[str, Any]:
        subjects.append(subject)
        return await bed.api(subject, body)

    assert await ensure(listen, bed.subjects, deployment="d1") == first
    assert {subject.split(".")[1] for subject in subjects} == {"INFO", "NAMES"}


async def test_what_is_published_becomes_a_message_of_the_addressed_agent(bed: Bed) -> None:
    """Mail of a host, a message and a signal from outside are in one mailbox, told apart."""
    names = await bed.ensure()
    await bed.host(DESK, "m1")
    edge_sequence = await bed.outside(bed.subjects.external(DESK, "crm.eu"))
    await bed.mail(2)
    await bed.outside(bed.subjects.signal(DESK, "crm", RUN, "go é"), b"true")

    host, message, signal = await bed.mail(3)

    assert {arrival.agent_id for arrival in (host, message, signal)} == {DESK}
    assert (host.sender, host.message_id, host.sourced) == ("agent:teller/1", "m1", False)
    assert (message.sender, message.sourced) == ("ext:crm.eu", True)
    assert isinstance(message.content, Message)
    assert message.content.payload == {"n": 1}
    assert signal.content == SentSignal(RUN, "go é", payload=True)
    assert (names.edge.rpartition("_")[0], edge_sequence) == (bed.subjects.stream("EDGE"), 1)


async def test_the_same_id_of_two_publishers_is_two_messages(bed: Bed) -> None:
    """Even in the same millisecond, of two tenants, and when all is sourced again at once."""
    await bed.ensure()
    agents = [AgentId("desk", "1", tenant) for tenant in ("a", "b", "c")]
    for agent in agents:
        await bed.outside(bed.subjects.external(agent, "crm"), message_id="same")
    assert {message.agent_id for message in await bed.mail(3)} == set(agents)

    await bed.ask(f"STREAM.DELETE.{bed.subjects.stream('MAIL')}")
    await bed.ensure()
    assert {message.agent_id for message in await bed.mail(3)} == set(agents)


@pytest.mark.parametrize("header", ["Nats-Stream-Source", "Nats-Rollup", "Nats-TTL"])
async def test_an_external_client_cannot_use_headers_of_the_server(bed: Bed, header: str) -> None:
    """The server itself refuses to be told where a message came from, or to wipe a stream."""
    await bed.ensure()
    value = {"Nats-Rollup": "all", "Nats-TTL": "1"}.get(header, "X 1 > > y")
    with pytest.raises(nats.js.errors.Error):
        await bed.js.publish(bed.subjects.external(DESK, "crm"), b"{}", headers={header: value})


async def test_a_message_over_the_limit_stops_nothing(bed: Bed) -> None:
    """Beyond 512 KiB the publisher is told, to this it is one dead letter; the next one arrives."""
    await bed.ensure()
    subject = bed.subjects.external(DESK, "crm")
    with pytest.raises(nats.js.errors.Error):
        await bed.outside(subject, b"x" * 600_000)
    await bed.outside(subject, b"x" * 400_000)
    await bed.outside(subject)

    large, small = await bed.mail(2)

    assert isinstance(large.content, Undecodable)
    assert "store of yours" in large.content.problem
    assert isinstance(small.content, Message)


async def test_the_server_makes_the_same_partitions(bed: Bed) -> None:
    """Escaped bytes, other scripts, hashes: the stored subject is the one we compute."""
    await bed.ensure()
    chance = random.Random(7)
    letters = "ab.*> %~é漢\U0001f600/:_-$\u2028"
    agents = [
        AgentId(f"t.{chance.randrange(9)}", "".join(chance.choices(letters, k=size)), "a-b")
        for size in [*range(1, 199), 200, 256]
    ]
    for agent in agents:
        await bed.host(agent, "m")
    received = await bed.mail(len(agents))

    assert [message.agent_id for message in received] == agents
    assert all(isinstance(message.content, Message) for message in received)
    assert len({partition_hash(agent) % 16 for agent in agents}) == 16


async def test_a_mail_stream_made_anew_holds_what_came_from_outside(bed: Bed) -> None:
    """It sources EDGE from its beginning, and ids without a header stay the same."""
    names = await bed.ensure()
    for _ in range(3):
        await bed.outside(bed.subjects.external(DESK, "crm"))
    before = [message.message_id for message in await bed.mail(3)]
    await bed.ask(f"STREAM.DELETE.{names.mail}")

    assert await bed.ensure() == names
    assert [message.message_id for message in await bed.mail(3)] == before


async def test_an_edge_made_anew_has_another_name_and_is_read_from_its_beginning(bed: Bed) -> None:
    """Its sequences begin at 1 again, so a message without an id must not look like an old one."""
    names = await bed.ensure()
    await bed.outside(bed.subjects.external(DESK, "crm"))
    await bed.mail(1)
    await bed.ask(f"STREAM.DELETE.{names.edge}")
    again = await bed.ensure()
    assert await bed.outside(bed.subjects.external(DESK, "crm")) == 1

    old, new = await bed.mail(2)

    assert again.edge != names.edge
    assert old.message_id != new.message_id


async def test_all_streams_deleted_are_all_made_again(bed: Bed) -> None:
    """The broker may lose everything; it starts from nothing by itself."""
    names = await bed.ensure()
    for stream in (names.mail, names.edge, names.topic, names.dead):
        await bed.ask(f"STREAM.DELETE.{stream}")
    await bed.ensure()
    await bed.outside(bed.subjects.external(DESK, "crm"))

    assert len(await bed.mail(1)) == 1


@pytest.mark.parametrize("present", [False, True])
async def test_many_hosts_at_once_make_one_of_each(bed: Bed, *, present: bool) -> None:
    """The loser of a race finds what the winner made."""
    if present:
        await bed.ask(f"STREAM.DELETE.{(await bed.ensure()).edge}")
    all_names = await _at_once(bed.ensure, 8)
    await bed.outside(bed.subjects.external(DESK, "crm"))

    assert len(set(all_names)) == 1
    assert len(await bed.mail(1)) == 1
    sources = (await bed.config(all_names[0].mail))["sources"]
    assert [source["name"] for source in sources] == [all_names[0].edge] * 2


async def _at_once(call: Callable[[], Awaitable[StreamNames]], count: int) -> list[StreamNames]:
    results: list[StreamNames] = []

    async def add_result() -> None:
        results.append(await call())

    async with asyncio.TaskGroup() as group:
        for _ in range(count):
            group.create_task(add_result())
    return results


async def test_streams_of_another_database_are_refused_and_left_alone(bed: Bed) -> None:
    """A host with the wrong database makes and changes nothing, whatever stream is missing."""
    names = await bed.ensure("d1")
    for missing in ("", names.mail, names.topic, names.dead):
        if missing:
            await bed.ask(f"STREAM.DELETE.{missing}")
        with pytest.raises(StreamMismatchError, match="database d1, this one is d2"):
            await bed.ensure("d2")
        if missing:
            assert (await bed.api(f"STREAM.INFO.{missing}", {}))["error"]["err_code"] == 10059


async def test_settings_changed_by_hand_are_set_right(bed: Bed) -> None:
    """What we do not set stays as the operator has it, and nothing in the stream is lost."""
    names = await bed.ensure()
    await bed.outside(bed.subjects.external(DESK, "crm"))
    await bed.mail(1)
    config = await bed.config(names.mail)
    config |= {"max_consumers": 5, "allow_direct": False, "sources": [], "description": "ours"}
    config |= {"max_bytes": 10**9, "republish": {"src": "mail.>", "dest": "x.>"}, "max_msgs": 99}
    config["metadata"]["team"] = "blue"
    await bed.ask(f"STREAM.UPDATE.{names.mail}", **config)

    await bed.ensure()

    mended_config = await bed.config(names.mail)
    expected = StreamPlan(subjects=bed.subjects, deployment="d1").mail(names.edge)
    assert differing(mended_config, expected) == []
    assert (mended_config["max_bytes"], mended_config.get("republish")) == (10**9, None)
    assert (mended_config["description"], mended_config["metadata"]["team"]) == ("ours", "blue")
    assert len(await bed.mail(1)) == 1


@pytest.mark.parametrize(
    "change", [{"storage": "memory", "persist_mode": None}, {"persist_mode": None}], ids=str
)
async def test_a_setting_that_cannot_be_changed_is_refused_with_the_way_out(
    bed: Bed, change: dict[str, Any]
) -> None:
    """It names the stream and says that deleting MAIL loses nothing."""
    names = await bed.ensure()
    config = await bed.config(names.mail)
    await bed.ask(f"STREAM.DELETE.{names.mail}")
    stored_config = {
        name: value for name, value in {**config, **change}.items() if value is not None
    }
    await bed.ask(f"STREAM.CREATE.{names.mail}", **stored_config)

    with pytest.raises(StreamMismatchError, match=f"{names.mail}: .*held elsewhere"):
        await bed.ensure()


async def test_a_stream_of_another_system_on_our_subjects_is_refused(bed: Bed) -> None:
    """A wildcard stream would take the outsiders' messages away."""
    name = bed.subjects.stream("MAIL") + "-copy"
    subjects = [bed.subjects.prefixed("agent.>")]
    await bed.ask(f"STREAM.CREATE.{name}", name=name, subjects=subjects, storage="file")

    with pytest.raises(StreamMismatchError, match="another namespace"):
        await bed.ensure()


async def test_a_post_from_outside_is_stored_with_those_of_hosts(bed: Bed) -> None:
    """TOPIC sources EDGE's posts into the topic's own subject."""
    names = await bed.ensure()
    await bed.outside(bed.subjects.prefixed("topic.v1.acme.news.bbc.ext.crm"))
    state = await bed.state(names.topic, 1)

    assert state["subjects"] == {bed.subjects.prefixed("topic.v1.acme.news.bbc"): 1}


@pytest.mark.parametrize("topic", [NEWS, TopicId("a.b", "é* /:>", "x-1"), TopicId("n", "k" * 200)])
async def test_a_post_from_outside_is_also_a_message_of_its_topic(bed: Bed, topic: TopicId) -> None:
    """The server computes the same partition, and the origin tells topic and publisher."""
    await bed.ensure()
    headers = {"Actor-Target": quote(str(topic), safe="/:")}
    await bed.js.publish(bed.subjects.external_post(topic, "crm"), b'{"n":1}', headers=headers)
    [post] = await bed.mail(1)

    assert isinstance(post.content, Message)
    assert (post.content.target, post.sender, post.sourced) == (topic, "ext:crm", True)


async def test_a_mail_stream_from_before_posts_gets_them_and_reads_nothing_twice(bed: Bed) -> None:
    """It is updated in place: what EDGE has for agents stays read, what it has for topics comes."""
    names = await bed.ensure()
    config = await bed.config(names.mail)
    old = {"sources": config["sources"][:1], "subjects": config["subjects"][:2]}
    await bed.ask(f"STREAM.UPDATE.{names.mail}", **{**config, **old})
    await bed.outside(bed.subjects.external(DESK, "crm"))
    await bed.outside(bed.subjects.external_post(NEWS, "crm"))
    await bed.mail(1)
    created = (await bed.ask(f"STREAM.INFO.{names.mail}"))["created"]

    await bed.ensure()
    await bed.outside(bed.subjects.external(DESK, "crm"))

    contents = [message.content for message in await bed.mail(3)]
    assert {content.target for content in contents[1:] if isinstance(content, Message)} == {
        NEWS,
        DESK,
    }
    state = await bed.state(names.mail, 3)
    assert state["messages"] == 3
    assert (await bed.ask(f"STREAM.INFO.{names.mail}"))["created"] == created


async def test_a_header_block_from_the_line_is_parsed_as_the_client_does(
    bed: Bed, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server's own header is told apart from the publisher's, form feeds and all."""
    names = await bed.ensure()
    await bed.outside(bed.subjects.external(DESK, "crm"), message_id="x")
    await bed.mail(1)
    parts_seen: list[bytes] = []
    process = bed.client._process_msg

    async def listen(*parts: Any) -> None:
        parts_seen.extend(bytes(part) for part in parts[4:] if part)
        await process(*parts)

    monkeypatch.setattr(bed.client, "_process_msg", listen)
    inbox = bed.client.new_inbox()
    subscription = await bed.client.subscribe(inbox)
    request = b'{"seq":1}'
    await bed.client.publish(f"$JS.API.DIRECT.GET.{names.mail}", request, reply=inbox)
    answer = await subscription.next_msg(5)

    assert parse_headers(parts_seen[-1]) == answer.headers
    assert answer.headers is not None
    assert answer.headers["Nats-Stream-Source"].split(" ")[0] == names.edge
