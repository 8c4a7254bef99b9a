"""What the documents of graphs show is run."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.unit.documents import ROOT, blocks

PAGES = {
    "getting-started": 3,
    "api": 3,
    "documents": 3,
    "bundles": 1,
    "visualflow": 3,
    "limits": 1,
    "snapshots": 4,
    "provenance": 1,
    "drivers": 3,
    "pages": 0,
    "evidence": 1,
    "memory": 1,
    "llm-and-tools": 4,
    "coming-from": 0,
    "manual-testing": 1,
}


@pytest.mark.parametrize("page", PAGES)
def test_the_blocks_of_a_page_run_in_order(page: str, tmp_path: Path) -> None:
    """As one program, with its own folder; what they promise is asserted in them."""
    code_blocks = blocks(f"docs/graphs/{page}.md", "python")
    (tmp_path / "page.py").write_text("\n\n".join(code_blocks), encoding="utf-8")

    done = subprocess.run(
        [sys.executable, "-W", "error", "page.py"],
        cwd=tmp_path,
        env={"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )

    assert len(code_blocks) == PAGES[page]
    assert done.returncode == 0, done.stderr


@pytest.mark.costly
@pytest.mark.timeout(600)  # some sixty processes, one after the other
@pytest.mark.item(475)
def test_the_commands_to_try_by_hand_do_what_is_said(tmp_path: Path) -> None:
    """All that need no server, as one script; what is said of their outputs is there."""
    commands = "\n".join(blocks("docs/graphs/manual-testing.md", "sh"))
    callboard = tmp_path / "bin" / "callboard"
    callboard.parent.mkdir()
    callboard.write_text(f'#!/bin/sh\nexec {sys.executable} -m compose "$@"\n', encoding="utf-8")
    callboard.chmod(0o755)
    path = os.pathsep.join(
        [str(callboard.parent), str(Path(sys.executable).parent), os.environ["PATH"]]
    )

    done = subprocess.run(
        ["bash", "-e", "-c", commands],
        cwd=tmp_path,
        env={"PYTHONPATH": str(ROOT), "CLONE": str(ROOT), "PATH": path, "HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.returncode == 0, done.stderr
    for line in (
        "2 flow documents are right",
        "all of it is supported",
        "refused",
        "letter sent",
        "bundle is complete",
    ):
        assert line in done.stdout
    assert "Is it 'ask'?" in done.stdout + done.stderr
    assert "WRONG" not in done.stdout
    assert (tmp_path / "offer.svg").read_text("utf-8").startswith("<svg")
    assert (tmp_path / "flows" / "offer@1.0.flow").exists()


def test_links_of_the_pages_lead_somewhere() -> None:
    """And each page is in the table."""
    folder = ROOT / "docs" / "graphs"
    for path in folder.glob("*.md"):
        links = re.findall(r"\]\(([^)#:]+)\)", path.read_text(encoding="utf-8"))
        assert [link for link in links if not (path.parent / link).exists()] == []
    assert {path.stem for path in folder.glob("*.md")} == {*PAGES}


def test_the_refund_runs_in_three_processes(tmp_path: Path) -> None:
    """It asks, is answered, tries again, and ends; each part in a process of its own."""
    outputs = []
    for words in (["ask", "40"], ["waiting"], ["answer", "yes"], ["due"]):
        done = subprocess.run(
            [
                sys.executable,
                "-W",
                "error",
                "examples/refund/refund.py",
                "--data",
                str(tmp_path),
                *words,
            ],
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        outputs.append(done.stdout)

    assert "waits for a person" in outputs[0]
    assert "Refund 40 €?" in outputs[1]
    assert "attempt 2: 40 € paid" in outputs[2]
    assert "waits until" in outputs[2]
    assert "letter sent" in outputs[3]
