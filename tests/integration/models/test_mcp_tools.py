"""Tools of MCP servers: real servers as processes, one made with the SDK and one that misbehaves."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import sys
import threading
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from actors import AgentId, ApprovalPolicy, Risk, Runtime
from actors._inmemory.artifacts import InMemoryArtifactStore
from actors._kernel.agent.tools import InvocationResult, ToolCall
from actors._runtime.verbs.model_calls import DirectToolInvoker
from actors.errors import ContractError, StoreUnreachableError
from compose.models import McpServerError, McpTools, mcp_tools
from tests.integration.models import mcp_faulty

if TYPE_CHECKING:
    from collections.abc import Iterator

    from actors import Message, RunContext

HERE = Path(__file__).parent
CALENDAR = [sys.executable, str(HERE / "mcp_server.py")]
FAULTY = [sys.executable, str(HERE / "mcp_faulty.py")]


async def use(tools: McpTools, name: str, **arguments: Any) -> InvocationResult:
    """The result of one call, as a model reads it."""
    call = ToolCall(id="1", name=name, arguments=arguments)
    return await DirectToolInvoker().invoke(call, tools=tools, idempotency_key="k")


@pytest.fixture(scope="module")
def calendar() -> McpTools:
    """The tools of the server that is made with the SDK."""
    return mcp_tools("cal", command=CALENDAR, environment={"BOOKED_BY": "ann"})


@pytest.fixture
def ledger(tmp_path: Path) -> Path:
    """The file in which the other server writes its calls down."""
    return tmp_path / "ledger"


@pytest.fixture
def faulty(ledger: Path) -> McpTools:
    """The tools of the server that misbehaves."""
    return mcp_tools("bad", command=[*FAULTY, str(ledger)], prefix="", timeout_s=5)


def calls(ledger: Path) -> list[str]:
    """The calls that the server got."""
    return ledger.read_text().splitlines() if ledger.exists() else []


@pytest.mark.costly
async def test_a_servers_tools_are_an_agents(calendar: McpTools) -> None:
    """Values, texts, images and errors become results that a model reads; all calls share one process."""
    pids = await asyncio.gather(*(use(calendar, "cal_pid") for _ in range(5)))
    total = await use(calendar, "cal_add", left=1, right=2)
    booking = await use(calendar, "cal_book", day="Monday")
    image_result = await use(calendar, "cal_look")
    failure = await use(calendar, "cal_fail", why="closed")
    wrong = await use(calendar, "cal_add", left="x")
    await calendar.aclose()

    assert len({result.structured for result in pids}) == 1
    assert (total.status, total.structured) == ("ok", 3)
    assert booking.structured == {"day": "Monday", "by": "ann"}
    assert image_result.text == "this:\n[image of 6 bytes, image/png: not passed on]"
    assert (failure.status, failure.text) == (
        "error",
        "McpToolError: Error executing tool fail: closed",
    )
    assert wrong.status == "error"
    assert "valid integer" in wrong.text


@pytest.mark.parametrize("is_allowed", [True, False])
async def test_a_run_calls_a_servers_tool(faulty: McpTools, ledger: Path, is_allowed: bool) -> None:
    """Recorded like any tool's; without another word of the author a person has to agree first."""

    class Caller:
        """Calls a tool."""

        def __init__(self, agent_id: AgentId) -> None:
            self.id, self.tools = agent_id, faulty
            if is_allowed:
                self.approval_policy = ApprovalPolicy(never=frozenset(["echo"]))

        async def run(self, ctx: RunContext, inbox: list[Message]) -> str:
            """Return what it said."""
            assert inbox
            return (await ctx.tool("echo", text="hello")).text

    async with Runtime() as runtime:
        await runtime.register_type("caller", Caller)
        run_id = await runtime.submit(AgentId("caller", "1"), "go")
        if is_allowed:
            assert await runtime.result(run_id) == "hello"
        else:
            while not (pending := await runtime.approvals.open()):  # noqa: ASYNC110 - no event
                await asyncio.sleep(0)
            assert pending[0].run_id == run_id
            await runtime.cancel(run_id)
    await faulty.aclose()

    assert calls(ledger) == (["echo"] if is_allowed else [])


def test_a_servers_annotations_of_tools_count_if_it_is_trusted(calendar: McpTools) -> None:
    """Otherwise each is risky and may happen once at most; what the author says goes before."""
    trusted = mcp_tools(
        "cal", command=CALENDAR, trust=True, prefix="", risks={"add": Risk.CRITICAL}
    )
    properties = {tool.name: (tool.risk, tool.idempotent) for tool in trusted}

    assert {(tool.risk, tool.idempotent) for tool in calendar[:-1]} == {(Risk.HIGH, False)}
    assert properties == {
        "add": (Risk.CRITICAL, True),
        "book": (Risk.HIGH, True),
        "fail": (Risk.SAFE, False),
        "pid": (Risk.HIGH, False),
        "look": (Risk.HIGH, False),
        "read_result": (Risk.SAFE, True),
    }
    assert calendar[0].description == "Add two numbers."
    assert calendar[0].parameters["required"] == ["left", "right"]


