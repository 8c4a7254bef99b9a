"""The process of `callboard mcp-worker`: serves tools until its client or a signal ends it."""

from __future__ import annotations

import logging
import os
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from mcp.server import Server
from mcp.server.stdio import stdio_server

from actors.errors import ContractError
from actors.kernel.agent.tools import Tool
from actors.runtime import Runtime
from actors.runtime.loop.tasks import TaskScope
from compose.host.loader import ServeError, are_flows, check_spec, find_served, serve_all
from compose.host.process import Stop
from compose.mcp.server import ToolServer
from compose.mcp.toolsets.files import file_tools
from compose.mcp.toolsets.folder import ConfinedFolder
from compose.mcp.toolsets.shell import shell_tools
from compose.mcp.toolsets.web import web_tools
from compose.mcp.wire import InputLines, messages

if TYPE_CHECKING:
    from compose.mcp.http import HttpOptions

_log = logging.getLogger("callboard.mcp")

TOOLSETS: Final = ("files", "web", "shell")
INSTALLED: Final = "installed"
"""Value in place of ``MODULE:APP`` for the installed flows, whose app has this name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerOptions:
    """The options of `callboard mcp-worker` for tools and clients.

    Attributes:
        toolsets: Names from `TOOLSETS`.
        root: The folder of `files`, and the working directory of commands of `shell`.
        allow_private: Whether `web` may connect to addresses that are not public.
        http: Options for clients over HTTP; None if the parent process is the client.
        max_calls: Maximum number of concurrent calls of one client.
        flows: ``MODULE:APP`` or a file with flows, which become tools; ``installed`` for those of the database.
        agents: ``MODULE:APP`` of agents, which become tools.
        wait_s: See `RunTools`.

    Raises:
        ContractError: A toolset is unknown.
        ServeError: `flows` or `agents` is not of that form.
    """

    toolsets: tuple[str, ...] = ()
    root: Path = Path()
    allow_private: bool = False
    http: HttpOptions | None = None
    max_calls: int = 8
    flows: str | None = None
    agents: str | None = None
    wait_s: float = 50.0

    def __post_init__(self) -> None:
        for one in self.toolsets:
            if one not in TOOLSETS:
                raise ContractError(f"--toolsets {one}: there are {', '.join(TOOLSETS)}")
        for spec in (None if self.flows == INSTALLED else self.flows, self.agents):
            if spec is not None:
                check_spec(spec)


async def run_worker(
    options: WorkerOptions, client: AbstractAsyncContextManager[Runtime] | None = None
) -> None:
    """Serve tools until the client closes the input, or until a signal. Pending calls are then cancelled.

    The signals are SIGTERM and SIGINT.

    Args:
        options: See `WorkerOptions`.
        client: A client of the hosts that execute runs. If None, this process executes runs, in memory.

    Raises:
        ContractError: There is nothing to serve, two tools have the same name, or the root is not a folder.
        AddressError: Another process uses the address.
        ServeError: `options.flows` or `options.agents` does not name flows or agents.
    """
    stop = Stop()
    stop.listen()
    async with AsyncExitStack() as stack:
        # Redirected first, because tools and modules that they load may print.
        streams = await stack.enter_async_context(messages()) if options.http is None else None
        tools = [*_tools_of(options, stack), *await _run_tools(options, stack, client)]
        if not tools:
            remedy = "say --toolsets files,web, --flows or --agents"
            raise ContractError(f"there is nothing to serve: {remedy}")
        server = ToolServer(tools, max_calls=options.max_calls).server
        _log.info("mcp.serving", extra={"pid": os.getpid(), "tools": len(tools)})
        if streams is not None:
            await _over_streams(server, streams, stop)
        elif options.http is not None:
            await options.http.serve(server, stop)
    _log.info("mcp.stopped", extra={"pid": os.getpid(), "signal": stop.signal_name})


def _tools_of(options: WorkerOptions, stack: AsyncExitStack) -> list[Tool]:
    tools: list[Tool] = []
    if "files" in options.toolsets:
        folder = ConfinedFolder(options.root)
        stack.callback(folder.close)
        tools += file_tools(folder)
    if "web" in options.toolsets:
        tools += web_tools(allow_private=options.allow_private)
    if "shell" in options.toolsets:
        tools += shell_tools(options.root)
    return tools


async def _run_tools(
    options: WorkerOptions,
    stack: AsyncExitStack,
    client: AbstractAsyncContextManager[Runtime] | None,
) -> list[Tool]:
    specs = [one for one in (options.flows, options.agents) if one is not None]
    if not specs:
        return []
    if options.flows == INSTALLED:
        specs.remove(INSTALLED)
        if client is None:
            remedy = "Name the database: --postgres-url, --data or the environment"
            raise ServeError(INSTALLED, "installed flows are in a database", remedy)
    from compose.mcp.runs import RunTools, agents_of  # noqa: PLC0415 - most workers start no runs

    found = {spec: find_served(spec) for spec in specs}
    runtime = await stack.enter_async_context(client or Runtime())
    if client is None:
        await serve_all(runtime, found)
    runs, tools = RunTools(runtime, options.wait_s), list[Tool]()
    apps, types = set[str](), set[str]()
    if options.flows == INSTALLED:
        apps.add(INSTALLED)
        tools += await runs.of_installed()
    elif options.flows is not None:
        flows = found[options.flows]
        if not are_flows(flows):
            raise ServeError(options.flows, "there are no flows in it", "Name Flows, or a file")
        apps.add(flows.app)
        tools += runs.of_flows(flows)
    if options.agents is not None:
        agents = agents_of(options.agents, found[options.agents])
        types.update(agents)
        tools += runs.of_agents(agents)
    return [*tools, runs.result(types, apps=apps)]


async def _over_streams(
    server: Server[Any], streams: tuple[InputLines | None, Any, Any], stop: Stop
) -> None:
    lines, taken, out = streams

    async def end_when_told() -> None:
        await stop.requested.wait()
        if lines is not None:
            lines.end()

    async with stdio_server(taken, out) as (incoming, outgoing), TaskScope() as tasks:
        tasks.start(end_when_told(), name="mcp stop")
        await server.run(incoming, outgoing, server.create_initialization_options())
