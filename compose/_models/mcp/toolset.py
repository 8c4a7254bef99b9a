"""Tools of MCP servers as tools of agents.

A result that is too long for a model becomes an artifact, which the model reads in parts.
"""

from __future__ import annotations

import asyncio
import codecs
import re
import threading
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Final

from pydantic_core import to_json

from actors._kernel.agent.tools import InvocationResult, Risk, Tool
from actors._kernel.json_data import clean
from actors._runtime import artifact_store
from actors.errors import ContractError, PersistenceError
from compose._models.clean_text import clean_json
from compose._models.mcp.session import McpConnection, McpServer, McpServerError

if TYPE_CHECKING:
    from mcp.types import CallToolResult
    from mcp.types import Tool as ListedTool

ALL: Final = "*"
"""Key of `risks` for all tools that have no own entry."""
MAX_RESULT_BYTES: Final = 64 * 1024
"""Maximum number of bytes, as JSON, that a model gets of a result at once."""
READER: Final = "read_result"
"""Name of the tool that reads further parts, without the server's prefix."""
READER_PARAMETERS: Final[dict[str, Any]] = {
    "type": "object",
    "properties": {
        "artifact": {"type": "string", "description": "The id that stands behind the beginning."},
        "offset": {"type": "integer", "minimum": 0, "description": "The first byte to read."},
    },
    "required": ["artifact", "offset"],
}
_NAME: Final = re.compile(r"[^A-Za-z0-9_-]")
_MAX_NAME: Final = 64
"""Maximum number of characters of a tool's name that all providers accept."""


class McpToolError(McpServerError):
    """A tool of an MCP server reports that it failed."""

    text = "{problem}"


class McpTools(tuple[Tool, ...]):
    """The tools of one MCP server, and its connection."""

    __slots__ = ()

    async def aclose(self) -> None:
        """Close the session of this event loop, and stop the server if it was started for the session.

        The end of the event loop has the same effect. The next call opens a new session.
        """
        for connection in {tool.run.args[0] for tool in self}:  # type: ignore[union-attr]
            await connection.aclose()


def mcp_tools(  # noqa: PLR0913 - each has a default
    name: str,
    *,
    command: Sequence[str] | None = None,
    url: str | None = None,
    allow: Collection[str] | None = None,
    risks: Mapping[str, Risk] | None = None,
    idempotent: Collection[str] = (),
    prefix: str | None = None,
    trust: bool = False,
    environment: Mapping[str, str] | None = None,
    headers: Mapping[str, str] | None = None,
    timeout_s: float = 60.0,
) -> McpTools:
    """Return the tools of an MCP server, for the `tools` of agents.

    This function opens a session to read the server's list of tools. Opening takes up to 30 s, and each page of
    the list up to `timeout_s`. Later changes of the list are ignored. The first call of a tool opens a session
    that all agents of this process share. If the server ends, the next call opens a new session. A call is sent
    at most once. A call that a crash interrupts is in doubt, unless the author declares the tool idempotent. If
    a result is larger than 64 KiB, the model gets its start. In a run, the whole result is an artifact of the
    agent. The tool ``read_result``, which is added to the server's tools, reads further parts;
    `InvocationResult.artifact_ref` refers to the artifact for a day.

    Args:
        name: Name of the server in errors, and default prefix of the names of its tools.
        command: Program and arguments of a server to start, which communicates by its standard streams. It gets
            none of this process's variables except PATH, HOME and the like.
        url: Address of a server over HTTP. Give either this or `command`.
        allow: Names of the tools to use, as the server names them; None for all.
        risks: Risk of each tool by the server's name; ``"*"`` is for all others. The default is ``HIGH``, which
            needs a person's approval for each call.
        idempotent: Names of tools for which a second call has no further effect. They are called again after a
            crash.
        prefix: Prefix of each tool's name; by default ``name_``.
        trust: Whether to use the server's annotations: read-only and non-destructive tools are ``SAFE``, and
            read-only and idempotent tools are idempotent. `risks` and `idempotent` take precedence.
        environment: Further environment variables of the program.
        headers: Headers of each HTTP request.
        timeout_s: Seconds that one call may take.

    Raises:
        ContractError: The arguments contradict each other, or the extra ``mcp`` is not installed.
        McpServerError: The server is unreachable, or lacks a tool that is named here.
    """
    _check(name, command, url)
    server = McpServer(
        name=name,
        command=None if command is None else tuple(command),
        url=url,
        environment=environment or {},
        headers=headers or {},
        timeout_s=timeout_s,
    )
    tools_by_name = {tool.name: tool for tool in _list(server)}
    required_names = {*(allow or ()), *(risks or ()), *idempotent} - {ALL}
    if missing_names := sorted(required_names - set(tools_by_name)):
        problem = (
            f"it has no tool {', '.join(missing_names)}; "
            f"it has {', '.join(sorted(tools_by_name)) or 'none'}"
        )
        raise McpServerError(name, problem)
    allowed_tools = [tool for tool in tools_by_name.values() if allow is None or tool.name in allow]
    factory = _ToolFactory(
        connection=McpConnection(server),
        prefix=f"{name}_" if prefix is None else prefix,
        risks=risks or {},
        idempotent=frozenset(idempotent),
        is_trusted=trust,
    )
    return factory.tools(allowed_tools)


