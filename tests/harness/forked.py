"""Test workers that are forked after the collection: `pytest --workers 5`.

The tests are collected once, and their modules are imported once, not once in each worker. A worker
takes some tests, runs them, and sends their reports through a pipe to the process that collected
them, which prints them. That process runs no test, so it has no loop, thread or connection that a
fork would share.
"""

from __future__ import annotations

import os
import signal
import sys
import warnings
from collections import deque
from contextlib import suppress
from multiprocessing import Pipe, get_context
from multiprocessing.connection import wait
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Final

import pytest
from _pytest.runner import runtestprotocol

if TYPE_CHECKING:
    from collections.abc import Iterator
    from multiprocessing.connection import Connection

MOST: Final = 20
"""Tests that a worker takes at once, at most: tests of a file often share a server or a browser."""
_END_S: Final = 30.0
"""A worker that is interrupted has this long to stop its servers."""


def register(config: pytest.Config) -> None:
    """Add the workers to a run that has `--workers`."""
    count = config.getoption("workers")
    if count and hasattr(os, "fork") and not config.getoption("usepdb"):
        config.pluginmanager.register(Workers(count), "workers")


def number(text: str) -> int:
    """Return the number of workers; `auto` is one for each processor."""
    return (os.cpu_count() or 1) if text == "auto" else int(text)


