"""Calls of tools over MCP, each of which is a run, beside the same runs by `submit` and `result`.

A run calls one tool by `ctx.tool`. Each client has one call at a time. In memory they are the SDK's. Over HTTP
they are in a process of their own, each with a token and a connection: the SDK's, then bare sockets that send
the same requests, because the SDK's clients need a processor of their own.
"""

from __future__ import annotations

import asyncio
import json
import secrets
import socket
import subprocess
import sys
import tempfile
from contextlib import AsyncExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Final, TypeAlias

import httpx2
from mcp import Client
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.inbound import MCP_METHOD_HEADER, MCP_NAME_HEADER, MCP_PROTOCOL_VERSION_HEADER
from mcp.types import CLIENT_CAPABILITIES_META_KEY, PROTOCOL_VERSION_META_KEY
from mcp_types.version import LATEST_MODERN_VERSION

from actors._kernel.agent.tools import Tool
from actors._kernel.runtime.ids import AgentId
from actors._runtime.loop.tasks import TaskScope
from compose._host.process import Stop
from compose._mcp.http import PATH, HttpOptions
from compose._mcp.runs import RunTools
from compose._mcp.server import ToolServer
from tests.benchmarks.bench import TYPE, agent_id, many, open_runtime, report

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from actors import Message, RunContext

CALLS: Final = {1: 200, 50: 3_000}
"""How many calls, by the number of clients."""
GOAL: Final = 0.4
SDK: Final = "sdk"
BARE: Final = "bare"

Call: TypeAlias = "Callable[[dict[str, Any]], Awaitable[bool]]"
"""A client's call of the tool with these arguments; True: it succeeded."""


async def _look(n: int) -> dict[str, int]:
    return {"n": n}


class Booth:
    """An agent whose run is one call of a tool."""

    tools: ClassVar = [Tool("look", "Looks.", _look, idempotent=True)]

    def __init__(self, id: AgentId) -> None:  # noqa: A002 - as every agent has it
        self.id = id

    async def run(self, ctx: RunContext, inbox: list[Message]) -> Any:
        """Call it."""
        return (await ctx.tool("look", n=inbox[0].payload)).structured


async def run(url: str, *, scale: float = 1.0) -> None:
    """Print a line for 1 and 50 clients, in memory and over HTTP."""
    for clients, most in CALLS.items():
        total = max(clients, round(most * scale))
        async with open_runtime(url) as runtime:
            await runtime.register_type(TYPE, Booth)

            async def submitted(n: int) -> None:
                agent = agent_id(f"floor{n}")
                assert await runtime.result(await runtime.submit(agent, n)) == {"n": n}

            floor = total / await many(submitted, total=total, at_once=clients)
            tools = RunTools(runtime, 60.0).of_agents({TYPE: []})
            server = ToolServer(tools, max_calls=clients).server  # in memory all are one client
            for transport, client in (("memory", SDK), ("http", SDK), ("http", BARE)):
                play = _in_memory if transport == "memory" else _over_http
                rate = total / await play(server, clients, total, client)
                report(
                    benchmark="tool_servers",
                    transport=transport,
                    client=client,
                    clients=clients,
                    calls_per_s=round(rate),
                    floor_per_s=round(floor),
                    ratio=round(rate / floor, 3),
                    goal=GOAL,
                )


async def _in_memory(server: Any, count: int, total: int, _: str) -> float:
    async with AsyncExitStack() as stack:
        clients = [await stack.enter_async_context(Client(server)) for _ in range(count)]
        return await _seconds([_calls_of(client) for client in clients], total, "memory")


def _calls_of(client: Client) -> Call:
    async def call(arguments: dict[str, Any]) -> bool:
        answer = await client.call_tool(TYPE, arguments)
        return not answer.is_error

    return call


async def _seconds(clients: list[Call], total: int, how: str) -> float:
    """Return the seconds of so many calls."""
    free = asyncio.Queue[Call]()
    for client in clients:
        free.put_nowait(client)

    async def call(n: int) -> None:
        client = await free.get()
        assert await client({"key": f"{how}{n}", "message": n})
        free.put_nowait(client)

    return await many(call, total=total, at_once=len(clients))


async def _over_http(server: Any, count: int, total: int, client: str) -> float:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{listener.getsockname()[1]}"
    with tempfile.TemporaryDirectory(prefix="callboard-mcp-") as folder:
        path, stop = Path(folder) / "tokens", Stop()
        path.write_text("\n".join(secrets.token_hex(16) for _ in range(count)))
        async with TaskScope() as tasks:
            options = HttpOptions(address=address, token_file=path)
            tasks.start(options.serve(server, stop), name="worker")
            command = (sys.executable, "-m", __name__, address, str(path), str(total), client)
            clients = await asyncio.create_subprocess_exec(*command, stdout=subprocess.PIPE)
            output, _ = await clients.communicate()
            stop.requested.set()
            await tasks.settle(limit_s=10)
        return float(output)


async def _ask(address: str, tokens: list[str], total: int, kind: str) -> float:
    """Return the seconds of calls over HTTP, from the process of the clients."""
    host, _, port = address.partition(":")
    while not await _listens(host, int(port)):  # noqa: ASYNC110 - nobody says when
        await asyncio.sleep(0.01)
    async with AsyncExitStack() as stack:
        opened = _bare if kind == BARE else _of_sdk
        clients = [await opened(stack, address, token) for token in tokens]
        return await _seconds(clients, total, kind)


async def _of_sdk(stack: AsyncExitStack, address: str, token: str) -> Call:
    headers = {"Authorization": f"Bearer {token}"}
    http = await stack.enter_async_context(httpx2.AsyncClient(headers=headers))
    joined = Client(streamable_http_client(f"http://{address}{PATH}", http_client=http))
    return _calls_of(await stack.enter_async_context(joined))


async def _bare(stack: AsyncExitStack, address: str, token: str) -> Call:
    host, _, port = address.partition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    stack.callback(writer.close)
    version = LATEST_MODERN_VERSION
    meta = {PROTOCOL_VERSION_META_KEY: version, CLIENT_CAPABILITIES_META_KEY: {}}
    lines = (
        f"POST {PATH} HTTP/1.1\r\nhost: {address}\r\nauthorization: Bearer {token}",
        "accept: application/json, text/event-stream\r\ncontent-type: application/json",
        f"{MCP_PROTOCOL_VERSION_HEADER}: {version}\r\n{MCP_METHOD_HEADER}: tools/call",
        f"{MCP_NAME_HEADER}: {TYPE}\r\ncontent-length: ",
    )
    head = "\r\n".join(lines).encode()

    async def call(arguments: dict[str, Any]) -> bool:
        params = {"name": TYPE, "arguments": arguments, "_meta": meta}
        body = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}
        data = json.dumps(body).encode()
        writer.write(b"%b%d\r\n\r\n%b" % (head, len(data), data))
        answer = (await reader.readuntil(b"\r\n\r\n")).lower()
        size = answer.partition(b"content-length: ")[2].partition(b"\r\n")[0]
        reply = json.loads(await reader.readexactly(int(size)))
        return "result" in reply and not reply["result"].get("isError")

    return call


async def _listens(host: str, port: int) -> bool:
    try:
        _, writer = await asyncio.open_connection(host, port)
    except OSError:
        return False
    writer.close()
    return True


if __name__ == "__main__":
    _, at, file, calls, which = sys.argv
    print(asyncio.run(_ask(at, Path(file).read_text().split(), int(calls), which)))  # noqa: T201 - to its parent
