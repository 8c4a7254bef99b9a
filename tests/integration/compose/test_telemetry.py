"""A trace collector that is not there disturbs nobody."""

from __future__ import annotations

import asyncio
import logging
import socket
from typing import TYPE_CHECKING

import pytest

from actors._kernel.runtime.ids import AgentId
from compose._assembly import telemetry
from compose._assembly.runtime import build_postgres_runtime
from compose._assembly.settings import Settings
from tests.behaviour.agents import Acting

if TYPE_CHECKING:
    from actors._kernel.agent.message import Message
    from actors._runtime import RunContext

LOST = "traces cannot be exported; spans are lost, and agents continue"


@pytest.mark.item(483)
@pytest.mark.parametrize("kind", ["closed", "silent"])
async def test_an_unreachable_collector_disturbs_no_agent(
    kind: str,
    *,
    postgres_dsn: str,
    schema: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Runs end, the log says once that spans are lost, and the host stops within its limit."""
    monkeypatch.setattr(telemetry, "EXPORT_LIMIT_S", 0.2)
    monkeypatch.setattr(telemetry, "EXPORT_EVERY_S", 0.05)
    with socket.socket() as collector:
        collector.bind(("127.0.0.1", 0))
        if kind == "silent":
            collector.listen()
        settings = Settings(
            postgres_url=postgres_dsn,
            db_schema=schema,
            otlp_endpoint=f"http://127.0.0.1:{collector.getsockname()[1]}",
        )

        async def act(ctx: RunContext, inbox: list[Message]) -> str:
            del inbox
            return await ctx.step("one", lambda: "done")

        agent = Acting(AgentId("traced", "a"), act)
        with caplog.at_level(logging.WARNING):
            async with (
                asyncio.timeout(20),
                build_postgres_runtime(postgres_dsn, settings=settings) as runtime,
            ):
                await runtime.register(agent)
                for _ in range(20):
                    run_id = await runtime.submit(agent.id, {})
                    assert await runtime.result(run_id) == "done"
                messages = [record.message for record in caplog.records]
                while LOST not in messages:
                    await asyncio.sleep(0.01)
                    messages = [record.message for record in caplog.records]

    assert messages.count(LOST) == 1
    assert not [word for word in messages if "export" in word.lower() and word != LOST]
