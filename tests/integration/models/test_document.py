"""The code of docs/models.md."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from tests.unit.documents import ROOT, blocks

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.costly
def test_the_code_of_the_document_runs_as_it_stands(tmp_path: Path) -> None:
    """Blocks that begin with a file's name are files; the others are one program, in their order."""
    program = []
    for block in blocks("docs/models.md", "python"):
        first = block.partition("\n")[0]
        if first.startswith("# ") and first.endswith(".py"):
            (tmp_path / first[2:]).write_text(block, encoding="utf-8")
        else:
            program.append(block)
    (tmp_path / "program.py").write_text("\n".join(program), encoding="utf-8")

    output_lines = {}
    for name in ("program.py", "planner.py"):
        process = subprocess.run(
            [sys.executable, "-W", "error", name],
            cwd=tmp_path,
            env={"PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin"},
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert process.returncode == 0, process.stderr
        output_lines[name] = process.stdout.splitlines()

    assert output_lines["program.py"] == ["small", "Still noon. 0"]
    assert output_lines["planner.py"] == ["True"]
