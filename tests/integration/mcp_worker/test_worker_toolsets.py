"""The worker's toolsets, called by the SDK's client in memory: files, pages and commands."""

from __future__ import annotations

import asyncio
import os
import socket
import threading
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from mcp import Client
from mcp.shared.exceptions import MCPError

from actors._kernel.agent.tools import Tool
from actors.errors import ContractError
from compose._mcp.server import ToolServer
from compose._mcp.toolsets import files, shell, web
from compose._mcp.toolsets.folder import ConfinedFolder, PathRefusedError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator, Sequence

    from mcp.types import CallToolResult


@asynccontextmanager
async def client_of(tools: Sequence[Tool], *, max_calls: int = 8) -> AsyncIterator[Client]:
    """The SDK's client of these tools."""
    async with Client(ToolServer(tools, max_calls=max_calls).server) as client:
        yield client


def text_of(result: CallToolResult) -> str:
    """What a model reads."""
    return str(getattr(result.content[0], "text", ""))


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """The root, with a secret beside it."""
    (tmp_path / "secret").write_text("hidden-word")
    (tmp_path / "root" / "sub").mkdir(parents=True)
    (tmp_path / "root" / "sub" / "a.txt").write_text("one\ntwo words\n")
    return tmp_path / "root"


@pytest.fixture
def folder(root: Path) -> Iterator[ConfinedFolder]:
    """The root as the tools have it."""
    folder = ConfinedFolder(root)
    yield folder
    folder.close()


@pytest.mark.item(471)
async def test_files_are_listed_read_written_and_searched(
    root: Path, folder: ConfinedFolder
) -> None:
    """Each answer is data; writing makes the folders above, and leaves no other file behind."""
    async with client_of(files.file_tools(folder)) as client:
        tool_list = await client.list_tools()
        wrote = await client.call_tool("write_file", {"path": "new/b.txt", "content": "two é"})
        read_result = await client.call_tool("read_file", {"path": "new/b.txt"})
        top = await client.call_tool("list_files", {})
        search_result = await client.call_tool("search_files", {"text": "two"})

    hints = {tool.name: tool.annotations for tool in tool_list.tools}
    assert {name: hint.read_only_hint for name, hint in hints.items() if hint} == {
        "list_files": True,
        "read_file": True,
        "search_files": True,
        "write_file": False,
    }
    assert wrote.structured_content == {"path": "new/b.txt", "size_bytes": 6}
    assert read_result.structured_content == {"text": "two é", "size_bytes": 6, "next_offset": None}
    assert top.structured_content == {
        "entries": [{"name": "new", "kind": "folder"}, {"name": "sub", "kind": "folder"}],
        "is_cut": False,
    }
    assert search_result.structured_content == {
        "matches": [
            {"path": "new/b.txt", "line": 1, "text": "two é"},
            {"path": "sub/a.txt", "line": 2, "text": "two words"},
        ],
        "is_cut": False,
    }
    assert [path.name for path in (root / "new").iterdir()] == ["b.txt"]


ESCAPES = (
    *("../secret", "sub/../../secret", "/etc/passwd", "link", "out/secret", "loop", "sub/.."),
    *(
        "..",
        "a\x00b",
        "..\\secret",
        "pipe",
        "sub",
        "sub/a.txt/x",
        "/".join("a" * 40),
        "nothing",
        "",
    ),
)
"""Paths outside of the root, and what is no file below it."""


@pytest.mark.item(471)
@pytest.mark.parametrize("name", ["read_file", "write_file", "list_files", "search_files"])
async def test_no_path_leads_out(root: Path, folder: ConfinedFolder, name: str) -> None:
    """By no tool: links, the parent, absolute paths, pipes; what is refused is an error that a model reads."""
    (root / "link").symlink_to(root.parent / "secret")
    (root / "out").symlink_to(root.parent)
    (root / "loop").symlink_to("loop")
    os.mkfifo(root / "pipe")
    more: dict[str, Any] = {"write_file": {"content": "x"}, "search_files": {"text": "hidden"}}
    allowed = {
        "write_file": {"link", "loop", "pipe", "nothing"},  # they are replaced
        "list_files": {"sub", ""},
        "search_files": {"sub", ""},
    }
    async with client_of(files.file_tools(folder)) as client:
        async with asyncio.timeout(20):
            results = {
                path: await client.call_tool(name, {"path": path, **more.get(name, {})})
                for path in ESCAPES
            }

    refused_paths = {path for path, result in results.items() if result.is_error}
    assert refused_paths == {*ESCAPES} - allowed.get(name, set())
    assert "hidden-word" not in "".join(map(text_of, results.values()))
    assert (root.parent / "secret").read_text() == "hidden-word"
    assert sorted(path.name for path in root.parent.iterdir()) == ["root", "secret"]


