"""Calls of tools over MCP, each of which is a run, beside the same runs by `submit` and `result`.

A run calls one tool by `ctx.tool`. Clients are the SDK's, and each has one call at a time: joined to the server
in memory, or over HTTP, in a process of their own, each with a token.
"""

from __future__ import annotations

import asyncio
import secrets
import socket
import subprocess
import sys
import tempfile
from contextlib import AsyncExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Final

import httpx2
from mcp import Client
from mcp.client.streamable_http import streamable_http_client

from actors.kernel.agent.tools import Tool
from actors.kernel.runtime.ids import AgentId
from actors.runtime.loop.tasks import TaskScope
from compose.host.process import Stop
from compose.mcp.access import PATH
from compose.mcp.http import HttpOptions
from compose.mcp.runs import RunTools
from compose.mcp.server import ToolServer
from tests.benchmarks.bench import TYPE, agent_id, many, open_runtime, report

if TYPE_CHECKING:
    from actors import Message, RunContext

CALLS: Final = {1: 200, 50: 3_000}
"""How many calls, by the number of clients."""
GOAL: Final = 0.4


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
            for how, asked in (("memory", _in_memory), ("http", _over_http)):
                rate = total / await asked(server, clients, total)
                report(
                    benchmark="tool_servers",
                    transport=how,
                    clients=clients,
                    calls_per_s=round(rate),
                    floor_per_s=round(floor),
                    ratio=round(rate / floor, 3),
                    goal=GOAL,
                )


async def _in_memory(server: Any, count: int, total: int) -> float:
    async with AsyncExitStack() as stack:
        clients = [await stack.enter_async_context(Client(server)) for _ in range(count)]
        return await _seconds(clients, total, "memory")


async def _seconds(clients: list[Client], total: int, how: str) -> float:
    """Return the seconds of so many calls."""
    free = asyncio.Queue[Client]()
    for one in clients:
        free.put_nowait(one)

    async def call(n: int) -> None:
        client = await free.get()
        found = await client.call_tool(TYPE, {"key": f"{how}{n}", "message": n})
        free.put_nowait(client)
        assert not found.is_error, found.content

    return await many(call, total=total, at_once=len(clients))


async def _over_http(server: Any, count: int, total: int) -> float:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{taken.getsockname()[1]}"
    with tempfile.TemporaryDirectory(prefix="callboard-mcp-") as folder:
        path, stop = Path(folder) / "tokens", Stop()
        path.write_text("\n".join(secrets.token_hex(16) for _ in range(count)))
        async with TaskScope() as tasks:
            options = HttpOptions(address=address, token_file=path)
            tasks.start(options.serve(server, stop), name="worker")
            command = (sys.executable, "-m", __name__, address, str(path), str(total))
            clients = await asyncio.create_subprocess_exec(*command, stdout=subprocess.PIPE)
            told, _ = await clients.communicate()
            stop.requested.set()
            await tasks.settle(limit_s=10)
        return float(told)


async def _ask(address: str, tokens: list[str], total: int) -> float:
    """Return the seconds of calls over HTTP, from the process of the clients."""
    host, _, port = address.partition(":")
    while not await _listens(host, int(port)):  # noqa: ASYNC110 - nobody says when
        await asyncio.sleep(0.01)
    async with AsyncExitStack() as stack:
        clients = []
        for token in tokens:
            headers = {"Authorization": f"Bearer {token}"}
            http = await stack.enter_async_context(httpx2.AsyncClient(headers=headers))
            joined = Client(streamable_http_client(f"http://{address}{PATH}", http_client=http))
            clients.append(await stack.enter_async_context(joined))
        return await _seconds(clients, total, "http")


async def _listens(host: str, port: int) -> bool:
    try:
        _, writer = await asyncio.open_connection(host, port)
    except OSError:
        return False
    writer.close()
    return True


if __name__ == "__main__":
    _, at, file, calls = sys.argv
    print(asyncio.run(_ask(at, Path(file).read_text().split(), int(calls))))  # noqa: T201 - to its parent
