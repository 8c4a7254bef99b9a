"""A server with the shipped accounts and permissions (`compose/nats/`): the rights of each user."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING

import pytest
import pytest_asyncio

from actors._kernel.runtime.ids import AgentId
from tests.harness.rawnats import RawNatsError, publish_bytes, raw_nats
from tests.system.outside import Bed, Notes, make_bed
from tests.system.secured import make_streams, secured_server, url_of
from tests.system.waiting import until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from actors._kernel.runtime.rows import DeadLetter
    from tests.harness.servers import TestNats, TestPostgres, TestRedis

pytestmark = pytest.mark.asyncio(loop_scope="module")

MINE, OTHERS = AgentId("desk", "1"), AgentId("desk", "1", "acme")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def port(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[int]:
    """Yield a server with the shipped configuration."""
    async with secured_server(tmp_path_factory.mktemp("nats")) as server_port:
        yield server_port


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def bed(
    postgres_server: TestPostgres, nats_server: TestNats, redis_server: TestRedis, port: int
) -> AsyncIterator[Bed]:
    """Yield a host logged in as `host`, with no other rights; there is no namespace."""
    async with make_bed(postgres_server, nats_server, redis_server) as plain_bed:
        new_bed = Bed(
            nats_url=url_of(port, "crm"),
            host_url=url_of(port, "host"),
            postgres_url=plain_bed.postgres_url,
            redis_url=plain_bed.redis_url,
            schema=plain_bed.schema,
            namespace="",
            notes=Notes(),
        )
        await make_streams(port, new_bed.postgres_url, new_bed.schema)
        async with new_bed.running(), new_bed.connected():
            yield new_bed


async def until_handled(bed: Bed, agent: AgentId, n: int) -> list[str | None]:
    """Return the senders of the agent's messages, once it has got this one."""
    await bed.notes.until(agent, {"n": n})
    return [message.sender for message in bed.notes.handled[agent] if message.payload == {"n": n}]


async def test_a_publisher_reaches_the_agents_of_its_tenant_under_its_own_name(
    bed: Bed, port: int
) -> None:
    """It gets its PubAck on the inbox that it may subscribe to."""
    async with raw_nats(url_of(port, "crm"), inbox="_INBOX_crm") as crm:
        ack = await crm.publish(bed.subject(MINE, "ext.crm"), b'{"n": 1}')

        assert ack["stream"].startswith("EDGE_")
        assert await until_handled(bed, MINE, 1) == ["ext:crm"]


async def test_a_publisher_posts_to_topics_of_its_tenant_under_its_own_name(
    bed: Bed, port: int
) -> None:
    """A follower gets the post; so does one of a tenant with an account of its own."""
    for agent, user, service in ((MINE, "crm", "crm"), (OTHERS, "acme", "billing")):
        await bed.runtime.follow(agent, "news", "1")
        subject = f"topic.v1.{agent.tenant}.news.1.ext.{service}"
        async with raw_nats(url_of(port, user), inbox=f"_INBOX_{user}") as outsider:
            await outsider.publish(subject, b'{"n": 7}')
        await bed.notes.until(agent, {"n": 7})
        [post] = [message for message in bed.notes.handled[agent] if message.payload == {"n": 7}]

        assert post.metadata["publisher"] == f"ext:{service}"


async def test_a_tenant_with_an_account_of_its_own_gets_its_acknowledgement_too(
    bed: Bed, port: int
) -> None:
    """Its users have the account's rights: messages and signals to the tenant's agents."""
    async with raw_nats(url_of(port, "acme")) as acme:
        ack = await acme.publish(bed.subject(OTHERS, "ext.billing"), b'{"n": 2}')
        signal = await acme.publish(bed.subject(OTHERS, "sig.billing.run1.go"), b"1")

        assert ack["seq"] < signal["seq"]
        assert await until_handled(bed, OTHERS, 2) == ["ext:billing"]


