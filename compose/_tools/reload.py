"""The tool of `callboard dev`: servers in a folder, and a host process that is replaced when the code changes.

A generation is one host process. Runs are rows, so the next generation continues open runs by replay. Servers
and generations belong to this process, and end with it, even if it is killed (on Linux).
"""

from __future__ import annotations

import asyncio
import json
import os
import shlex
import signal
import sys
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Protocol

from watchfiles import PythonFilter, awatch

from actors._kernel.runtime.ids import RunId
from actors._kernel.runtime.rows import RunRow
from actors._kernel.stores.insight import Totals
from actors._runtime.loop.clock import SystemClock
from actors._runtime.loop.tasks import TaskScope
from actors.errors import ActorsError
from compose._assembly.local import local_servers
from compose._assembly.runtime import build_postgres_runtime
from compose._assembly.settings import Settings
from compose._embedded.server import ProcessSpec, Server
from compose._host.process import Stop

POLL_S: Final = 0.2
SHOW_EVERY_S: Final = 1.0
RATE_OVER_S: Final = 10.0
DRAIN_S: Final = 5.0
"""Seconds that executing code of an old generation may continue. After them the next generation replays it."""
LEASE_S: Final = 3.0
"""Lease of a generation in seconds. After it the next generation takes over the shards of a killed one."""
SUSPEND_AFTER_S: Final = 0.5
"""Seconds after which a waiting run is evicted from memory, so that no reload has to wait for it."""
DEBOUNCE_MS: Final = 400
"""Changes of files within this number of milliseconds are handled as one change."""
MAX_RUNS: Final = 200
MAX_LINE: Final = 2000
_OF_EVERY_LINE: Final = ("at", "level", "event", "trouble")
# A server process starts in `/`, and relative paths of the application are those of the current folder.
_START: Final = "import os, sys; os.chdir(sys.argv.pop(1)); from compose._cli import main; main()"


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """The state of the deployment now.

    Attributes:
        totals: Numbers of hosts, open and parked runs, waiting messages and dead letters.
        per_second: Number of runs that ended per second, on average over the last 10 s.
        runs: The newest runs.
    """

    totals: Totals
    per_second: float
    runs: tuple[RunRow, ...]


class View(AbstractContextManager["View", None], Protocol):
    """The display of events and state. After the block the screen is as it was."""

    def show_event(self, event: str, text: str, facts: Mapping[str, object] | None = None) -> None:
        """Show an event. `event` and `facts` are for programs, and `text` is for people."""

    def show(self, snapshot: Snapshot) -> None:
        """Show the state of the deployment."""


async def develop(
    specs: Sequence[str],
    data: Path,
    watched: Sequence[Path],
    *,
    settings: Settings,
    view: View,
    stop: Stop,
) -> None:
    """Serve the agents of `specs` on servers in `data` until `stop`. Replace the host after each change.

    Args:
        specs: Texts ``MODULE:ATTR``.
        data: Folder of the servers.
        watched: Folders whose Python files are watched.
        settings: Settings of the client that reads the state: schema and namespace.
        view: The display of events and state.
        stop: The signal to stop.

    Raises:
        ContractError: This machine cannot run the servers.
    """
    view.show_event("starting", f"servers in {data}")
    async with AsyncExitStack() as stack:
        opening = stack.enter_async_context(local_servers(data))
        servers = await stop.unless_stopped(opening)
        if servers is None:
            return
        command = f"callboard send TYPE/KEY JSON --data {shlex.quote(str(data))}"
        view.show_event("servers", f"talk to the agents: {command}", {"data": str(data)})
        generations = _Generations(specs, data, view)
        async with TaskScope() as tasks:
            tasks.start(generations.follow(), name="dev log")
            await generations.start()
            tasks.start(_observe(servers.postgres_url, settings, view), name="dev view")
            try:
                async for changes in awatch(
                    *watched,
                    watch_filter=PythonFilter(),
                    stop_event=stop.requested,
                    debounce=DEBOUNCE_MS,
                ):
                    await generations.renew(Path(path) for _, path in changes)
            finally:
                view.show_event("stopping", "stopping")
                await generations.end()


