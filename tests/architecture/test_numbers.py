"""The numbers of the house may only fall; each test names the modules to look at first."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any, Final

import pytest

from tests.architecture import numbers

HELD: Final[dict[str, Any]] = tomllib.loads(
    Path(__file__).with_name("numbers.toml").read_text(encoding="utf-8")
)


@pytest.mark.parametrize("number", sorted(HELD["most"]))
def test_a_number_of_the_house_does_not_grow(number: str) -> None:
    """Code grows by imitation: what is bad today is not to be copied. Lower the number in the file with it."""
    most, total = HELD["most"][number], numbers.totals()[number]

    assert total <= most, f"{total} {number}, at most {most}: {', '.join(numbers.worst(number))}"


def test_a_small_module_is_needed_in_two_rooms() -> None:
    """One subject told whole is more than a few lines. The list may only shrink."""
    small = {*numbers.small_modules()} - {*HELD["small"]}

    assert small == set(), "join each with the module that imports it, or tell its subject whole"


def test_a_large_module_has_a_reason() -> None:
    """A module that long is usually about two subjects."""
    assert numbers.large_modules().keys() <= HELD["large"].keys()
