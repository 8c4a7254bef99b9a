"""Fixtures of this folder."""

from __future__ import annotations

import gc
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def collected() -> Iterator[None]:
    """Collect garbage after each test, so that the cycles of a planted fault warn in its own test.

    Earlier objects are frozen: half a gigabyte in a worker would take half a second.
    """
    gc.freeze()
    yield
    gc.collect()
