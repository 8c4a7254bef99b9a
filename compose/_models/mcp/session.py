"""Sessions with one MCP server, one per event loop. A call opens it, and opens a new one after its end."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final
from weakref import WeakKeyDictionary

from actors._runtime.loop.tasks import TaskScope
from actors.errors import ActorsError, Facts

if TYPE_CHECKING:
    from mcp import Client
    from mcp.types import CallToolResult
    from mcp.types import Tool as ListedTool

OPEN_LIMIT_S: Final = 30.0
"""Seconds that a server may take to start and to initialize the session."""
_MAX_PAGES: Final = 100
"""Maximum number of pages of a list of tools. Further pages are not requested."""


class McpServerError(Facts, ActorsError):
    """A request to an MCP server failed.

    Attributes:
        server: The server's name.
        problem: The problem and its remedy.
    """

    text = "MCP server {server!r}: {problem}"
    server: str
    problem: str


@dataclass(frozen=True, slots=True, kw_only=True)
class McpServer:
    """An MCP server: its address, and the time limits of its clients.

    Attributes:
        name: Name of the server in errors and logs.
        command: Program and arguments to start; or None.
        url: Address of a server over HTTP; or None.
        environment: Further environment variables of the program.
        headers: Headers of each HTTP request.
        timeout_s: Seconds that one call may take.
    """

    name: str
    command: tuple[str, ...] | None
    url: str | None
    environment: Mapping[str, str] = field(default_factory=dict)
    headers: Mapping[str, str] = field(default_factory=dict)
    timeout_s: float

    @asynccontextmanager
    async def connect(self, on_end: Callable[[str], None]) -> AsyncIterator[Client]:
        """Open a session, and close it at the end. `on_end` gets the reason if the server ends earlier."""
        import httpx2  # noqa: PLC0415 - as the SDK
        from mcp import Client  # noqa: PLC0415 - imports the SDK
        from mcp.client.streamable_http import streamable_http_client  # noqa: PLC0415

        from compose._models.mcp.stdio import stdio_transport  # noqa: PLC0415

        if self.command is not None:
            transport: Any = stdio_transport(self.command, self.environment, on_end)
            async with Client(transport, read_timeout_seconds=self.timeout_s) as client:
                yield client
            return
        assert self.url is not None
        limits = httpx2.Timeout(OPEN_LIMIT_S, read=self.timeout_s)
        async with httpx2.AsyncClient(headers=dict(self.headers), timeout=limits) as http:
            transport = streamable_http_client(self.url, http_client=http)
            async with Client(transport, read_timeout_seconds=self.timeout_s) as client:
                yield client


class _Session:
    """An open session, held by one task: the SDK requires the same task to open and close it."""

    def __init__(self, server: McpServer, scope: TaskScope) -> None:
        self._server = server
        self._client: asyncio.Future[Client] = asyncio.get_running_loop().create_future()
        self._end = asyncio.Event()
        self.end_reason = "it ended"
        scope.start(self._hold(), name=f"mcp {server.name}")

    @property
    def has_ended(self) -> bool:
        return self._end.is_set()

    async def client(self) -> Client:
        # Shielded: a cancelled caller would cancel the future for which other callers wait.
        return await asyncio.shield(self._client)

    def end(self, why: str) -> None:
        if not self.has_ended:
            self.end_reason = why
            self._end.set()

    async def _hold(self) -> None:
        try:
            opening = self._server.connect(self.end)
            async with asyncio.timeout(OPEN_LIMIT_S):
                client = await opening.__aenter__()
        except Exception as exc:  # noqa: BLE001 - raised to the callers that wait for the session
            self._end.set()
            problem = _problem_of_opening(self._server, exc)
            self._client.set_exception(McpServerError(self._server.name, problem))
            self._client.exception()  # marks it as retrieved, because all callers may be cancelled
            return
        # The task was cancelled while it opened the session: callers must not wait for ever.
        except BaseException:
            self._client.cancel()
            raise
        self._client.set_result(client)
        try:
            await self._end.wait()
        finally:
            self._end.set()
            # The server may have ended already, and nobody waits for the result of the closing.
            with suppress(Exception):
                await opening.__aexit__(None, None, None)


def _problem_of_opening(server: McpServer, exc: BaseException) -> str:
    where = " ".join(server.command) if server.command else server.url
    while isinstance(exc, BaseExceptionGroup):
        exc = exc.exceptions[0]
    reason = f"no greeting within {OPEN_LIMIT_S:g} s" if isinstance(exc, TimeoutError) else str(exc)
    return f"it cannot be opened ({reason or type(exc).__name__}); try by hand: {where}"


class McpConnection:
    """The connection to one MCP server, for all of the server's tools in this process."""

    def __init__(self, server: McpServer) -> None:
        self.server = server
        # By weak reference: the session of an event loop that has ended must not stay in memory.
        self._sessions: WeakKeyDictionary[asyncio.AbstractEventLoop, tuple[TaskScope, _Session]] = (
            WeakKeyDictionary()
        )

    async def call(self, tool: str, arguments: dict[str, Any]) -> CallToolResult:
        """Return the result of one call. The call is sent at most once.

        Raises:
            McpServerError: The server is unreachable, ended, was too slow or has no such tool.
        """
        from mcp import MCPError  # noqa: PLC0415 - imports the SDK

        session = self._session()
        client = await session.client()
        try:
            return await client.call_tool(tool, arguments)
        except (MCPError, TimeoutError, OSError, ValueError) as exc:
            raise McpServerError(self.server.name, self._problem(session, tool, exc)) from exc

    async def tools(self) -> Sequence[ListedTool]:
        """Return the server's tools, of all pages.

        Raises:
            McpServerError: The server is unreachable, or does not list its tools.
        """
        from mcp import MCPError  # noqa: PLC0415 - imports the SDK

        session = self._session()
        client = await session.client()
        tools: list[ListedTool] = []
        cursor = None
        try:
            for _ in range(_MAX_PAGES):
                page = await client.list_tools(cursor=cursor)
                tools += page.tools
                cursor = page.next_cursor
                if not cursor:
                    break
        except (MCPError, TimeoutError, OSError, ValueError) as exc:
            raise McpServerError(self.server.name, self._problem(session, "", exc)) from exc
        return tools

    async def aclose(self) -> None:
        """Close the session of this event loop. The next call opens a new one."""
        entry = self._sessions.pop(asyncio.get_running_loop(), None)
        if entry is not None:
            await entry[0].close()

    def _session(self) -> _Session:
        loop = asyncio.get_running_loop()
        entry = self._sessions.get(loop)
        if entry is not None and not entry[1].has_ended:
            return entry[1]
        scope = entry[0] if entry is not None else TaskScope()
        session = _Session(self.server, scope)
        self._sessions[loop] = (scope, session)
        return session

    def _problem(self, session: _Session, tool: str, exc: Exception) -> str:
        from mcp.types import CONNECTION_CLOSED, REQUEST_TIMEOUT  # noqa: PLC0415 - imports the SDK

        code = getattr(exc, "code", None)
        if code == REQUEST_TIMEOUT or isinstance(exc, TimeoutError):
            return (
                f"{tool or 'its list of tools'} did not answer within {self.server.timeout_s:g} s; it may have "
                "happened all the same. Give mcp_tools(timeout_s=...) if it needs longer"
            )
        if code == CONNECTION_CLOSED or isinstance(exc, OSError) or session.has_ended:
            session.end("it ended")
            return (
                f"{session.end_reason}. {tool or 'The request'} may have happened all the same; "
                "the next call starts the server again"
            )
        return f"{tool or 'it'} refused: {exc}"
