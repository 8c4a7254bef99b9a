"""The gate's sample: of the parameters of each test on real servers, and of costly tests.

In memory each parameter is run. On servers a test with several parameters is run with one part of
them (`PARTS`), chosen by name, so the same in every run.

A run of the whole suite plays half of the costly tests: the commit decides which half, so that one
commit has the same tests in every run, and some commits together have all of them. A run of files
plays all their costly tests. `CALLBOARD_TEST_SLOW=1` runs everything, and so does a test that is
selected by its id.
"""

from __future__ import annotations

import math
import os
import subprocess
import zlib
from collections import defaultdict
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    import pytest

LEAST: Final = {
    "behaviour": 2,
    "benchmarks": 2,
    "conformance": 2,
    "integration": 2,
    "properties": 4,
    "system": 2,
}
"""By folder: a test with this many parameters, or more, is sampled."""
PARTS: Final = {
    "behaviour": 4,
    "benchmarks": 12,
    "conformance": 3,
    "integration": 4,
    "properties": 8,
    "system": 6,
}
"""By folder: the gate runs one of this many; of other folders one of two."""
ALSO: Final = frozenset(
    (
        "test_a_fault_at_every_store_call",
        "test_a_fixed_program_is_as_predicted",
        "test_a_planted_fault_is_found",
        "test_a_run_can_continue_from_every_prefix_of_a_log",
        "test_programs_survive_a_crash_at_every_store_call",
    )
)
"""Tests that are sampled although they need no server: programs in virtual time, and planted faults."""
SERVERS: Final = ("postgres", "nats", "redis")


TURNS: Final = 2
"""A whole run plays one of this many parts of the costly tests."""


def turn(root: Path) -> int:
    """Return the part of the costly tests that is played at this commit.

    `CALLBOARD_TEST_TURN` names another. Without a repository it is the first one.
    """
    if setting := os.environ.get("CALLBOARD_TEST_TURN"):
        return int(setting) % TURNS
    try:
        argv = ["git", "rev-parse", "HEAD"]
        done = subprocess.run(argv, cwd=root, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return 0
    return int(done.stdout[:8], 16) % TURNS


def without_turn(items: Sequence[pytest.Item], now: int) -> list[pytest.Item]:
    """Return the costly items of which it is not the turn. All items of a test have the same turn."""
    costly = (item for item in items if item.get_closest_marker("costly"))
    return [item for item in costly if _number(f"{item.path.name}::{_name(item)}") % TURNS != now]


def is_whole(config: pytest.Config) -> bool:
    """Return whether neither files nor names select the tests of this run."""
    source = config.args_source
    return source is not config.ArgsSource.ARGS and not config.getoption("keyword")


def is_selected_by_id(config: pytest.Config) -> bool:
    """Return whether tests are named by their ids: nothing of them is left out."""
    return any("::" in argument for argument in config.args)


def left_out(items: Sequence[pytest.Item], root: Path) -> list[pytest.Item]:
    """Return the items that the gate does not run. Of each test at least one stays."""
    groups: defaultdict[tuple[str, str], list[pytest.Item]] = defaultdict(list)
    for item in items:
        if _is_sampled(item, root):
            groups[str(item.path), _name(item)].append(item)
    return [item for group in groups.values() for item in _rest(group, root)]


def _is_sampled(item: pytest.Item, root: Path) -> bool:
    if _name(item) in ALSO:
        return True
    folder = _folder(item, root)
    is_on_servers = any(item.get_closest_marker(name) for name in SERVERS)
    is_long = folder == "system" and item.get_closest_marker("slow") is not None
    return (is_on_servers or is_long) and folder in LEAST


def _name(item: pytest.Item) -> str:
    return str(getattr(item, "originalname", item.nodeid))


def _folder(item: pytest.Item, root: Path) -> str:
    return item.path.relative_to(root).parts[0] if root in item.path.parents else ""


def _rest(group: list[pytest.Item], root: Path) -> list[pytest.Item]:
    folder = _folder(group[0], root)
    if len(group) < LEAST.get(folder, 2):
        return []
    by_name = sorted(group, key=lambda item: _number(item.nodeid))
    return by_name[math.ceil(len(group) / PARTS.get(folder, 2)) :]


def _number(name: str) -> int:
    return zlib.crc32(name.encode())
