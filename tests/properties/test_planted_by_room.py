"""The suite itself: each fault of `planted_by_room` and `planted_by_part` is found by its named test."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.harness.planting import find
from tests.properties import planted_by_part, planted_by_room

TABLES = [planted_by_room, planted_by_part]


@pytest.mark.costly
@pytest.mark.slow
@pytest.mark.timeout(120)
@pytest.mark.parametrize("table", [module.__name__ for module in TABLES])
def test_every_fault_is_found_by_the_test_that_is_named(table: str) -> None:
    """The named test fails with the fault in place; without it the test passes in its own file."""
    missed, output = find(table)

    assert missed == [], output


def test_every_fault_has_a_test_of_its_own() -> None:
    """One fault at a time: a test named twice would get only one of them."""
    counts = Counter(fault.found_by for module in TABLES for fault in module.PLANTED)

    assert [test for test, count in counts.items() if count > 1] == []