class Workers:
    """A pytest plugin that runs the collected tests in forked processes.

    Args: count: Number of processes.
    """

    def __init__(self, count: int) -> None:
        self._count = count
        self._waiting: deque[int] = deque()
        self._open: dict[Connection, Worker] = {}

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool | None:
        """Run all tests; if a worker dies, the test that it ran fails, and another one goes on."""
        if session.testsfailed or session.config.option.collectonly:
            return None
        self._waiting.extend(range(len(session.items)))
        try:
            for name in range(self._count):
                self._begin(session, name)
            while self._open:
                for pipe in wait(list(self._open)):
                    self._hear(session, pipe)  # type: ignore[arg-type]
        finally:
            for worker in self._open.values():
                worker.end()
        if session.shouldfail:
            raise session.Failed(session.shouldfail)
        if session.shouldstop:
            raise session.Interrupted(session.shouldstop)
        return True

    def _begin(self, session: pytest.Session, name: int) -> None:
        ours, theirs = Pipe()
        session.config.get_terminal_writer().flush()  # else each worker would print it, too
        self._open[ours] = Worker(session, theirs, name, others=[ours, *self._open])
        theirs.close()

    def _hear(self, session: pytest.Session, pipe: Connection) -> None:
        worker, hook = self._open[pipe], session.config.hook
        try:
            what, payload = pipe.recv()
        except (EOFError, ConnectionResetError):
            self._lost(session, pipe)
            return
        if what == "more":
            part = self._part(session)
            worker.tests.extend(part)
            pipe.send(part)
        elif what == "warning":
            payload["warning_message"] = warnings.WarningMessage(*payload["warning_message"])
            hook.pytest_warning_recorded.call_historic(kwargs=payload)
        else:
            worker.tests.popleft()
            for data in payload:
                report = hook.pytest_report_from_serializable(config=session.config, data=data)
                self._log(session, worker, report)

    def _part(self, session: pytest.Session) -> list[int]:
        """Return the next tests for a worker: those of one file, and towards the end single ones."""
        if session.shouldfail or session.shouldstop:
            return []
        tests, waiting = session.items, self._waiting
        size = min(MOST, len(waiting) // (4 * self._count))
        part = [waiting.popleft()] if waiting else []
        while waiting and len(part) < size and tests[waiting[0]].path == tests[part[0]].path:
            part.append(waiting.popleft())
        return part

    def _lost(self, session: pytest.Session, pipe: Connection) -> None:
        worker = self._open.pop(pipe)
        code = worker.ended()
        if not worker.tests:
            if code:
                raise RuntimeError(f"worker {worker.name} ended with {code}, outside of a test")
            return
        test = session.items[worker.tests.popleft()]
        self._waiting.extendleft(reversed(worker.tests))
        text = f"worker {worker.name} ended with {code} in this test"
        report = pytest.TestReport(test.nodeid, test.location, {}, "failed", text, "call")
        self._log(session, worker, report)
        if not session.shouldfail:
            self._begin(session, worker.name)

    @staticmethod
    def _log(session: pytest.Session, worker: Worker, report: pytest.TestReport) -> None:
        report.node = worker.node  # type: ignore[attr-defined]  # else pytest prints each change of file
        session.config.hook.pytest_runtest_logreport(report=report)


class Worker:
    """A process that runs tests, seen from the one that collected them.

    Attributes: tests: Indexes of those that it has and has not reported.
    """

    def __init__(
        self, session: pytest.Session, pipe: Connection, name: int, *, others: list[Connection]
    ) -> None:
        self.name, self.tests = name, deque[int]()
        # What pytest prints of xdist's workers: with `-v`, and above a failure.
        self.node = SimpleNamespace(
            gateway=SimpleNamespace(id=f"w{name}"), _workerinfocache=f"[worker {name}]"
        )
        factory = session.config._tmp_path_factory  # type: ignore[attr-defined]
        folder = factory.mktemp(f"worker-{name}-")
        work = (session, pipe, others, folder)
        self._process = get_context("fork").Process(target=_work, args=work)
        self._process.start()

    def ended(self) -> int | None:
        """Return its exit code, negative for a signal."""
        self._process.join()
        return self._process.exitcode

    def end(self) -> None:
        """Interrupt its test; kill it if it does not stop."""
        with suppress(ProcessLookupError):
            os.kill(self._process.pid or 0, signal.SIGINT)
        self._process.join(_END_S)
        self._process.kill()


def _work(session: pytest.Session, pipe: Connection, others: list[Connection], folder: Any) -> None:
    """Run tests in this process until no more come; then stop its servers."""
    for other in others:
        other.close()  # else the end of the collecting process would not be seen
    config = session.config
    config._tmp_path_factory._basetemp = folder  # type: ignore[attr-defined]
    capture: Any = config.pluginmanager.getplugin("capturemanager")
    capture.stop_global_capturing()  # its files would be those of the other workers, too
    capture.start_global_capturing()
    capture.suspend_global_capture()
    reports = _Reports(pipe)
    config.pluginmanager.register(reports)
    reports.is_registered = True
    try:
        tests = _tests(session, pipe)
        test = next(tests, None)
        while test is not None:
            test, last = next(tests, None), test
            config.hook.pytest_runtest_protocol(item=last, nextitem=test)
    except (KeyboardInterrupt, EOFError, BrokenPipeError):
        sys.exit(1)
    finally:
        session._setupstate.teardown_exact(None)
        pipe.close()


def _tests(session: pytest.Session, pipe: Connection) -> Iterator[pytest.Item]:
    while True:
        pipe.send(("more", None))
        part: list[int] = pipe.recv()
        if not part:
            return
        for index in part:
            yield session.items[index]


class _Reports:
    """A pytest plugin of a worker that sends what the collecting process is to print.

    Attributes: is_registered: Until then, pytest repeats the warnings of other workers.
    """

    def __init__(self, pipe: Connection) -> None:
        self._pipe, self.is_registered = pipe, False

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item, nextitem: pytest.Item | None) -> bool:
        """Run the test in pytest's own way; print nothing."""
        reports = runtestprotocol(item, nextitem=nextitem, log=False)
        send = item.config.hook.pytest_report_to_serializable
        self._pipe.send(
            ("reports", [send(config=item.config, report=report) for report in reports])
        )
        return True

    def pytest_warning_recorded(
        self,
        warning_message: warnings.WarningMessage,
        when: str,
        nodeid: str,
        location: tuple[str, int, str] | None,
    ) -> None:
        """Send a warning of a test; its message as a text, since any object may be in it."""
        if not self.is_registered:
            return
        warning = (str(warning_message.message), Warning, warning_message.filename)
        parts = (*warning, warning_message.lineno)
        payload = {"warning_message": parts, "when": when, "nodeid": nodeid, "location": location}
        self._pipe.send(("warning", payload))
