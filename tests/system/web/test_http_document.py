"""The commands of docs/http.md and of the README, typed unchanged against a server."""

from __future__ import annotations

import asyncio
import shutil
import socket
import sys
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.system.web.conversing import WITH_FLOWS
from tests.unit.documents import ROOT, blocks

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.system.processes import Hosts

ADDRESS = "127.0.0.1:8123"
MARK = "# -> "
LEAST = 40


def script_of(page: str, address: str, language: str = "sh") -> tuple[str, list[str]]:
    """Return a script that prints each command's output followed by a NUL, and the expected outputs."""
    matching_blocks = [block for block in blocks(page, language) if ADDRESS in block]
    lines = [line for block in matching_blocks for line in block.splitlines()]
    script, expected_outputs = ["set -euo pipefail"], []
    for line, below in zip(lines, [*lines[1:], ""], strict=True):
        if line.startswith(MARK):
            continue
        script.append(line.replace(ADDRESS, address))
        if below.startswith(MARK):
            script.append(r"printf '\0'")
            expected_outputs.append(below.removeprefix(MARK))
    return "\n".join(script), expected_outputs


async def typed(script: str, folder: Path = ROOT, **variables: str) -> list[str]:
    """Type it into a shell, and return the output of the marked commands."""
    shell = await asyncio.create_subprocess_exec(
        *("bash", "-c", script),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        cwd=folder,
        env={
            "PATH": f"{Path(sys.executable).parent}:/usr/local/bin:/usr/bin:/bin",
            "no_proxy": "*",
            "PYTHONPATH": str(ROOT),
            **variables,
        },
    )
    out, err = await shell.communicate()
    outputs = out.decode().split("\0")[:-1]
    assert shell.returncode == 0, (err.decode(), outputs[-1:])
    return outputs


@contextmanager
def reserved_port() -> Iterator[int]:
    """Yield a port that no other process gets: it is bound, and can be listened on with SO_REUSEADDR."""
    with socket.socket() as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind(("127.0.0.1", 0))
        yield sock.getsockname()[1]


@pytest.mark.costly
@pytest.mark.skipif(shutil.which("curl") is None, reason="needs curl: install it")
@pytest.mark.parametrize(
    ("language", "auth", "least"), [("sh", "none", LEAST), ("bash", "tokens", 10)]
)
async def test_the_commands_of_the_page_have_the_documented_output(  # noqa: PLR0917 - fixtures
    fleet: Hosts, tmp_path: Path, language: str, auth: str, least: int
) -> None:
    """In their order, in one shell: those of the whole page, and those about tokens."""
    _, url = await fleet.web(WITH_FLOWS, "--auth", auth)
    script, expected_outputs = script_of("docs/http.md", url.removeprefix("http://"), language)
    servers = {"CALLBOARD_POSTGRES_URL": fleet.url, "CALLBOARD_SCHEMA": fleet.schema}
    outputs = await typed(script, tmp_path, **servers)

    assert len(expected_outputs) >= least
    assert [
        (want, output)
        for want, output in zip(expected_outputs, outputs, strict=True)
        if want not in output
    ] == []


@pytest.mark.costly
@pytest.mark.skipif(shutil.which("curl") is None, reason="needs curl: install it")
async def test_the_commands_of_the_readme_have_the_documented_output(tmp_path: Path) -> None:
    """One server with its own NATS and PostgreSQL, and nothing else."""
    with reserved_port() as port:
        script, expected_outputs = script_of("README.md", f"127.0.0.1:{port}")
        outputs = await typed(script.replace("./data", str(tmp_path / "data")))

    assert len(expected_outputs) >= 4
    assert [
        (want, output)
        for want, output in zip(expected_outputs, outputs, strict=True)
        if want not in output
    ] == []


@pytest.mark.skipif(shutil.which("curl") is None, reason="needs curl: install it")
async def test_the_flow_of_the_readme_is_served(fleet: Hosts, tmp_path: Path) -> None:
    """A server needs only the file that it shows; the command starts a run of it."""
    (flow,) = blocks("README.md", "yaml")
    (tmp_path / "leave.yaml").write_text(flow, encoding="utf-8")
    ((serve, *commands),) = [block.splitlines() for block in blocks("README.md", "bash")]
    _, url = await fleet.web(str(tmp_path / "leave.yaml"))
    script = "\n".join(commands).replace(ADDRESS, url.removeprefix("http://"))
    (output,) = await typed(f"{script}\nprintf '\\0'", tmp_path)

    assert serve.startswith("callboard serve leave.yaml ")
    assert '"status":"running"' in output
