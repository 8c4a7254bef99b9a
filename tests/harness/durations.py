"""Which test files take how long: `--slowest-files=15` ends a run with their table.

Under xdist the controller hears of every test, so the sums are those of all workers; what a session's
server takes to start is in the first test that asks for it. Nothing fails for being slow: a busy machine
would fail the build.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import pytest
    from _pytest.terminal import TerminalReporter

LONG_S: Final = 60.0
"""A file that takes longer is named as such."""


class FileDurations:
    """A pytest plugin that adds up set-up, call and teardown by test file."""

    def __init__(self, count: int) -> None:
        """So many files stand in the table."""
        self._count = count
        self.seconds: Counter[str] = Counter()
        self.tests: Counter[str] = Counter()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Add one phase of one test."""
        file = report.nodeid.partition("::")[0]
        self.seconds[file] += report.duration  # type: ignore[assignment]  # a Counter of seconds
        self.tests[file] += report.when == "setup"

    def pytest_terminal_summary(self, terminalreporter: TerminalReporter) -> None:
        """Print the table, if any test ran."""
        if self.seconds:
            terminalreporter.section(f"slowest {self._count} files")
            for line in self.table():
                terminalreporter.write_line(line)

    def table(self) -> list[str]:
        """A line for each of the slowest files, one for all, and one that names the long ones."""
        slowest = self.seconds.most_common(self._count)
        rows = [(seconds, self.tests[file], file) for file, seconds in slowest]
        rows.append((sum(self.seconds.values()), self.tests.total(), "all files"))
        lines = [f"{seconds:8.1f} s {tests:6} tests  {name}" for seconds, tests, name in rows]
        long = [file for file, seconds in self.seconds.most_common() if seconds > LONG_S]
        return [*lines, f"longer than {LONG_S:.0f} s: {', '.join(long) or 'none'}"]


def register(config: pytest.Config) -> None:
    """Add the table to a run that has `--slowest-files`; workers leave it to the controller."""
    count = config.getoption("slowest_files")
    if count and not hasattr(config, "workerinput"):
        config.pluginmanager.register(FileDurations(count), "slowest-files")
