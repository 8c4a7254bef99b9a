"""The task boards of a process whose runtime is on PostgreSQL."""

from __future__ import annotations

from contextlib import AsyncExitStack
from typing import TYPE_CHECKING

import pytest

from actors._inmemory.boards import GlobalTaskStore, InMemoryTaskStore
from actors._kernel.agent.tools import ToolCall
from actors.agents import ReActAgent, TaskManagerTool
from actors.errors import ContractError
from actors.testing import ModelReply, ScriptedModel
from compose import build_postgres_runtime
from compose._assembly.settings import read_settings
from persistence._postgres.data.boards import PgTaskStore

if TYPE_CHECKING:
    from actors._runtime import Runtime

PLAN = {"action": "create_list", "tasks": [{"title": "find a date"}]}
BEGIN = {"action": "update_status", "task_id": "1", "status": "in_progress"}


@pytest.mark.item(332, 333, 334)
async def test_runtimes_on_postgres_keep_boards_there_while_they_are_open(
    postgres_dsn: str, schema: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They close in any order, and leave the store that was there before; boards outlive them."""
    monkeypatch.setenv("RUNTIME_BACKEND", "postgres")

    async def open_runtime(stack: AsyncExitStack) -> Runtime:
        building = build_postgres_runtime(postgres_dsn, settings=read_settings(db_schema=schema))
        return await stack.enter_async_context(building)

    script = [
        ModelReply(calls=[ToolCall(id="1", name="tasks", arguments=arguments)])
        for arguments in (PLAN, BEGIN)
    ]
    agent = ReActAgent("planner", model=ScriptedModel(*script, "done"), tools=[TaskManagerTool()])
    async with AsyncExitStack() as second, AsyncExitStack() as first:
        runtime = await open_runtime(first)
        await open_runtime(second)
        await runtime.register(agent)
        await runtime.result(await runtime.submit(agent.id, "plan", session_id="talk"))
        await first.aclose()
        board = await GlobalTaskStore.get().get_task_list("talk", agent.id)
        assert isinstance(GlobalTaskStore.get(), PgTaskStore)
    assert board is not None
    assert [(task.title, task.status.value) for task in board.tasks] == [
        ("find a date", "succeeded")
    ]
    assert isinstance(GlobalTaskStore.get(), InMemoryTaskStore)
    async with AsyncExitStack() as third:
        await open_runtime(third)
        assert await GlobalTaskStore.get().get_boards("talk") == [board]
        GlobalTaskStore.set(InMemoryTaskStore())
        assert await GlobalTaskStore.get().get_boards("talk") == []
        GlobalTaskStore.set(None)
        assert await GlobalTaskStore.get().get_boards("talk") == [board]


@pytest.mark.item(333)
def test_an_unknown_backend_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """The error names the variable."""
    monkeypatch.setenv("RUNTIME_BACKEND", "redis")
    with pytest.raises(ContractError, match="RUNTIME_BACKEND='redis'"):
        read_settings()
