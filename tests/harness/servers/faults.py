"""What happens to servers: they hang, they go on, their disk is new."""

from __future__ import annotations

import os
import shutil
import signal
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

from compose.embedded.server import child_pids

if TYPE_CHECKING:
    from compose.embedded import EmbeddedServer

STOP_LIMIT_S: Final = 5.0


def freeze(server: EmbeddedServer) -> None:
    """Stop all processes of the server where they are; its connections stay open and silent."""
    _signal_all(server, signal.SIGSTOP)
    ends_at = time.monotonic() + STOP_LIMIT_S
    for pid in (server.pid, *child_pids(server.pid)):
        while not _is_stopped(pid) and time.monotonic() < ends_at:
            time.sleep(0.001)


def thaw(server: EmbeddedServer) -> None:
    """Let a frozen server go on as if nothing had been."""
    _signal_all(server, signal.SIGCONT)


def wipe(server: EmbeddedServer) -> None:
    """Delete what a stopped NATS or Valkey has stored: its next start is its first."""
    assert not server.is_running, "a running server would write its files again"
    shutil.rmtree(server.data_dir / "store")


def _is_stopped(pid: int) -> bool:
    """Whether no thread goes on: a signal takes its time on a busy machine. Elsewhere than on Linux: yes."""
    threads = Path(f"/proc/{pid}/task").glob("*/stat")
    return all(one.read_text().rpartition(")")[2].split()[0] in "TtZX" for one in threads)


def _signal_all(server: EmbeddedServer, number: signal.Signals) -> None:
    for pid in (server.pid, *child_pids(server.pid)):
        os.kill(pid, number)
