"""What all tests of the broker have."""

from __future__ import annotations

import pytest

from tests.harness.slow import wait_for_the_broker


@pytest.fixture(autouse=True)
def _patience(monkeypatch: pytest.MonkeyPatch) -> None:
    wait_for_the_broker(monkeypatch)
