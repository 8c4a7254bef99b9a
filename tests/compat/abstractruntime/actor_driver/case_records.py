"""A plugin of pytest: writes how each case ended, and whether it used the actor driver, as JSON lines."""

from __future__ import annotations

import json
import os
from collections.abc import Generator
from pathlib import Path
from typing import Any, Final

import pytest

from tests.compat.abstractruntime.actor_driver.place import PLACE

FILE: Final = "COMPAT_TOLD"
"""Names the file."""


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[Any]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Write a line for a case that was called."""
    report = yield
    if call.when == "call":
        name = item.nodeid.rpartition("/")[2]
        record = {
            "case": name,
            "passed": report.passed,
            "calls": PLACE.calls,
            "error": report.longreprtext,
        }
        with Path(os.environ[FILE]).open("a", encoding="utf-8") as file:
            file.write(json.dumps(record) + "\n")
        PLACE.calls = 0
    return report
