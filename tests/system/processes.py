"""Host processes, as these tests use them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from tests.system.waiting import until

if TYPE_CHECKING:
    from collections.abc import Sequence

ROOT: Final = Path(__file__).resolve().parents[2]
LEASE_S: Final = 1.0


class HostProcess:
    """One `callboard host`, whose log lines are events."""

    def __init__(self, log: Path, env: dict[str, str], serves: Sequence[str]) -> None:
        self.log = log
        with log.open("wb") as output:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "compose", "host", *serves, "--json"],
                cwd=ROOT, env={**os.environ, **env}, stdin=subprocess.DEVNULL,
                stdout=output, stderr=output,
            )  # fmt: skip

    @property
    def pid(self) -> int:
        """Its process."""
        return self.process.pid

    def events(self) -> list[dict[str, Any]]:
        """What it has logged so far."""
        text = self.log.read_text()
        lines = text[: text.rfind("\n") + 1].splitlines()
        return [json.loads(line) for line in lines if line.startswith("{")]

    async def until(self, event: str) -> dict[str, Any]:
        """Return the first log line of this event."""
        found: list[dict[str, Any]] = []

        def has_come() -> bool:
            found[:] = [line for line in self.events() if line["event"] == event]
            assert found or self.process.poll() is None, f"ended early:\n{self.log.read_text()}"
            return bool(found)

        await until(has_come, f"{event} in {self.log}")
        return found[0]

    async def exit_code(self) -> int:
        """Return its exit code once it has ended; negative for a signal."""
        await until(lambda: self.process.poll() is not None, f"the end of {self.log}")
        assert self.process.returncode is not None
        return self.process.returncode

    def send(self, number: signal.Signals) -> None:
        """Send it a signal."""
        self.process.send_signal(number)

    def end(self) -> None:
        """Kill it if it still runs, and reap it."""
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()


@dataclass(slots=True)
class Hosts:
    """Starts hosts on one schema of one server, and ends them all afterwards."""

    url: str
    schema: str
    folder: Path
    started: list[HostProcess] = field(default_factory=list)

    def start(
        self,
        *serves: str,
        url: str | None = None,
        lease_s: float = LEASE_S,
        fault: str = "",
        **settings: object,
    ) -> HostProcess:
        """A host that is starting; `settings` are its `CALLBOARD_…` variables."""
        env = {
            "CALLBOARD_POSTGRES_URL": url or self.url, "CALLBOARD_SCHEMA": self.schema,
            "CALLBOARD_LEASE_S": str(lease_s), "CALLBOARD_HEARTBEAT_S": str(lease_s / 4),
            "CALLBOARD_FAULT": fault,
            **{f"CALLBOARD_{name.upper()}": str(value) for name, value in settings.items()},
        }  # fmt: skip
        log = self.folder / f"host-{len(self.started) + 1}.log"
        host = HostProcess(log, env, serves or ("tests.system.agents:TYPES",))
        self.started.append(host)
        return host

    async def serving(self, *serves: str, **settings: Any) -> HostProcess:
        """A host that serves."""
        host = self.start(*serves, **settings)
        await host.until("host.serving")
        return host

    def end(self) -> None:
        """End them all."""
        for host in self.started:
            host.end()