@pytest.mark.item(471)
def test_a_folder_that_becomes_a_link_meanwhile_leads_nowhere(
    root: Path, folder: ConfinedFolder
) -> None:
    """However often it is swapped while files below it are opened."""
    (root.parent / "evil").mkdir()
    (root.parent / "evil" / "a.txt").write_text("hidden-word")
    (root / "link").symlink_to(root.parent / "evil")
    is_over = threading.Event()

    def swap() -> None:
        while not is_over.is_set():
            (root / "sub").rename(root / "kept")
            (root / "link").rename(root / "sub")
            (root / "sub").rename(root / "link")
            (root / "kept").rename(root / "sub")

    thread = threading.Thread(target=swap)
    thread.start()
    read_count = 0
    try:
        while read_count < 200:
            with suppress(PathRefusedError):
                assert folder.read("sub/a.txt", 0, 100)[0] == b"one\ntwo words\n"
                read_count += 1
    finally:
        is_over.set()
        thread.join()

    assert read_count == 200


@pytest.mark.item(471)
def test_a_large_file_is_read_in_parts(root: Path, folder: ConfinedFolder) -> None:
    """No character is cut in two; what is no text is refused; so is what is too large to be written."""
    tools = {tool.name: tool.run for tool in files.file_tools(folder)}
    text = "€" * 50_000
    (root / "long").write_text(text, encoding="utf-8")
    (root / "image").write_bytes(b"\x89PNG\xff")
    parts, offset = [], 0
    while offset is not None:
        part: Any = tools["read_file"]("long", offset)
        parts.append(part["text"])
        offset = part["next_offset"]

    assert "".join(parts) == text
    assert len(parts) == 3
    with pytest.raises(PathRefusedError, match="not UTF-8 text"):
        tools["read_file"]("image")
    with pytest.raises(PathRefusedError, match="write less"):
        tools["write_file"]("x", "x" * (files.MAX_WRITE_BYTES + 1))
    with pytest.raises(ContractError, match="nowhere"):
        ConfinedFolder(root / "nowhere")


@asynccontextmanager
async def site(answers: dict[str, bytes]) -> AsyncIterator[str]:
    """The address of a server with an answer for each path."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        response = answers.get(head.split()[1].decode())
        if response is None:
            await reader.read()  # until the client gives up
        else:
            writer.write(response)
        writer.close()
        await writer.wait_closed()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    async with server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"


def page(body: bytes, head: bytes = b"content-type: text/plain") -> bytes:
    """An answer."""
    return b"HTTP/1.1 200 OK\r\n%b\r\ncontent-length: %d\r\n\r\n%b" % (head, len(body), body)


@pytest.mark.item(471)
async def test_a_page_is_fetched_within_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its size, its redirects, its time and its kind; what is wrong is an error that a model reads."""
    redirect = b"HTTP/1.1 302 Found\r\nlocation: %b\r\ncontent-length: 0\r\n\r\n"
    answers = {
        "/": page("Olá".encode("latin-1"), b"content-type: text/html; charset=latin-1"),
        "/moved": redirect % b"/",
        "/round": redirect % b"/round",
        "/away": redirect % b"file:///etc/passwd",
        "/long": page(b"x" * (web.MAX_PAGE_BYTES + 10)),
        "/zip": page(b"x", b"content-encoding: gzip"),
        "/image": page(b"\x00\x01", b"content-type: image/png"),
        "/odd": b"nonsense\r\n\r\n",
    }
    monkeypatch.setattr(web, "FETCH_LIMIT_S", 1.0)
    async with site(answers) as url, client_of(web.web_tools(allow_private=True)) as client:
        results = {
            path: await client.call_tool("fetch_url", {"url": url + path})
            for path in (*answers, "/hangs")
        }
    long = results["/long"].structured_content

    assert (results["/moved"].structured_content or {}) == {
        "url": f"{url}/",
        "status": 200,
        "content_type": "text/html; charset=latin-1",
        "text": "Olá",
        "is_cut": False,
    }
    assert long is not None
    assert (len(long["text"]), long["is_cut"]) == (web.MAX_PAGE_BYTES, True)
    refusals = {path: text_of(result) for path, result in results.items() if result.is_error}
    assert {*refusals} == {"/round", "/away", "/zip", "/image", "/odd", "/hangs"}
    assert "more than 5 redirects" in refusals["/round"]
    assert "not a URL" in refusals["/away"]
    assert "not text but image/png" in refusals["/image"]
    assert "took longer than 1.0 s" in refusals["/hangs"]


