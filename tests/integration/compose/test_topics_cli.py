"""`callboard publish`, `follow`, `unfollow` and `followers`."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from actors._kernel.runtime.ids import AgentId
from tests.integration.compose.commandline import Cli

if TYPE_CHECKING:
    from tests.harness.servers import TestPostgres

pytestmark = pytest.mark.postgres


@pytest.fixture
def cli(postgres_server: TestPostgres, schema: str, capsys: pytest.CaptureFixture[str]) -> Cli:
    """Commands on this test's schema."""
    return Cli(postgres_server.url, schema, capsys)


@pytest.mark.costly
@pytest.mark.item(26, 240)
def test_following_is_listed_changed_and_ended(cli: Cli) -> None:
    """Each command says what it did, also as JSON; following twice is following once."""
    assert cli("follow", "desk/a", "news/eu").out.strip() == "desk/a follows news/eu"
    assert cli("follow", "desk/b", "news/eu", "--lazy").code == 0
    again = cli("follow", "desk/a", "news/eu", "--lazy", "--json").data
    assert again == {"agent": "desk/a", "topic": "news/eu", "mode": "lazy"}
    followers = cli("followers", "news/eu", "--json").data
    assert {follower["agent"]: follower["mode"] for follower in followers} == {
        "desk/a": "lazy",
        "desk/b": "lazy",
    }
    assert "desk/a" in cli("followers", "news/eu", "--limit", "5").out
    assert len(cli("followers", "news/eu", "--limit", "1", "--json").data) == 1

    assert "does not follow" in cli("unfollow", "desk/a", "news/eu").out
    assert cli("unfollow", "desk/a", "news/eu", "--json").data["was_following"] is False
    assert [follower["agent"] for follower in cli("followers", "news/eu", "--json").data] == [
        "desk/b"
    ]
    assert cli("followers", "other").out.strip() == "no agent follows other/default"


@pytest.mark.costly
@pytest.mark.item(27)
async def test_a_published_post_reaches_followers_once(cli: Cli) -> None:
    """The same id again reaches nobody twice, and a topic without followers is no error."""
    assert (await cli.call("publish", "nobody/here", "{}")).code == 0
    await cli.call("follow", "ten/a", "news")
    words = ("publish", "news", '{"n": 1}', "--message-id", "m-1")
    outputs = [await cli.call(*words), await cli.call(*words, "--json")]
    async with cli.host("ten") as runtime:
        agent = AgentId("ten", "a")
        async with asyncio.timeout(20):
            while not (runs := await runtime.store.lists.runs(agent=agent)):  # noqa: ASYNC110
                await asyncio.sleep(0.01)
            tail = runtime.tail(runs[0].run_id)
            entry = await anext(e async for e in tail if e.kind == "msg.received")
        pending = await runtime.store.lists.pending_count(agent)

    assert outputs[0].out.strip() == "published m-1 to news/default"
    assert outputs[1].data == {"topic": "news/default", "id": "m-1"}
    assert pending <= 1
    assert entry.payload["message"]["metadata"]["publisher"] == "client:cli"  # type: ignore[call-overload,index]


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (("follow", "desk/a", "acme:news/eu"), "nothing crosses tenants"),
        (("follow", "desk", "news"), "agent id"),
        (("publish", "no good/x", "{}"), "topic type"),
        (("publish", "news", "{nope"), "JSON"),
        (("publish", "news"), "requires an argument"),
    ],
)
def test_what_cannot_be_is_said_in_one_sentence(
    cli: Cli, words: tuple[str, ...], complaint: str
) -> None:
    """With the exit code of a command that cannot be carried out as given."""
    output = cli(*words)

    assert output.code == 2
    assert complaint in output.err
