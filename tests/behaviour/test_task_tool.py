"""The tool by which a model plans, in conversations of several agents."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest
from typing_extensions import override

from actors._inmemory.boards import GlobalTaskStore, InMemoryTaskBoards, InMemoryTaskStore
from actors._kernel.agent.tools import ToolCall
from actors._kernel.runtime.ids import AgentId
from actors._kernel.runtime.log_entry import EntryKind as K
from actors._kernel.stores.data import Task, TaskStatus
from actors.agents import ReActAgent, TaskManagerTool
from actors.errors import OtherTenantError
from actors.testing import ModelReply, ScriptedModel
from tests.behaviour.agents import Acting

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from actors._kernel.agent.message import Message
    from actors._kernel.stores.data import TaskList, TaskStore
    from actors._runtime import RunContext
    from tests.behaviour.bed import Bed

S = TaskStatus


def calls(*arguments: dict[str, Any]) -> ModelReply:
    """Return an answer that calls the tool, once for each of these arguments."""
    tool_calls = [
        ToolCall(id=str(n), name="tasks", arguments=fields) for n, fields in enumerate(arguments)
    ]
    return ModelReply(calls=tool_calls)


def plan(*titles: str) -> dict[str, Any]:
    """Return the arguments that make a plan."""
    tasks = [{"title": title} for title in titles]
    return {"action": "create_list", "title": "plan", "tasks": tasks}


def move(task_id: str, status: str, note: str = "") -> dict[str, Any]:
    """Return the arguments that move a task."""
    return {"action": "update_status", "task_id": task_id, "status": status, "note": note}


def tasks_of(board: TaskList | None) -> list[tuple[str, str, str, str]]:
    """Return a board's tasks in a short form."""
    assert board is not None
    return [(task.id, task.title, task.status.value, task.note) for task in board.tasks]


@pytest.fixture(autouse=True)
async def boards() -> AsyncIterator[InMemoryTaskBoards]:
    """Replace the process's boards by those of this test."""
    memory_boards = InMemoryTaskBoards()
    with GlobalTaskStore.using(memory_boards):
        yield memory_boards


async def react(bed: Bed, *script: Any, **tool: Any) -> tuple[AgentId, ScriptedModel]:
    """Serve an agent with this script and the tool."""
    model = ScriptedModel(*script)
    agent = ReActAgent(bed.name(), model=model, tools=[TaskManagerTool(**tool)])
    bed.agents[agent.id] = agent
    await bed.runtime.register(agent)
    return agent.id, model


def results(model: ScriptedModel) -> list[str]:
    """Return the tool results in the model's last request."""
    messages = model.asked[-1].messages
    return [str(message.content[0].text) for message in messages if message.role == "tool"]


@pytest.mark.item(331, 334, 339)
async def test_concurrent_conversations_plan_on_separate_boards(bed: Bed) -> None:
    """Two agents, two conversations. A completed run has no task in progress on its own board."""
    agents = []
    for name in "ab":
        script = (
            calls(plan(f"{name}-first", "second")),
            calls(move("1", "in_progress", name)),
            "done",
        )
        agents.append((await react(bed, *script, *script))[0])
    other = AgentId("other", "1")
    await GlobalTaskStore.get().create_task_list(
        "talk-0", other, [Task(id="o", title="", status=S.IN_PROGRESS)]
    )

    runs = [
        await bed.submit(agent, "plan", session_id=f"talk-{n}")
        for n in range(2)
        for agent in agents
    ]
    assert [await bed.result(run_id) for run_id in runs] == ["done"] * 4
    store = GlobalTaskStore.get()
    for n in range(2):
        for agent, name in zip(agents, "ab", strict=True):
            assert tasks_of(await store.get_task_list(f"talk-{n}", agent)) == [
                ("1", f"{name}-first", "succeeded", name),
                ("2", "second", "pending", ""),
            ]
    assert tasks_of(await store.get_task_list("talk-0", other)) == [("o", "", "in_progress", "")]
    assert await store.get_boards("default") == []


