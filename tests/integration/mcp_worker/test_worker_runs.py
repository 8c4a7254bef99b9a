"""Flows and agents as tools: a call is a run, and one with the client's id is the same run ever after."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any

import pytest

from actors import AgentId, Runtime
from actors._kernel.runtime.scheduler import RunStatus
from actors._workflow.bundles import StoredBundles, packed_flow
from actors._workflow.installed import InstalledFlows
from actors.errors import ContractError
from actors.workflow import FlowRuns
from compose._assembly.runtime import build_postgres_runtime
from compose._assembly.settings import Settings
from compose._cli import run
from compose._commands.output import Exit
from compose._host.loader import ServeError
from compose._mcp.process import WorkerOptions
from compose._mcp.runs import RunTools, agents_of
from tests.integration.mcp_worker import served
from tests.integration.mcp_worker.served import Echo
from tests.integration.mcp_worker.test_worker_http import client_at, worker
from tests.integration.mcp_worker.test_worker_toolsets import client_of, text_of

if TYPE_CHECKING:
    from pathlib import Path

    from actors._kernel.agent.tools import Tool
    from tests.harness.servers import TestPostgres

ID: Any = {"callboard/id": "order-7"}
OTHER: Any = {"callboard/id": "order-8"}


@pytest.fixture(autouse=True)
def fresh() -> None:
    """An agent that has had no run."""
    Echo.run_ids, Echo.is_free = [], asyncio.Event()


def tools_of(runtime: Runtime, wait_s: float = 20) -> list[Tool]:
    """All that is served here, as tools."""
    runs = RunTools(runtime, wait_s)
    agents = agents_of("served:agents", served.agents)
    return [
        *runs.of_flows(served.flows),
        *runs.of_agents(agents),
        runs.result(["echo"], apps=["shop"]),
    ]


@pytest.mark.item(471)
@pytest.mark.postgres
async def test_a_client_that_comes_back_has_the_result_of_its_run(
    postgres_server: TestPostgres, schema: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """It disconnects within a call, its worker ends, and it asks another worker with the same id."""
    tokens = tmp_path / "mcp.token"
    tokens.write_text("a-token-of-sixteen")
    url, settings = (
        postgres_server.url,
        Settings(postgres_url=postgres_server.url, db_schema=schema),
    )
    arguments: Any = {"key": "a", "message": "wait"}
    async with (
        build_postgres_runtime(url, settings=settings) as host,
        build_postgres_runtime(url, settings=settings, client="mcp", serve=False) as client,
    ):
        await host.register_type("echo", Echo)
        async with (
            worker(tools_of(client), tokens, caplog) as at,
            client_at(at, "a-token-of-sixteen") as mcp_client,
            asyncio.TaskGroup() as group,
        ):
            call = group.create_task(mcp_client.call_tool("echo", arguments, meta=ID))
            async with asyncio.timeout(20):
                while not Echo.run_ids:  # noqa: ASYNC110 - in another runtime
                    await asyncio.sleep(0)
            call.cancel()
        Echo.is_free.set()
        async with (
            worker(tools_of(client), tokens, caplog) as at,
            client_at(at, "a-token-of-sixteen") as mcp_client,
        ):
            first = await mcp_client.call_tool("echo", arguments, meta=ID)
            again = await mcp_client.call_tool("echo", arguments, meta=ID)

    assert (first.structured_content or {})["output"] == {"said": "wait", "to": "a"}
    assert again.structured_content == first.structured_content
    assert len(Echo.run_ids) == 1


@pytest.mark.item(471)
async def test_a_call_without_an_id_is_a_run_of_its_own() -> None:
    """It is cancelled with its call; one that takes long is waited for by another tool."""
    async with Runtime() as runtime:
        await runtime.register_type("echo", Echo)
        await served.flows.register(runtime)
        async with client_of(tools_of(runtime, wait_s=0.05)) as client:
            wrong = await client.call_tool("echo", {"key": "a"})
            open_ = await client.call_tool("echo", {"key": "a", "message": "wait"})
            open_run: Any = open_.structured_content
            foreign = await client.call_tool("run_result", {"run": "nothing"})
            Echo.is_free.set()
            end_result = await client.call_tool("run_result", {"run": open_run["run"]})
            flow = [await client.call_tool("double", {"number": 1}, meta=ID) for _ in "ab"]
            Echo.is_free.clear()
            before = len(Echo.run_ids)
        async with client_of(tools_of(runtime)) as client, asyncio.TaskGroup() as group:
            call = group.create_task(client.call_tool("echo", {"key": "b", "message": "wait"}))
            while len(Echo.run_ids) == before:  # noqa: ASYNC110 - no event
                await asyncio.sleep(0)
            call.cancel()
        cancelled_run = await runtime.wait(Echo.run_ids[-1])

    assert "message: missing, give a value" in text_of(wrong)
    assert open_run["status"] == "open"
    assert "no run 'nothing'" in text_of(foreign)
    assert (end_result.structured_content or {})["output"] == {"said": "wait", "to": "a"}
    assert flow[0].structured_content == flow[1].structured_content
    assert cancelled_run.status is RunStatus.CANCELLED


class Progress:
    """What a client hears of a call."""

    def __init__(self) -> None:
        self.heard: list[tuple[float, str | None]] = []
        self.waits = asyncio.Event()

    async def __call__(self, progress: float, total: float | None, message: str | None) -> None:
        """Hear of it."""
        assert total is None
        self.heard.append((progress, message))
        if message == "ask: waiting":
            self.waits.set()


@pytest.mark.item(471)
@pytest.mark.parametrize("mode", ["auto", "legacy"])
async def test_a_cancelled_call_leaves_its_run_to_those_who_follow_it(
    mode: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """One that said so cancels a run of its own id when it is the last; one that is gone does not."""
    tokens = tmp_path / "mcp.token"
    tokens.write_text("a-token-of-sixteen")
    async with Runtime() as runtime:
        await served.flows.register(runtime)
        runs = FlowRuns(runtime, served.flows)
        async with (
            worker(tools_of(runtime), tokens, caplog) as at,
            client_at(at, "a-token-of-sixteen", mode) as first_client,
            client_at(at, "a-token-of-sixteen", mode) as second_client,
            asyncio.TaskGroup() as group,
        ):
            progresses = [Progress(), Progress(), Progress()]
            calls = [
                group.create_task(client.call_tool("wait", {}, meta=ID, progress_callback=progress))
                for client, progress in zip((first_client, second_client), progresses, strict=False)
            ]
            async with asyncio.timeout(20):
                await progresses[0].waits.wait()
                await progresses[1].waits.wait()
            calls[0].cancel()
            await first_client.list_tools()
            run_id = await runs.start("wait", id="order-7")
            await runs.resume(run_id, "go", "yes")
            follower_result = await calls[1]

            last = group.create_task(
                first_client.call_tool("wait", {}, meta=OTHER, progress_callback=progresses[2])
            )
            await progresses[2].waits.wait()
            last.cancel()
            await first_client.list_tools()
            run_id = await runs.start("wait", id="order-8")
            if mode == "auto":
                await runs.resume(run_id, "go", "late")
        ended_run = await runtime.wait(run_id)

    assert (follower_result.structured_content or {})["output"] == {"said": "yes"}
    assert progresses[0].heard == [(1, "ask: started"), (2, "ask: waiting")]
    assert progresses[1].heard[:2] == progresses[0].heard
    assert progresses[1].heard[-1][1] == "end: completed"
    assert [number for number, _ in progresses[1].heard] == [
        *range(1, len(progresses[1].heard) + 1)
    ]
    assert ended_run.status is (RunStatus.COMPLETED if mode == "auto" else RunStatus.CANCELLED)


@pytest.mark.item(471)
async def test_a_run_that_an_operator_cancels_ends_its_call() -> None:
    """The client gets an error that a model reads."""
    async with Runtime() as runtime:
        await served.flows.register(runtime)
        runs = FlowRuns(runtime, served.flows)
        run_id = await runs.start("wait", id="order-7")
        async with client_of(tools_of(runtime)) as client, asyncio.TaskGroup() as group:
            call = group.create_task(client.call_tool("wait", {}, meta=ID))
            await client.list_tools()
            await runs.cancel(run_id, reason="out of stock")
            result = await call

    assert result.is_error
    assert "CANCELLED" in text_of(result)


@pytest.mark.item(471)
@pytest.mark.postgres
async def test_progress_of_a_run_on_another_host_is_received(
    postgres_server: TestPostgres, schema: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The worker is a client of the database; a client that asks for no progress hears nothing."""
    tokens, progress = tmp_path / "mcp.token", Progress()
    tokens.write_text("a-token-of-sixteen")
    url, settings = (
        postgres_server.url,
        Settings(postgres_url=postgres_server.url, db_schema=schema),
    )
    async with (
        build_postgres_runtime(url, settings=settings) as host,
        build_postgres_runtime(url, settings=settings, client="mcp", serve=False) as client,
    ):
        await served.flows.register(host)
        async with (
            worker(tools_of(client), tokens, caplog) as at,
            client_at(at, "a-token-of-sixteen") as mcp_client,
        ):
            result = await mcp_client.call_tool("double", {"number": 2}, progress_callback=progress)
            silent = await mcp_client.call_tool("double", {"number": 2})

    assert (result.structured_content or {})["output"]["doubled"] == 4
    assert (silent.structured_content or {})["output"]["doubled"] == 4
    assert progress.heard[-1][1] == "double: completed"


