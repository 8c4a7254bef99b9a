"""The gate's fixed sample of the parameters of each test on real servers.

In memory each parameter is run. On servers a test with several parameters is run with one part of
them (`PARTS`), chosen by name, so the same in every run. `CALLBOARD_TEST_SLOW=1`
runs all, and so does a test that is selected by its id.
"""

from __future__ import annotations

import math
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
    by_name = sorted(group, key=lambda item: zlib.crc32(item.nodeid.encode()))
    return by_name[math.ceil(len(group) / PARTS.get(folder, 2)) :]