@pytest.mark.parametrize(
    "subject",
    [
        "agent.v1.default.desk.1.ext.shop",
        "agent.v1.default.desk.1.sig.shop.r.go",
        "agent.v1.default.desk.1.sig.crm.r.go",
        "ask.v1.default.desk.1.crm.tenant",
        "api.v1.default.crm.cancel.tenant",
        "agent.v1.acme.desk.1.ext.crm",
        "agent.v1.default.desk.1.in",
        "mail.desk.0.default.1",
        "mail.desk.0.default.~fan",
        "mail.~topic.0.default.news.1",
        "dead.v1.default.desk.1",
        "topic.v1.default.news.1",
        "topic.v1.default.news.1.ext.shop",
        "topic.v1.acme.news.1.ext.crm",
        "host.v1.abc",
        "host.v1.~open",
        "ask.v1.default.desk.1.shop",
        "ask.v1.acme.desk.1.crm",
        "api.v1.default.shop.result",
        "api.v1.acme.crm.result",
        "run.v1.default.desk.1.r",
        "_INBOX_shop.1",
        "_INBOX_host.x.1",
        "_INBOX_host.x.call.1",
        "$SRV.PING",
        "$SYS.REQ.SERVER.PING",
        "$JS.API.INFO",
        "$JS.API.STREAM.CREATE.MINE",
        "$JS.API.STREAM.DELETE.MAIL",
        "$JS.API.STREAM.PURGE.MAIL",
        "$JS.API.STREAM.INFO.MAIL",
        "$JS.API.CONSUMER.MSG.NEXT.MAIL.x",
        "$JS.ACK.MAIL.x.1.1.1.1.1",
    ],
)
async def test_a_publisher_can_publish_nothing_else(bed: Bed, port: int, subject: str) -> None:
    """Another name, another tenant, a host's subject, the streams: the server refuses."""
    async with raw_nats(url_of(port, "crm"), inbox="_INBOX_crm") as crm:
        with pytest.raises(RawNatsError, match="Permissions Violation for Publish"):
            await crm.publish(subject, b'{"n": 3}')


@pytest.mark.parametrize(
    "subject",
    [
        ">",
        "*.>",
        "_INBOX.>",
        "_INBOX_host.>",
        "_INBOX_shop.>",
        "_R_.>",
        "agent.>",
        "mail.>",
        "topic.v1.default.*.*",
        "dead.v1.>",
        "host.v1.>",
        "ask.v1.>",
        "api.v1.>",
        "run.v1.>",
        "run.v1.acme.*.*.*",
        "run.v1.default.*.*.*",
        "run.v1.default.waiter.1.r",
        "$JS.>",
        "$SRV.>",
        "$SYS.>",
    ],
)
async def test_a_publisher_receives_only_its_own_answers(bed: Bed, port: int, subject: str) -> None:
    """Neither other services' messages, nor the hosts' answers."""
    async with raw_nats(url_of(port, "crm"), inbox="_INBOX_crm") as crm:
        await crm.send(f"SUB {subject} 7\r\n".encode())
        with pytest.raises(RawNatsError, match="Permissions Violation for Subscription"):
            await crm.settled()


@pytest.mark.parametrize(
    "subject",
    [
        "agent.v1.default.desk.1.ext.acme",
        "agent.v1.acme.desk.1.in",
        "mail.desk.0.acme.~fan",
        "mail.~topic.0.acme.news.1",
        "topic.v1.acme.news.1",
        "topic.v1.default.news.1.ext.acme",
        "dead.v1.acme.desk.1",
        "host.v1.abc",
        "ask.v1.default.desk.1.acme",
        "api.v1.default.acme.status",
        "$SRV.PING.callboard",
        "$JS.API.STREAM.DELETE.MAIL",
        "$JS.API.INFO",
    ],
)
async def test_a_tenants_account_reaches_nothing_else_whatever_its_users_rights(
    bed: Bed, port: int, subject: str
) -> None:
    """No one answers there: the published messages were not delivered."""
    async with raw_nats(url_of(port, "acme")) as acme:
        try:
            answer = await acme.request(subject, b'{"n": 4}')
        except RawNatsError:
            return

        assert b"503" in answer.head or b'"error"' in answer.body


async def test_a_publisher_gets_answers_on_its_private_inbox(bed: Bed, port: int) -> None:
    """An ask through the gateway, also of a service of a tenant with its own account."""
    for user, name, tenant in (("crm", "crm", "default"), ("acme.billing", "billing", "acme")):
        subject = f"ask.v1.{tenant}.waiter.{name}.{name}"
        async with raw_nats(url_of(port, user), inbox=f"_INBOX_{name}") as service:
            answer = await service.request(subject, b'{"count": 0}')

            assert json.loads(answer.body) == [], answer
            assert b"Actor-Status: COMPLETED" in answer.head


