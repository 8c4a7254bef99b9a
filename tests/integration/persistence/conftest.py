"""Fixture wiring only; what the fixture does is in `tests/harness/plans.py`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.harness import plans

if TYPE_CHECKING:
    from tests.harness.plans import PlanBook


@pytest.fixture
def book(monkeypatch: pytest.MonkeyPatch) -> PlanBook:
    """The plans of all connections that the test's stores make."""
    return plans.hearing(monkeypatch)
