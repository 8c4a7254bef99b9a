"""The suite itself: each fault of `planted_by_room` is found by the test that its table names."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.harness.planting import find
from tests.properties.planted_by_room import PLANTED


@pytest.mark.slow
@pytest.mark.timeout(120)
def test_every_fault_is_found_by_the_test_that_is_named() -> None:
    """The named test fails with the fault in place; it passes without, where it is played by itself."""
    missed, said = find("tests.properties.planted_by_room")

    assert missed == [], said


def test_every_fault_has_a_test_of_its_own() -> None:
    """One fault at a time: a test that is named twice would see only one of them."""
    named = Counter(one.found_by for one in PLANTED)

    assert [test for test, count in named.items() if count > 1] == []
