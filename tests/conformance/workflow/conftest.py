"""The fixtures `stores`, of each kind, and `disk_stores`, of those that outlive a process."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.conformance.workflow.integrated import made
from tests.conformance.workflow.stores import KINDS, Stores

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture(params=KINDS)
def stores(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Stores]:
    """All stores of one kind."""
    made = Stores(request.param, tmp_path)
    yield made
    made.close()


@pytest.fixture(params=[one for one in KINDS if one != "memory"])
def disk_stores(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Stores]:
    """All stores of one kind that outlives its process."""
    made = Stores(request.param, tmp_path)
    yield made
    made.close()


@pytest.fixture(autouse=True)
def closed_integrations() -> Iterator[None]:
    """The event loops of integrations end with the test."""
    yield
    while made:
        made.pop().close()