@pytest.mark.item(471)
async def test_private_addresses_are_not_reached(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever is written for them, and by no redirect: the address is checked that is connected to."""
    addresses = (
        "127.0.0.1",
        "localhost",
        "2130706433",
        "0x7f.1",
        "[::1]",
        "[::ffff:127.0.0.1]",
        "0.0.0.0",
    )
    async with client_of(web.web_tools(allow_private=False)) as client:
        results = [
            await client.call_tool("fetch_url", {"url": f"http://{address}:1/"})
            for address in addresses
        ]
        monkeypatch.setattr(web, "is_public", lambda address: address == "127.0.0.1")
        port = socket.create_server(("127.0.0.2", 0))
        away = f"http://127.0.0.2:{port.getsockname()[1]}/"
        redirect = (
            b"HTTP/1.1 307 Moved\r\nlocation: %b\r\ncontent-length: 0\r\n\r\n" % away.encode()
        )
        async with site({"/": redirect}) as url:
            redirected_result = await client.call_tool("fetch_url", {"url": url})
        port.close()

    assert ["is not a public address" in text_of(result) for result in results] == [True] * len(
        addresses
    )
    assert "127.0.0.2, which is not a public address" in text_of(redirected_result)


@pytest.mark.parametrize(
    ("address", "is_public"),
    [
        *((address, True) for address in ("93.184.215.14", "2606:2800:21f:cb07::1")),
        *(
            (address, False)
            for address in ("10.0.0.1", "169.254.169.254", "100.64.0.1", "224.0.0.1")
        ),
        *(
            (address, False)
            for address in ("fe80::1%eth0", "fc00::1", "2002:7f00:1::", "64:ff9b::7f00:1")
        ),
    ],
)
def test_addresses_of_the_internet_are_known(address: str, is_public: bool) -> None:
    """Those of links, of metadata servers and of IPv4 inside IPv6 are none."""
    assert web.is_public(address) is is_public


@pytest.mark.item(471)
async def test_commands_are_executed_and_end(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the code and the output; one that takes too long is killed with what it started."""
    monkeypatch.setenv("SECRET_OF_THE_WORKER", "hidden-word")
    async with client_of(shell.shell_tools(root)) as client:
        shell_result = await client.call_tool("execute_command", {"command": "pwd; env; exit 3"})
        background = await client.call_tool("execute_command", {"command": "sleep 600 & echo $!"})
        killed_result = await client.call_tool(
            "execute_command", {"command": "echo $$ > pid; sleep 600", "timeout_s": 0.2}
        )
        long = await client.call_tool("execute_command", {"command": "head -c 99999 /dev/zero"})

    output = shell_result.structured_content or {}
    assert output["exit_code"] == 3
    assert output["stdout"].splitlines()[0] == str(root)
    assert "hidden-word" not in output["stdout"]
    assert "was killed" in text_of(killed_result)
    for pid in (
        int((background.structured_content or {})["stdout"]),
        int((root / "pid").read_text()),
    ):
        assert is_gone(pid)
    assert len((long.structured_content or {})["stdout"]) == shell.MAX_OUTPUT_BYTES
    assert (long.structured_content or {})["stdout_bytes"] == 99_999


def is_gone(pid: int) -> bool:
    """Whether a process has ended, or is about to: it may not have been waited for."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="ascii")
    except FileNotFoundError:
        return True
    return stat.rpartition(")")[2].split()[0] == "Z"


@pytest.mark.item(471)
async def test_calls_beyond_a_limit_are_refused_before_anything_executes() -> None:
    """Two at once are two places; a place is free again when its call has ended or was cancelled."""
    call_names, go_on = asyncio.Queue[str](), asyncio.Event()

    async def work(name: str) -> str:
        call_names.put_nowait(name)
        await go_on.wait()
        return name

    tools = [Tool("work", "", work)]
    async with client_of(tools, max_calls=2) as client, asyncio.TaskGroup() as group:
        calls = [group.create_task(client.call_tool("work", {"name": name})) for name in "ab"]
        assert {await call_names.get(), await call_names.get()} == {"a", "b"}
        refusal = await client.call_tool("work", {"name": "c"})
        go_on.set()
        texts = [text_of(await call) for call in calls]
        again = await client.call_tool("work", {"name": "d"})
        with pytest.raises(MCPError, match="unknown tool 'nothing'; known tools: work"):
            await client.call_tool("nothing", {})
        with pytest.raises(MCPError, match="is not an id"):
            await client.call_tool("work", {"name": "e"}, meta={"callboard/id": 7})  # type: ignore[arg-type]

    assert refusal.is_error
    assert "2 calls of this client are under way" in text_of(refusal)
    assert (texts, text_of(again)) == (["a", "b"], "d")
    assert call_names.get_nowait() == "d"
    assert call_names.empty(), "neither the refused nor the malformed call executed"
    with pytest.raises(ContractError, match="two tools named 'work'"):
        ToolServer([*tools, *tools], max_calls=1)
