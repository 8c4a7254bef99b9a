"""How checklist rows are written down."""

from __future__ import annotations

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
