"""The worker over HTTP: the SDK's client, and requests that are refused before anything executes."""

from __future__ import annotations

import asyncio
import logging
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import httpx2
import pytest
from mcp import Client
from mcp.client.streamable_http import streamable_http_client

from actors._kernel.agent.tools import Tool
from actors._runtime.loop.tasks import TaskScope
from actors.errors import ContractError
from compose._host.http import AddressError
from compose._host.process import Stop
from compose._mcp.http import HttpOptions
from compose._mcp.server import ToolServer
from tests.integration.mcp_worker.test_worker_toolsets import text_of

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence
    from pathlib import Path

TOKENS = ("first-token-of-a-client", "other-token-of-a-client")
SITE = "https://shop.example"


@pytest.fixture
def tokens(tmp_path: Path) -> Path:
    """A file of two tokens."""
    path = tmp_path / "mcp.token"
    path.write_text("# of the tests\n" + "\n".join(TOKENS) + "\n")
    return path


class Calls:
    """A tool that waits, and what became of its calls."""

    def __init__(self) -> None:
        self.started_names, self.cancelled = asyncio.Queue[str](), asyncio.Queue[str]()
        self.go_on = asyncio.Event()
        self.tools = [Tool("work", "", self.work)]

    async def work(self, name: str) -> str:
        """Wait until it may end."""
        self.started_names.put_nowait(name)
        try:
            await self.go_on.wait()
        except asyncio.CancelledError:
            self.cancelled.put_nowait(name)
            raise
        return name


@asynccontextmanager
async def worker(
    tools: Sequence[Tool], tokens: Path, caplog: pytest.LogCaptureFixture, **more: Any
) -> AsyncIterator[str]:
    """The address of a worker in this process."""
    options = HttpOptions(address="127.0.0.1:0", token_file=tokens, origins=(SITE,), **more)
    stop = Stop()
    caplog.set_level(logging.INFO, "callboard.mcp")
    caplog.clear()
    async with TaskScope() as tasks:
        server = ToolServer(tools, max_calls=2).server
        tasks.start(options.serve(server, stop), name="worker")
        try:
            while not (records := [r for r in caplog.records if r.msg == "mcp.listening"]):  # noqa: ASYNC110
                await asyncio.sleep(0.001)
            yield vars(records[0])["url"]
        finally:
            stop.requested.set()
            await tasks.settle(limit_s=10)
            assert not len(tasks), "it ends when it is told to"


@asynccontextmanager
async def client_at(url: str, token: str = TOKENS[0], mode: Any = "auto") -> AsyncIterator[Client]:
    """The SDK's client."""
    headers = {"Authorization": f"Bearer {token}"}
    async with (
        httpx2.AsyncClient(headers=headers) as http,
        Client(streamable_http_client(url, http_client=http), mode=mode) as client,
    ):
        yield client


@pytest.mark.item(471)
@pytest.mark.parametrize("mode", ["auto", "legacy"])
async def test_clients_of_both_ages_call_tools(
    tokens: Path, caplog: pytest.LogCaptureFixture, mode: str
) -> None:
    """Two calls at once, an error as a result; each client, which is a token, has a limit of its own."""
    calls = Calls()
    async with (
        worker(calls.tools, tokens, caplog) as url,
        client_at(url, mode=mode) as client,
        client_at(url, TOKENS[1], mode=mode) as other,
        asyncio.TaskGroup() as group,
    ):
        assert [tool.name for tool in (await client.list_tools()).tools] == ["work"]
        wrong = await client.call_tool("work", {"nonsense": 1})
        own_calls = [group.create_task(client.call_tool("work", {"name": name})) for name in "ab"]
        assert {await calls.started_names.get(), await calls.started_names.get()} == {"a", "b"}
        refusal = await client.call_tool("work", {"name": "c"})
        of_other = group.create_task(other.call_tool("work", {"name": "d"}))
        assert await calls.started_names.get() == "d"
        calls.go_on.set()
        texts = [text_of(await call) for call in (*own_calls, of_other)]

    assert wrong.is_error
    assert refusal.is_error
    assert texts == ["a", "b", "d"]


