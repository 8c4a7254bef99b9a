"""Host processes of these tests.

They are forked from a server that has imported everything, which saves two seconds of CPU each, and
otherwise equal `callboard host`.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from actors._kernel import faults
from compose import _cli as cli
from tests.system.waiting import until

if TYPE_CHECKING:
    from collections.abc import Sequence

ROOT: Final = Path(__file__).resolve().parents[2]
LEASE_S: Final = 1.0
_FORKED: Final = multiprocessing.get_context("forkserver")
_FORKED.set_forkserver_preload(
    [
        "__main__",
        __name__,
        "tests.system.agents",
        "tests.system.fleet",
        "asyncpg",
        "nats",
        "compose._assembly.runtime",
        "broker",
        "persistence.redis",
        "compose._commands.app",
        "compose._commands.serve.serve",
    ]
)


def _be_a_host(log: Path, env: dict[str, str], words: Sequence[str]) -> None:
    """Run `callboard host`, or another command, in the forked process; its output is a file."""
    output = os.open(log, os.O_WRONLY | os.O_APPEND)
    for stream in (1, 2):
        os.dup2(output, stream)
    os.chdir(ROOT)
    os.environ.update(env)
    faults._ARMED.update(faults.parse(env[faults.VARIABLE]))
    sys.argv = ["callboard", *words, "--json"]
    cli.main()


class HostProcess:
    """A `callboard host`, or another command that serves, whose log lines are events."""

    def __init__(self, log: Path, env: dict[str, str], words: Sequence[str]) -> None:
        self.log = log
        log.touch()
        self._process = _FORKED.Process(target=_be_a_host, args=(log, env, tuple(words)))
        self._process.start()

    @property
    def pid(self) -> int:
        """The process id."""
        assert self._process.pid is not None
        return self._process.pid

    @property
    def is_alive(self) -> bool:
        """Whether it has not ended; a frozen process is alive."""
        return self._process.exitcode is None

    @property
    def is_frozen(self) -> bool:
        """Whether it is stopped by SIGSTOP."""
        try:
            stat = Path(f"/proc/{self.pid}/stat").read_text()
        except FileNotFoundError:
            return False
        return stat.rpartition(")")[2].split()[0] == "T"

    def events(self) -> list[dict[str, Any]]:
        """Return its log events so far."""
        text = self.log.read_text()
        lines = text[: text.rfind("\n") + 1].splitlines()
        return [json.loads(line) for line in lines if line.startswith("{")]

    async def until(self, event: str) -> dict[str, Any]:
        """Return the first log line of this event, or of one with this prefix."""
        lines: list[dict[str, Any]] = []

        def has_come() -> bool:
            is_over = not self.is_alive
            lines[:] = [line for line in self.events() if line["event"].startswith(event)]
            assert lines or not is_over, f"ended early:\n{self.log.read_text()}"
            return bool(lines)

        await until(has_come, f"{event} in {self.log}")
        return lines[0]

    async def until_frozen(self) -> None:
        """Return once a fault has stopped it."""
        await until(lambda: self.is_frozen, f"{self.log} is frozen")

    async def exit_code(self) -> int:
        """Return its exit code once it has ended; negative for a signal."""
        await until(lambda: not self.is_alive, f"the end of {self.log}")
        assert self._process.exitcode is not None
        return self._process.exitcode

    def thaw(self) -> None:
        """Continue it after a freeze."""
        self.send(signal.SIGCONT)

    async def until_lost(self) -> None:
        """Return once it has logged that it lost shards to another host."""
        words = {"a shard was lost to another host", "shards were lost to other hosts"}
        has_lost = lambda: any(line["event"] in words for line in self.events())  # noqa: E731
        await until(has_lost, f"lost shards in {self.log}")

    @property
    def name(self) -> str:
        """Return its incarnation, once it serves."""
        host: str = next(line["host"] for line in self.events() if line["event"] == "host.serving")
        return host

    def send(self, number: signal.Signals) -> None:
        """Send it a signal."""
        os.kill(self.pid, number)

    def end(self) -> None:
        """Kill it if it still runs, and reap it."""
        if self.is_alive:
            self._process.kill()
        self._process.join()
        self._process.close()


@dataclass(slots=True)
class Hosts:
    """Starts hosts on one schema of one server, and ends them all afterwards.

    Attributes: url: Of PostgreSQL. schema: Schema of their tables. folder: Folder of their logs.
    more: Settings of all of them, such as the broker's. started: In order.
    """

    url: str
    schema: str
    folder: Path
    more: dict[str, object] = field(default_factory=dict)
    started: list[HostProcess] = field(default_factory=list)

    def start(
        self,
        *serves: str,
        url: str | None = None,
        lease_s: float = LEASE_S,
        fault: str = "",
        command: str = "host",
        **settings: object,
    ) -> HostProcess:
        """Start a host, without waiting; `settings` are its `CALLBOARD_…` variables."""
        env = {
            "CALLBOARD_POSTGRES_URL": url or self.url,
            "CALLBOARD_SCHEMA": self.schema,
            "CALLBOARD_LEASE_S": str(lease_s),
            "CALLBOARD_HEARTBEAT_S": str(lease_s / 4),
            faults.VARIABLE: fault,
            **{
                f"CALLBOARD_{name.upper()}": str(value)
                for name, value in {**self.more, **settings}.items()
            },
        }
        log = self.folder / f"host-{len(self.started) + 1}.log"
        host = HostProcess(log, env, (command, *(serves or ("tests.system.agents:TYPES",))))
        self.started.append(host)
        return host

    async def serving(self, *serves: str, **settings: Any) -> HostProcess:
        """Start a host, and return it once it serves."""
        host = self.start(*serves, **settings)
        await host.until("host.serving")
        return host

    async def web(self, *words: str, **settings: Any) -> tuple[HostProcess, str]:
        """Start a `callboard serve`; return it once it answers, with its URL."""
        listen = "--listen", "127.0.0.1:0"
        process = self.start(*words, *listen, command="serve", **settings)
        return process, str((await process.until("web.serving"))["url"])

    def end(self) -> None:
        """End them all."""
        for host in self.started:
            host.end()
        self.started.clear()
