"""What all tests of the broker have."""

from __future__ import annotations

import pytest

from broker import api


@pytest.fixture(autouse=True)
def _patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that is there is waited for on a busy machine too."""
    monkeypatch.setattr(api, "PUBLISH_LIMIT_S", 20.0)
    monkeypatch.setattr(api, "API_LIMIT_S", 20.0)
