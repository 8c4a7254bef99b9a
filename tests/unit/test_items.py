"""How checklist rows are written down."""

from __future__ import annotations

import re

import pytest

from tests.harness import items


def test_ranges_and_single_rows_are_read() -> None:
    """Numbers, ranges, commas, lines and comments are understood."""
    assert items.parse_rows("1-3, 7 # why\n9\n") == [1, 2, 3, 7, 9]


def test_a_row_named_twice_is_refused() -> None:
    """A double entry is a slip."""
    with pytest.raises(ValueError, match="named twice: \\[2\\]"):
        items.parse_rows("1-3, 2")


def test_rows_are_written_as_ranges() -> None:
    """Writing is the inverse of reading."""
    assert items.as_ranges([9, 1, 2, 3, 7]) == "1-3, 7, 9"


def test_the_rows_due_are_well_formed() -> None:
    """The list in the repository can be read."""
    assert items.parse_rows(items.DUE.read_text())


def test_every_row_that_a_test_names_is_in_the_checklist() -> None:
    """Rows are numbered without a gap. The due ones, and those of all markers, are among them."""
    lines = items.CHECKLIST.read_text(encoding="utf-8").splitlines()
    rows = [int(line.split("\t")[0]) for line in lines[1:]]
    texts = [file.read_text(encoding="utf-8") for file in (items.ROOT / "tests").rglob("*.py")]
    calls = [call for text in texts for call in re.findall(r"mark\.item\(([\d, \n]+)\)", text)]
    named = {int(number) for call in calls for number in re.findall(r"\d+", call)}

    assert lines[0] == "id\titem\tworks when"
    assert rows == [*range(1, len(rows) + 1)]
    assert len(named) > 450
    assert named - {*rows} == set()
    assert {*items.parse_rows(items.DUE.read_text())} - {*rows} == set()
