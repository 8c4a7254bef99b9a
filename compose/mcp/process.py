"""The process of `callboard mcp-worker`: tools that its options name, until its client or a signal ends it."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, cast

from mcp.server import Server
from mcp.server.stdio import stdio_server
from mcp.server.streamable_http_manager import StreamableHTTPASGIApp, StreamableHTTPSessionManager

from actors.errors import ContractError
from actors.kernel.agent.tools import Tool
from actors.runtime.loop.tasks import TaskScope
from compose.host.http import AddressError, parse_address
from compose.host.process import Stop
from compose.mcp.access import PATH, AllowedSites, GuardedEndpoint, TokenFile
from compose.mcp.server import ToolServer
from compose.mcp.stdin import input_lines
from compose.mcp.toolsets.files import file_tools
from compose.mcp.toolsets.folder import ConfinedFolder
from compose.mcp.toolsets.shell import shell_tools
from compose.mcp.toolsets.web import web_tools
from compose.web.limits import MAX_BODY_BYTES
from compose.web.origins import checked_origins, is_own_address
from compose.web.server import serve_web

_log = logging.getLogger("callboard.mcp")

TOOLSETS: Final = ("files", "web", "shell")
MAX_SESSIONS: Final = 1_000
"""Of clients over HTTP that shake hands; those of newer versions of the protocol have none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerOptions:
    """The options of `callboard mcp-worker` that are about tools and clients.

    Attributes:
        toolsets: Of `TOOLSETS`.
        root: The folder of `files`, and where commands of `shell` begin.
        allow_private: Let `web` reach addresses that are not public.
        http: ``HOST:PORT``; None: the client is the parent process.
        token_file: See `TokenFile`.
        hosts: See `AllowedSites`.
        origins: See `AllowedSites`.
        max_calls: Calls of one client at once.

    Raises:
        ContractError: There is no such toolset, an origin is none, or anybody could ask.
        AddressError: The address is none, or no name is allowed by which others ask there.
    """

    toolsets: tuple[str, ...] = ()
    root: Path = Path()
    allow_private: bool = False
    http: str | None = None
    token_file: Path | None = None
    hosts: tuple[str, ...] = ()
    origins: tuple[str, ...] = ()
    max_calls: int = 8

    def __post_init__(self) -> None:
        for one in self.toolsets:
            if one not in TOOLSETS:
                raise ContractError(f"--toolsets {one}: there are {', '.join(TOOLSETS)}")
        checked_origins(self.origins, "--allow-origin")
        if self.http is None:
            if self.token_file or self.hosts or self.origins:
                problem = (
                    "--token-file, --allow-host and --allow-origin are about clients over HTTP"
                )
                raise ContractError(f"{problem}: say --http HOST:PORT, too")
            return
        if self.token_file is None:
            problem = "--http needs --token-file: without it any program could call the tools"
            raise ContractError(f"{problem}; make one: openssl rand -hex 32 > mcp.token")
        host, _ = parse_address(self.http)
        if not self.hosts and not is_own_address(f"[{host}]" if ":" in host else host):
            problem = "no name is allowed by which others ask there"
            raise AddressError(self.http, problem, "say --allow-host NAME:PORT")
        TokenFile(self.token_file).check()


async def run_worker(options: WorkerOptions, more_tools: Sequence[Tool] = ()) -> None:
    """Serve tools until the client closes the input, or until SIGTERM or SIGINT; calls under way are cancelled.

    Raises:
        ContractError: There is nothing to serve, two tools have one name, or the root is no folder.
        AddressError: Somebody else has the address.
    """
    stop = Stop()
    stop.listen()
    async with AsyncExitStack() as stack:
        tools = [*_tools_of(options, stack), *more_tools]
        if not tools:
            raise ContractError("there is nothing to serve: say --toolsets files,web or --flows")
        server = ToolServer(tools, max_calls=options.max_calls).server
        _log.info("mcp.serving", extra={"pid": os.getpid(), "tools": len(tools)})
        await (
            _over_streams(server, stop)
            if options.http is None
            else _over_http(server, options, stop)
        )
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


async def _over_streams(server: Server[Any], stop: Stop) -> None:
    async with input_lines() as lines, _streams(lines) as streams, TaskScope() as tasks:

        async def end_when_told() -> None:
            await stop.requested.wait()
            if lines is not None:
                lines.end()

        tasks.start(end_when_told(), name="mcp stop")
        await server.run(*streams, server.create_initialization_options())


@asynccontextmanager
async def _streams(lines: object) -> AsyncIterator[tuple[Any, Any]]:
    """Yield the SDK's streams; what tools print meanwhile goes to standard error."""
    printed = sys.stdout
    async with stdio_server(stdin=cast("Any", lines)) as streams:
        try:
            with redirect_stdout(sys.stderr):
                yield streams
        finally:
            printed.flush()  # while descriptor 1 is still that of standard error


async def _over_http(server: Server[Any], options: WorkerOptions, stop: Stop) -> None:
    assert options.http is not None
    assert options.token_file is not None
    manager = StreamableHTTPSessionManager(
        server, max_request_body_size=MAX_BODY_BYTES, max_sessions=MAX_SESSIONS
    )
    application = GuardedEndpoint(
        StreamableHTTPASGIApp(manager),
        tokens=TokenFile(options.token_file),
        sites=AllowedSites(
            hosts=frozenset(options.hosts), origins=checked_origins(options.origins)
        ),
    )
    async with AsyncExitStack() as serving, manager.run():
        url = await serving.enter_async_context(
            serve_web(options.http, application, option="--http")
        )
        _log.info("mcp.listening", extra={"url": f"{url}{PATH}"})
        await stop.requested.wait()
    # All sessions have ended: no answer is under way that the server would wait for.
