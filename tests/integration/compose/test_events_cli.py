"""`callboard runs events --follow` on NATS: pieces of an answer that another process makes."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from contextlib import aclosing
from typing import TYPE_CHECKING, Any

import pytest
from typing_extensions import override

from actors._kernel.agent.message import ChatMessage
from actors._kernel.agent.models import Completion, TextDelta
from actors._kernel.runtime.ids import AgentId
from actors.testing import ScriptedModel
from broker.client import ActorClient
from compose._assembly.runtime import build_runtime
from compose._assembly.settings import Settings

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    from actors._kernel.agent.message import Message
    from actors._kernel.agent.models import GenerationOptions, StreamEvent
    from actors._runtime import RunContext
    from tests.harness.servers import TestNats, TestPostgres

pytestmark = [pytest.mark.postgres, pytest.mark.nats]


class Talkative(ScriptedModel):
    """Says the same piece again and again until the test has heard one."""

    def __init__(self) -> None:
        super().__init__("Hello there")
        self.heard = asyncio.Event()

    @override
    async def generate_stream(
        self, messages: Sequence[ChatMessage], *, options: GenerationOptions | None = None
    ) -> AsyncIterator[StreamEvent]:
        while not self.heard.is_set():
            yield TextDelta(text="la ")
            await asyncio.sleep(0.01)
        async for event in super().generate_stream(messages, options=options):
            if isinstance(event, Completion):
                yield event


class Singer:
    """One model call."""

    def __init__(self, agent_id: AgentId, model: ScriptedModel) -> None:
        self.id, self.model = agent_id, model

    async def run(self, ctx: RunContext, inbox: list[Message]) -> Any:
        """Return what the model said."""
        assert inbox
        return (await ctx.llm([ChatMessage.of("user", "sing")])).text


async def test_answers_are_shown_while_they_are_made(
    postgres_server: TestPostgres, schema: str, nats_server: TestNats, namespace: str
) -> None:
    """By another process than the one that makes them; the end mark comes last."""
    settings = Settings(db_schema=schema, namespace=namespace)
    model = Talkative()
    async with build_runtime(nats_server.url, postgres_server.url, settings=settings) as runtime:
        await runtime.register(Singer(AgentId("singer", "1"), model))
        run_id = await runtime.submit(AgentId("singer", "1"), "go")
        surroundings = {
            **os.environ,
            "CALLBOARD_NATS_URL": nats_server.url,
            "CALLBOARD_NAMESPACE": namespace,
            "CALLBOARD_SCHEMA": schema,
            "CALLBOARD_POSTGRES_URL": postgres_server.url,
        }
        command = (sys.executable, "-m", "compose", "runs", "events", run_id, "-f", "--json")
        program = await asyncio.create_subprocess_exec(
            *command, env=surroundings, stdout=asyncio.subprocess.PIPE
        )
        assert program.stdout is not None
        events = []
        async with asyncio.timeout(25):
            async for line in program.stdout:
                events.append(json.loads(line))
                if events[-1]["kind"] == "delta":
                    model.heard.set()
            code = await program.wait()

    deltas = [event for event in events if event["kind"] == "delta"]
    assert code == 0
    assert {event["data"]["text"] for event in deltas} == {"la "}
    assert (events[-1]["kind"], events[-1]["name"]) == ("end", "COMPLETED")
    assert events[-1]["data"]["result"] == "Hello there"


class Builder:
    """Shows how far it is until somebody has seen it."""

    def __init__(self, agent_id: AgentId, enough_pieces: asyncio.Event) -> None:
        self.id, self._seen = agent_id, enough_pieces

    async def run(self, ctx: RunContext, inbox: list[Message]) -> None:
        """Build."""
        del inbox

        async def build() -> None:
            while not self._seen.is_set():
                await ctx.emit_delta("brick ")
                await ctx.emit_delta({"percent": 5})
                await asyncio.sleep(0.02)

        await ctx.step("build", build)


async def test_what_an_agent_shows_is_seen_by_other_processes(
    postgres_server: TestPostgres, schema: str, nats_server: TestNats, namespace: str
) -> None:
    """By the command line as lines for people, and by an outside service as events."""
    settings = Settings(db_schema=schema, namespace=namespace)
    enough_pieces, pieces = asyncio.Event(), []
    async with build_runtime(nats_server.url, postgres_server.url, settings=settings) as runtime:
        await runtime.register(Builder(AgentId("builder", "1"), enough_pieces))
        run_id = await runtime.submit(AgentId("builder", "1"), "go")
        surroundings = {
            **os.environ,
            "CALLBOARD_NATS_URL": nats_server.url,
            "CALLBOARD_NAMESPACE": namespace,
            "CALLBOARD_SCHEMA": schema,
            "CALLBOARD_POSTGRES_URL": postgres_server.url,
        }
        command = (sys.executable, "-m", "compose", "runs", "events", run_id, "-f")
        program = await asyncio.create_subprocess_exec(
            *command, env=surroundings, stdout=asyncio.subprocess.PIPE
        )
        assert program.stdout is not None
        printed_bytes = b""
        async with (
            asyncio.timeout(25),
            ActorClient(
                nats_server.url, publisher="crm", sees="tenant", namespace=namespace
            ) as crm,
            aclosing(crm.events(run_id)) as events,
        ):
            expected = (b"brick ", b'custom.delta  {"percent": 5}')
            while not all(piece in printed_bytes for piece in expected):
                printed_bytes += await program.stdout.read(1000)
            async for event in events:
                if event.kind == "delta":
                    pieces.append(event)
                if len(pieces) == 4:
                    enough_pieces.set()
        rest, _ = await program.communicate()

    assert b"brick " in printed_bytes
    assert b"COMPLETED" in rest
    assert {(piece.name, piece.position) for piece in pieces} == {("custom.delta", "0")}
    texts = [piece for piece in pieces if piece.text]
    others = [piece.data for piece in pieces if not piece.text]
    assert {piece.text for piece in texts} == {"brick "}
    assert all(isinstance(data, dict) and data["data"] == {"percent": 5} for data in others)
    assert others