def test_the_author_selects_tools_and_their_risks(ledger: Path) -> None:
    """By the names that the server has; names for models are made of what providers take."""
    tools = mcp_tools(
        "bad",
        command=[*FAULTY, str(ledger)],
        allow=["echo", "unknown tool"],
        risks={"echo": Risk.HIGH, "*": Risk.SAFE},
        idempotent=["echo"],
    )

    assert [(tool.name, tool.risk, tool.idempotent) for tool in tools] == [
        ("bad_echo", Risk.HIGH, True),
        ("bad_unknown_tool", Risk.SAFE, False),
        ("bad_read_result", Risk.SAFE, True),
    ]
    with pytest.raises(McpServerError, match="'bad': it has no tool nothing; it has die, echo"):
        mcp_tools("bad", command=[*FAULTY, str(ledger)], allow=["nothing"])


async def test_a_crashed_server_is_started_again(faulty: McpTools, ledger: Path) -> None:
    """By the next call; the call that it died in is not made twice."""
    first = await use(faulty, "echo", text="a")
    died = await use(faulty, "die")
    second = await use(faulty, "echo", text="b")
    await faulty.aclose()

    assert (first.text, second.text) == ("a", "b")
    assert died.status == "error"
    assert "it ended. die may have happened all the same" in died.text
    assert calls(ledger) == ["echo", "die", "echo"]


async def test_a_server_that_is_killed_between_calls_is_started_again(faulty: McpTools) -> None:
    """Nobody notices, unless the call is faster than the news of the death."""
    pid = (await use(faulty, "pid")).text
    os.kill(int(pid), signal.SIGKILL)
    while (result := await use(faulty, "pid")).status == "error":
        assert "may have happened" in result.text
    await faulty.aclose()

    assert result.text != pid


def test_the_end_of_the_event_loop_ends_the_server(faulty: McpTools) -> None:
    """Without a word of the author."""
    pid = asyncio.run(use(faulty, "pid")).text

    with pytest.raises(ProcessLookupError):
        os.kill(int(pid), 0)


async def test_a_server_that_hangs_is_given_up(ledger: Path) -> None:
    """After the author's seconds; other calls of the session go on, and it is called no second time."""
    tools = mcp_tools("bad", command=[*FAULTY, str(ledger)], prefix="", timeout_s=0.2)

    hung, echo = await asyncio.gather(use(tools, "hang"), use(tools, "echo", text="a"))
    await tools.aclose()

    assert hung.status == "error"
    assert "hang did not answer within 0.2 s" in hung.text
    assert "timeout_s" in hung.text
    assert echo.text == "a"
    assert calls(ledger) == ["hang", "echo"]


async def test_the_error_of_a_removed_tool_has_its_name(faulty: McpTools) -> None:
    """The model reads what the server says."""
    result = await use(faulty, "unknown_tool")
    await faulty.aclose()

    assert result.status == "error"
    assert "unknown tool refused: Unknown tool: unknown tool" in result.text


def reader_of(tools: McpTools) -> type[Any]:
    """Agents that call a tool, or read on where a text says so."""

    class Reader:
        """Does what a model would do."""

        def __init__(self, agent_id: AgentId) -> None:
            self.id, self.tools = agent_id, tools
            self.approval_policy = ApprovalPolicy(never=frozenset(["long"]))

        async def run(self, ctx: RunContext, inbox: list[Message]) -> list[str]:
            """Return all texts that the model would have read."""
            texts, text = [], str(inbox[0].payload)
            if text == "long":
                result = await ctx.tool("long")
                texts, text = [result.text], result.text
                assert f"{result.artifact_ref}" in text or result.artifact_ref is None
            while match := re.search(r"read_result\(artifact='(\w+)', offset=(\d+)\)\]$", text):
                part = await ctx.tool("read_result", artifact=match[1], offset=int(match[2]))
                text = part.text
                texts.append(text)
            return texts

    return Reader


async def test_a_large_result_is_read_to_its_end(faulty: McpTools) -> None:
    """It is an artifact: the model gets the beginning, and reads on; another agent cannot."""
    async with Runtime() as runtime:
        await runtime.register_type("reader", reader_of(faulty))
        texts: Any = await runtime.result(await runtime.submit(AgentId("reader", "1"), "long"))
        note = texts[0].splitlines()[-1]
        foreign: Any = await runtime.result(await runtime.submit(AgentId("reader", "2"), note))
    await faulty.aclose()

    parts = [text.rpartition("\n[")[0] for text in texts]
    assert "".join(parts) == mcp_faulty.LONG
    assert [len(part.encode()) for part in parts] == [65_535, 65_535, 65_535, 1_398]
    assert note.startswith("[the result has 198,003 bytes; go on by read_result(")
    assert texts[-1].endswith("[that is the end]")
    assert "there is no result" in foreign[0]