def _check(name: str, command: Sequence[str] | None, url: str | None) -> None:
    if (command is None) == (url is None):
        msg = f"mcp_tools({name!r}): give either a command or a url"
        raise ContractError(msg)
    if find_spec("mcp") is None:
        msg = f"mcp_tools({name!r}) needs an extra: pip install 'callboard[mcp]'"
        raise ContractError(msg)


@dataclass(frozen=True, slots=True, kw_only=True)
class _ToolFactory:
    """The author's settings for a server's tools, and the conversion into tools of agents."""

    connection: McpConnection
    prefix: str
    risks: Mapping[str, Risk]
    idempotent: frozenset[str]
    is_trusted: bool

    def tools(self, server_tools: Sequence[ListedTool]) -> McpTools:
        tools = McpTools([*map(self._tool, server_tools), self._reader()])
        names = [tool.name for tool in tools]
        if len({*names}) < len(names):
            problem = f"two of its tools have the same name: {', '.join(sorted(names))}; choose by `allow`"
            raise McpServerError(self.connection.server.name, problem)
        return tools

    def _tool(self, server_tool: ListedTool) -> Tool:
        run: Callable[..., Awaitable[Any]] = partial(
            _call, self.connection, server_tool.name, self._name(READER)
        )
        hints = server_tool.annotations if self.is_trusted else None
        is_idempotent = bool(hints and (hints.read_only_hint or hints.idempotent_hint))
        risk = self.risks.get(server_tool.name)
        if risk is None:
            is_safe = hints and (hints.read_only_hint or hints.destructive_hint is False)
            risk = Risk.SAFE if is_safe else self.risks.get(ALL, Risk.HIGH)
        return Tool(
            name=self._name(server_tool.name),
            description=clean(server_tool.description or server_tool.title or ""),
            run=run,
            parameters=clean_json(server_tool.input_schema),
            risk=risk,
            idempotent=is_idempotent or server_tool.name in self.idempotent,
        )

    def _reader(self) -> Tool:
        return Tool(
            name=self._name(READER),
            description="Read on in a result that was too long to be shown as a whole.",
            run=partial(read_on, self.connection, self._name(READER)),
            parameters=READER_PARAMETERS,
            idempotent=True,
        )

    def _name(self, name: str) -> str:
        return _NAME.sub("_", self.prefix + name)[:_MAX_NAME]


def _list(server: McpServer) -> Sequence[ListedTool]:
    """Return the server's tools, read in a thread because the caller may or may not be in an event loop."""

    async def ask() -> Sequence[ListedTool]:
        connection = McpConnection(server)
        try:
            return await connection.tools()
        finally:
            await connection.aclose()

    tool_lists: list[Sequence[ListedTool]] = []
    errors: list[BaseException] = []

    def run() -> None:
        try:
            tool_lists.append(asyncio.run(ask()))
        except BaseException as exc:  # noqa: BLE001 - raised where it was called
            errors.append(exc)

    # A daemon, so that a server that does not answer cannot keep the process from ending.
    thread = threading.Thread(target=run, name=f"mcp {server.name}", daemon=True)
    thread.start()
    thread.join()
    for exc in errors:
        raise exc
    return tool_lists[0]


