"""`callboard tap` and `callboard ask` through the broker: the output, and the rights that they need."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING

import pytest

from actors._kernel.runtime.ids import AgentId, RunId
from actors.errors import ContractError
from broker._nats_client import NotPermittedError
from compose._assembly.settings import Settings
from compose._tools.traffic import Filter, TrafficMessage, listen, read_message
from tests.harness.rawnats import publish_bytes, raw_nats
from tests.system.agents import STEP_COUNT, executed
from tests.system.secured import secured_server, url_of

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from tests.harness.rawnats import RawNats
    from tests.harness.servers import TestNats
    from tests.integration.compose.commandline import Cli, Said
    from tests.system.processes import Hosts

NODE = AgentId("node", "a")


async def next_of(traffic: AsyncIterator[TrafficMessage], kind: str) -> TrafficMessage:
    """Return the next message of this kind."""
    async with asyncio.timeout(15):
        async for seen in traffic:
            if seen.kind == kind:
                return seen
    raise AssertionError(kind)


async def test_traffic_is_printed_with_kind_place_and_sender(
    fleet: Hosts, outsider: RawNats, nats_server: TestNats, namespace: str
) -> None:
    """A message from outside and a post; content only if requested."""
    await fleet.serving("tests.system.fleet:NODES")
    settings = Settings(namespace=namespace)
    head = f"{namespace}.agent.v1.default.node.a"
    async with listen(nats_server.url, settings, Filter()) as traffic:
        await outsider.publish(f"{head}.ext.crm", b'{"n": 1}', {"Nats-Msg-Id": "m-1"})
        message = await next_of(traffic, "message")
        await outsider.publish(f"{namespace}.topic.v1.default.news.eu.ext.crm", b'{"n": 2}')
        post = await next_of(traffic, "post")

    assert (message.place, message.sender, message.message_id) == ("node/a", "ext:crm", "m-1")
    assert message.content() == {"n": 1}
    assert "body" not in message.to_json(body=False)
    assert "m-1" in str(message.to_json(body=False))
    assert (post.place, post.sender) == ("news/eu", "ext:crm")


async def test_an_agent_is_asked_through_the_gateway_and_through_the_database(
    fleet: Hosts, cli: Cli, tmp_path: Path
) -> None:
    """Both print the output. The same id is the same run; a failed run is exit code 1."""
    await fleet.serving()
    job = tmp_path / "job.json"
    job.write_text(json.dumps({"ledger": str(tmp_path / "ledger")}))
    gateway = ("--nats-url", str(fleet.more["nats_url"]))
    space = ("--namespace", str(fleet.more["namespace"]))

    def ask(*words: str) -> Said:
        return cli.bare("ask", *words, *gateway, *space)

    first = await asyncio.to_thread(ask, "ten/a", f"@{job}", "--id", "q-1")
    again = await asyncio.to_thread(ask, "ten/a", f"@{job}", "--id", "q-1", "--json")
    failed = await asyncio.to_thread(ask, "failing/a", '"no"')
    stored = await cli.call("ask", "ten/b", f"@{job}", "--timeout", "20")

    assert first.data == [f"value-{n}" for n in range(STEP_COUNT)]
    assert again.data == {"status": "COMPLETED", "result": first.data}
    assert stored.data == first.data
    assert len(executed(tmp_path / "ledger")) == 2 * STEP_COUNT
    assert failed.code == 1
    assert "no" in failed.err
    assert "Traceback" not in failed.err


async def test_a_client_without_the_right_to_listen_gets_an_error(tmp_path: Path) -> None:
    """With the shipped permissions an external client cannot listen; the error has the remedy."""
    async with secured_server(tmp_path) as port:
        with pytest.raises(NotPermittedError, match="may subscribe"):
            async with listen(url_of(port, "crm"), Settings(), Filter()):
                pass


async def test_subjects_of_no_kind_are_shown_unchanged(nats_server: TestNats) -> None:
    """A custom pattern may match any subject."""
    async with raw_nats(nats_server.url) as other:
        settings = Settings(namespace="nobody-here")
        async with listen(nats_server.url, settings, Filter(pattern="x.>")) as traffic:
            await other.send(publish_bytes("nobody-here.x.y", b"\xff\x00"))
            seen = await next_of(traffic, "other")

    assert (seen.place, seen.size) == ("x.y", 2)


@pytest.mark.parametrize(
    ("subject", "kind", "expected_place"),
    [
        ("agent.v1.default.desk.a%20b.in", "mail", "desk/a b"),
        ("agent.v1.acme.desk.k.ext.crm", "message", "acme:desk/k"),
        ("agent.v1.default.desk.k.sig.crm.r1.go", "signal", "desk/k"),
        ("topic.v1.default.news.eu", "post", "news/eu"),
        ("dead.v1.default.desk.k", "dead", "desk/k"),
        ("ask.v1.default.desk.k.crm", "ask", "desk/k"),
        ("run.v1.default.desk.k.r1", "live", "desk/k"),
        ("run.v1.default.desk.k.r1.end", "end", "desk/k"),
        ("api.v1.default.crm.status", "api", "default"),
        ("agent.v1", "other", "agent.v1"),
        ("%zz..", "other", "%zz.."),
    ],
)
def test_every_subject_has_a_kind_and_a_place(subject: str, kind: str, expected_place: str) -> None:
    """Unknown subjects are shown unchanged."""
    seen = read_message(
        subject, {"Actor-Reason": "no%20one", "Actor-Sender": "%zz"}, b"\xff" * 2000
    )

    assert (seen.kind, seen.place, seen.reason) == (kind, expected_place, "no one")
    assert len(seen.content_text()) < 1100


def test_filters_become_subjects() -> None:
    """Each filter narrows what the server sends; two of them are refused."""
    of_run = Filter(run=RunId("r1")).patterns()

    assert Filter(agent=AgentId("desk", "a b")).patterns()[0] == "dead.v1.default.desk.a%20b"
    assert "agent.v1.*.desk.>" in Filter(type="desk").patterns()
    assert of_run[0] == "run.v1.*.*.*.r1"
    with pytest.raises(ContractError, match="one of PATTERN"):
        Filter(type="desk", run="r").patterns()
