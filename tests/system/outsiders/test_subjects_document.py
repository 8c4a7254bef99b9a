"""The commands of `docs/subjects.md` are executed by an external client, and its statements are checked."""

from __future__ import annotations

import asyncio
import json
import re
import sys
from typing import TYPE_CHECKING, Any

import pytest
from nats.errors import Error as NatsError

from actors._kernel.runtime.ids import AgentId
from broker._gateway import streams as events_stream
from compose import Settings
from compose._assembly.runtime import build_runtime
from tests.harness.rawnats import raw_nats
from tests.integration.broker.lines import plain_server
from tests.integration.compose.commandline import Cli
from tests.system.asking import outside
from tests.system.outside import Bed, Notes, Waiter
from tests.system.waiting import until
from tests.unit.documents import ROOT, Publish, blocks, published, requested

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable
    from pathlib import Path

    from actors._kernel.agent.message import Message
    from actors._kernel.runtime.ids import RunId
    from actors._runtime import RunContext
    from tests.harness.servers import OwnNats, TestPostgres, TestRedis

DOCUMENT = "docs/subjects.md"


@pytest.fixture
async def bed(
    postgres_server: TestPostgres, own_nats: OwnNats, redis_server: TestRedis, schema: str
) -> AsyncIterator[Bed]:
    """Yield a host without a namespace, so that the commands stand as they are."""
    new_bed = Bed(own_nats().url, postgres_server.url, redis_server.url, schema, "", Notes())
    async with new_bed.running(), new_bed.connected():
        await new_bed.runtime.register_type("approval", lambda id_: Waiter(id_, new_bed.notes))
        yield new_bed


class Reader:
    """Executes the document's commands, one after the other."""

    def __init__(self, bed: Bed, run_id: RunId) -> None:
        self._bed, self._run_id = bed, run_id
        self._checks: dict[str, Callable[..., Awaitable[None]]] = {
            r"(\S+), which follows \S+, gets (\{.*\}) from (\S+)": self._follower_gets,
            r"(\S+/.+) gets (\{.*\}) from (\S+)": self._gets,
            r"nothing: .*": self._nothing,
            r"dead letter of (\S+): (.*)": self._dead_letter,
            r"the run of \S+ gets (.*)": self._run_gets,
        }

    async def do(self, command: Publish) -> None:
        """Publish, then check the documented outcome."""
        subject = command.subject.replace("RUN", self._run_id)
        ack = await self._bed.outsider.publish(subject, command.body.encode(), command.headers)
        assert "error" not in ack
        for pattern, holds in self._checks.items():
            if match := re.fullmatch(pattern, command.outcome):
                await holds(*match.groups())
                return
        pytest.fail(f"nobody knows how to check {command.outcome!r}")

    async def _gets(self, agent: str, payload: str, sender: str) -> None:
        handled = await self._bed.handled(AgentId.parse(agent))
        assert (handled[-1].sender, handled[-1].payload) == (sender, json.loads(payload))

    async def _follower_gets(self, agent: str, payload: str, sender: str) -> None:
        follower = AgentId.parse(agent)
        await self._bed.notes.until(follower, json.loads(payload))
        assert self._bed.notes.handled[follower][-1].sender == sender

    async def _nothing(self) -> None:
        """Check nothing yet: a message handled too often is found at the end."""

    async def _dead_letter(self, agent: str, words: str) -> None:
        agent_id = AgentId.parse(agent)

        async def has_come() -> bool:
            return any(words in letter.last_error for letter in await self._bed.letters(agent_id))

        await until(has_come, f"a dead letter of {agent}: {words}")

    async def _run_gets(self, payload: str) -> None:
        assert (await self._bed.ended(self._run_id)).result == [json.loads(payload)]


@pytest.mark.item(33, 159, 199)
async def test_every_command_of_the_document_has_the_documented_outcome(
    bed: Bed, capsys: pytest.CaptureFixture[str]
) -> None:
    """The command line lists the documented dead letters."""
    run_id = await bed.started(AgentId("approval", "order-17"), "start", {"count": 1})
    commands = [c for block in blocks(DOCUMENT, "sh") for c in published(block)]
    reader = Reader(bed, run_id)
    await bed.runtime.follow(AgentId("desk", "k8"), "news", "eu")
    for command in commands:
        await reader.do(command)
    cli = Cli(bed.postgres_url, bed.schema, capsys)
    letter_list = await cli.call("dlq", "list", "--agent", "desk/k4", "--json")
    refused = await cli.call("dlq", "redrive", str(letter_list.data[0]["id"]))
    handled = [message for messages in bed.notes.handled.values() for message in messages]
    promised = [c for c in commands if " gets " in c.outcome and "run of" not in c.outcome]

    assert len(commands) >= 14
    assert [letter["reason"] for letter in letter_list.data] == ["undecodable"] * 3
    assert "let its sender send it again" in refused.err
    assert (
        len([message for message in handled if message.sender != "ext:fence"]) == len(promised) + 1
    )