@pytest.mark.item(471)
async def test_a_disconnected_client_leaves_no_executing_run(
    tokens: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Its call is cancelled, whether it says so or disconnects, and its place is free again."""
    calls = Calls()
    async with worker(calls.tools, tokens, caplog) as url:
        for name in "abcd":  # two places
            mode = "legacy" if name in "ab" else "auto"
            async with client_at(url, mode=mode) as client, TaskScope() as tasks:
                tasks.start(client.session.call_tool("work", {"name": name}), name=name)
                assert await calls.started_names.get() == name
                tasks.cancel()
                async with asyncio.timeout(10):
                    assert await calls.cancelled.get() == name


def frame(method: str, **params: Any) -> dict[str, Any]:
    """A request of the older protocol."""
    return {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}


INITIALIZE = frame(
    "initialize",
    protocolVersion="2025-06-18",
    capabilities={},
    clientInfo={"name": "test", "version": "1"},
)
HEADERS = {
    "Authorization": f"Bearer {TOKENS[0]}",
    "Accept": "application/json, text/event-stream",
    "Content-Type": "application/json",
}


@pytest.mark.item(471)
async def test_requests_are_refused_before_anything_executes(
    tokens: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A wrong token, a foreign host or page, a body that is too large or no JSON; others are answered."""
    calls = Calls()
    async with worker(calls.tools, tokens, caplog) as url, httpx2.AsyncClient() as http:

        async def status(content: bytes | None = None, at: str = url, **headers: str) -> int:
            http_headers = {
                **HEADERS,
                **{key.replace("_", "-"): value for key, value in headers.items()},
            }
            if content is None:
                return (await http.post(at, json=INITIALIZE, headers=http_headers)).status_code
            return (await http.post(at, content=content, headers=http_headers)).status_code

        port = httpx2.URL(url).port
        assert await status() == 200
        assert await status(Authorization="Bearer wrong") == 401
        assert await status(Authorization=TOKENS[0]) == 401
        assert await status(Host="evil.example") == 403
        assert await status(Host=f"127.0.0.1.evil.example:{port}") == 403
        assert await status(Origin="https://evil.example") == 403
        assert await status(Origin="null") == 403
        assert await status(Host=f"localhost:{port}") == 200
        assert await status(Origin=SITE) == 200
        assert await status(Origin="https://evil.example", Authorization="Bearer wrong") == 403
        assert await status(b"x" * (2**20 + 1)) == 413
        assert await status(b'{"jsonrpc": "2.0", "id": 1, "meth') == 400
        assert await status(b"[]") == 400
        assert await status(at=url.replace("/mcp", "/other")) == 404
        preflight = await http.options(
            url,
            headers={
                "Origin": SITE,
                "Access-Control-Request-Method": "POST",
                "Access-Control-Request-Headers": "authorization",
            },
        )
        assert preflight.headers["access-control-allow-origin"] == SITE
        tokens.write_text(TOKENS[1])  # noqa: ASYNC240 - small
        assert await status() == 401, "a token that is not in the file any more"
        assert await status(Authorization=f"Bearer {TOKENS[1]}") == 200
        tokens.unlink()  # noqa: ASYNC240 - as above
        assert await status(Authorization=f"Bearer {TOKENS[1]}") == 401

    assert calls.started_names.empty()


@pytest.mark.item(471)
async def test_the_error_of_an_address_in_use_has_the_address(
    tokens: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """With the option."""
    async with worker(Calls().tools, tokens, caplog) as url:
        second_options = HttpOptions(address=f"127.0.0.1:{httpx2.URL(url).port}", token_file=tokens)
        with pytest.raises(AddressError, match=r"--http 127\.0\.0\.1:"):
            await second_options.serve(ToolServer([], max_calls=1).server, Stop())


@pytest.mark.item(471)
def test_options_that_let_anybody_ask_are_refused(tmp_path: Path, tokens: Path) -> None:
    """Without tokens, with a short one, at an address of others without a name, from a page that is none."""
    short = tmp_path / "short"
    short.write_text("secret\n")

    with pytest.raises(ContractError, match="--http needs --token-file"):
        HttpOptions(address="127.0.0.1:0", token_file=None)
    with pytest.raises(ContractError, match="16 characters or more"):
        HttpOptions(address="127.0.0.1:0", token_file=short)
    with pytest.raises(ContractError, match="No such file"):
        HttpOptions(address="127.0.0.1:0", token_file=tmp_path / "nothing")
    with pytest.raises(AddressError, match="say --allow-host"):
        HttpOptions(address="0.0.0.0:0", token_file=tokens)
    with pytest.raises(ContractError, match=r"--allow-origin \*: not an origin"):
        HttpOptions(address="127.0.0.1:0", token_file=tokens, origins=("*",))
    assert HttpOptions(address="0.0.0.0:0", token_file=tokens, hosts=("tools:80",)).hosts
