"""What the documents show is run."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```", re.MULTILINE | re.DOTALL)


def blocks(name: str, language: str) -> list[str]:
    """Return the code blocks of one language in a document."""
    text = (ROOT / name).read_text(encoding="utf-8")
    return [code for found, code in BLOCK.findall(text) if found == language]


def test_the_readme_example_runs_as_it_stands(tmp_path: Path) -> None:
    """The first Python block of the README is a whole program and prints what it promises."""
    script = tmp_path / "readme.py"
    script.write_text(blocks("README.md", "python")[0], encoding="utf-8")

    done = subprocess.run(
        [sys.executable, str(script)], capture_output=True, text=True, timeout=30, check=False
    )

    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("mail to Ada : Dear Ada,\n{'greeted': 'Ada'")


@pytest.mark.parametrize(
    "name", ["README.md", *sorted(p.name for p in (ROOT / "docs").glob("*.md"))]
)
def test_links_between_documents_lead_somewhere(name: str) -> None:
    """Every relative link of a document names a file that exists."""
    path = ROOT / name if (ROOT / name).exists() else ROOT / "docs" / name
    links = re.findall(r"\]\(([^)#:]+)\)", path.read_text(encoding="utf-8"))

    missing = [link for link in links if not (path.parent / link).exists()]

    assert missing == []