@pytest.mark.item(471)
@pytest.mark.postgres
async def test_installed_flows_are_tools_with_their_inputs(
    postgres_server: TestPostgres, schema: str
) -> None:
    """In their newest version; hosts of installed flows execute them, and an id is one run."""
    url, settings = (
        postgres_server.url,
        Settings(postgres_url=postgres_server.url, db_schema=schema),
    )
    flow: dict[str, Any] = {
        "flow": 1,
        "id": "add",
        "version": "1",
        "start": "e",
        "nodes": {"e": {"end": 0}},
    }
    newer = flow | {"version": "1.1", "nodes": {"e": {"end": "${vars.a + vars.b}"}}}
    async with (
        build_postgres_runtime(url, settings=settings) as host,
        build_postgres_runtime(url, settings=settings, client="mcp", serve=False) as client,
    ):
        await InstalledFlows().register(host)
        bundles = StoredBundles(host.store.data.flow_bundles, host.store.data.artifacts, "default")
        for document in (newer, flow):
            await bundles.install(packed_flow(json.dumps(document).encode()))
        runs = RunTools(client, 20)
        tools = [*await runs.of_installed(), runs.result([], apps=["installed"])]
        async with client_of(tools) as mcp_client:
            tools_by_name = {tool.name: tool for tool in (await mcp_client.list_tools()).tools}
            results = [await mcp_client.call_tool("add", {"a": 1, "b": 2}, meta=ID) for _ in "ab"]

    assert tools_by_name.keys() == {"add", "run_result"}
    assert tools_by_name["add"].input_schema["properties"].keys() == {"a", "b"}
    assert (results[0].structured_content or {})["output"] == 3
    assert results[0].structured_content == results[1].structured_content


@pytest.mark.item(471)
def test_what_cannot_be_served_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    """Before anything is served, in one line."""
    with pytest.raises(ContractError, match="there are files, web, shell"):
        WorkerOptions(toolsets=("nonsense",))
    with pytest.raises(ServeError, match="does not name agents"):
        agents_of("m:app", lambda runtime: runtime)
    with pytest.raises(ServeError, match="is not an agent"):
        agents_of("m:app", [7])
    assert agents_of("m:app", [Echo(AgentId("echo", "1"))]) == {"echo": [AgentId("echo", "1")]}
    for options, complaint in {
        (): "there is nothing to serve",
        ("--token-file", "x"): "say --http HOST:PORT, too",
        ("--http", "127.0.0.1:0"): "--http needs --token-file",
        ("--toolsets", "files", "--root", "nowhere"): "name an existing folder",
        ("--flows", f"{served.__name__}:agents"): "there are no flows in it",
        ("--flows", "installed"): "installed flows are in a database. Name the database",
    }.items():
        capsys.readouterr()
        assert run(["mcp-worker", *options]) == Exit.USAGE
        out, err = capsys.readouterr()
        assert complaint in err
        assert out == ""
