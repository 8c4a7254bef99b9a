"""Secrets of an agent and passwords of servers are in no table, stream, log or trace."""

from __future__ import annotations

import asyncio
import json
import logging
import secrets
from base64 import b64decode
from functools import partial
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import asyncpg
import pytest
import redis.asyncio as aioredis

from actors import Risk, RunFailedError, Secret, Tool
from actors._kernel.runtime.ids import AgentId
from compose import Settings
from compose._assembly.runtime import build_runtime
from tests.harness.rawnats import raw_nats
from tests.system.hosts.test_traces import receiving
from tests.system.secured import make_streams, password_of, secured_server, url_of
from tests.system.waiting import until

if TYPE_CHECKING:
    from pathlib import Path

    from actors._kernel.agent.message import Message
    from actors._runtime import RunContext, Runtime
    from tests.harness.servers import TestPostgres, TestRedis

KEY = Secret("API_KEY")


class Shop:
    """Uses the secret in every supported way."""

    def __init__(self, agent_id: AgentId) -> None:
        self.id = agent_id
        self.got: list[str] = []

        async def refund(key: str) -> str:
            self.got.append(key)
            raise ConnectionError(f"GET /refund?key={key}")

        self.tools = (Tool("refund", "Refund.", refund, risk=Risk.CRITICAL),)

    async def run(self, ctx: RunContext, inbox: list[Message]) -> Any:
        """Succeed, fail and be denied with it; then reply, ask another agent and fail without retry."""

        async def charge(key: str) -> dict[str, str]:
            return {"authorization": f"Bearer {key}"}

        async def fail(key: str) -> None:
            raise ValueError(f"{key} is not valid") from ConnectionError(f"key {key}")

        seen: list[Any] = [await ctx.step("charge", charge, KEY)]
        seen.append(await ctx.step("charge once", charge, KEY, effect="at_most_once"))
        try:
            await ctx.step("fail", fail, KEY)
        except ValueError as exc:
            seen.append(str(exc))
        seen.append((await ctx.tool("refund", key=KEY)).text)
        await ctx.send(AgentId("echo", "1"), {"seen": seen})
        await ctx.emit("sales", {"SALE_MARK": seen})
        if inbox[0].payload == "fail":
            await ctx.step("fail again", fail, KEY)
        return seen


class Echo:
    """Receives the shop's result."""

    def __init__(self, agent_id: AgentId) -> None:
        self.id = agent_id

    async def run(self, ctx: RunContext, inbox: list[Message]) -> Any:
        """Record it in a step."""
        return await ctx.step("note", lambda: inbox[0].payload)


@pytest.mark.costly
async def test_secrets_are_stored_nowhere(  # noqa: PLR0917
    postgres_server: TestPostgres,
    redis_server: TestRedis,
    schema: str,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Not in tables, streams, Redis, logs or traces, also with content enabled."""
    canary = f"sk-{secrets.token_hex(8)}"
    mounted = tmp_path / "secrets"
    mounted.mkdir()
    (mounted / "API_KEY").write_text(f"{canary}\n")
    caplog.set_level(logging.DEBUG)
    async with secured_server(tmp_path) as port, receiving() as backend:
        settings = Settings(
            db_schema=schema,
            suspend_after=0,
            otlp_endpoint=backend.url,
            trace_content=True,
            secrets_dir=mounted,
        )
        await make_streams(port, postgres_server.url, schema)
        building = build_runtime(
            url_of(port, "host"), postgres_server.url, redis_server.url, settings=settings
        )
        async with building as runtime:
            shop = await _played(runtime)
            await until(lambda: bool(_spans_of(backend.spans, "invoke_agent echo")), "spans")

            async def is_posted() -> bool:
                return "SALE_MARK" in await _streams(url_of(port, "admin"))

            await until(is_posted, "the post in its stream")
            places = {
                "PostgreSQL": await _tables(postgres_server.url, schema),
                "NATS": await _streams(url_of(port, "admin")),
                "Redis": await _keys(redis_server.url),
            }
        places["logs"] = caplog.text + repr([record.__dict__ for record in caplog.records])
        places["traces"] = "\n".join(str(span) for span in backend.spans)

    assert shop.got == [canary] * 2
    for name, text in places.items():
        assert canary not in text, f"the secret is in {name}"
        assert password_of("host") not in text, f"the password of NATS is in {name}"
        assert str(urlsplit(postgres_server.url).password) not in text, f"PostgreSQL's, in {name}"
    for name in ("PostgreSQL", "NATS", "Redis", "traces"):
        assert "[secret API_KEY]" in places[name], f"{name} was not looked into"


async def _played(runtime: Runtime) -> Shop:
    """Execute one run that completes and one that fails; approve their requests."""
    shop = Shop(AgentId("shop", "1"))
    await runtime.register(shop)
    await runtime.register_type("echo", Echo)
    runs = [
        await runtime.submit(shop.id, payload, max_retries=0) for payload in ("complete", "fail")
    ]
    for run_id in runs:
        await until(partial(_decided, runtime, run_id), "a request for approval")
    seen = json.dumps(await runtime.result(runs[0]))
    try:
        await runtime.result(runs[1])
    except RunFailedError as exc:
        seen += str(exc)
    assert seen.count("[secret API_KEY]") == 5
    return shop


async def _decided(runtime: Runtime, run_id: Any) -> bool:
    for request in await runtime.approvals.open(run_id=run_id):
        assert request.args == {"risk": "critical", "arguments": {"key": {"$secret": "API_KEY"}}}
        await runtime.approvals.decide(request.id, approve=True, by="Alex")
        return True
    return False


def _spans_of(spans: list[Any], name: str) -> list[Any]:
    return [span for span in spans if span.name == name]


async def _tables(url: str, schema: str) -> str:
    """Return every row of every table as text."""
    connection = await asyncpg.connect(url)
    try:
        names = await connection.fetch(
            "select tablename from pg_tables where schemaname = $1 order by 1", schema
        )
        rows = [
            str(row[0])
            for (name,) in names
            for row in await connection.fetch(f'select t::text from "{schema}"."{name}" t')
        ]
    finally:
        await connection.close()
    assert len(rows) > 20
    return "\n".join(rows)


async def _streams(url: str) -> str:
    """Return every message of every stream, with its headers; purged ones are deleted there, too."""
    parts = []
    async with raw_nats(url, inbox="_INBOX_admin") as admin:
        streams = json.loads((await admin.request("$JS.API.STREAM.LIST")).body)["streams"]
        assert len(streams) == 4
        for stream in streams:
            state, name = stream["state"], stream["config"]["name"]
            for sequence in range(state["first_seq"], state["last_seq"] + 1):
                request = json.dumps({"seq": sequence}).encode()
                answer = await admin.request(f"$JS.API.STREAM.MSG.GET.{name}", request)
                message = json.loads(answer.body).get("message", {})
                parts += [b64decode(message.get(part, "")) for part in ("hdrs", "data")]
    return b"\n".join(parts).decode(errors="replace")


async def _keys(url: str) -> str:
    """Return every key of Redis, with its serialized value."""
    parts = []
    async with aioredis.from_url(url) as client:
        async for key in client.scan_iter(count=1000):
            value = await client.get(key) if await client.type(key) == b"string" else None
            parts += [key, value or await client.dump(key) or b""]
            await asyncio.sleep(0)
    return b"\n".join(parts).decode(errors="replace")
