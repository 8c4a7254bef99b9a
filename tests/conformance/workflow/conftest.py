"""The fixtures `stores`, of each kind, and `disk_stores`, of the kinds that survive a process."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.conformance.workflow.integrated import integrations
from tests.conformance.workflow.stores import KINDS, Stores

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture(params=KINDS)
def stores(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Stores]:
    """Yield all stores of one kind."""
    new_stores = Stores(request.param, tmp_path)
    yield new_stores
    new_stores.close()


@pytest.fixture(params=[kind for kind in KINDS if kind != "memory"])
def disk_stores(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Stores]:
    """Yield all stores of one kind that survives its process."""
    new_stores = Stores(request.param, tmp_path)
    yield new_stores
    new_stores.close()


@pytest.fixture(autouse=True)
def closed_integrations() -> Iterator[None]:
    """End the event loops of integrations with the test."""
    yield
    while integrations:
        integrations.pop().close()