class Clerk:
    """The agent that the document asks."""

    def __init__(self, agent_id: AgentId) -> None:
        self.id = agent_id

    async def run(self, ctx: RunContext, inbox: list[Message]) -> dict[str, Any]:
        """Return payload and sender."""
        del ctx
        return {"said": inbox[0].payload, "by": inbox[0].sender}


@pytest.mark.item(33, 199)
async def test_every_request_of_the_document_gets_the_answer_below_it(bed: Bed) -> None:
    """Answers as written, errors by code, type and text, streams by the names of their events."""
    await bed.runtime.register_type("clerk", Clerk)
    commands = [c for block in blocks(DOCUMENT, "sh") for c in requested(block)]
    async with outside(bed.nats_url, "") as service:
        for command in commands:
            if events := re.fullmatch("events: (.*)", command.outcome):
                stream_events = await service.events(**json.loads(command.body))
                assert [event["name"] for event in stream_events] == events[1].split(), command
                continue
            answer = await service.request(
                command.subject, command.body.encode(), dict(command.headers)
            )
            if error := re.fullmatch(r"(\d{3}) (\w+): (.*)", command.outcome):
                problem = answer.body["error"]
                assert (answer.code, problem["type"]) == (int(error[1]), error[2]), command
                assert error[3] in problem["message"], command
            else:
                assert answer.body == json.loads(command.outcome), command

    assert len(commands) >= 13


async def test_the_configuration_of_the_document_lets_services_ask_and_watch(
    postgres_server: TestPostgres, schema: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One in the hosts' account, and one of a tenant in its own; neither under another name."""
    monkeypatch.setattr(events_stream, "BEAT_EVERY_S", 0.05)
    monkeypatch.setattr(events_stream, "FORGET_AFTER_S", 2.5)
    [config] = blocks(DOCUMENT, "hocon")
    config = config.replace("/var/lib/nats", str(tmp_path / "store"))
    async with plain_server(tmp_path, config) as port:
        at = f"127.0.0.1:{port}"
        building = build_runtime(
            f"nats://host:change-me-1@{at}",
            postgres_server.url,
            settings=Settings(db_schema=schema),
        )
        async with (
            building as runtime,
            outside(f"nats://crm:change-me-2@{at}", "") as crm,
            outside(f"nats://acme:change-me-3@{at}", "", tenant="acme", publisher="any") as acme,
        ):
            await runtime.register_type("clerk", Clerk)
            await runtime.register_type("approval", lambda id_: Waiter(id_, Notes()))
            for service, publisher in ((crm, "crm"), (acme, "any")):
                assert (await service.ask("clerk/a", 1)).body["by"] == f"ext:{publisher}"
                begun = await service.api("submit", agent="approval/a", payload={"count": 1})
                watching = asyncio.create_task(service.events(run=begun.body["run"]))
                await asyncio.sleep(3.5)  # more than a silent reader gets
                await service.api("signal", run=begun.body["run"], name="go", payload=1)
                assert (await watching)[-1]["name"] == "COMPLETED"
            for subject in ("ask.v1.default.clerk.a.shop", "ask.v1.acme.clerk.a.crm"):
                with pytest.raises(NatsError):
                    await crm.client.request(subject, b"1", timeout=0.5)


async def test_the_transcript_of_the_document_is_a_servers_answer(bed: Bed) -> None:
    """Byte counts included; both messages are handled."""
    [transcript] = blocks(DOCUMENT, "nats")
    steps = [(line[:1], line[2:]) for line in transcript.splitlines()]
    host, port = bed.nats_url.removeprefix("nats://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    try:
        for who, text in steps:
            if who == "C":
                writer.write(text.encode() + b"\r\n")
                continue
            async with asyncio.timeout(20):
                reply = (await reader.readline()).decode().rstrip()
            assert re.fullmatch(re.escape(text).replace("…", ".*"), reply), (text, reply)
    finally:
        writer.close()
        await writer.wait_closed()

    assert await bed.payloads(AgentId("desk", "k7")) == [{"say": "hello"}, {"n": 1}]


async def test_the_examples_publish_as_their_readme_documents(bed: Bed) -> None:
    """The script in Python is run twice, the one in shell by hand; each order counts once."""
    program = str(ROOT / "examples" / "outside" / "publish.py")
    server = bed.nats_url.removeprefix("nats://")
    for _ in range(2):
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            program,
            server,
            "desk",
            "a b",
            "crm",
            "m-1",
            '{"order": 17}',
            stdout=asyncio.subprocess.PIPE,
        )
        out, _ = await process.communicate()
        assert json.loads(out)["stream"].startswith("EDGE_")
    async with raw_nats(bed.nats_url) as shell:
        for command in published((ROOT / "examples" / "outside" / "publish.sh").read_text()):
            await shell.publish(command.subject, command.body.encode(), command.headers)
    order = AgentId("desk", "order-17")

    assert await bed.payloads(AgentId("desk", "a b")) == [{"order": 17}]
    assert await bed.payloads(order) == [{"order": 17}]
    assert len(await bed.letters(order)) == 1
