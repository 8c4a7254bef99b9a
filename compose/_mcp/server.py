"""The SDK's MCP server for a list of tools: lists and calls tools, and limits concurrent calls."""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from importlib.metadata import version
from typing import Any, Final, TypeAlias

from mcp.server import Server, ServerRequestContext
from mcp.server.auth.middleware.bearer_auth import AuthenticatedUser
from mcp.shared.exceptions import MCPError
from mcp.types import (
    INVALID_PARAMS,
    CallToolRequestParams,
    CallToolResult,
    ListToolsResult,
    PaginatedRequestParams,
    TextContent,
    ToolAnnotations,
)
from mcp.types import Tool as ListedTool

from actors._kernel.agent.tools import InvocationResult, Risk, Tool, ToolCall, check_tools
from actors._runtime.verbs.model_calls import DirectToolInvoker
from actors.errors import ActorsError

ID_KEY: Final = "callboard/id"
"""Key in `_meta` of the client's own id of a call. A call with a known id is the same run."""
Report: TypeAlias = "Callable[[float, str], Awaitable[None]]"
"""Reports a call's progress to its client: a growing number, and a text."""
_MAX_ID: Final = 200
_OVER_STREAMS: Final = "the parent process"


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientCall:
    """The executing call, for its tool.

    Attributes:
        key: The client's own id of the call.
        report: Reports progress; None if the client did not request progress.
        is_withdrawn: Returns True if the client requested the cancel. It is False if the client disconnected.
    """

    key: str | None = None
    report: Report | None = None
    is_withdrawn: Callable[[], bool] = bool


client_call: Final[ContextVar[ClientCall]] = ContextVar("client_call", default=ClientCall())  # noqa: B039


class ToolServer:
    """Tools as an MCP server.

    A call beyond the limit, of an unknown tool, or with an invalid id is refused before anything executes. A
    tool's failure is returned as a result with ``isError``, which a model reads.

    Args:
        tools: The tools, with unique names.
        max_calls: Maximum number of concurrent calls of one client. Over HTTP a client is a token.

    Raises:
        ContractError: Two tools have the same name.
    """

    def __init__(self, tools: Sequence[Tool], *, max_calls: int) -> None:
        check_tools(tools, "mcp-worker")
        self._tools = {tool.name: tool for tool in tools}
        self._max_calls = max_calls
        self._calls: Counter[str] = Counter()
        self.server: Server[Any] = Server(
            "callboard",
            version=version("callboard"),
            get_tool_input_schema=self._schema_of,
            on_list_tools=self._list,
            on_call_tool=self._call,
        )

    def _schema_of(self, name: str) -> dict[str, Any] | None:
        tool = self._tools.get(name)
        return None if tool is None else tool.parameters

    async def _list(
        self, _: ServerRequestContext[Any], __: PaginatedRequestParams | None
    ) -> ListToolsResult:
        return ListToolsResult(tools=[_to_listed_tool(tool) for tool in self._tools.values()])

    async def _call(
        self, ctx: ServerRequestContext[Any], params: CallToolRequestParams
    ) -> CallToolResult:
        tool = self._tools.get(params.name)
        if tool is None:
            names = ", ".join(sorted(self._tools))
            raise MCPError(INVALID_PARAMS, f"unknown tool {params.name!r}; known tools: {names}")
        call = _call_of(ctx)
        user = None if ctx.request is None else ctx.request.scope.get("user")
        client = _OVER_STREAMS
        if isinstance(user, AuthenticatedUser):
            client = user.access_token.client_id
        with self._slot(client) as is_free:
            if not is_free:
                problem = f"{self._max_calls} calls of this client are under way"
                return _to_call_result(
                    _error_result(f"{problem}: try again when one of them has ended")
                )
            return _to_call_result(await _invoke(tool, params.arguments or {}, call))

    @contextmanager
    def _slot(self, client: str) -> Iterator[bool]:
        """Acquire one of the client's slots, if one is free; yield whether it was acquired."""
        if self._calls[client] >= self._max_calls:
            yield False
            return
        self._calls[client] += 1
        try:
            yield True
        finally:
            self._calls[client] -= 1
            self._calls += Counter()  # drops clients without calls


def _to_listed_tool(tool: Tool) -> ListedTool:
    is_safe = tool.risk is Risk.SAFE
    hints = ToolAnnotations(
        read_only_hint=is_safe, destructive_hint=not is_safe, idempotent_hint=tool.idempotent
    )
    return ListedTool(
        name=tool.name,
        description=tool.description,
        input_schema=tool.parameters,
        annotations=hints,
    )


def _call_of(ctx: ServerRequestContext[Any]) -> ClientCall:
    async def report(progress: float, message: str) -> None:
        await ctx.session.report_progress(progress, message=message)

    # This is the SDK's only sign of a client's cancel, and it has no public name.
    channel = getattr(ctx.session, "_request_outbound", None)
    cancel_event = getattr(channel, "cancel_requested", None)
    return ClientCall(
        key=_key_of(ctx),
        report=report if "progress_token" in (ctx.meta or {}) else None,
        is_withdrawn=bool if cancel_event is None else cancel_event.is_set,
    )


def _key_of(ctx: ServerRequestContext[Any]) -> str | None:
    meta: dict[str, Any] = {**(ctx.meta or {})}
    key = meta.get(ID_KEY)
    if key is None or (isinstance(key, str) and 0 < len(key) <= _MAX_ID and key.isprintable()):
        return key
    problem = f"_meta[{ID_KEY!r}] is not an id: give a text of 1 to {_MAX_ID} printable characters"
    raise MCPError(INVALID_PARAMS, problem)


async def _invoke(tool: Tool, arguments: dict[str, Any], client: ClientCall) -> InvocationResult:
    token = client_call.set(client)
    call = ToolCall(id=client.key or "call", name=tool.name, arguments=arguments)
    try:
        return await DirectToolInvoker().invoke(call, tools=[tool], idempotency_key=call.id)
    except ActorsError as exc:
        return _error_result(f"{type(exc).__name__}: {exc}")
    finally:
        client_call.reset(token)


def _error_result(text: str) -> InvocationResult:
    return InvocationResult(status="error", text=text)


def _to_call_result(result: InvocationResult) -> CallToolResult:
    text = result.result(ToolCall(id="call", name="call")).text
    value = result.structured if isinstance(result.structured, dict) else None
    return CallToolResult(
        content=[TextContent(type="text", text=text)],
        structured_content=value,
        is_error=result.status != "ok",
    )
