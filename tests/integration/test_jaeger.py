"""What Jaeger says of a conversation, asked through its query API."""

from __future__ import annotations

import asyncio
import json
import os
import secrets
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit
from urllib.request import urlopen

import pytest

from actors._kernel.runtime.ids import AgentId
from actors._kernel.tracing import root_span_id, trace_id_of
from compose._assembly.runtime import build_postgres_runtime
from compose._assembly.settings import Settings
from tests.behaviour.agents import Acting, greeter

if TYPE_CHECKING:
    from actors._kernel.agent.message import Message
    from actors._runtime import RunContext

URL = os.environ.get("JAEGER_URL", "").rstrip("/")
pytestmark = pytest.mark.skipif(
    not URL, reason="JAEGER_URL=http://HOST:16686 names a Jaeger; no package carries one"
)


def collector() -> str:
    """Where it takes OTLP: `JAEGER_OTLP_URL`, else port 4318 of the same machine."""
    return os.environ.get("JAEGER_OTLP_URL") or f"http://{urlsplit(URL).hostname}:4318"


async def query(path: str) -> Any:
    """What the query API answers; None for 404."""

    def get() -> Any:
        with urlopen(f"{URL}{path}", timeout=5) as answer:
            return json.load(answer)["data"]

    try:
        return await asyncio.to_thread(get)
    except OSError as exc:
        if getattr(exc, "code", None) == 404:
            return None
        raise


async def until_told(path: str, min_spans: int) -> list[dict[str, Any]]:
    """The spans of a trace, once there are so many."""
    async with asyncio.timeout(20):
        while True:
            traces = await query(path)
            if traces and len(traces[0]["spans"]) >= min_spans:
                spans: list[dict[str, Any]] = traces[0]["spans"]
                return spans
            await asyncio.sleep(0.2)


@pytest.mark.item(483)
async def test_jaeger_shows_a_conversation_as_one_trace(postgres_dsn: str, schema: str) -> None:
    """Service, names and parents are there: a run, its turn, a model call, a child and its step."""
    settings = Settings(postgres_url=postgres_dsn, db_schema=schema, otlp_endpoint=collector())
    tag = secrets.token_hex(4)

    async def work(ctx: RunContext, inbox: list[Message]) -> str:
        del inbox
        return await ctx.step("count", lambda: "counted")

    child = Acting(AgentId(f"child-{tag}", "a"), work)

    async def talk(ctx: RunContext, inbox: list[Message]) -> None:
        del inbox
        await ctx.llm("hi")
        await ctx.join(await ctx.spawn(child.id, {}))

    parent = Acting(AgentId(f"parent-{tag}", "a"), talk, model=greeter())
    async with build_postgres_runtime(postgres_dsn, settings=settings) as runtime:
        await runtime.register(child)
        await runtime.register(parent)
        run_id = await runtime.submit(parent.id, {})
        await runtime.result(run_id)
        row = await runtime.store.reads.run(run_id)
        assert row is not None
    spans = await until_told(f"/api/traces/{trace_id_of(row)}", 8)

    assert "callboard" in await query("/api/services")
    by_name = {span["operationName"]: span for span in spans}
    parents = {
        span["spanID"]: [
            reference["spanID"]
            for reference in span["references"]
            if reference["refType"] == "CHILD_OF"
        ]
        for span in spans
    }
    root = f"{root_span_id(run_id):016x}"
    assert by_name[f"invoke_agent parent-{tag}"]["spanID"] == root
    assert parents[root] == []
    assert parents[by_name[f"invoke_agent child-{tag}"]["spanID"]] == [root]
    turns = {span["spanID"] for span in spans if span["operationName"] == "runtime.turn"}
    assert set(parents[by_name["chat scripted-1"]["spanID"]]) <= turns
    assert set(parents[by_name["step count"]["spanID"]]) <= turns
