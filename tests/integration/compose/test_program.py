"""`callboard` as a process: interrupted while it loads, and written to what does not take it all."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
INTERRUPTED = """
import sys

class Ctrl_C:
    def find_spec(self, name, *_):
        if name == "cyclopts":
            raise KeyboardInterrupt

sys.meta_path.insert(0, Ctrl_C())
from compose._cli import main
main()
"""
SNOW = """
from actors import AgentId

class Snow:
    id = AgentId("snow", "☃")

    async def run(self, ctx, inbox):
        return None
"""


def test_ctrl_c_while_the_program_loads_prints_nothing() -> None:
    """It takes most of a second; the exit code is that of an interrupt."""
    process = subprocess.run(
        [sys.executable, "-c", INTERRUPTED], cwd=ROOT, capture_output=True, text=True, check=False
    )

    assert (process.returncode, process.stdout, process.stderr) == (130, "", "")


@pytest.mark.parametrize("arguments", [["--help"], ["describe", "compose.demo.desk:AGENTS"]])
def test_who_has_seen_enough_is_no_error(arguments: list[str]) -> None:
    """As `callboard … | head -1`: nothing on standard error, and 0."""
    reading, writing = os.pipe()
    os.close(reading)
    try:
        process = subprocess.run(
            [sys.executable, "-m", "compose", *arguments],
            cwd=ROOT,
            stdout=writing,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
    finally:
        os.close(writing)

    assert (process.returncode, process.stderr) == (0, "")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="only Linux has a disk that is full")
@pytest.mark.parametrize("arguments", [["--version"], ["describe", "compose.demo.desk:AGENTS"]])
def test_a_full_disk_is_one_line(arguments: list[str]) -> None:
    """What was not written is not taken for done."""
    with Path("/dev/full").open("wb") as full:
        process = subprocess.run(
            [sys.executable, "-m", "compose", *arguments],
            cwd=ROOT,
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )

    assert (process.returncode, process.stderr) == (1, "callboard: No space left on device\n")


def test_characters_that_the_terminal_cannot_write_are_escaped(tmp_path: Path) -> None:
    """Instead of an error about an encoding in the middle of a table."""
    (tmp_path / "snowy.py").write_text(SNOW, encoding="utf-8")
    process = subprocess.run(
        [sys.executable, "-m", "compose", "describe", "snowy:Snow"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": str(ROOT), "PYTHONIOENCODING": "ascii"},
    )

    assert process.returncode == 0, process.stderr
    assert "snow/\\u2603" in process.stdout
