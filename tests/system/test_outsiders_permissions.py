"""A server with the accounts and permissions of `docs/subjects.md`: what each party can do."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import pytest_asyncio

from actors.kernel.runtime.ids import AgentId
from tests.harness.rawnats import RawNatsError, raw_nats
from tests.integration.broker.lines import plain_server
from tests.system.outsiders import Bed, Notes, make_bed

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from tests.harness.servers import TestNats, TestPostgres, TestRedis

pytestmark = pytest.mark.asyncio(loop_scope="module")

DOCUMENT = Path(__file__).parents[2] / "docs" / "subjects.md"
MINE, OTHERS = AgentId("desk", "1"), AgentId("desk", "1", "acme")


def documented_config() -> str:
    """The server configuration that the document shows, as it stands."""
    found = re.search(r"^```hocon\n(.*?)^```", DOCUMENT.read_text(), re.MULTILINE | re.DOTALL)
    assert found is not None
    return found[1]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def port(
    tmp_path_factory: pytest.TempPathFactory,
) -> AsyncIterator[int]:
    """A server with the documented configuration."""
    folder = tmp_path_factory.mktemp("nats")
    config = documented_config().replace("/var/lib/nats", str(folder / "store"))
    async with plain_server(folder, config) as found:
        yield found


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def bed(
    postgres_server: TestPostgres, nats_server: TestNats, redis_server: TestRedis, port: int
) -> AsyncIterator[Bed]:
    """A host that is logged in as `host`; the document's subjects have no namespace."""
    async with make_bed(postgres_server, nats_server, redis_server) as made:
        one = Bed(
            nats_url=f"nats://crm:change-me-2@127.0.0.1:{port}",
            host_url=f"nats://host:change-me-1@127.0.0.1:{port}",
            postgres_url=made.postgres_url, redis_url=made.redis_url, schema=made.schema,
            namespace="", notes=Notes(),
        )  # fmt: skip
        async with one.running(), one.connected():
            yield one


def url_of(port: int, user: str) -> str:
    """How this user of the document logs in."""
    password = {"host": "change-me-1", "crm": "change-me-2", "acme": "change-me-3"}[user]
    return f"nats://{user}:{password}@127.0.0.1:{port}"


async def until_handled(bed: Bed, agent: AgentId, n: int) -> list[str | None]:
    """Return the senders of what the agent was given, once it was given this."""
    await bed.notes.until(agent, {"n": n})
    return [one.sender for one in bed.notes.handled[agent] if one.payload == {"n": n}]


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
        [post] = [one for one in bed.notes.handled[agent] if one.payload == {"n": 7}]

        assert post.metadata["publisher"] == f"ext:{service}"


async def test_a_tenant_with_an_account_of_its_own_gets_its_acknowledgement_too(
    bed: Bed, port: int
) -> None:
    """Its users may do all that its account may: messages and signals to the tenant's agents."""
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


@pytest.mark.parametrize("subject", [">", "_INBOX.>", "_INBOX_callboard.>", "agent.>", "$JS.>"])
async def test_a_publisher_can_hear_nothing_but_its_own_answers(
    bed: Bed, port: int, subject: str
) -> None:
    """Not other services' mail, and not what hosts are answered."""
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
        "$JS.API.STREAM.DELETE.MAIL",
        "$JS.API.INFO",
    ],
)
async def test_a_tenants_account_reaches_nothing_else_however_much_its_users_may(
    bed: Bed, port: int, subject: str
) -> None:
    """Nobody answers there: what was published went nowhere."""
    async with raw_nats(url_of(port, "acme")) as acme:
        try:
            answer = await acme.request(subject, b'{"n": 4}')
        except RawNatsError:
            return

        assert b"503" in answer.head or b'"error"' in answer.body


async def test_nothing_that_was_refused_was_handled(bed: Bed, port: int) -> None:
    """Both mailboxes go on."""
    async with raw_nats(url_of(port, "crm"), inbox="_INBOX_crm") as crm:
        with pytest.raises(RawNatsError):
            await crm.publish(bed.subject(OTHERS, "ext.crm"), b'{"n": 5}')
    async with raw_nats(url_of(port, "crm"), inbox="_INBOX_crm") as crm:
        await crm.publish(bed.subject(MINE, "ext.crm"), b'{"n": 6}')
    async with asyncio.timeout(10):
        await until_handled(bed, MINE, 6)

    for agent in (MINE, OTHERS):
        found = [one.payload for one in bed.notes.handled[agent]]
        assert not [one for one in found if one in [{"n": 3}, {"n": 4}, {"n": 5}]]


async def test_a_wrong_password_opens_nothing(port: int) -> None:
    """And so does none."""
    for url in (f"nats://crm:wrong@127.0.0.1:{port}", f"nats://127.0.0.1:{port}"):
        with pytest.raises(RawNatsError, match=r"Authorization Violation|closed"):
            async with raw_nats(url):
                pass