class _Generations:
    """The host processes of `callboard dev`, one at a time."""

    def __init__(self, specs: Sequence[str], data: Path, view: View) -> None:
        self._specs, self._data, self._view = specs, data, view
        self._log = data / "dev-host.log"
        self._log_offset = 0
        self._number = 0
        self._host: Server | None = None

    async def start(self) -> None:
        """Start the next host process."""
        self._number += 1
        self._log.write_bytes(b"")
        self._log_offset = 0
        self._host = await asyncio.to_thread(Server, self._command())

    def _command(self) -> ProcessSpec:
        program = (sys.executable, "-c", _START, str(Path.cwd()))
        paths = [str(Path(path).absolute()) for path in sys.path if path]
        return ProcessSpec(
            name="host",
            log=self._log,
            stop_signal=signal.SIGTERM,
            argv=[*program, "host", *self._specs, "--json", "--data", str(self._data)],
            env={
                "PYTHONPATH": os.pathsep.join(paths),
                "PYTHONUNBUFFERED": "1",
                "CALLBOARD_DRAIN_S": str(DRAIN_S),
                "CALLBOARD_LEASE_S": str(LEASE_S),
                "CALLBOARD_HEARTBEAT_S": str(LEASE_S / 4),
                "CALLBOARD_SUSPEND_AFTER": str(SUSPEND_AFTER_S),
            },
        )

    async def renew(self, changed: Iterable[Path]) -> None:
        """Stop the host process and start the next one, unless a changed file cannot be compiled."""
        paths = sorted(changed)
        if (problem := await asyncio.to_thread(syntax_problem, paths)) is not None:
            is_serving = self._host is not None and self._host.is_running
            state_text = "the agents continue as before" if is_serving else "nothing is served"
            self._view.show_event("error", f"{problem}; {state_text}")
            return
        names = ", ".join(path.name for path in paths[:3]) + (" …" if len(paths) > 3 else "")  # noqa: PLR2004
        self._view.show_event(
            "changed", f"{names} changed: reloading", {"files": list(map(str, paths))}
        )
        await self.end()
        await self.start()

    async def end(self) -> None:
        """Stop the host process, and kill it if it does not end within 10 s."""
        host, self._host = self._host, None
        if host is not None:
            await asyncio.to_thread(host.stop, 2 * DRAIN_S)
            self._print_log()

    async def follow(self) -> None:
        """Show the log of the host process, and its end if it was not stopped. Runs until cancelled."""
        while True:
            self._print_log()
            host = self._host
            if host is not None and not host.is_running:
                # Once more: it may have written its error after the read above, and before it ended.
                self._print_log()
                self._host = None
                code = host.returncode
                self._view.show_event(
                    "failed",
                    f"the host ended with {code}; change the code to start it",
                    {"code": code},
                )
            await asyncio.sleep(POLL_S)

    def _print_log(self) -> None:
        with self._log.open("rb") as log:
            log.seek(self._log_offset)
            text = log.read()
        # A line that the host is still writing is shown when it is complete.
        whole_lines = text[: text.rfind(b"\n") + 1]
        self._log_offset += len(whole_lines)
        for line in whole_lines.decode(errors="replace").splitlines():
            self._print(line[:MAX_LINE])

    def _print(self, line: str) -> None:
        try:
            record: Any = json.loads(line)
            event, level = str(record["event"]), str(record["level"])
        except (ValueError, KeyError, TypeError):
            is_error = line.startswith("callboard: ")
            self._view.show_event("error" if is_error else "output", line)
            return
        if event == "host.serving":
            facts = {"generation": self._number, "pid": record["pid"], "host": record["host"]}
            words = " ".join(self._specs)
            self._view.show_event("serving", f"process {record['pid']} serves {words}", facts)
        elif level in ("warning", "error"):
            fields = {key: value for key, value in record.items() if key not in _OF_EVERY_LINE}
            trouble = str(record.get("trouble", "")).strip().splitlines()[-1:]
            words = " ".join(
                [event, *(f"{key}={value}" for key, value in fields.items()), *trouble]
            )
            self._view.show_event(level, words, fields)


def syntax_problem(paths: Iterable[Path]) -> str | None:
    """Return the first problem of compiling these files, with file and line, or None."""
    for path in paths:
        try:
            compile(path.read_bytes(), str(path), "exec", dont_inherit=True)
        except FileNotFoundError:
            continue  # deleted, or an editor is replacing it and causes another change
        except (SyntaxError, ValueError) as exc:
            line = getattr(exc, "lineno", None) or 1
            return f"{path.name}:{line}: {getattr(exc, 'msg', None) or exc}"
        except OSError as exc:
            return f"{path.name}: {exc.strerror}"
    return None


async def _observe(url: str, settings: Settings, view: View) -> None:
    """Show the state of the deployment every second until cancelled."""
    clock = SystemClock()
    rate = Rate()
    async with build_postgres_runtime(url, settings=settings, client="dev", serve=False) as runtime:
        while True:
            try:
                at = clock.monotonic()
                totals = await runtime.store.insight.totals()
                rows = await runtime.store.lists.runs(limit=MAX_RUNS)
                per_second = rate.add(rows, at)
                view.show(Snapshot(totals=totals, per_second=per_second, runs=tuple(rows)))
            # A database that does not answer for a moment must not end the display.
            except ActorsError as exc:
                view.show_event("warning", str(exc))
            await asyncio.sleep(SHOW_EVERY_S)


class Rate:
    """The number of runs that end per second, counted among the newest runs."""

    def __init__(self) -> None:
        self._ended_ids: set[RunId] = set()
        self._counts: deque[tuple[float, int]] = deque()

    def add(self, rows: Iterable[RunRow], at: float) -> float:
        """Count the runs of `rows` that ended since the last call. Return the average of the last 10 s."""
        ended_ids = {row.run_id for row in rows if row.status.is_terminal}
        if self._counts or self._ended_ids:
            self._counts.append((at, len(ended_ids - self._ended_ids)))
        else:
            self._counts.append((at, 0))  # runs that ended before the first call do not count
        self._ended_ids = ended_ids
        while self._counts[0][0] < at - RATE_OVER_S:
            self._counts.popleft()
        span = max(at - self._counts[0][0], SHOW_EVERY_S)
        return sum(count for _, count in self._counts) / span
