"""The table of the slowest test files."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, cast

import pytest

from tests.harness.durations import LONG_S, FileDurations

if TYPE_CHECKING:
    from _pytest.terminal import TerminalReporter

Phase = Literal["setup", "call", "teardown"]


def report(nodeid: str, when: Phase, duration: float) -> pytest.TestReport:
    """What pytest tells of one phase of a test."""
    where = (nodeid.partition("::")[0], 0, nodeid)
    return pytest.TestReport(nodeid, where, {}, "passed", None, when, duration=duration)


def plugin_after(count: int, *reports: pytest.TestReport) -> FileDurations:
    """A plugin that has been told of these."""
    plugin = FileDurations(count)
    for report in reports:
        plugin.pytest_runtest_logreport(report)
    return plugin


def test_all_phases_of_all_tests_of_a_file_add_up() -> None:
    """A file is as slow as all that was done for its tests, and each test counts once."""
    plugin = plugin_after(
        5,
        report("a.py::one", "setup", 1.0),
        report("a.py::one", "call", 2.0),
        report("a.py::one", "teardown", 0.5),
        report("a.py::two[x::y]", "setup", 4.0),
    )

    assert plugin.seconds == {"a.py": 7.5}
    assert plugin.tests == {"a.py": 2}


def test_the_slowest_come_first_and_the_total_counts_all() -> None:
    """The table has as many files as asked for, and the sum is that of every file."""
    plugin = plugin_after(
        2,
        report("a.py::t", "call", 1.0),
        report("b.py::t", "call", 3.0),
        report("c.py::t", "call", 2.0),
    )

    first, second, total, _ = (line.split() for line in plugin.table())
    assert (first[0], first[-1]) == ("3.0", "b.py")
    assert (second[0], second[-1]) == ("2.0", "c.py")
    assert (total[0], total[-2:]) == ("6.0", ["all", "files"])


def test_a_long_file_is_named_and_nothing_fails() -> None:
    """What takes longer than the mark is information, also where the table has no place for it."""
    plugin = plugin_after(
        1, report("a.py::t", "call", LONG_S + 1), report("b.py::t", "call", LONG_S + 2)
    )

    assert plugin.table()[-1] == f"longer than {LONG_S:.0f} s: b.py, a.py"
    assert plugin_after(1).table()[-1].endswith("none")


def test_a_run_without_tests_prints_no_table() -> None:
    """Where nothing ran there is nothing to say."""
    plugin_after(3).pytest_terminal_summary(cast("TerminalReporter", None))
