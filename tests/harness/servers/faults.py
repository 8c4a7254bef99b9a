"""Faults of servers: frozen, thawed, wiped, or replaced by a standby that lags behind."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

import asyncpg

from compose._embedded.server import child_pids

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
    """Let a frozen server continue."""
    _signal_all(server, signal.SIGCONT)


def wipe(server: EmbeddedServer) -> None:
    """Delete what a stopped NATS or Valkey has stored: its next start is its first."""
    assert not server.is_running, "a running server would write its files again"
    shutil.rmtree(server.data_dir / "store")


async def copy_of(server: EmbeddedServer) -> Path:
    """Copy the commits so far of a running PostgreSQL, as its asynchronous standby has them."""
    connection = await asyncpg.connect(server.url)
    try:
        await connection.execute("select pg_backup_start('standby', fast => true)")
        others = sum(1 for _ in server.data_dir.glob("standby-*"))
        copy = server.data_dir / f"standby-{others}"
        _copy(server.data_dir / "pgdata", copy)
        (copy / "postmaster.pid").unlink()
        label = await connection.fetchval("select labelfile from pg_backup_stop(false)")
    finally:
        await connection.close()
    (copy / "backup_label").write_text(label)
    # Only now the end of the copy is in the files of the log.
    _copy(server.data_dir / "pgdata" / "pg_wal", copy / "pg_wal")
    return copy


def _copy(what: Path, to: Path) -> None:
    # Its owner may be another user.
    subprocess.run(["cp", "-a", "-T", str(what), str(to)], check=True)


def fail_over(server: EmbeddedServer, standby: Path) -> None:
    """SIGKILL a PostgreSQL; the copy made by `copy_of` takes over its address."""
    server.kill()
    primary = server.data_dir / "pgdata"
    shutil.rmtree(primary)
    standby.rename(primary)
    server.start()


def _is_stopped(pid: int) -> bool:
    """Return whether no thread executes: a signal takes its time on a busy machine.

    True except on Linux.
    """
    threads = Path(f"/proc/{pid}/task").glob("*/stat")
    return all(thread.read_text().rpartition(")")[2].split()[0] in "TtZX" for thread in threads)


def _signal_all(server: EmbeddedServer, number: signal.Signals) -> None:
    for pid in (server.pid, *child_pids(server.pid)):
        os.kill(pid, number)
