"""Durations and CPU of test files: `--slowest-files=15` ends a run with their tables.

The process that collected the tests gets the reports of all of them, so the sums are those of all workers. The
start of a session's server is counted for the first test that requests it. No test fails for being
slow: a busy machine would fail the build.
"""

from __future__ import annotations

import resource
from collections import Counter
from collections.abc import Generator
from typing import TYPE_CHECKING, Final

import pytest

if TYPE_CHECKING:
    from _pytest.terminal import TerminalReporter

LONG_S: Final = 60.0
"""A file that takes longer is marked."""


CPU: Final = "cpu_s"
"""Seconds of CPU of a test's process, and of the processes that it started and that have ended."""


class CpuOfTests:
    """A pytest plugin that records the CPU time of each test."""

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, object, object]:
        """Record the CPU time so far."""
        self._before = _cpu_s()
        return (yield)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_teardown(self, item: pytest.Item) -> Generator[None, None, None]:
        """Add the CPU time since then, set-up and teardown included."""
        try:
            yield
        finally:
            item.user_properties.append((CPU, _cpu_s() - self._before))


def _cpu_s() -> float:
    used = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(usage.ru_utime + usage.ru_stime for usage in used)


class FileDurations:
    """A pytest plugin that adds up set-up, call and teardown by test file."""

    def __init__(self, count: int) -> None:
        """Print a table with this many files."""
        self._count = count
        self.seconds: Counter[str] = Counter()
        self.tests: Counter[str] = Counter()
        self.cpu: Counter[str] = Counter()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Add one phase of one test."""
        file = report.nodeid.partition("::")[0]
        self.seconds[file] += report.duration  # type: ignore[assignment]  # a Counter of seconds
        self.tests[file] += report.when == "setup"
        if report.when == "teardown":
            self.cpu[file] += sum(cpu_s for name, cpu_s in report.user_properties if name == CPU)  # type: ignore[misc]

    def pytest_terminal_summary(self, terminalreporter: TerminalReporter) -> None:
        """Print the table, if any test ran."""
        if self.seconds:
            terminalreporter.section(f"slowest {self._count} files")
            for line in self.table():
                terminalreporter.write_line(line)
            terminalreporter.section(f"most CPU: {3 * self._count} files")
            for file, cpu_s in self.cpu.most_common(3 * self._count):
                terminalreporter.write_line(f"{cpu_s:8.1f} s {self.tests[file]:6} tests  {file}")
            for folder, cpu_s in by_folder(self.cpu).most_common():
                terminalreporter.write_line(
                    f"{cpu_s:8.1f} s {by_folder(self.tests)[folder]:6} tests  {folder}/"
                )
            terminalreporter.write_line(f"{sum(self.cpu.values()):8.1f} s without servers")

    def table(self) -> list[str]:
        """Return a line for each of the slowest files, one for all, and one that names the long ones."""
        slowest = self.seconds.most_common(self._count)
        rows = [(seconds, self.tests[file], file) for file, seconds in slowest]
        rows.append((sum(self.seconds.values()), self.tests.total(), "all files"))
        lines = [f"{seconds:8.1f} s {tests:6} tests  {name}" for seconds, tests, name in rows]
        long = [file for file, seconds in self.seconds.most_common() if seconds > LONG_S]
        return [*lines, f"longer than {LONG_S:.0f} s: {', '.join(long) or 'none'}"]


def by_folder(files: Counter[str]) -> Counter[str]:
    """Add up the values of files by their folder below `tests`, two levels deep."""
    folders: Counter[str] = Counter()
    for file, amount in files.items():
        folders["/".join(file.split("/")[:-1][:3])] += amount
    return folders


def register(config: pytest.Config) -> None:
    """Add the tables to a run that has `--slowest-files`."""
    if count := config.getoption("slowest_files"):
        config.pluginmanager.register(FileDurations(count), "slowest-files")
        config.pluginmanager.register(CpuOfTests(), "cpu-of-tests")
