"""The worker over standard streams: real processes, the SDK's client and a client that sends nonsense."""

from __future__ import annotations

import asyncio
import json
import os
import shlex
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from mcp import Client
from mcp.client.stdio import StdioServerParameters, stdio_client

from compose._cli import app
from compose._mcp.process import MAX_LINE_BYTES, InputLines
from tests.integration.mcp_worker.test_worker_http import INITIALIZE, frame
from tests.integration.mcp_worker.test_worker_toolsets import text_of
from tests.system.web.node import node_module
from tests.unit.documents import blocks

if TYPE_CHECKING:
    from collections.abc import Mapping

ROOT = Path(__file__).parents[3]
SERVED = "tests.integration.mcp_worker.served"
COMMAND = ("-m", "compose", "mcp-worker", "--toolsets", "files,shell", "--flows", f"{SERVED}:flows")
NO_FRAME = "this is no frame"


def environment() -> Mapping[str, str]:
    """Variables of a worker: no database is named."""
    variables = {
        key: value for key, value in os.environ.items() if not key.startswith("CALLBOARD_")
    }
    return {**variables, "PYTHONPATH": str(ROOT)}


@pytest.mark.costly
@pytest.mark.item(471)
async def test_the_sdks_client_calls_tools_and_flows(tmp_path: Path) -> None:
    """Two at once; a failure is a result; whatever a flow prints, standard output has frames alone."""
    (tmp_path / "a.txt").write_text("hello")
    log = tmp_path / "log"
    args = [*COMMAND, "--root", str(tmp_path)]
    server = StdioServerParameters(
        command=sys.executable, args=args, env=dict(environment()), cwd=ROOT
    )
    noise: list[object] = []

    async def record_noise(message: object) -> None:
        noise.append(message)

    with log.open("w") as errlog:
        async with Client(
            stdio_client(server, errlog=errlog), message_handler=record_noise
        ) as client:
            names = [tool.name for tool in (await client.list_tools()).tools]
            async with asyncio.TaskGroup() as group:
                read_call = group.create_task(client.call_tool("read_file", {"path": "a.txt"}))
                run = group.create_task(client.call_tool("double", {"number": 4}))
            failure = await client.call_tool("fail", {"order": 7})
            shell_result = await client.call_tool("execute_command", {"command": "cat; echo done"})

    assert {"read_file", "execute_command", "double", "run_result"} < {*names}
    assert (read_call.result().structured_content or {})["text"] == "hello"
    assert (run.result().structured_content or {})["output"]["doubled"] == 8
    assert failure.is_error
    assert "nothing pays 7" in text_of(failure)
    assert (shell_result.structured_content or {})["stdout"] == "done\n"
    log_text = log.read_text()
    assert noise == []
    assert log_text.count(NO_FRAME) == 4
    assert "mcp.stopped" in log_text


@pytest.mark.costly
@pytest.mark.item(471)
async def test_progress_is_received_and_a_cancelled_call_ends_its_run(tmp_path: Path) -> None:
    """The run of the client's id is cancelled, as its only call was: the same id again says so."""
    args = [*COMMAND, "--root", str(tmp_path)]
    server = StdioServerParameters(
        command=sys.executable, args=args, env=dict(environment()), cwd=ROOT
    )
    meta: Any = {"callboard/id": "w-1"}
    waits = asyncio.Event()
    messages: list[str | None] = []

    async def hear(progress: float, total: float | None, message: str | None) -> None:
        messages.append(message)
        if message == "ask: waiting":
            waits.set()

    with (tmp_path / "log").open("w") as errlog:
        async with Client(stdio_client(server, errlog=errlog)) as client:
            async with asyncio.TaskGroup() as group:
                call = group.create_task(
                    client.call_tool("wait", {}, meta=meta, progress_callback=hear)
                )
                await waits.wait()
                call.cancel()
            again = await client.call_tool("wait", {}, meta=meta)

    assert messages == ["ask: started", "ask: waiting"]
    assert again.is_error
    assert "CANCELLED" in text_of(again)


