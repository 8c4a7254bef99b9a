"""Faults that are planted while one named test runs, which has to fail then.

`find` runs them in one process of its own, where this module is a plugin of pytest: each test gets
its own fault only. The rest of the suite proves that the tests pass without them.
"""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable, Mapping

ROOT: Final = Path(__file__).resolve().parents[2]
_TABLE: Final = "CALLBOARD_TEST_PLANTED"
"""Names the module whose `PLANTED` is used."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Planted:
    """A fault, and the test that finds it.

    Attributes: plant: Plants the fault. found_by: The id of the test that fails with it.
    """

    plant: Callable[[pytest.MonkeyPatch], None]
    found_by: str


def _by_test(table: str) -> Mapping[str, Planted]:
    planted: Iterable[Planted] = importlib.import_module(table).PLANTED
    return {fault.found_by: fault for fault in planted}


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Plant the test's fault, from its first fixture to its last."""
    plant = _by_test(os.environ[_TABLE])[item.nodeid].plant
    with pytest.MonkeyPatch.context() as patch:
        try:
            plant(patch)
        except AttributeError as exc:  # the replaced attribute has another name or place now
            pytest.exit(f"{plant.__name__} cannot be planted: {exc}", returncode=3)
        return (yield)


def find(table: str) -> tuple[list[str], str]:
    """Return the faults of the module `table` that were not found, and pytest's output."""
    by_test = _by_test(table)
    argv = [sys.executable, "-m", "pytest", "-q", "-rA", "--tb=no", "--show-capture=no"]
    argv += ["-p", __name__, "-p", "no:randomly", "-W", "ignore", "--timeout=20"]
    argv += ["--assert=plain", *by_test]  # with CI set, the diff of two long lists takes 20 s
    env = {**os.environ, _TABLE: table}
    done = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, check=False, env=env)
    failed = {
        line.partition(" ")[2].partition(" - ")[0].strip()  # ids may have spaces
        for line in done.stdout.splitlines()
        if line.startswith(("FAILED", "ERROR"))
    }
    missed_faults = [fault.plant.__name__ for test, fault in by_test.items() if test not in failed]
    return missed_faults, done.stdout + done.stderr
