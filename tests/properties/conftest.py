"""What the tests of this folder share."""

from __future__ import annotations

import gc
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def collected() -> Iterator[None]:
    """What a planted fault leaves in cycles is freed, and warns, in its own test.

    What is there before is never looked at again: half a gigabyte, in a worker, takes half a second.
    """
    gc.freeze()
    yield
    gc.collect()