@pytest.mark.costly
@pytest.mark.item(471)
async def test_nonsense_does_not_end_the_worker(tmp_path: Path) -> None:
    """Nor does half a frame at its end keep it: what it writes are frames, and SIGTERM ends it with 0."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, *COMMAND, "--root", str(tmp_path)),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env=environment(),
        cwd=ROOT,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    call = frame("tools/call", name="double", arguments={"number": 1})
    long_call = frame("tools/call", name="execute_command", arguments={"command": "sleep 600"})
    frames: list[Any] = [
        b"nonsense\n\xff\xfe\n\n[]\n{}\n",
        b"x" * (MAX_LINE_BYTES + 5) + b"\n",
        INITIALIZE,
        {"jsonrpc": "2.0", "method": "notifications/initialized"},
        {**call, "id": 2},
        {**call, "id": 2},
        frame("nothing"),
        {**long_call, "id": 3},
    ]
    answers: list[dict[str, Any]] = []
    for sent_frame in frames:
        process.stdin.write(
            sent_frame if isinstance(sent_frame, bytes) else json.dumps(sent_frame).encode() + b"\n"
        )
        if isinstance(sent_frame, dict) and "id" in sent_frame and sent_frame["id"] != 3:
            async with asyncio.timeout(30):
                answers.append(json.loads(await process.stdout.readline()))
    process.stdin.write(b'{"jsonrpc": "2.0", "id": 4, "meth')
    await process.stdin.drain()
    process.send_signal(signal.SIGTERM)
    out, err = await process.communicate()

    assert process.returncode == 0, err.decode()
    answers += [json.loads(line) for line in out.splitlines()]
    by_id = [answer["id"] for answer in answers]
    assert by_id[:4] == [1, 2, 2, 1]
    assert [
        answer["result"]["structuredContent"]["output"]["doubled"] for answer in answers[1:3]
    ] == [2, 2]
    assert answers[3]["error"]["code"] == -32601
    assert NO_FRAME in err.decode()
    assert "mcp.line_too_long" in err.decode()
    assert "signal=SIGTERM" in err.decode()


@pytest.mark.item(471)
async def test_lines_are_limited() -> None:
    """One that is too long is dropped, however it comes; the end may come within one."""
    reader = asyncio.StreamReader(limit=MAX_LINE_BYTES)
    lines = InputLines(reader, asyncio.ReadTransport())
    long = b"x" * MAX_LINE_BYTES
    for piece in (b"a\n", long, long, b"y\nb", b"\n", long[1:] + b"\n", b"half"):
        reader.feed_data(piece)
    reader.feed_eof()

    assert [len(line) async for line in lines] == [2, 2, MAX_LINE_BYTES, 4]


@pytest.mark.costly
@pytest.mark.item(471)
async def test_the_inspector_calls_a_tool(tmp_path: Path) -> None:
    """`@modelcontextprotocol/inspector` in its CLI mode, under Node, with the configuration of the document."""
    program = node_module("@modelcontextprotocol/inspector-cli", "0.15.0", "build/cli.js")
    [block] = blocks("docs/mcp-worker.md", "json")
    config = json.loads(block)
    [[name, server]] = config["mcpServers"].items()
    assert server["command"] == "callboard"
    server |= {"command": sys.executable, "args": ["-m", "compose", *server["args"]]}
    server |= {"cwd": str(tmp_path), "env": {"PYTHONPATH": str(ROOT)}}
    server["args"] = [
        str(tmp_path) if argument == "./work" else argument for argument in server["args"]
    ]
    servers = tmp_path / "servers.json"
    servers.write_text(json.dumps(config))
    process = await asyncio.create_subprocess_exec(
        *("node", str(program), "--cli", "--config", str(servers), "--server", name),
        *("--method", "tools/call", "--tool-name", "write_file"),
        *("--tool-arg", "path=sub/a.txt", "content=hello"),
        stdout=asyncio.subprocess.PIPE,
        env=environment(),
    )
    out, _ = await process.communicate()
    result = json.loads(out)

    assert result["structuredContent"] == {"path": "sub/a.txt", "size_bytes": 5}
    assert result["isError"] is False


@pytest.mark.item(471, 475)
def test_the_commands_of_the_document_are_commands() -> None:
    """With options that there are."""
    lines = "".join(blocks("docs/mcp-worker.md", "sh")).splitlines()
    words = [shlex.split(line) for line in lines if line.startswith("callboard ")]
    parsed_commands = [
        app.parse_args(command[1:], print_error=False, exit_on_error=False) for command in words
    ]

    assert [sorted(bound.arguments) for _, bound, _ in parsed_commands] == [
        ["access", "root", "toolsets"],
        ["flows"],
        ["agents", "target"],
        ["flows", "target"],
    ]
