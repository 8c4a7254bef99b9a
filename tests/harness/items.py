"""Which checklist rows have a test: `poe items` lists those that have none.

A test names its rows by `@pytest.mark.item(12, 13)`. `tests/checklist.tsv` has the text of each row, and
`tests/items.txt` the rows due so far, as numbers and ranges.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    import pytest

ROOT = Path(__file__).resolve().parents[2]
DUE = ROOT / "tests" / "items.txt"
CHECKLIST = ROOT / "tests" / "checklist.tsv"
_PREFIX = "item-row "


class ItemReport:
    """A pytest plugin that prints the rows of every collected test, one a line."""

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        """Print `item-row NUMBER TEST` for every marker of every collected test."""
        for test in session.items:
            for marker in test.iter_markers("item"):
                for row in marker.args:
                    print(f"{_PREFIX}{row} {test.nodeid.partition('[')[0]}")  # noqa: T201


def register(config: pytest.Config) -> None:
    """Add the report to a run that has `--item-rows`."""
    if config.getoption("item_rows"):
        config.pluginmanager.register(ItemReport(), "item-rows")


def parse_rows(text: str) -> list[int]:
    """Return the row numbers in `1-3, 7`, over any number of lines; `#` starts a comment.

    Raises: ValueError: The text is malformed, or a row is named twice.
    """
    rows: list[int] = []
    for line in text.splitlines():
        for part in line.partition("#")[0].replace(",", " ").split():
            first, _, last = part.partition("-")
            rows += range(int(first), int(last or first) + 1)
    if len(rows) != len(set(rows)):
        raise ValueError(f"named twice: {sorted({row for row in rows if rows.count(row) > 1})}")
    return rows


def as_ranges(rows: Iterable[int]) -> str:
    """Return rows as text, the inverse of `parse_rows`: `1-3, 7`."""
    spans: list[tuple[int, int]] = []
    for row in sorted(rows):
        if spans and spans[-1][1] == row - 1:
            spans[-1] = (spans[-1][0], row)
        else:
            spans.append((row, row))
    return ", ".join(f"{a}-{b}" if a != b else f"{a}" for a, b in spans)


def collect() -> dict[int, set[str]]:
    """Return the tests of each row; pytest collects the suite in a process of its own."""
    argv = [
        sys.executable,
        "-m",
        "pytest",
        "--collect-only",
        "-q",
        "--item-rows",
        "-p",
        "no:randomly",
    ]
    env = {**os.environ, "CALLBOARD_TEST_SLOW": "1"}
    done = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, check=False, env=env)
    if done.returncode:
        sys.exit(done.stdout + done.stderr)
    tests: dict[int, set[str]] = {}
    for line in done.stdout.splitlines():
        if line.startswith(_PREFIX):
            row, _, test = line.removeprefix(_PREFIX).partition(" ")
            tests.setdefault(int(row), set()).add(test)
    return tests


def main() -> None:
    """Print the rows that are due and have no test, and the rows that tests name too early."""
    due, tests = set(parse_rows(DUE.read_text())), collect()
    for row in sorted(due & tests.keys()):
        print(f"{row:4}  {', '.join(sorted(tests[row]))}")  # noqa: T201
    missing, extra = due - tests.keys(), tests.keys() - due
    print(f"\n{len(due) - len(missing)} of {len(due)} rows have a test")  # noqa: T201
    print(f"without a test: {as_ranges(missing) or 'none'}")  # noqa: T201
    if extra:
        print(f"tested but not in {DUE.name}: {as_ranges(extra)}")  # noqa: T201


if __name__ == "__main__":
    main()