async def test_a_large_result_that_cannot_be_stored_is_cut(
    faulty: McpTools, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The tool was called all the same, and is not called again."""

    async def unreachable(*_: object, **__: object) -> None:
        raise StoreUnreachableError("the store is away")

    monkeypatch.setattr(InMemoryArtifactStore, "store", unreachable)
    async with Runtime() as runtime:
        await runtime.register_type("reader", reader_of(faulty))
        texts: Any = await runtime.result(await runtime.submit(AgentId("reader", "1"), "long"))
    await faulty.aclose()

    assert len(texts) == 1
    assert texts[0].endswith("[cut: 65,535 of 198,003 bytes are shown; ask for less]")


async def test_a_large_result_outside_of_a_run_is_cut_with_a_note(faulty: McpTools) -> None:
    """64 KiB of it are shown."""
    result = await use(faulty, "long")
    await faulty.aclose()

    assert result.text.startswith("€€€")
    assert result.text.endswith("[cut: 65,535 of 198,003 bytes are shown; ask for less]")
    assert len(result.text.encode()) < 66_000


async def test_a_huge_message_ends_the_server(faulty: McpTools) -> None:
    """50 MB are not kept; the next call has another server."""
    result = await use(faulty, "huge")
    echo = await use(faulty, "echo", text="a")
    await faulty.aclose()

    assert result.status == "error"
    assert "more than 16 MiB: ask it for less" in result.text
    assert echo.text == "a"


async def test_lines_that_are_no_messages_are_skipped(faulty: McpTools) -> None:
    """Servers print to the wrong stream; characters that no log keeps are replaced."""
    garbled_result, odd = await use(faulty, "garble"), await use(faulty, "odd")
    await faulty.aclose()

    assert garbled_result.text == "still here"
    assert odd.text == "a\ufffdb\ufffdc"


def test_a_server_that_cannot_be_reached_is_named(
    ledger: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With what to try by hand: a program that is not there, one that ends, one that says nothing."""
    with pytest.raises(
        McpServerError, match=r"'cal': it cannot be opened .* by hand: no-such-prog"
    ):
        mcp_tools("cal", command=["no-such-prog"])
    with pytest.raises(McpServerError, match="cannot be opened"):
        mcp_tools("cal", command=[sys.executable, "-c", "pass"])
    monkeypatch.setattr("compose._models.mcp.session.OPEN_LIMIT_S", 0.2)
    with pytest.raises(McpServerError, match=r"no greeting within 0\.2 s"):
        mcp_tools("cal", command=[*FAULTY, str(ledger), "mute"])
    with pytest.raises(McpServerError, match="cannot be opened"):
        mcp_tools("cal", url="http://127.0.0.1:1/mcp")


def test_contradicting_arguments_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before anything is started."""
    with pytest.raises(ContractError, match="either a command or a url"):
        mcp_tools("cal")
    with pytest.raises(ContractError, match="either a command or a url"):
        mcp_tools("cal", command=["x"], url="http://127.0.0.1:1")
    monkeypatch.setattr("compose._models.mcp.toolset.find_spec", lambda name: None)
    with pytest.raises(ContractError, match=r"callboard\[mcp\]"):
        mcp_tools("cal", command=["x"])


class Handler(BaseHTTPRequestHandler):
    """The misbehaving server over HTTP."""

    headers_seen: list[str | None]
    ledger: Path

    def __init__(self, ledger: Path, headers_seen: list[str | None], *args: Any) -> None:
        self.ledger, self.headers_seen = ledger, headers_seen
        super().__init__(*args)

    def do_POST(self) -> None:
        """Answer one message."""
        self.headers_seen.append(self.headers.get("authorization"))
        message = json.loads(self.rfile.read(int(self.headers["content-length"])))
        answer = mcp_faulty.answer(message, self.ledger)
        body = b"" if answer is None else json.dumps(answer).encode()
        self.send_response(202 if answer is None else 200)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_GET(self) -> None:
        """Offer no stream of the server's own messages."""
        self.send_error(405)

    do_DELETE = do_GET  # noqa: N815 - the name that the base class looks for

    def log_message(self, *_: Any) -> None:  # type: ignore[explicit-override]
        """Print nothing."""


@pytest.fixture
def over_http(ledger: Path) -> Iterator[tuple[str, list[str | None]]]:
    """The address of that server, and the logins that it sees."""
    headers_seen: list[str | None] = []
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Handler, ledger, headers_seen)) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}/mcp", headers_seen
        server.shutdown()
        thread.join()


async def test_a_server_over_http_is_like_one_of_streams(
    over_http: tuple[str, list[str | None]],
) -> None:
    """With the headers that the author names."""
    url, headers_seen = over_http
    tools = mcp_tools("web", url=url, headers={"Authorization": "Bearer t"})

    result = await use(tools, "web_echo", text="a")
    refusal = await use(tools, "web_unknown_tool")
    await tools.aclose()

    assert (result.status, result.text) == ("ok", "a")
    assert "Unknown tool" in refusal.text
    assert {*headers_seen} == {"Bearer t"}
