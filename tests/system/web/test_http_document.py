"""The commands of docs/http.md, typed as they stand against a server."""

from __future__ import annotations

import asyncio
import shutil
import sys
from typing import TYPE_CHECKING

import pytest

from tests.system.processes import ROOT
from tests.system.web.conversing import SPEC
from tests.unit.documents import blocks

if TYPE_CHECKING:
    from pathlib import Path

    from tests.system.processes import Hosts

ADDRESS = "127.0.0.1:8123"
MARK = "# -> "
LEAST = 30


def script_of(page: str, address: str, language: str = "sh") -> tuple[str, list[str]]:
    """A script that prints what each command prints, with a NUL behind it; and what each has to print."""
    lines = [line for block in blocks(page, language) for line in block.splitlines()]
    script, wanted = ["set -euo pipefail"], []
    for line, below in zip(lines, [*lines[1:], ""], strict=True):
        if line.startswith(MARK):
            continue
        script.append(line.replace(ADDRESS, address))
        if below.startswith(MARK):
            script.append(r"printf '\0'")
            wanted.append(below.removeprefix(MARK))
    return "\n".join(script), wanted


@pytest.mark.skipif(shutil.which("curl") is None, reason="needs curl: install it")
@pytest.mark.parametrize(
    ("language", "auth", "least"), [("sh", "none", LEAST), ("bash", "tokens", 10)]
)
async def test_the_commands_of_the_page_do_what_it_says(  # noqa: PLR0917 - fixtures
    fleet: Hosts, tmp_path: Path, language: str, auth: str, least: int
) -> None:
    """In their order, in one shell: those of the whole page, and those about tokens."""
    _, url = await fleet.web(SPEC, "--auth", auth)
    script, wanted = script_of("docs/http.md", url.removeprefix("http://"), language)
    program = f'callboard() {{ PYTHONPATH={ROOT} {sys.executable} -m compose "$@"; }}\n'
    shell = await asyncio.create_subprocess_exec(
        *("bash", "-c", program + script),
        cwd=tmp_path,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env={
            "PATH": "/usr/local/bin:/usr/bin:/bin",
            "no_proxy": "*",
            "CALLBOARD_POSTGRES_URL": fleet.url,
            "CALLBOARD_SCHEMA": fleet.schema,
        },
    )
    out, err = await shell.communicate()
    said = out.decode().split("\0")[:-1]

    assert len(wanted) >= least
    assert shell.returncode == 0, (err.decode(), said[-1:])
    assert [(want, one) for want, one in zip(wanted, said, strict=True) if want not in one] == []