async def test_events_of_a_run_cross_accounts(bed: Bed, port: int) -> None:
    """One request, many answers: to a service of the hosts' account, and to one of a tenant's."""
    for user, name, tenant in (("crm", "crm", "default"), ("acme.billing", "billing", "acme")):
        async with raw_nats(url_of(port, user), inbox=f"_INBOX_{name}") as service:
            body = json.dumps({"agent": "waiter/e", "payload": {"count": 0}}).encode()
            answer = await service.request(f"api.v1.{tenant}.{name}.submit", body)
            run = json.loads(answer.body)["run"]
            request = json.dumps({"run": run, "from_seq": 0}).encode()
            frame = await service.request(f"api.v1.{tenant}.{name}.events", request)
            kinds = []
            while b"Actor-Event: end" not in frame.head:
                if b"Actor-Event: entry" in frame.head:
                    kinds.append(json.loads(frame.body)["name"])
                frame = await service.frame()

            assert kinds[0] == "run.started"
            assert kinds[-1] == "run.completed"


async def test_a_publisher_with_the_grant_reaches_runs_that_others_started(
    bed: Bed, port: int
) -> None:
    """It gets their live events, and its signal by the broker ends one; without the grant a run is unknown."""
    agent = AgentId("waiter", "granted")
    async with raw_nats(url_of(port, "crm"), inbox="_INBOX_crm") as crm:
        body = json.dumps({"agent": str(agent), "payload": {"count": 1}, "id": "g"}).encode()
        run = json.loads((await crm.request("api.v1.default.crm.submit", body)).body)["run"]
    request = json.dumps({"run": run}).encode()
    async with raw_nats(url_of(port, "shop"), inbox="_INBOX_shop") as shop:
        unknown = await shop.request("api.v1.default.shop.result", request)
    async with raw_nats(url_of(port, "ops"), inbox="_INBOX_ops") as ops:
        await ops.send(b"SUB run.v1.default.*.*.* 9\r\n")
        await ops.settled()
        ack = await ops.publish(bed.subject(agent, f"sig.ops.{run}.go"), b"5")
        result = await ops.request("api.v1.default.ops.result.tenant", request)

    assert b"404" in unknown.head
    assert ack["stream"].startswith("EDGE_")
    assert json.loads(result.body)["output"] == [5]


async def test_a_tenant_sees_live_runs_of_its_own_only(bed: Bed, port: int) -> None:
    """Its account gets the hosts' publications about its own runs, and of no other tenant's."""
    async with (
        raw_nats(url_of(port, "acme")) as acme,
        raw_nats(url_of(port, "host"), inbox="_INBOX_host.t") as host,
    ):
        await acme.send(b"SUB > 9\r\n")
        await acme.settled()
        for tenant in ("default", "acme"):
            await host.send(publish_bytes(f"run.v1.{tenant}.desk.1.r", tenant.encode()))
        await host.settled()

        assert (await acme.frame()).body == b"acme"


@pytest.mark.parametrize(
    "subject",
    [
        "agent.v1.default.desk.1.ext.crm",
        "agent.v1.default.desk.1.sig.crm.r.go",
        "topic.v1.default.news.1.ext.crm",
        "ask.v1.default.desk.1.crm",
        "api.v1.default.crm.cancel",
        "mail.desk.0.default.1",
        "_INBOX_crm.1",
        "$JS.API.STREAM.DELETE.TOPIC",
        "$JS.API.STREAM.PURGE.TOPIC",
        "$JS.API.STREAM.PURGE.EDGE_1",
        "$JS.API.STREAM.DELETE.EDGE_1",
        "$JS.API.STREAM.MSG.DELETE.EDGE_1",
        "$JS.API.STREAM.LEADER.STEPDOWN.MAIL",
        "$JS.API.STREAM.CREATE.MINE",
        "$JS.API.STREAM.CREATE.MAIL",
        "$JS.API.STREAM.UPDATE.MAIL",
        "$JS.API.STREAM.UPDATE.EDGE_1",
        "$JS.API.STREAM.DELETE.MAIL",
        "$JS.API.STREAM.RESTORE.MAIL",
        "$JS.API.CONSUMER.CREATE.EDGE_1.x",
        "$JS.API.CONSUMER.DURABLE.CREATE.MAIL.x",
        "$JS.API.DIRECT.GET.MAIL",
    ],
)
async def test_a_host_can_neither_impersonate_external_clients_nor_delete_their_messages(
    bed: Bed, port: int, subject: str
) -> None:
    """The server vouches for the sender of a message, also against a compromised host."""
    async with raw_nats(url_of(port, "host"), inbox="_INBOX_host.t") as host:
        with pytest.raises(RawNatsError, match="Permissions Violation for Publish"):
            await host.publish(subject, b"{}")


