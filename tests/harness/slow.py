"""How much time a test run has: for what takes minutes, and on a busy machine."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final

from broker.nats import requests as api

if TYPE_CHECKING:
    import pytest

IS_SLOW: Final = bool(os.environ.get("CALLBOARD_TEST_SLOW"))
"""Whether it also takes what takes minutes."""

BUSY_S: Final = 10.0
"""What a busy machine may add to a time that a test has a limit for."""


def wait_for_the_broker(monkeypatch: pytest.MonkeyPatch) -> None:
    """Wait for a broker that is there on a busy machine too."""
    monkeypatch.setattr(api, "PUBLISH_LIMIT_S", 20.0)
    monkeypatch.setattr(api, "API_LIMIT_S", 20.0)
