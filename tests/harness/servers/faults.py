"""What happens to servers: they hang, they go on, their disk is new."""

from __future__ import annotations

import os
import shutil
import signal
from typing import TYPE_CHECKING

from compose.embedded.server import child_pids

if TYPE_CHECKING:
    from compose.embedded import EmbeddedServer


def freeze(server: EmbeddedServer) -> None:
    """Stop all processes of the server where they are; its connections stay open and silent."""
    _signal_all(server, signal.SIGSTOP)


def thaw(server: EmbeddedServer) -> None:
    """Let a frozen server go on as if nothing had been."""
    _signal_all(server, signal.SIGCONT)


def wipe(server: EmbeddedServer) -> None:
    """Delete what a stopped NATS or Valkey has stored: its next start is its first."""
    assert not server.is_running, "a running server would write its files again"
    shutil.rmtree(server.data_dir / "store")


def _signal_all(server: EmbeddedServer, number: signal.Signals) -> None:
    for pid in (server.pid, *child_pids(server.pid)):
        os.kill(pid, number)