@pytest.mark.parametrize(
    "subject",
    [
        "agent.v1.default.desk.1.in",
        "mail.desk.0.default.1",
        "agent.v1.default.desk.1.ext.crm",
        "host.v1.abc",
        "ask.v1.default.desk.1.crm",
        "$JS.API.STREAM.PURGE.MAIL",
        "$JS.API.STREAM.MSG.DELETE.MAIL",
        "$JS.API.CONSUMER.CREATE.MAIL.x",
        "$JS.API.CONSUMER.MSG.NEXT.MAIL.x",
    ],
)
async def test_the_admin_reads_and_configures_but_sends_nothing(
    bed: Bed, port: int, subject: str
) -> None:
    """It reads about streams and listens to traffic; agents get no message from it."""
    async with raw_nats(url_of(port, "admin"), inbox="_INBOX_admin") as admin:
        info = await admin.request("$JS.API.STREAM.INFO.MAIL")
        assert json.loads(info.body)["config"]["name"] == "MAIL"
        await admin.send(b"SUB agent.v1.> 8\r\n")
        await admin.settled()
        with pytest.raises(RawNatsError, match="Permissions Violation for Publish"):
            await admin.publish(subject, b"{}")


@pytest.mark.parametrize(
    "reply_subject",
    [
        "$JS.API.STREAM.DELETE.{edge}",
        "$JS.API.STREAM.DELETE.MAIL",
        "agent.v1.acme.desk.2.ext.shop",
        "agent.v1.default.desk.2.in",
        "_INBOX_admin.1",
    ],
)
async def test_no_answer_goes_to_a_subject_forbidden_to_the_requester(
    bed: Bed, port: int, reply_subject: str
) -> None:
    """A host may publish to any requested subject; the requester does not get that right by it."""
    async with (
        raw_nats(url_of(port, "crm"), inbox="_INBOX_crm") as crm,
        raw_nats(url_of(port, "admin"), inbox="_INBOX_admin") as admin,
    ):
        edge = (await crm.publish(bed.subject(MINE, "ext.crm"), b'{"n": 8}'))["stream"]
        submission = b'{"agent": "waiter/r", "payload": {"count": 0}, "id": "r"}'
        run = json.loads((await crm.request("api.v1.default.crm.submit", submission)).body)["run"]
        request = json.dumps({"run": run}).encode()
        created = [
            json.loads((await admin.request(f"$JS.API.STREAM.INFO.{name}")).body)["created"]
            for name in (edge, "MAIL")
        ]
        await admin.send(b"SUB agent.v1.*.desk.2.> 5\r\nSUB _INBOX_admin.1 6\r\n")
        await admin.settled()
        for verb, body in (("describe", b""), ("events", request)):
            redirected = reply_subject.format(edge=edge)
            await crm.send(publish_bytes(f"api.v1.default.crm.{verb}", body, reply=redirected))
        frame = await crm.request("api.v1.default.crm.events", request)
        while b"Actor-Event: end" not in frame.head:  # the host is past the others
            frame = await crm.frame()
        await admin.settled()  # and they had no effect
        created_now = [
            json.loads((await admin.request(f"$JS.API.STREAM.INFO.{name}")).body)["created"]
            for name in (edge, "MAIL")
        ]

        assert created_now == created


