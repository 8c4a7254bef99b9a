"""Time limits of a test run: whether long tests run, and the tolerance for a busy machine."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final

from broker._nats import requests as api

if TYPE_CHECKING:
    import pytest

IS_SLOW: Final = bool(os.environ.get("CALLBOARD_TEST_SLOW"))
"""Whether tests that take minutes run, too."""

BUSY_S: Final = 10.0
"""Additional seconds of a test's time limit for a busy machine."""


def wait_for_the_broker(monkeypatch: pytest.MonkeyPatch) -> None:
    """Wait for the broker with a limit for busy machines."""
    monkeypatch.setattr(api, "PUBLISH_LIMIT_S", 20.0)
    monkeypatch.setattr(api, "API_LIMIT_S", 20.0)
