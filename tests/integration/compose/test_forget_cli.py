"""`callboard agents forget`: what one agent has and had goes for good."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from actors._kernel.agent.message import ChatMessage, Message
from actors._kernel.runtime.ids import AgentId
from tests.integration.compose.commandline import Cli
from tests.integration.persistence.hosts import sql

if TYPE_CHECKING:
    from tests.harness.servers import TestPostgres

pytestmark = pytest.mark.postgres
MINE, OTHER = AgentId("waiter", "mine"), AgentId("waiter", "other")
TABLES = (
    *("runs", "event_log", "inbox", "agent_state", "follows", "dead_letters", "signals"),
    *("transcripts", "transcript_turns"),
)


async def rows_of(url: str, schema: str, agent: str) -> dict[str, int]:
    """How many rows there are of this agent, by table."""
    runs = "select run_id from runs where agent = $1"
    where = {
        "event_log": f"run_id in ({runs})",
        "signals": f"run_id in ({runs})",
        "follows": "follower = $1",
    }
    counts = {}
    for table in TABLES:
        statement = f"select count(*) as n from {table} where {where.get(table, 'agent = $1')}"
        counts[table] = (await sql(url, schema, statement, agent))[0]["n"]
    return counts


async def test_an_agent_is_forgotten(
    postgres_server: TestPostgres, schema: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Only when none of its runs is open; ids of its messages stay known, others' rows as they were."""
    url = postgres_server.url
    cli = Cli(url, schema, capsys)
    async with cli.host("waiter") as runtime:
        message = Message.of(MINE, "once")
        over = await runtime.submit(MINE, message)
        held_run = await runtime.submit(MINE, None)
        other_run = await runtime.submit(OTHER, None)
        await runtime.follow(MINE, "news", "today")
        for agent in (MINE, OTHER):
            await runtime.history.append(agent, ChatMessage.of("user", "hi"), session_id="s")
        for run_id in (over, other_run):
            await runtime.signal(run_id, "go", "done")
            async with asyncio.timeout(20):
                await runtime.result(run_id)
        await sql(url, schema, "insert into agent_state select $1, 'key', '1'", str(MINE))
        theirs = await rows_of(url, schema, str(OTHER))

        refusal = await cli.call("agents", "forget", str(MINE))
        before = await rows_of(url, schema, str(MINE))
        forget_output = await cli.call("agents", "forget", str(MINE), "--cancel", "--json")
        again = await cli.call("agents", "forget", str(MINE))
        same = await runtime.submit(MINE, message)

    assert refusal.code == 2
    assert held_run in refusal.err
    assert (before["runs"], before["transcript_turns"]) == (2, 1)
    assert (
        forget_output.data["runs"],
        forget_output.data["state"],
        forget_output.data["follows"],
    ) == (2, 1, 1)
    assert set((await rows_of(url, schema, str(MINE))).values()) == {0}
    assert await rows_of(url, schema, str(OTHER)) == theirs
    assert "0 run(s)" in again.out
    assert same == over