async def test_jetstream_answers_to_a_stolen_host_login_are_no_external_messages(
    bed: Bed, port: int
) -> None:
    """The server answers a host's requests at any subject; agents do not get these answers."""
    reply_subject = bed.subject(OTHERS, "ext.shop")
    requests = (
        ("$JS.API.INFO", b""),
        ("$JS.API.STREAM.NAMES", b""),
        ("$JS.API.STREAM.INFO.MAIL", b""),
        ("$JS.API.STREAM.MSG.GET.MAIL", b'{"seq": 1}'),
        ("$JS.API.STREAM.PURGE.MAIL", b'{"seq": 1}'),
        ("$JS.API.CONSUMER.DELETE.MAIL.x", b""),
        ("$JS.API.CONSUMER.CREATE.MAIL.x", b"{}"),
        ("$JS.API.CONSUMER.MSG.NEXT.MAIL.x", b'{"batch": 1, "no_wait": true}'),
    )
    async with (
        raw_nats(url_of(port, "host"), inbox="_INBOX_host.t") as host,
        raw_nats(url_of(port, "acme")) as acme,
    ):
        for subject, body in requests:
            await host.send(publish_bytes(subject, body, reply=reply_subject))
        await host.settled()

        async def are_letters() -> bool:
            letters = await bed.runtime.store.lists.dead_letters(agent=OTHERS)
            answers = (
                letter for letter in letters if "somebody's question" in str(letter.last_error)
            )
            return sum(letter.times for letter in answers) >= 7

        await until(are_letters, "the answers are dead letters")
        await acme.publish(bed.subject(OTHERS, "ext.billing"), b'{"n": 10}')
        await until_handled(bed, OTHERS, 10)

    assert [message for message in bed.notes.handled[OTHERS] if message.sender == "ext:shop"] == []


async def acknowledgements(bed: Bed) -> list[DeadLetter]:
    """Return the dead letters of `OTHERS` that are answers of the server."""
    letters = await bed.runtime.store.lists.dead_letters(agent=OTHERS)
    return [letter for letter in letters if "acknowledgement" in str(letter.last_error)]


async def test_an_acknowledgement_that_is_sent_to_an_agent_is_no_message(
    bed: Bed, port: int
) -> None:
    """The server sends it to any subject that its publisher names, without permissions.

    It is never an order.
    """
    target = bed.subject(OTHERS, "ext.shop")

    async def are_letters() -> bool:
        return sum(letter.times for letter in await acknowledgements(bed)) >= 2

    async with (
        raw_nats(url_of(port, "crm"), inbox="_INBOX_crm") as crm,
        raw_nats(url_of(port, "admin"), inbox="_INBOX_admin") as admin,
        raw_nats(url_of(port, "acme")) as acme,
    ):
        post = "topic.v1.default.kept.1.ext.crm"
        await crm.publish(post, b'{"n": 9}')

        async def first_kept() -> int:
            """The stream gets it from the edge, some time after the acknowledgement."""
            info = await admin.request("$JS.API.STREAM.INFO.TOPIC")
            return int(json.loads(info.body)["state"]["first_seq"])

        await until(first_kept, "the post is kept for observers")
        expects = {"Nats-Expected-Last-Sequence": "99999"}
        for headers in ({}, expects):
            for reply_subject in ("$JS.API.STREAM.PURGE.TOPIC", target):
                await crm.send(publish_bytes(post, b'{"n": 9}', headers, reply_subject))
                await crm.settled()
        await until(are_letters, "the last acknowledgements are dead letters")
        await acme.publish(bed.subject(OTHERS, "ext.billing"), b'{"n": 9}')
        await until_handled(bed, OTHERS, 9)
        kept_from = await first_kept()

    assert [message for message in bed.notes.handled[OTHERS] if message.sender == "ext:shop"] == []
    assert sum(letter.times for letter in await acknowledgements(bed)) == 2
    assert kept_from == 1


async def test_refused_messages_were_not_handled(bed: Bed, port: int) -> None:
    """Both mailboxes continue."""
    async with raw_nats(url_of(port, "crm"), inbox="_INBOX_crm") as crm:
        with pytest.raises(RawNatsError):
            await crm.publish(bed.subject(OTHERS, "ext.crm"), b'{"n": 5}')
    async with raw_nats(url_of(port, "crm"), inbox="_INBOX_crm") as crm:
        await crm.publish(bed.subject(MINE, "ext.crm"), b'{"n": 6}')
    async with asyncio.timeout(30):
        await until_handled(bed, MINE, 6)

    for agent in (MINE, OTHERS):
        payloads = [message.payload for message in bed.notes.handled[agent]]
        assert not [payload for payload in payloads if payload in [{"n": 3}, {"n": 4}, {"n": 5}]]


async def test_a_wrong_password_is_refused(port: int) -> None:
    """No password is refused, too."""
    for url in (f"nats://crm:wrong@127.0.0.1:{port}", f"nats://127.0.0.1:{port}"):
        with pytest.raises(RawNatsError, match=r"Authorization Violation|closed"):
            async with raw_nats(url):
                pass
