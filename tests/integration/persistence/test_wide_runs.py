"""Runs of many branches on PostgreSQL: how long they keep the event loop."""

from __future__ import annotations

import pytest

from actors._kernel.runtime.ids import AgentId, HostIncarnation
from actors._runtime import Runtime
from actors._runtime.replay.branch_scheduler import MOVES
from persistence.postgres import open_postgres_store
from tests.harness.wide import Ticker, Wide, suspended


@pytest.mark.parametrize("together", [True, False], ids=["gather", "one by one"])
async def test_many_moves_let_others_go_between(
    postgres_dsn: str, schema: str, together: bool
) -> None:
    """No more than a hundred go on between two turns of the event loop, live and on replay."""
    count, owner = 1000 if together else 200, HostIncarnation("wide")
    agent = Wide(AgentId("wide", "one"), count, together=together)
    async with (
        open_postgres_store(postgres_dsn, schema=schema, owner=owner) as store,
        Runtime(store=store, owner=owner, suspend_after=0.0) as runtime,
    ):
        await runtime.register(agent)
        async with Ticker(lambda: agent.moves) as live:
            run = await runtime.submit(agent.id, None)
            await suspended(runtime, run)
        async with Ticker(lambda: agent.moves) as replay:
            await runtime.signal(run, "go")
            await runtime.result(run)

    assert agent.replays > 1
    assert 0 < live.most <= MOVES
    assert 0 < replay.most <= MOVES
