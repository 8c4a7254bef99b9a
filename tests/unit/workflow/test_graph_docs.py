"""What the documents of graphs show is run."""

from __future__ import annotations

import re
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from tests.unit.documents import ROOT, blocks

if TYPE_CHECKING:
    from pathlib import Path

PAGES = {
    "getting-started": 3,
    "api": 3,
    "documents": 3,
    "bundles": 1,
    "visualflow": 2,
    "limits": 1,
    "snapshots": 4,
    "provenance": 1,
    "drivers": 2,
    "pages": 0,
    "evidence": 1,
    "memory": 1,
    "llm-and-tools": 3,
}


@pytest.mark.parametrize("page", PAGES)
def test_the_blocks_of_a_page_run_in_order(page: str, tmp_path: Path) -> None:
    """As one program, with its own folder; what they promise is asserted in them."""
    found = blocks(f"docs/graphs/{page}.md", "python")
    (tmp_path / "page.py").write_text("\n\n".join(found), encoding="utf-8")

    done = subprocess.run(
        [sys.executable, "-W", "error", "page.py"],
        cwd=tmp_path,
        env={"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )

    assert len(found) == PAGES[page]
    assert done.returncode == 0, done.stderr


def test_links_of_the_pages_lead_somewhere() -> None:
    """And each page is in the table."""
    folder = ROOT / "docs" / "graphs"
    for path in folder.glob("*.md"):
        links = re.findall(r"\]\(([^)#:]+)\)", path.read_text(encoding="utf-8"))
        assert [one for one in links if not (path.parent / one).exists()] == []
    assert {path.stem for path in folder.glob("*.md")} == {*PAGES}


def test_the_refund_runs_in_three_processes(tmp_path: Path) -> None:
    """It asks, is answered, tries again, and ends; each part in a process of its own."""
    said = []
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
        said.append(done.stdout)

    assert "waits for a person" in said[0]
    assert "Refund 40 €?" in said[1]
    assert "attempt 2: 40 € paid" in said[2]
    assert "waits until" in said[2]
    assert "letter sent" in said[3]
