"""The process of `callboard mcp-worker`: serves tools until its client or a signal ends it.

The standard streams are reserved for MCP messages. Other output of the process goes to standard error.
"""

from __future__ import annotations

import asyncio
import logging
import os
import stat
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import (
    AbstractAsyncContextManager,
    AsyncExitStack,
    ExitStack,
    asynccontextmanager,
    contextmanager,
    redirect_stdout,
)
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import anyio
from mcp.server import Server
from mcp.server.stdio import stdio_server

from actors._kernel.agent.tools import Tool
from actors._runtime import Runtime
from actors._runtime.loop.tasks import TaskScope
from actors.errors import ContractError
from compose._host.loader import ServeError, are_flows, check_spec, find_served, serve_all
from compose._host.process import Stop
from compose._mcp.server import ToolServer
from compose._mcp.toolsets.files import file_tools
from compose._mcp.toolsets.folder import ConfinedFolder
from compose._mcp.toolsets.shell import shell_tools
from compose._mcp.toolsets.web import web_tools

if TYPE_CHECKING:
    from compose._mcp.http import HttpOptions

_log = logging.getLogger("callboard.mcp")

TOOLSETS: Final = ("files", "web", "shell")
INSTALLED: Final = "installed"
"""Value in place of ``MODULE:APP`` for the installed flows, whose app has this name."""
MAX_LINE_BYTES: Final = 1024 * 1024
"""Maximum number of bytes of one message."""


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
        wait_s: Seconds that a call waits for the end of its run.

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
        for toolset in self.toolsets:
            if toolset not in TOOLSETS:
                raise ContractError(f"--toolsets {toolset}: there are {', '.join(TOOLSETS)}")
        for spec in (None if self.flows == INSTALLED else self.flows, self.agents):
            if spec is not None:
                check_spec(spec)


async def run_worker(
    options: WorkerOptions, client: AbstractAsyncContextManager[Runtime] | None = None
) -> None:
    """Serve tools until the client closes the input, or until a signal. Pending calls are then cancelled.

    The signals are SIGTERM and SIGINT.

    Args:
        options: The tools to serve, and the clients that may call them.
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
    specs = [spec for spec in (options.flows, options.agents) if spec is not None]
    if not specs:
        return []
    if options.flows == INSTALLED:
        specs.remove(INSTALLED)
        if client is None:
            remedy = "Name the database: --postgres-url, --data or the environment"
            raise ServeError(INSTALLED, "installed flows are in a database", remedy)
    from compose._mcp.runs import RunTools, agents_of  # noqa: PLC0415 - most workers start no runs

    targets = {spec: find_served(spec) for spec in specs}
    runtime = await stack.enter_async_context(client or Runtime())
    if client is None:
        await serve_all(runtime, targets)
    runs, tools = RunTools(runtime, options.wait_s), list[Tool]()
    apps, types = set[str](), set[str]()
    if options.flows == INSTALLED:
        apps.add(INSTALLED)
        tools += await runs.of_installed()
    elif options.flows is not None:
        flows = targets[options.flows]
        if not are_flows(flows):
            raise ServeError(options.flows, "there are no flows in it", "Name Flows, or a file")
        apps.add(flows.app)
        tools += runs.of_flows(flows)
    if options.agents is not None:
        agents = agents_of(options.agents, targets[options.agents])
        types.update(agents)
        tools += runs.of_agents(agents)
    return [*tools, runs.result(types, apps=apps)]


async def _over_streams(
    server: Server[Any], streams: tuple[InputLines | None, Any, Any], stop: Stop
) -> None:
    lines, sdk_input, sdk_output = streams

    async def end_when_stopped() -> None:
        await stop.requested.wait()
        if lines is not None:
            lines.end()

    async with stdio_server(sdk_input, sdk_output) as (incoming, outgoing), TaskScope() as tasks:
        tasks.start(end_when_stopped(), name="mcp stop")
        await server.run(incoming, outgoing, server.create_initialization_options())


class InputLines:
    """The lines of standard input, read without a thread. `end` ends the iteration, like the end of the input.

    A line that is longer than the limit is dropped and logged.
    """

    def __init__(self, reader: asyncio.StreamReader, pipe: asyncio.ReadTransport) -> None:
        self._reader, self._pipe = reader, pipe

    def end(self) -> None:
        """Stop the reading of further lines."""
        self._pipe.close()

    async def __aiter__(self) -> AsyncIterator[str]:
        while line := await self._line():
            if len(line) <= MAX_LINE_BYTES:
                yield line.decode(errors="replace")
            else:
                _log.warning("mcp.line_too_long", extra={"limit_bytes": MAX_LINE_BYTES})

    async def _line(self) -> bytes:
        """Return the next line, cut to one byte more than the limit; empty at the end of the input."""
        line = bytearray()
        while True:
            try:
                piece, is_whole = await self._reader.readuntil(b"\n"), True
            except asyncio.IncompleteReadError as exc:
                piece, is_whole = exc.partial, True
            except asyncio.LimitOverrunError as exc:
                # Consumed, because the next `readuntil` would raise for the same bytes again.
                piece, is_whole = await self._reader.read(exc.consumed), False
            line += piece[: MAX_LINE_BYTES + 1 - len(line)]
            if is_whole:
                return bytes(line)


@asynccontextmanager
async def messages() -> AsyncIterator[tuple[InputLines | None, Any, Any]]:
    """Yield the lines of the input, or None if it is a file; and input and output for the SDK.

    Meanwhile descriptor 1 is standard error and descriptor 0 is the null device, in this process and in its
    child processes. Their output is therefore not mixed with messages, and they read no messages.
    """
    stdout = sys.stdout
    with ExitStack() as stack:
        null = os.open(os.devnull, os.O_RDONLY)
        stack.callback(os.close, null)
        input_copy = stack.enter_context(_redirect_descriptor(0, null))
        output_copy = stack.enter_context(_redirect_descriptor(1, 2))
        stack.callback(stdout.flush)  # before descriptor 1 is restored
        stack.enter_context(redirect_stdout(sys.stderr))
        sdk_output = anyio.wrap_file(
            os.fdopen(output_copy, "w", encoding="utf-8", newline="", closefd=False)
        )
        mode = os.fstat(input_copy).st_mode
        if not (stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode) or os.isatty(input_copy)):
            # An event loop cannot wait for a file, and need not.
            file = os.fdopen(input_copy, encoding="utf-8", errors="replace", closefd=False)
            yield None, anyio.wrap_file(file), sdk_output
            return
        reader = asyncio.StreamReader(limit=MAX_LINE_BYTES)
        pipe, _ = await asyncio.get_running_loop().connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(reader),
            # A copy, because the transport closes its file, and `input_copy` has to be restored afterwards.
            os.fdopen(os.dup(input_copy), "rb", buffering=0),
        )
        stack.callback(pipe.close)
        lines = InputLines(reader, pipe)
        yield lines, lines, sdk_output


@contextmanager
def _redirect_descriptor(descriptor: int, other: int) -> Iterator[int]:
    """Replace a descriptor by another one inside the context; yield a copy of the original."""
    original = os.dup(descriptor)
    os.dup2(other, descriptor)
    try:
        yield original
    finally:
        os.dup2(original, descriptor)
        os.close(original)