async def _call(connection: McpConnection, tool: str, reader: str, /, **arguments: Any) -> Any:
    """Return the result of one call: JSON data, or the start of a large result.

    Raises:
        McpToolError: The tool reports that it failed.
        McpServerError: There is no result.
    """
    result = await connection.call(tool, arguments)
    value = _value(result)
    if result.is_error:
        raise McpToolError(connection.server.name, beginning_of(value))
    return await within_limit(value, reader)


def _value(result: CallToolResult) -> Any:
    data = result.structured_content
    if data is None or result.is_error:
        return clean("\n".join(_block_text(block) for block in result.content))
    if isinstance(data, dict) and [*data] == ["result"]:
        data = data["result"]  # the SDK wraps values that are not objects
    return clean_json(data)


def _block_text(block: Any) -> str:
    """Return the text of a content block, or a note in place of a block without text."""
    text = getattr(block, "text", None)
    if text is None:
        text = getattr(getattr(block, "resource", None), "text", None)
    if text is not None:
        return str(text)
    if uri := getattr(block, "uri", None):
        return f"[{block.type}: {uri}]"
    kind = getattr(block, "mime_type", None) or "data"
    size = len(getattr(block, "data", "") or "") * 3 // 4
    return f"[{block.type} of {size:,} bytes, {kind}: not passed on]"


async def within_limit(value: Any, reader: str) -> Any:
    """Return a small result unchanged; return the start of a large result, with a note where to read on.

    Outside of a run, or if the artifact store is unavailable, the rest is not stored.

    Args:
        value: JSON data.
        reader: Name of the tool that reads further parts.
    """
    data = _encode(value)
    if len(data) <= MAX_RESULT_BYTES:
        return value
    try:
        artifacts = artifact_store()
    except ContractError:  # outside of a run
        return beginning_of(value)
    kind = "text/plain" if isinstance(value, str) else "application/json"
    try:
        ref = await artifacts.store(data, content_type=kind)
    except PersistenceError:  # the tool was called, so its result must not be lost
        return beginning_of(value)
    start, end = _complete_text(data, 0)
    note = f"the result has {ref.size_bytes:,} bytes; {_read_on(reader, ref.id, end)}"
    return InvocationResult(status="ok", text=f"{start}\n[{note}]", artifact_ref=ref.id)


def beginning_of(value: Any) -> str:
    """Return a result as text, or the start of a large result, with a note."""
    data = _encode(value)
    start, end = _complete_text(data, 0)
    if end == len(data):
        return start
    return f"{start}\n[cut: {end:,} of {len(data):,} bytes are shown; ask for less]"


async def read_on(connection: McpConnection, reader: str, /, artifact: str, offset: int = 0) -> str:
    """Return a part of a large result as text, with a note where the next part starts.

    Raises:
        McpServerError: The agent has no such artifact, or it was deleted.
    """
    artifacts, offset = artifact_store(), max(0, int(offset))
    ref = await artifacts.stat(str(artifact))
    if ref is None:
        problem = (
            f"there is no result {artifact!r}: a result is kept for a day. Call its tool again"
        )
        raise McpServerError(connection.server.name, problem)
    data = await artifacts.read(ref.id, offset=offset, limit=MAX_RESULT_BYTES)
    text, next_offset = _complete_text(data, offset)
    end = offset + len(data) if offset + len(data) >= ref.size_bytes else next_offset
    note = "that is the end" if end >= ref.size_bytes else _read_on(reader, ref.id, end)
    return f"{text}\n[{note}]"


def _read_on(reader: str, artifact: str, offset: int) -> str:
    return f"go on by {reader}(artifact={artifact!r}, offset={offset})"


def _encode(value: Any) -> bytes:
    return value.encode() if isinstance(value, str) else to_json(value)


def _complete_text(data: bytes, offset: int) -> tuple[str, int]:
    """Return the characters that are complete within the first bytes, and the offset of the next one."""
    decoder = codecs.getincrementaldecoder("utf-8")(errors="ignore")
    part = data[:MAX_RESULT_BYTES]
    text = decoder.decode(part)
    return text, offset + len(part) - len(decoder.getstate()[0])
