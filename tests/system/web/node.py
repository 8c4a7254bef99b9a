"""Programs for Node, installed into a folder outside of the repository; the AG-UI client."""

from __future__ import annotations

import asyncio
import getpass
import json
import shutil
import subprocess
import tempfile
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pytest

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

SCRIPT: Final = Path(__file__).with_name("agui.mjs")
LIMIT_S: Final = 60


def node_module(package: str, version: str, entry: str) -> Path:
    """Return a file of an npm package, installed once; skip the test without Node or the package."""
    name = package.strip("@").replace("/", "-")
    folder = Path(tempfile.gettempdir()) / f"callboard-{name}-{version}-{getpass.getuser()}"
    library = folder / "node_modules" / package / entry
    if shutil.which("node") is None:
        pytest.skip("needs Node 18 or newer: install nodejs")
    if library.exists():
        return library
    npm = shutil.which("npm")
    if npm is None:
        pytest.skip("needs npm: install it")
    # Into a folder of its own first: several test processes may install at once.
    with tempfile.TemporaryDirectory(dir=folder.parent) as new_folder:
        install_command = (
            npm,
            "install",
            "--no-audit",
            "--no-fund",
            "--ignore-scripts",
            f"{package}@{version}",
        )
        try:
            done = subprocess.run(
                [*install_command, "--prefix", new_folder],
                capture_output=True,
                text=True,
                timeout=90,
                check=False,
            )
        except subprocess.TimeoutExpired:
            pytest.skip(f"npm did not give {package}@{version} in 90 s: npm install it in {folder}")
        if done.returncode:
            pytest.skip(
                f"npm cannot give {package}@{version}: point it at a registry\n{done.stderr[-500:]}"
            )
        try:
            Path(new_folder).rename(folder)
        except OSError:
            assert library.exists(), "another process was faster"
        Path(new_folder).mkdir(exist_ok=True)
    return library


class NodeThread:
    """A thread held by the real client.

    Attributes: answer: Its last answer.
    """

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process
        self.answer: dict[str, Any] = {}

    async def do(self, what: str, **more: Any) -> dict[str, Any]:
        """Let the client execute a command, and return its answer."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps({"do": what, **more}).encode() + b"\n")
        async with asyncio.timeout(LIMIT_S):
            line = await self._process.stdout.readline()
        self.answer = json.loads(line)
        return self.answer

    async def ask(self, run: str, text: str, **more: Any) -> dict[str, Any]:
        """Add a message, and run."""
        await self.do("say", id=f"u-{run}", text=text)
        return await self.do("run", runId=run, **more)

    @property
    def texts(self) -> list[str]:
        """Return the messages that it shows."""
        return [message.get("content") or "" for message in self.answer["messages"]]


@asynccontextmanager
async def thread_of(url: str, thread: str, token: str = "") -> AsyncIterator[NodeThread]:
    """Yield a thread of the client at this address."""
    library = node_module("@ag-ui/client", "1.0.0", "dist/index.mjs")
    process = await asyncio.create_subprocess_exec(
        *("node", str(SCRIPT), str(library), url, token),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        limit=2**24,
    )
    try:
        node = NodeThread(process)
        await node.do("open", threadId=thread)
        yield node
    finally:
        assert process.stdin is not None
        process.stdin.close()
        await process.wait()