@pytest.mark.item(334)
async def test_a_model_reads_views_and_refusals_of_the_board(bed: Bed) -> None:
    """Views of the board, and the reason of each refusal; concurrently added tasks have different numbers."""
    more = {"action": "add_tasks", "tasks": [{"title": "more", "description": "d"}]}
    agent, model = await react(
        bed,
        calls({"action": "list"}, more),
        calls(plan("one", "two")),
        calls(more, more),
        calls(move("1", "succeeded"), move("9", "failed"), {"action": "update_status"}),
        calls(move("1", "in_progress")),
        calls(move("1", "failed", "no luck")),
        *[calls({"action": "retry", "task_id": "1"})] * 4,
        calls(plan("x" * 600), {"action": "list"}),
        calls({"action": "dance"}),
        "done",
        settles=False,
    )

    assert await bed.result(await bed.submit(agent, "plan", session_id="talk")) == "done"
    tool_results = results(model)
    assert all("create_list makes one" in text for text in tool_results[:2])
    assert '"id":"2"' in tool_results[2]
    assert "is pending and cannot become succeeded" in tool_results[5]
    assert "no task '9'" in tool_results[6]
    assert "needs a status" in tool_results[7]
    assert '"retries":"3 of 3"' in tool_results[12]
    assert "has had all its retries" in tool_results[13]
    assert "title of a task has 600 bytes" in tool_results[14]
    assert '"counts":{' in tool_results[15]
    assert "action" in tool_results[16]
    board = await GlobalTaskStore.get().get_task_list("talk", agent)
    assert [(task[0], task[2]) for task in tasks_of(board)] == [
        ("1", "in_progress"),
        ("2", "pending"),
        ("3", "pending"),
        ("4", "pending"),
    ]


class HeldStore(InMemoryTaskStore):
    """Boards that block the first retry after its execution, before the caller gets the result."""

    def __init__(self, boards: InMemoryTaskBoards) -> None:
        super().__init__(boards=boards)
        self.retry_stored, self.gate = asyncio.Event(), asyncio.Event()

    @override
    async def increment_retry(self, *args: Any, **kwargs: Any) -> Task | None:
        task = await super().increment_retry(*args, **kwargs)
        if not self.retry_stored.is_set():
            self.retry_stored.set()
            await self.gate.wait()
        return task


@pytest.mark.item(334)
async def test_a_call_that_a_crash_repeats_counts_once(
    bed: Bed, boards: InMemoryTaskBoards
) -> None:
    """The host crashes after the change of the board and before the log entry; a replay writes nothing more."""
    store = HeldStore(boards)
    agent, model = await react(
        bed,
        calls(plan("one"), {"action": "list"}),
        calls(move("1", "in_progress")),
        calls({"action": "retry", "task_id": "1"}),
        "done",
        settles=False,
    )

    with GlobalTaskStore.using(store):
        run_id = await bed.submit(agent, "plan", session_id="talk")
        await store.retry_stored.wait()
        await bed.restart()
        assert await bed.result(run_id) == "done"
    board = await store.get_task_list("talk", agent)
    assert board is not None
    assert board.tasks[0].retry_count == 1
    assert model.calls == 4
    assert len(await bed.log(run_id, K.TOOL_RESULT)) == 4


@pytest.mark.item(332)
async def test_the_global_store_uses_the_callers_tenant(bed: Bed) -> None:
    """Outside of agents it is the default tenant's; a store of one tenant refuses the others."""

    async def act(ctx: RunContext, inbox: list[Message]) -> str:
        del ctx, inbox
        store: TaskStore = GlobalTaskStore.get()
        await store.create_task_list("c", AgentId("desk", "1", "acme"), [])
        return "made"

    name = bed.name()
    agent = AgentId(name.type, name.key, "acme")
    bed.agents[agent] = Acting(agent, act)
    await bed.runtime.register(bed.agents[agent])
    assert await bed.result(await bed.submit(agent)) == "made"
    assert await GlobalTaskStore.get().get_boards("c") == []

    with GlobalTaskStore.using(InMemoryTaskStore("default")):
        row = await bed.ended(await bed.submit(agent, max_retries=0))
    assert row.error is not None
    assert OtherTenantError.__name__ in str(row.error["type"])
